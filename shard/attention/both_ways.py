"""Attention in which every token sees all of its text, such that its bits depend on nothing but that text.

torch's kernel gives a row the same bits whenever the shape it is computed in is the same. So each text has a call of
its own, over copies that lie in memory by themselves: their shape and their places follow from its length. Nothing is
padded. Knows nothing of a cache: a text is computed at once.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


def attend(qkv: Tensor, lengths: Sequence[int]) -> Tensor:
    """From queries, keys and values, `[tokens, 3, heads, head_dim]`, where texts of these lengths stand one after the
    other, to `[tokens, heads * head_dim]`."""
    output = torch.empty(qkv[:, 0].shape, dtype=qkv.dtype, device=qkv.device)
    for rows in rows_of(lengths):
        queries, keys, values = qkv[rows].permute(1, 2, 0, 3).contiguous()[:, None]  # [1, heads, length, head_dim] each
        output[rows] = scaled_dot_product_attention(queries, keys, values)[0].transpose(0, 1)
    return output.flatten(1)


def rows_of(lengths: Sequence[int]) -> Iterator[slice]:
    """Where each text stands on the token axis."""
    for end, length in zip(accumulate(lengths), lengths, strict=True):
        yield slice(end - length, end)
