from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from shard.attention.kv_cache import KVCache
from shard.attention.model_inputs import ModelInputs
from shard.runner.model_runner import build_model_inputs
from shard.state.sequence import Sequence
from shard.state.step import PrefillChunk, Step, TokenSpan, lay_out_step

CPU = torch.device("cpu")


class AttentionReturningItsPlanArguments:
    """Attention backend whose plan is the arguments of `plan`."""

    def plan(self, decodes: list[TokenSpan], chunks: list[TokenSpan], num_tokens: int, cache: KVCache) -> Any:
        return decodes, chunks, num_tokens

    def run(self, queries: Tensor, cache: KVCache, layer: int, plan: Any) -> Tensor:
        return queries.flatten(1)


def make_sequence(number: int, length: int, blocks: list[int] | None = None) -> Sequence:
    """Make a sequence whose tokens encode its number and their positions."""
    tokens = [1000 * number + position for position in range(length)]
    blocks = list(range(10 * number, 10 * number + 10)) if blocks is None else blocks
    return Sequence.from_prompt(number, tokens, blocks)


def build_inputs(step: Step, block_size: int = 16) -> ModelInputs:
    cache = KVCache(1, 1, 8, block_size=block_size, num_blocks=100, dtype=torch.float32, device=CPU)
    return build_model_inputs(lay_out_step(step), cache, AttentionReturningItsPlanArguments(), CPU)


def test_decode_runs_the_last_token_at_its_slot() -> None:
    inputs = build_inputs(Step(decodes=[make_sequence(1, 20), make_sequence(2, 16)]))
    assert inputs.tokens.tolist() == [1019, 2015]
    assert inputs.positions.tolist() == [19, 15]
    assert inputs.slots.tolist() == [11 * 16 + 3, 20 * 16 + 15]


def test_chunk_runs_its_tokens_at_their_slots() -> None:
    inputs = build_inputs(Step(chunks=[PrefillChunk(make_sequence(1, 20, [7, 3]), 14, 4)]))
    assert inputs.tokens.tolist() == [1014, 1015, 1016, 1017]
    assert inputs.positions.tolist() == [14, 15, 16, 17]
    assert inputs.slots.tolist() == [7 * 16 + 14, 7 * 16 + 15, 3 * 16, 3 * 16 + 1]


def test_block_size_may_exceed_16() -> None:
    inputs = build_inputs(Step(chunks=[PrefillChunk(make_sequence(1, 50, [7, 3]), 31, 2)]), block_size=32)
    assert inputs.slots.tolist() == [7 * 32 + 31, 3 * 32]


def test_decodes_come_before_chunks() -> None:
    step = Step(decodes=[make_sequence(2, 5), make_sequence(1, 3)], chunks=[PrefillChunk(make_sequence(4, 9), 0, 2),
                                                                            PrefillChunk(make_sequence(3, 9), 7, 2)])
    assert build_inputs(step).tokens.tolist() == [2004, 1002, 4000, 4001, 3007, 3008]


def test_attention_plan_gets_the_span_of_every_sequence() -> None:
    first, second, third = make_sequence(1, 5), make_sequence(2, 9), make_sequence(3, 9)
    inputs = build_inputs(Step(decodes=[first], chunks=[PrefillChunk(second, 2, 3), PrefillChunk(third, 0, 9)]))
    assert inputs.attention_plan == ([TokenSpan(0, 4, 1, first.blocks)],
                                     [TokenSpan(1, 2, 3, second.blocks), TokenSpan(4, 0, 9, third.blocks)], 13)


def test_only_decodes_and_last_chunks_are_sampled() -> None:
    step = Step(decodes=[make_sequence(1, 5)],
                chunks=[PrefillChunk(make_sequence(2, 9), 2, 3), PrefillChunk(make_sequence(3, 9), 5, 4)])
    assert build_inputs(step).sampled_rows.tolist() == [0, 7]
    assert build_inputs(Step(chunks=[PrefillChunk(make_sequence(2, 9), 2, 3)])).sampled_rows.tolist() == []


@pytest.mark.parametrize("step",
                         [Step(decodes=[make_sequence(1, 5)]), Step(chunks=[PrefillChunk(make_sequence(1, 5), 4, 1)])])
def test_single_token_is_padded_to_two_rows(step: Step) -> None:
    inputs = build_inputs(step)
    assert inputs.tokens.tolist() == [1004, 0]
    assert inputs.positions.tolist() == [4, 0]
    assert inputs.slots.tolist() == [10 * 16 + 4, 101 * 16]
    assert inputs.sampled_rows.tolist() == [0]
    assert inputs.attention_plan[2] == 2


@settings(max_examples=25)
@given(st.lists(st.integers(1, 60), max_size=5),
       st.lists(st.tuples(st.integers(0, 30), st.integers(1, 30), st.booleans()), max_size=3))
def test_sampled_rows_are_the_last_tokens_of_sampled_sequences(lengths: list[int],
                                                               chunks: list[tuple[int, int, bool]]) -> None:
    step = Step(decodes=[make_sequence(i, length) for i, length in enumerate(lengths)])
    for i, (start, length, completes) in enumerate(chunks, len(lengths)):
        step.chunks.append(PrefillChunk(make_sequence(i, start + length + (not completes)), start, length))
    if step.sequences:
        inputs = build_inputs(step)
        assert inputs.tokens[inputs.sampled_rows].tolist() == [sequence.tokens[-1]
                                                               for sequence in step.sampled_sequences]
