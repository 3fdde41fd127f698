"""Which tokens a sequence has had from some index on, and how often: what penalties go by.

Kept with the sequence once a penalty asks, and brought up to date by the tokens since. Knows nothing of logits.
"""

from array import array


class Seen:
    def __init__(self, start: int) -> None:
        """Counts tokens from the index `start` on."""
        self.ids = array("q")  # each token once
        self.counts = array("f")
        self._places: dict[int, int] = {}
        self._next = start

    def follow(self, tokens: list[int]) -> None:
        """`tokens` are those of the last call and some more."""
        for token in tokens[self._next:]:
            place = self._places.setdefault(token, len(self.ids))
            if place == len(self.ids):
                self.ids.append(token)
                self.counts.append(0.0)
            self.counts[place] += 1.0
        self._next = len(tokens)
