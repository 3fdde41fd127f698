"""Packing of documents into rows of equal length for training.

Each row begins with the beginning of a document, so that the first tokens of documents are learnt at their positions.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from launcher.demo.training.vocabulary import Encoded


class Rows(NamedTuple):
    ids: Tensor  # [rows, length]
    learnt: Tensor  # [rows, length], bool: whether the token is learnt

    def parts(self, most: int) -> Iterator["Rows"]:
        """Yield parts of at most `most` tokens, but of at least one row."""
        count = max(1, most // self.ids.shape[1])
        for first in range(0, len(self.ids), count):
            yield Rows(self.ids[first:first + count], self.learnt[first:first + count])


def pack(documents: Iterator[Encoded], count: int, length: int) -> Rows:
    """Pack `count` rows from an endless iterator; the rest of each row's last document is dropped."""
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
