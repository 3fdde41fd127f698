import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shard.attention.token_span import TokenSpan, make_int64_tensor


def test_span_ends_after_its_last_token() -> None:
    assert TokenSpan(first_row=3, start=10, length=4, blocks=[0]).end == 14


@settings(max_examples=25)
@given(st.lists(st.integers(-2**63, 2**63 - 1), max_size=8))
def test_int64_tensor_holds_the_given_integers(values: list[int]) -> None:
    made = make_int64_tensor(values)
    assert made.dtype == torch.int64
    assert made.tolist() == values
