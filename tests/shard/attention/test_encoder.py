"""Every token attends to all tokens of its own text and to no others."""

import pytest
import torch
from torch import Tensor

from shard.attention.encoder import attend, rows_of

LENGTHS = [5, 1, 130, 17]


def drawn(num_tokens: int, dtype: torch.dtype = torch.float32, heads: int = 3, width: int = 20) -> Tensor:
    return torch.randn(num_tokens, 3, heads, width, generator=torch.Generator().manual_seed(0)).to(dtype)


def plainly(qkv: Tensor) -> Tensor:
    """Compute the attention of one text: `[length, 3, heads, head_dim] -> [length, heads * head_dim]`."""
    queries, keys, values = qkv.double().permute(1, 2, 0, 3)
    weights = (queries @ keys.mT / queries.shape[-1] ** 0.5).softmax(-1)
    return (weights @ values).transpose(0, 1).flatten(1)


def test_texts_stand_one_after_the_other() -> None:
    assert list(rows_of([2, 1, 3])) == [slice(0, 2), slice(2, 3), slice(3, 6)]


def test_each_text_is_its_own_softmax() -> None:
    qkv = drawn(sum(LENGTHS))
    expected = torch.cat([plainly(qkv[rows]) for rows in rows_of(LENGTHS)])
    torch.testing.assert_close(attend(qkv, LENGTHS).double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_its_bits_are_those_that_it_has_alone(dtype: torch.dtype) -> None:
    qkv = drawn(sum(LENGTHS), dtype)
    together = attend(qkv, LENGTHS)
    for rows, length in zip(rows_of(LENGTHS), LENGTHS, strict=True):
        assert torch.equal(together[rows], attend(qkv[rows], [length]))


def test_a_text_that_is_no_number_spoils_no_other() -> None:
    qkv = drawn(sum(LENGTHS))
    expected = attend(qkv, LENGTHS)
    qkv[3] = torch.nan
    assert torch.equal(attend(qkv, LENGTHS)[5:], expected[5:])
