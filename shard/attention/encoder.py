"""Bidirectional attention for encoders, exact by docs/concepts/exactness.md, "Each text by itself". No KV cache is
used."""

from collections.abc import Iterator, Sequence
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


def bidirectional_attention(qkv: Tensor, text_lengths: Sequence[int]) -> Tensor:
    """Attend within each text. `qkv: [tokens, 3, heads, head_dim]` holds texts of these lengths one after the other;
    the result is `[tokens, heads * head_dim]`."""
    output = torch.empty(qkv[:, 0].shape, dtype=qkv.dtype, device=qkv.device)
    for rows in iter_text_slices(text_lengths):
        queries, keys, values = qkv[rows].permute(1, 2, 0, 3).contiguous()[:, None]  # [1, heads, length, head_dim] each
        output[rows] = scaled_dot_product_attention(queries, keys, values)[0].transpose(0, 1)
    return output.flatten(1)


def iter_text_slices(text_lengths: Sequence[int]) -> Iterator[slice]:
    """Yield each text's rows on the token axis."""
    for end, length in zip(accumulate(text_lengths), text_lengths, strict=True):
        yield slice(end - length, end)
