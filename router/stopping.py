"""Finds stop strings in text that arrives in pieces. Knows nothing of tokens or of what is done about a find."""


class StopStrings:
    """Looks for the stop strings of one request, wherever they begin and end within the pieces."""

    __slots__ = ("_length", "_overlap", "_strings", "_tail")

    def __init__(self, strings: tuple[str, ...]) -> None:
        self._strings = strings
        self._overlap = max(map(len, strings), default=1) - 1  # the longest part of a stop string that can be cut off
        self._tail = ""
        self._length = 0

    def feed(self, piece: str) -> int | None:
        """Where the stop string that is complete first ends, counted from the start of the text; None if there is none.

        After a find there is nothing more to feed.
        """
        if not self._strings:
            return None
        window = self._tail + piece
        start = self._length - len(self._tail)
        self._length += len(piece)
        self._tail = window[-self._overlap:] if self._overlap else ""
        ends = [at + len(string) for string in self._strings if (at := window.find(string)) >= 0]
        return start + min(ends) if ends else None
