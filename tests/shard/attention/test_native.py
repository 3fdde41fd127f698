"""Attention by compiled kernels: against the reference, and a row's bits alone and in company."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.model_runs.attention_inputs import AttentionHarness, AttentionSequence, ChunkRange
from support.model_runs.instruction_sets import AVAILABLE_SETS
from torch import Tensor

from shard.attention.backend import DEFAULT_ATTENTION_OPTIONS, AttentionOptions
from shard.attention.native import MAX_HEAD_DIM, MAX_PIECE_ROWS, NativeAttention, can_use_native_attention
from shard.native.library import load_library
from shard.ops import native_linear

library = load_library()
pytestmark = pytest.mark.skipif(library is None, reason="there are no compiled kernels here")
VARIANTS = [DEFAULT_ATTENTION_OPTIONS, AttentionOptions(sliding_windows=(0, 40)),
            AttentionOptions(sliding_windows=(0, 300)), AttentionOptions(scale=0.3, softcap=2.0),
            AttentionOptions(softcap=1.5, sliding_windows=(0, 100))]
SHAPES = [(1, 1, 64), (2, 7, 64), (1, 8, 128), (2, 24, 32), (1, 48, 16), (3, 2, 80), (1, 3, 100), (2, 2, 256),
          (1, 1, 5), (2, 3, 96)]
DTYPES = [torch.float32, torch.bfloat16]


def make_harness(shape: tuple[int, int, int], seed: int, variant: AttentionOptions, instruction_set: str = "",
                 backend: str = "native", *, dtype: torch.dtype = torch.float32) -> AttentionHarness:
    kv_heads, group, head_dim = shape
    harness = AttentionHarness(backend, kv_heads=kv_heads, group=group, head_dim=head_dim, seed=seed, variant=variant,
                               dtype=dtype)
    if instruction_set:
        assert isinstance(harness.attention, NativeAttention)
        assert library is not None
        harness.attention.library = replace(library, instruction_set=instruction_set)
    return harness


def make_cached_sequence(harness: AttentionHarness, length: int, num_cached: int) -> AttentionSequence:
    sequence = harness.make_random_sequence(length)
    harness.write_to_cache(sequence, 0, num_cached)
    return sequence


start_and_length_lists = st.lists(st.tuples(st.sampled_from([0, 30, 60, 120, 500]), st.integers(1, 80)), min_size=1,
                                  max_size=3)


@pytest.mark.parametrize("instruction_set", AVAILABLE_SETS)
@settings(max_examples=30)
@given(seed=st.integers(0, 2**32), shape=st.sampled_from(SHAPES), decodes=start_and_length_lists,
       chunks=start_and_length_lists, variant=st.sampled_from(VARIANTS))
def test_native_attention_agrees_with_the_reference(  # noqa: PLR0917 - drawn arguments
        instruction_set: str, seed: int, shape: tuple[int, int, int], decodes: list[tuple[int, int]],
        chunks: list[tuple[int, int]], variant: AttentionOptions) -> None:
    results = []
    for backend in ("native", "reference"):
        harness = make_harness(shape, seed, variant, instruction_set if backend == "native" else "", backend)
        decode_sequences = [(make_cached_sequence(harness, start + length, start + length - 1), start + length - 1)
                            for start, length in decodes]
        chunk_sequences = [(make_cached_sequence(harness, start + length, start), start, start + length)
                           for start, length in chunks]
        results.append(torch.cat(harness.run_step(decode_sequences, chunk_sequences)))
    torch.testing.assert_close(*results, rtol=0, atol=1e-5)


@st.composite
def draw_other_sequence(draw: st.DrawFn, harness: AttentionHarness) -> AttentionSequence:
    sequence = harness.make_random_sequence(draw(st.sampled_from([5, 60, 70, 140, 300])))
    if draw(st.booleans()):
        for tensor in (sequence.queries, sequence.keys, sequence.values):
            tensor[draw(st.integers(0, sequence.length - 1)):] = draw(st.sampled_from([torch.nan, torch.inf]))
    harness.write_to_cache(sequence, 0, sequence.length)
    return sequence


@pytest.mark.parametrize("instruction_set", AVAILABLE_SETS)
@settings(max_examples=30)
@given(data=st.data(), seed=st.integers(0, 2**32), shape=st.sampled_from(SHAPES), variant=st.sampled_from(VARIANTS),
       dtype=st.sampled_from(DTYPES), border=st.sampled_from([0, 64, 128, 320]), threads=st.sampled_from([1, 2]))
def test_result_does_not_depend_on_other_rows_or_chunking(  # noqa: PLR0917 - drawn arguments
        instruction_set: str, data: st.DataObject, seed: int, shape: tuple[int, int, int],
        variant: AttentionOptions, dtype: torch.dtype, border: int, threads: int) -> None:
    """Compare a sequence decoded alone with random steps beside other sequences, some of them non-finite, in a cache
    whose unowned slots are NaN."""
    harness = make_harness(shape, seed, variant, instruction_set, dtype=dtype)
    start = max(0, border - data.draw(st.integers(0, 20)))
    sequence = harness.make_random_sequence(start + data.draw(st.integers(1, 30)))
    harness.write_to_cache(sequence, 0, start)
    expected = torch.cat([harness.run_step([(sequence, position)])[0] for position in range(start, sequence.length)])
    harness.fill_all_blocks(torch.nan)
    others = [data.draw(draw_other_sequence(harness)) for _ in range(2)]
    copy = harness.copy_sequence(sequence)
    harness.write_to_cache(copy, 0, start)
    inner = (data.draw(st.sets(st.integers(start + 1, copy.length - 1), max_size=4)) if copy.length > start + 1
             else set())
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for chunk_start, end in pairwise([start, *sorted(inner), copy.length]):
            other_chunks: list[ChunkRange] = [(other, 0, min(other.length, 80)) for other in others]
            decodes = [(other, other.length - 1) for other in others]
            result = harness.run_step(decodes, [*other_chunks, (copy, chunk_start, end)])[-1]
            assert torch.equal(result, expected[chunk_start - start:end - start])
    finally:
        torch.set_num_threads(before)


def test_all_instruction_sets_give_the_same_bits() -> None:
    results = []
    for instruction_set in AVAILABLE_SETS:
        harness = make_harness((2, 7, 64), 0, AttentionOptions(softcap=20.0), instruction_set)
        sequence = harness.make_random_sequence(300)
        results.append(harness.run_step(chunks=[(sequence, 0, 300)])[0])
    assert all(torch.equal(result, results[0]) for result in results)


def test_queries_of_a_single_head_may_have_any_stride_there() -> None:
    harness = AttentionHarness("native", kv_heads=1, group=1)
    sequence = harness.make_random_sequence(5)
    harness.write_to_cache(sequence, 0, 5)
    plan = harness.attention.plan([], [sequence.make_span(0, 0, 5)], 5, harness.cache)
    expected = harness.attention.run(sequence.queries, harness.cache, 1, plan).clone()
    strided = sequence.queries.as_strided((5, 1, 32), (32, 160, 1))
    assert torch.equal(harness.attention.run(strided, harness.cache, 1, plan), expected)


@pytest.mark.parametrize("where", ["queries", "keys", "values"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_sequence_that_is_not_finite_stays_so(where: str, dtype: torch.dtype) -> None:
    """A step finds failed sequences by their hidden states, so nothing may make them finite again."""
    harness = make_harness((2, 2, 32), 0, DEFAULT_ATTENTION_OPTIONS, dtype=dtype)
    sequence = harness.make_random_sequence(100)
    getattr(sequence, where)[99 if where == "queries" else 3] = torch.nan
    harness.write_to_cache(sequence, 0, 99)
    assert harness.run_step([(sequence, 99)])[0].isnan().all()


@pytest.mark.parametrize("block_size", [16, 48, 64])
@pytest.mark.parametrize("dtype", DTYPES)
def test_result_does_not_depend_on_the_block_size(block_size: int, dtype: torch.dtype) -> None:
    results = []
    for size in (16, block_size):
        harness = AttentionHarness("native", block_size=size, num_blocks=40, dtype=dtype)
        torch.manual_seed(0)
        sequence = harness.allocate_sequence(*(torch.randn(150, *heads).to(dtype) for heads in ((4, 32), (64,), (64,))))
        results.append(torch.cat([*harness.run_step(chunks=[(sequence, 0, 149)]),
                                  *harness.run_step([(sequence, 149)])]))
    assert torch.equal(*results)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_cache_of_16_bits_is_read_as_float32(dtype: torch.dtype) -> None:
    wide, narrow = AttentionHarness("native", head_dim=36), AttentionHarness("native", head_dim=36)
    narrow.cache = type(narrow.cache)(2, 2, 36, block_size=16, num_blocks=512, dtype=dtype, device=torch.device("cpu"))
    sequence = wide.make_random_sequence(150)
    rounded = AttentionSequence(sequence.queries, sequence.keys.to(dtype).float(), sequence.values.to(dtype).float(),
                                sequence.blocks)
    (expected,) = wide.run_step(chunks=[(rounded, 0, 150)])
    narrow.cache.write(1, rounded.keys.to(dtype), rounded.values.to(dtype), narrow.get_slots(rounded, 0, 150))
    plan = narrow.attention.plan([], [rounded.make_span(0, 0, 150)], 150, narrow.cache)
    assert torch.equal(narrow.attention.run(rounded.queries, narrow.cache, 1, plan), expected)


def attend_in_bfloat16_and_float32(shape: tuple[int, int, int], variant: AttentionOptions,
                                   instruction_set: str) -> tuple[Tensor, Tensor]:
    """Return what a sequence of bfloat16 gives, in chunks, and the same numbers as float32."""
    narrow, wide = (make_harness(shape, 0, variant, instruction_set, dtype=dtype)
                    for dtype in (torch.bfloat16, torch.float32))
    sequence = narrow.make_random_sequence(200)
    widened = AttentionSequence(sequence.queries.float(), sequence.keys.float(), sequence.values.float(),
                                sequence.blocks)
    (result,), (expected,) = (harness.run_step(chunks=[(one, 0, 200)])
                              for harness, one in ((narrow, sequence), (wide, widened)))
    assert torch.equal(narrow.run_step([(sequence, 199)])[0], result[199:])
    return result, expected


@pytest.mark.parametrize("instruction_set", AVAILABLE_SETS)
@pytest.mark.parametrize("head_dim", [5, 32, 36, 100])
def test_bfloat16_queries_are_attended_to_in_float32(instruction_set: str, head_dim: int) -> None:
    result, expected = attend_in_bfloat16_and_float32((2, 2, head_dim), DEFAULT_ATTENTION_OPTIONS, instruction_set)
    if instruction_set == "amx" and head_dim % 32 == 0:
        pytest.skip("AMX sums in another order")
    assert torch.equal(result, expected.bfloat16())


@pytest.mark.skipif("amx" not in AVAILABLE_SETS, reason="there is no AMX here")
@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape[2] % 32 == 0])
@pytest.mark.parametrize("variant", VARIANTS)
def test_tiles_of_amx_are_as_exact_as_the_rounding_of_their_result(shape: tuple[int, int, int],
                                                                   variant: AttentionOptions) -> None:
    result, expected = attend_in_bfloat16_and_float32(shape, variant, "amx")
    rounded = expected.bfloat16().float()
    assert (result.float() - expected).abs().max() < 1.02 * (rounded - expected).abs().max() + 1e-5
    assert (result.float() != rounded).float().mean() < 0.02  # few are rounded to the other side


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_in_no_span_gets_zeros(dtype: torch.dtype) -> None:
    harness = AttentionHarness("native", dtype=dtype)
    sequence = harness.make_random_sequence(1)
    harness.write_to_cache(sequence, 0, 1)
    plan = harness.attention.plan([sequence.make_span(0, 0, 1)], [], 2, harness.cache)
    result = harness.attention.run(torch.full((2, 4, 32), torch.nan, dtype=dtype), harness.cache, 0, plan)
    assert not result[1].any()


def test_other_kinds_of_attention_are_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    assert can_use_native_attention(torch.float32, MAX_PIECE_ROWS, MAX_HEAD_DIM)
    assert not can_use_native_attention(torch.float16, 1, 64)
    assert not can_use_native_attention(torch.float32, MAX_PIECE_ROWS + 1, 64)
    assert not can_use_native_attention(torch.float32, 1, MAX_HEAD_DIM + 1)
    monkeypatch.setattr(native_linear, "load_library", lambda: None)
    assert not can_use_native_attention(torch.float32, 1, 64)
