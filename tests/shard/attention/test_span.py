import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shard.attention.span import Span, integers


def test_a_span_ends_behind_its_last_token() -> None:
    assert Span(row=3, start=10, length=4, blocks=[0]).end == 14


@settings(max_examples=25)
@given(st.lists(st.integers(-2**63, 2**63 - 1), max_size=8))
def test_integers_are_those_of_torch(values: list[int]) -> None:
    made = integers(values)
    assert made.dtype == torch.int64
    assert made.tolist() == values
