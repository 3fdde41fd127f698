"""Errors of messages that are not applied, and of steps without memory. Any other exception means a failed step."""


class MalformedMessage(Exception):
    """Message that is invalid, whatever the shard's state."""


class RejectedMessage(Exception):
    """Message that does not fit the shard's state."""


class StartupOutOfMemory(RejectedMessage, ValueError):
    """Too little memory for the model, its cache or its largest step. Another start may find enough."""


class StepOutOfMemory(Exception):
    """Too little memory for a step. A smaller step may fit."""


class PeerLost(RuntimeError):
    """Loss of another rank, which is gone, hangs or is out of step. The rank that raises this is not the cause."""
