from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from shard.attention.inputs import Inputs, build
from shard.attention.kv_cache import Cache
from shard.attention.span import Span
from shard.state.sequence import Sampling, Sequence
from shard.state.transaction import Chunk, Step

CPU = torch.device("cpu")


class Note:
    """Attention backend whose plan is the arguments of `plan`."""

    def plan(self, decodes: list[Span], chunks: list[Span], num_tokens: int, cache: Cache) -> Any:
        return decodes, chunks, num_tokens

    def run(self, queries: Tensor, cache: Cache, layer: int, plan: Any) -> Tensor:
        return queries.flatten(1)


def a_sequence(number: int, length: int, blocks: list[int] | None = None) -> Sequence:
    """Make a sequence whose tokens encode its number and their positions."""
    tokens = [1000 * number + position for position in range(length)]
    blocks = list(range(10 * number, 10 * number + 10)) if blocks is None else blocks
    return Sequence(id=number, tokens=tokens, num_prompt_tokens=length, num_given=length, computed=0, num_cached=0,
                    blocks=blocks, key=0, sampling=Sampling(), prompt_logprobs=False, adapter=0, grammar=0)


def inputs_of(step: Step, block_size: int = 16) -> Inputs:
    cache = Cache(1, 1, 8, block_size=block_size, num_blocks=100, dtype=torch.float32, device=CPU)
    return build(step, cache, Note(), CPU)


def test_a_decode_runs_the_last_token_at_its_place() -> None:
    inputs = inputs_of(Step(decodes=[a_sequence(1, 20), a_sequence(2, 16)]))
    assert inputs.tokens.tolist() == [1019, 2015]
    assert inputs.positions.tolist() == [19, 15]
    assert inputs.slots.tolist() == [11 * 16 + 3, 20 * 16 + 15]


def test_a_chunk_runs_its_tokens_at_their_places() -> None:
    inputs = inputs_of(Step(chunks=[Chunk(a_sequence(1, 20, [7, 3]), 14, 4)]))
    assert inputs.tokens.tolist() == [1014, 1015, 1016, 1017]
    assert inputs.positions.tolist() == [14, 15, 16, 17]
    assert inputs.slots.tolist() == [7 * 16 + 14, 7 * 16 + 15, 3 * 16, 3 * 16 + 1]


def test_blocks_may_be_larger() -> None:
    inputs = inputs_of(Step(chunks=[Chunk(a_sequence(1, 50, [7, 3]), 31, 2)]), block_size=32)
    assert inputs.slots.tolist() == [7 * 32 + 31, 3 * 32]


def test_decodes_come_before_chunks() -> None:
    step = Step(decodes=[a_sequence(2, 5), a_sequence(1, 3)], chunks=[Chunk(a_sequence(4, 9), 0, 2),
                                                                      Chunk(a_sequence(3, 9), 7, 2)])
    assert inputs_of(step).tokens.tolist() == [2004, 1002, 4000, 4001, 3007, 3008]


def test_attention_is_told_where_everybody_stands() -> None:
    one, two, three = a_sequence(1, 5), a_sequence(2, 9), a_sequence(3, 9)
    inputs = inputs_of(Step(decodes=[one], chunks=[Chunk(two, 2, 3), Chunk(three, 0, 9)]))
    assert inputs.plan == ([Span(0, 4, 1, one.blocks)], [Span(1, 2, 3, two.blocks), Span(4, 0, 9, three.blocks)], 13)


def test_only_who_yields_is_sampled() -> None:
    step = Step(decodes=[a_sequence(1, 5)], chunks=[Chunk(a_sequence(2, 9), 2, 3), Chunk(a_sequence(3, 9), 5, 4)])
    assert inputs_of(step).sampled.tolist() == [0, 7]
    assert inputs_of(Step(chunks=[Chunk(a_sequence(2, 9), 2, 3)])).sampled.tolist() == []


@pytest.mark.parametrize("step", [Step(decodes=[a_sequence(1, 5)]), Step(chunks=[Chunk(a_sequence(1, 5), 4, 1)])])
def test_a_token_is_never_alone(step: Step) -> None:
    inputs = inputs_of(step)
    assert inputs.tokens.tolist() == [1004, 0]
    assert inputs.positions.tolist() == [4, 0]
    assert inputs.slots.tolist() == [10 * 16 + 4, 101 * 16]
    assert inputs.sampled.tolist() == [0]
    assert inputs.plan[2] == 2


@settings(max_examples=25)
@given(st.lists(st.integers(1, 60), max_size=5),
       st.lists(st.tuples(st.integers(0, 30), st.integers(1, 30), st.booleans()), max_size=3))
def test_the_sampled_rows_are_the_last_tokens_of_those_who_yield(lengths: list[int],
                                                                 chunks: list[tuple[int, int, bool]]) -> None:
    step = Step(decodes=[a_sequence(i, length) for i, length in enumerate(lengths)])
    for i, (start, length, completes) in enumerate(chunks, len(lengths)):
        step.chunks.append(Chunk(a_sequence(i, start + length + (not completes)), start, length))
    if step.sequences:
        inputs = inputs_of(step)
        assert inputs.tokens[inputs.sampled].tolist() == [sequence.tokens[-1] for sequence in step.yielding]
