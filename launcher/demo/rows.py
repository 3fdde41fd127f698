"""Documents packed into rows of one length, as training takes them.

Knows nothing of models. A row begins where a document begins: the model meets first tokens at their places.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from launcher.demo.vocabulary import Encoded


class Rows(NamedTuple):
    ids: Tensor  # [rows, length]
    learnt: Tensor  # the same, of bools

    def parts(self, most: int) -> Iterator["Rows"]:
        """So many tokens at a time, or one row."""
        count = max(1, most // self.ids.shape[1])
        for first in range(0, len(self.ids), count):
            yield Rows(self.ids[first:first + count], self.learnt[first:first + count])


def pack(documents: Iterator[Encoded], count: int, length: int) -> Rows:
    """So many rows; what of a row's last document does not fit is dropped. The documents never end."""
    rows = [packed(documents, length) for _ in range(count)]
    return Rows(torch.tensor([ids for ids, _ in rows]), torch.tensor([learnt for _, learnt in rows]))


def packed(documents: Iterator[Encoded], length: int) -> Encoded:
    ids: list[int] = []
    learnt: list[bool] = []
    while len(ids) < length:
        more, which = next(documents)
        ids += more
        learnt += which
    return ids[:length], learnt[:length]
