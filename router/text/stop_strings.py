"""Stop strings, found in text that arrives in pieces."""


class StopStringMatcher:
    """Matcher of one request's stop strings; a match may begin in one piece of text and end in another."""

    __slots__ = ("_length", "_overlap", "_strings", "_tail")

    def __init__(self, strings: tuple[str, ...]) -> None:
        self._strings = strings
        self._overlap = max(map(len, strings), default=1) - 1  # longest part of a stop string in the pieces before
        self._tail = ""
        self._length = 0

    def feed(self, piece: str) -> int | None:
        """Return the end of the stop string that is complete first, as an offset in the whole text; None if none is.

        Must not be called again after a match.
        """
        if not self._strings:
            return None
        window = self._tail + piece
        start = self._length - len(self._tail)
        self._length += len(piece)
        self._tail = window[-self._overlap:] if self._overlap else ""
        ends = [start_index + len(string) for string in self._strings if (start_index := window.find(string)) >= 0]
        return start + min(ends) if ends else None


