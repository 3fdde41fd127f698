"""Packing of documents into rows of equal length for training.

Each row begins with the beginning of a document, so that the first tokens of documents are learnt at their positions.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from launcher.demo.training.tokenizer import EncodedDocument


class PackedRows(NamedTuple):
    """Batch of packed rows: token ids and the loss mask."""

    token_ids: Tensor  # [rows, length]
    loss_mask: Tensor  # [rows, length], bool: whether the token is learnt

    def split_by_tokens(self, max_tokens: int) -> Iterator["PackedRows"]:
        """Yield parts of at most `max_tokens` tokens, but of at least one row."""
        count = max(1, max_tokens // self.token_ids.shape[1])
        for first in range(0, len(self.token_ids), count):
            yield PackedRows(self.token_ids[first:first + count], self.loss_mask[first:first + count])


def pack_rows(documents: Iterator[EncodedDocument], num_rows: int, row_length: int) -> PackedRows:
    """Pack `num_rows` rows from an endless iterator; the rest of each row's last document is dropped."""
    rows = [pack_row(documents, row_length) for _ in range(num_rows)]
    return PackedRows(torch.tensor([ids for ids, _ in rows]), torch.tensor([row_mask for _, row_mask in rows]))


def pack_row(documents: Iterator[EncodedDocument], row_length: int) -> EncodedDocument:
    token_ids: list[int] = []
    loss_mask: list[bool] = []
    while len(token_ids) < row_length:
        document_ids, document_mask = next(documents)
        token_ids += document_ids
        loss_mask += document_mask
    return token_ids[:row_length], loss_mask[:row_length]
