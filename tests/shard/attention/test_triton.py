"""Paged attention kernels under Triton's interpreter, on random inputs; `tests/shard/ops/test_triton_support.py`
compiles them for GPUs."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.model_runs.attention_inputs import AttentionHarness, AttentionSequence
from support.model_runs.uninitialized_memory import fill_uninitialized_with_nan
from torch import Tensor

from shard.attention.backend import DEFAULT_ATTENTION_OPTIONS, AttentionOptions
from shard.state.step import TokenSpan

pytest.importorskip("triton")  # published for Linux only

from triton import next_power_of_2

from shard.attention import triton
from shard.attention.triton import (
    AttentionTileSizes,
    TritonAttentionPlan,
    iter_chunk_tile_entries,
    list_split_entries,
    pad_head_dim,
)

GPU_SPLIT = triton.SPLIT_POSITIONS
SHORT_SPLIT = 128  # slots, half of a GPU's: the interpreter is slow
VARIANTS = [DEFAULT_ATTENTION_OPTIONS, AttentionOptions(sliding_windows=(0, 40)),
            AttentionOptions(sliding_windows=(0, SHORT_SPLIT + 36)),
            AttentionOptions(scale=0.3, softcap=2.0, exact=True),
            AttentionOptions(softcap=1.5, sliding_windows=(0, 50), exact=True)]
TOLERANCE_BY_DTYPE = {torch.float32: 2e-5, torch.float16: 4e-3}
HEAD_COUNTS = [(1, 1), (2, 2), (1, 7), (2, 4)]  # key/value heads, and query heads for each
# of blocks, tiles and splits
EDGE_LENGTHS = [1, 2, 15, 16, 17, 31, 32, 33, SHORT_SPLIT - 1, SHORT_SPLIT, SHORT_SPLIT + 1, 2 * SHORT_SPLIT + 3]
NAN_FILL = float("nan")

length_lists = st.lists(st.sampled_from(EDGE_LENGTHS), min_size=1, max_size=3)


@pytest.fixture(autouse=True)
def shorten_splits_and_fill_memory_with_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton, "SPLIT_POSITIONS", SHORT_SPLIT)
    fill_uninitialized_with_nan(monkeypatch)


def run_triton_and_reference(harness_options: dict[str, object], decodes: list[int],
                             chunks: list[tuple[int, int]]) -> list[tuple[Tensor, Tensor]]:
    """Run a step of decodes at these lengths and of chunks (start, end), by the kernels and by the reference, in a
    cache where everything else is NaN. Return pairs of results."""
    results = []
    for backend in ("triton", "reference"):
        harness = AttentionHarness(backend, **harness_options)  # type: ignore[arg-type]
        harness.fill_all_blocks(NAN_FILL)
        decode_sequences, prompt_sequences = ([harness.make_random_sequence(length) for length in decodes],
                                              [harness.make_random_sequence(end) for _, end in chunks])
        for sequence, num_cached in [*((part, part.length - 1) for part in decode_sequences), *(
            (part, start) for part, (start, _) in zip(prompt_sequences, chunks, strict=True))]:
            harness.write_to_cache(sequence, 0, num_cached)
        results.append(harness.run_step([(part, part.length - 1) for part in decode_sequences], [
            (part, start, end) for part, (start, end) in zip(prompt_sequences, chunks, strict=True)]))
    return list(zip(*results, strict=True))


@pytest.mark.slow
@settings(max_examples=12)
@given(st.integers(0, 2**32), st.sampled_from(HEAD_COUNTS), st.sampled_from([64, 80, 128, 256]), length_lists,
       length_lists, st.sampled_from(VARIANTS))
def test_kernels_agree_with_the_reference(  # noqa: PLR0917 - drawn arguments
        seed: int, heads: tuple[int, int], head_dim: int, decodes: list[int], ends: list[int],
        variant: AttentionOptions) -> None:
    chunks = [(end // 3, end) for end in ends]
    harness_options = {"kv_heads": heads[0], "group": heads[1], "head_dim": head_dim, "seed": seed,
                       "dtype": torch.float16, "variant": variant}
    for triton_output, reference_output in run_triton_and_reference(harness_options, decodes, chunks):
        torch.testing.assert_close(triton_output, reference_output, rtol=0, atol=TOLERANCE_BY_DTYPE[torch.float16])


@pytest.mark.slow
@settings(max_examples=4)
@given(st.integers(0, 2**32), st.sampled_from(HEAD_COUNTS), st.sampled_from([64, 80, 256]),
       st.sampled_from([1, 17, SHORT_SPLIT + 1]), st.sampled_from(VARIANTS))
def test_kernels_agree_with_the_reference_in_float32(
        seed: int, heads: tuple[int, int], head_dim: int, length: int, variant: AttentionOptions) -> None:
    harness_options = {"kv_heads": heads[0], "group": heads[1], "head_dim": head_dim, "seed": seed, "variant": variant}
    for triton_output, reference_output in run_triton_and_reference(harness_options, [length], [(length // 2, length)]):
        torch.testing.assert_close(triton_output, reference_output, rtol=0, atol=TOLERANCE_BY_DTYPE[torch.float32])


@pytest.mark.slow
@pytest.mark.parametrize("block_size", [16, 32, 128])
def test_kernels_support_any_block_size(block_size: int) -> None:
    for triton_output, reference_output in run_triton_and_reference({"block_size": block_size, "dtype": torch.float16},
                                                                    [40, 129], [(3, 70)]):
        torch.testing.assert_close(triton_output, reference_output, rtol=0, atol=TOLERANCE_BY_DTYPE[torch.float16])


@pytest.mark.slow
@settings(max_examples=3)
@given(st.integers(0, 2**32), st.lists(st.integers(1, 150), max_size=3), st.lists(st.integers(1, 70), max_size=2),
       st.sampled_from(VARIANTS))
def test_result_does_not_depend_on_other_rows(seed: int, decodes: list[int], chunks: list[int],
                                              variant: AttentionOptions) -> None:
    harness = AttentionHarness("triton", kv_heads=1, seed=seed, dtype=torch.float16, variant=variant)
    sequence = harness.make_random_sequence(150)
    alone = [*harness.run_step(chunks=[(sequence, 0, 149)]), *harness.run_step([(sequence, 149)])]
    sequence_copy = harness.copy_sequence(sequence)
    other_decodes = [(harness.make_random_sequence(length), length - 1) for length in decodes]
    other_chunks = [(harness.make_random_sequence(length), 0, length) for length in chunks]
    assert torch.equal(harness.run_step(other_decodes, [*other_chunks, (sequence_copy, 0, 149)])[-1], alone[0])
    assert torch.equal(harness.run_step([*other_decodes, (sequence_copy, 149)], other_chunks)[len(other_decodes)],
                       alone[1])


@pytest.mark.slow
@settings(max_examples=3)
@given(st.integers(0, 2**32), st.sets(st.integers(1, 158), max_size=4), st.sampled_from(VARIANTS))
def test_result_does_not_depend_on_chunking(seed: int, cuts: set[int], variant: AttentionOptions) -> None:
    """With `exact`, a decoded token is a chunk of one token, computed with as many rows in a matmul."""
    harness = AttentionHarness("triton", kv_heads=1, seed=seed, dtype=torch.float16,
                               variant=replace(variant, exact=True))
    sequence = harness.make_random_sequence(160)
    (unchunked,) = harness.run_step(chunks=[(sequence, 0, 160)])
    edges = [0, *sorted(cuts), 159, 160]
    sequence_copy = harness.copy_sequence(sequence)
    pieces = [harness.run_step(chunks=[(sequence_copy, start, end)])[0] if end - start > 1
              else harness.run_step([(sequence_copy, start)])[0] for start, end in pairwise(edges)]
    assert torch.equal(torch.cat(pieces), unchunked)


@pytest.mark.slow
def test_fewer_programs_than_splits_give_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """A captured launch needs this: its number of splits is not known in advance."""
    harness = AttentionHarness("triton", dtype=torch.float16,
                               variant=AttentionOptions(sliding_windows=(0, SHORT_SPLIT + 44)))
    decodes = [(part, part.length - 1)
               for part in map(harness.make_random_sequence, (3 * SHORT_SPLIT + 5, 1, SHORT_SPLIT + 1))]
    for sequence, before in decodes:
        harness.write_to_cache(sequence, 0, before)
    expected, plan = harness.run_step(decodes), harness.attention.plan

    def plan_with_two_programs(*spans: Any) -> TritonAttentionPlan:
        attention_plan: Any = plan(*spans)
        return replace(attention_plan, decodes_by_window={
            window: replace(splits, num_programs=2) for window, splits in attention_plan.decodes_by_window.items()})

    monkeypatch.setattr(harness.attention, "plan", plan_with_two_programs)
    assert all(torch.equal(*pair) for pair in zip(harness.run_step(decodes), expected, strict=True))


def test_a_row_in_no_span_gets_zeros() -> None:
    harness = AttentionHarness("triton", dtype=torch.float16)
    sequence = harness.make_random_sequence(1)
    plan = harness.attention.plan([sequence.make_span(0, 0, 1)], [], 2, harness.cache)
    result = harness.attention.run(sequence.queries.expand(2, -1, -1).contiguous(), harness.cache, 0, plan)
    assert not result[1].any()


def test_empty_chunk_changes_nothing() -> None:
    harness = AttentionHarness("triton", dtype=torch.float16)
    sequence, empty_sequence = harness.make_random_sequence(5), AttentionSequence(*[torch.empty(0)] * 3, [])
    harness.write_to_cache(sequence, 0, 5)
    spans = [sequence.make_span(0, 0, 5), TokenSpan(5, 0, 0, empty_sequence.blocks)]
    plan = harness.attention.plan([], spans, 5, harness.cache)
    (alone,) = harness.run_step(chunks=[(sequence, 0, 5)])
    assert torch.equal(harness.attention.run(sequence.queries, harness.cache, 1, plan), alone)


def test_queries_may_be_a_view_of_a_larger_tensor() -> None:
    """Queries are the first heads of the fused QKV output."""
    harness = AttentionHarness("triton", dtype=torch.float16)
    sequence = harness.make_random_sequence(20)
    (alone,) = harness.run_step(chunks=[(sequence, 0, 20)])
    queries_view = torch.cat([sequence.queries, sequence.queries.new_full((20, 3, 32), NAN_FILL)],
                             1)[:, :sequence.queries.shape[1]]
    plan = harness.attention.plan([], [sequence.make_span(0, 0, 20)], 20, harness.cache)
    assert torch.equal(harness.attention.run(queries_view, harness.cache, 1, plan), alone)


@pytest.mark.parametrize(("position", "window", "splits"),
                         [(0, 0, [0]), (SHORT_SPLIT - 1, 0, [0]), (SHORT_SPLIT, 0, [0, 1]),
                          (3 * SHORT_SPLIT + 1, 0, [0, 1, 2, 3]), (SHORT_SPLIT, 1, [1]), (SHORT_SPLIT, 2, [0, 1]),
                          (SHORT_SPLIT + 20, 18, [1]), (3 * SHORT_SPLIT + 1, SHORT_SPLIT + 2, [2, 3]), (5, 9000, [0])])
def test_splits_are_counted_from_the_first_token(position: int, window: int, splits: list[int]) -> None:
    """Splits outside the window are left out."""
    work = list(list_split_entries(TokenSpan(3, position, 1, []), 7, window, 32))
    assert work == [number for split in splits for number in (3, 7, position, split)]


@given(st.integers(0, 99), st.integers(0, 500), st.integers(1, 300), st.integers(1, 64))
def test_tiles_cover_the_chunk(row: int, start: int, length: int, each: int) -> None:
    numbers = list(iter_chunk_tile_entries(TokenSpan(row, start, length, []), 7, each))
    tiles = [numbers[place:place + 4] for place in range(0, len(numbers), 4)]
    assert [row + token for token in range(length)] == [first + i for first, _, _, size in tiles for i in range(size)]
    assert all((tile[1], tile[2] - tile[0]) == (7, start - row) for tile in tiles)


@given(st.integers(1, 128), st.integers(16, 256), st.sampled_from([torch.float32, torch.bfloat16]), st.booleans())
def test_a_program_holds_at_least_one_token(group: int, head_dim: int, dtype: torch.dtype, exact: bool) -> None:
    assert pad_head_dim(head_dim) >= head_dim
    for sizes in (both := AttentionTileSizes.from_heads(group, head_dim, dtype, exact=exact)):
        assert sizes.query_rows >= group
        assert sizes.query_rows == next_power_of_2(sizes.query_rows)
        assert GPU_SPLIT % sizes.tile_positions == SHORT_SPLIT % sizes.tile_positions == 0
    assert both.decodes == both.chunks or not exact
