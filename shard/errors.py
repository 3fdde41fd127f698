"""Why a message is not applied, or a step has no end. Whatever else a worker raises is a step that failed."""


class Malformed(Exception):
    """The message makes no sense, whatever the shard's state."""


class Refused(Exception):
    """The message does not fit the shard's state."""


class NoRoom(Refused, ValueError):
    """There is too little memory for the model, its cache or its largest step. Another time there may be enough."""


class Exhausted(Exception):
    """There was no memory for the step. A smaller one may find some."""
