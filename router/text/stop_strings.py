"""Detection of a sequence's end: by its length, an end token, or a stop string in text that arrives in pieces."""

from collections.abc import Sequence as Rows

from router.request import FinishReason, Request


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


def count_accepted_tokens(request: Request, num_generated: int, tokens: Rows[int],
                          stop_token_count: int | None) -> tuple[int, FinishReason | None]:
    """Return how many of a row's tokens count, and the finish reason if the sequence ends with the last of them.

    No other code decides from tokens that a sequence is finished. If several reasons apply to one token, the length
    goes first, then the end token.
    """
    if len(tokens) == 1 and stop_token_count is None and num_generated + 1 < request.max_new_tokens:  # nearly always
        return 1, FinishReason.END_TOKEN if tokens[0] in request.end_tokens else None
    limit = min(len(tokens), request.max_new_tokens - num_generated,
                len(tokens) if stop_token_count is None else stop_token_count)
    for index in range(limit):
        if num_generated + index + 1 >= request.max_new_tokens:
            return index + 1, FinishReason.LENGTH
        if tokens[index] in request.end_tokens:
            return index + 1, FinishReason.END_TOKEN
    return limit, FinishReason.STOP_STRING if stop_token_count is not None else None
