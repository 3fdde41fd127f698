"""Counts of a sequence's tokens from some index on, as penalties need them.

Kept with the sequence once a penalty uses them, and updated with the tokens since.
"""

from array import array


class TokenOccurrences:
    """How often each token id occurs in a sequence from some index on, for penalties."""

    def __init__(self, start_index: int) -> None:
        """Count tokens from the index `start_index` on."""
        self.token_ids = array("q")  # each token once
        self.counts = array("f")
        self._index_by_token: dict[int, int] = {}
        self._next_index = start_index

    def update(self, tokens: list[int]) -> None:
        """Count new tokens; `tokens` has those of the last call, followed by the new ones."""
        for token in tokens[self._next_index:]:
            index = self._index_by_token.setdefault(token, len(self.token_ids))
            if index == len(self.token_ids):
                self.token_ids.append(token)
                self.counts.append(0.0)
            self.counts[index] += 1.0
        self._next_index = len(tokens)
