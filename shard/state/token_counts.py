"""Counts of a sequence's tokens from some index on, as penalties need them.

Kept with the sequence once a penalty uses them, and updated with the tokens since.
"""

from array import array


class Seen:
    def __init__(self, start: int) -> None:
        """Count tokens from the index `start` on."""
        self.ids = array("q")  # each token once
        self.counts = array("f")
        self._places: dict[int, int] = {}
        self._next = start

    def follow(self, tokens: list[int]) -> None:
        """Count new tokens; `tokens` has those of the last call, followed by the new ones."""
        for token in tokens[self._next:]:
            place = self._places.setdefault(token, len(self.ids))
            if place == len(self.ids):
                self.ids.append(token)
                self.counts.append(0.0)
            self.counts[place] += 1.0
        self._next = len(tokens)
