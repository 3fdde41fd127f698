"""Every token attends to all tokens of its own text and to no others."""

import pytest
import torch
from torch import Tensor

from shard.attention.encoder import bidirectional_attention, iter_text_slices

TEXT_LENGTHS = [5, 1, 130, 17]


def make_random_qkv(num_tokens: int, dtype: torch.dtype = torch.float32, heads: int = 3, head_dim: int = 20) -> Tensor:
    return torch.randn(num_tokens, 3, heads, head_dim, generator=torch.Generator().manual_seed(0)).to(dtype)


def attend_in_float64(qkv: Tensor) -> Tensor:
    """Compute the attention of one text: `[length, 3, heads, head_dim] -> [length, heads * head_dim]`."""
    queries, keys, values = qkv.double().permute(1, 2, 0, 3)
    weights = (queries @ keys.mT / queries.shape[-1] ** 0.5).softmax(-1)
    return (weights @ values).transpose(0, 1).flatten(1)


def test_slices_of_texts_are_consecutive() -> None:
    assert list(iter_text_slices([2, 1, 3])) == [slice(0, 2), slice(2, 3), slice(3, 6)]


def test_each_text_attends_only_to_itself() -> None:
    qkv = make_random_qkv(sum(TEXT_LENGTHS))
    expected = torch.cat([attend_in_float64(qkv[rows]) for rows in iter_text_slices(TEXT_LENGTHS)])
    torch.testing.assert_close(bidirectional_attention(qkv, TEXT_LENGTHS).double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_result_does_not_depend_on_other_texts(dtype: torch.dtype) -> None:
    qkv = make_random_qkv(sum(TEXT_LENGTHS), dtype)
    batched_output = bidirectional_attention(qkv, TEXT_LENGTHS)
    for rows, length in zip(iter_text_slices(TEXT_LENGTHS), TEXT_LENGTHS, strict=True):
        assert torch.equal(batched_output[rows], bidirectional_attention(qkv[rows], [length]))


def test_nan_in_a_text_does_not_reach_other_texts() -> None:
    qkv = make_random_qkv(sum(TEXT_LENGTHS))
    expected = bidirectional_attention(qkv, TEXT_LENGTHS)
    qkv[3] = torch.nan
    assert torch.equal(bidirectional_attention(qkv, TEXT_LENGTHS)[5:], expected[5:])
