"""Exactness of CPU attention: results are compared by `torch.equal`, except with the reference backend."""

from itertools import pairwise

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.model_runs.attention_inputs import AttentionHarness, AttentionSequence, ChunkRange
from torch import Tensor

from shard.attention import cpu
from shard.attention.backend import DEFAULT_ATTENTION_OPTIONS, AttentionOptions
from shard.attention.cpu import (
    CausalMask,
    GatherWindow,
    batch_decodes,
    round_up_gather_length,
    split_chunk_into_pieces,
)
from shard.state.step import TokenSpan

UNLIMITED_WINDOW = GatherWindow(0)
DTYPES = [torch.float32, torch.bfloat16]
GATHER_LENGTH_BORDERS = [64, 128, 256, 512, 1024]  # number of tokens at which the gathered length changes
VARIANTS = [DEFAULT_ATTENTION_OPTIONS, AttentionOptions(sliding_windows=(0, 40)),
            AttentionOptions(sliding_windows=(0, 300)), AttentionOptions(scale=0.3, softcap=2.0),
            AttentionOptions(softcap=1.5, sliding_windows=(0, 100))]


def attention_harnesses() -> st.SearchStrategy[AttentionHarness]:
    return st.builds(AttentionHarness, kv_heads=st.sampled_from([1, 2]), group=st.sampled_from([1, 2, 4, 7, 8]),
                     head_dim=st.sampled_from([32, 64, 128]), dtype=st.sampled_from(DTYPES), seed=st.integers(0, 2**32),
                     variant=st.sampled_from(VARIANTS))


# ---------------------------------------------------------------------------------------------------------------------
# Gathered lengths


@pytest.mark.parametrize(("num_places", "length"), [
    (1, 64), (64, 64), (65, 128), (128, 128), (129, 256), (256, 256), (257, 512), (512, 512), (513, 1024), (1024, 1024),
    (1025, 1536), (4000, 4096)])
def test_gather_length_follows_from_the_position(num_places: int, length: int) -> None:
    assert round_up_gather_length(num_places) == length


@settings(max_examples=50)
@given(st.integers(1, 100_000))
def test_gather_length_grows_only_after_multiples_of_64(num_places: int) -> None:
    assert num_places <= round_up_gather_length(num_places) <= round_up_gather_length(num_places + 1)
    assert num_places % 64 == 0 or round_up_gather_length(num_places) == round_up_gather_length(num_places + 1)


@settings(max_examples=50)
@given(st.integers(0, 2000), st.integers(1, 600), st.integers(0, 50))
def test_pieces_cover_the_chunk_and_have_one_gather_length_each(start: int, length: int, row: int) -> None:
    pieces = list(split_chunk_into_pieces(TokenSpan(row, start, length, [])))
    assert pieces[0][:2] == (row, start)
    assert pieces[-1].end == start + length
    assert all((one.first_row + one.length, one.end) == (two.first_row, two.start) for one, two in pairwise(pieces))
    assert all(round_up_gather_length(piece.start + 1) == UNLIMITED_WINDOW.gather_length(piece) for piece in pieces)


@settings(max_examples=50)
@given(st.lists(st.integers(1, 1500), max_size=40), st.integers(1, 4096))
def test_decode_batches_have_one_gather_length_and_a_limited_size(ends: list[int], most: int) -> None:
    spans = sorted((TokenSpan(i, end - 1, 1, []) for i, end in enumerate(ends)), key=UNLIMITED_WINDOW.gather_length)
    batches = list(batch_decodes(spans, UNLIMITED_WINDOW, most))
    assert [span for batch in batches for span in batch] == spans
    for batch in batches:
        assert len(set(map(UNLIMITED_WINDOW.gather_length, batch))) == 1
        assert len(batch) == 1 or len(batch) * UNLIMITED_WINDOW.gather_length(batch[0]) <= most


@settings(max_examples=25)
@given(st.lists(st.integers(0, 700), min_size=1, max_size=9))
def test_causal_mask_ends_at_the_position_of_a_row(positions: list[int]) -> None:
    length = round_up_gather_length(min(positions) + 1)
    for position, row in zip(positions, CausalMask(max(positions) + 1, 0).select_rows(positions, length), strict=True):
        assert row.isfinite().tolist() == [place <= position for place in range(length)]
        assert not row[:position + 1].any()


@settings(max_examples=25)
@given(st.lists(st.integers(0, 700), min_size=1, max_size=9), st.integers(1, 900))
def test_sliding_window_mask_begins_at_the_window(places: list[int], window: int) -> None:
    length = round_up_gather_length(min(places) + 1)
    for place, row in zip(places, CausalMask(max(places) + 1, window).select_rows(places, length), strict=True):
        assert row.isfinite().tolist() == [place - window < other <= place for other in range(length)]


@settings(max_examples=50)
@given(st.integers(1, 5000), st.integers(0, 10_000), st.integers(1, 600))
def test_all_tokens_of_a_piece_gather_the_same_slots_in_a_window(window: int, start: int, length: int) -> None:
    gather_window = GatherWindow(window)
    for piece in split_chunk_into_pieces(TokenSpan(0, start, length, [])):
        first, last = TokenSpan(0, piece.start, 1, []), TokenSpan(0, piece.end - 1, 1, [])
        assert (gather_window.first_position(first) == gather_window.first_position(last)
                == gather_window.first_position(piece) <= max(0, piece.start - window + 1))
        assert (gather_window.gather_length(first) == gather_window.gather_length(last)
                == gather_window.gather_length(piece))
        assert gather_window.gather_length(piece) <= window + 3 * 512


# ---------------------------------------------------------------------------------------------------------------------
# Results

start_and_length_lists = st.lists(st.tuples(st.sampled_from([0, 30, 60, 120, 500]), st.integers(1, 80)), min_size=1,
                                  max_size=3)


@pytest.mark.slow
@settings(max_examples=20)
@given(st.integers(0, 2**32), st.sampled_from(DTYPES), st.sampled_from([(1, 1), (2, 7), (1, 8), (2, 24)]),
       start_and_length_lists, start_and_length_lists, st.sampled_from(VARIANTS))
def test_cpu_attention_agrees_with_the_reference(  # noqa: PLR0917 - drawn arguments
        seed: int, dtype: torch.dtype, heads: tuple[int, int], decodes: list[tuple[int, int]],
        chunks: list[tuple[int, int]], variant: AttentionOptions) -> None:
    results = []
    for backend in ("cpu", "reference"):
        harness = AttentionHarness(backend, kv_heads=heads[0], group=heads[1], dtype=dtype, seed=seed, variant=variant)
        decode_sequences = [(make_cached_sequence(harness, start + length), start + length - 1)
                            for start, length in decodes]
        chunk_sequences = [(make_cached_sequence(harness, start + length, start), start, start + length)
                           for start, length in chunks]
        results.append(torch.cat(harness.run_step(decode_sequences, chunk_sequences)))
    torch.testing.assert_close(*results, rtol=0, atol=1e-5 if dtype == torch.float32 else 0.03)


def make_cached_sequence(harness: AttentionHarness, length: int, num_cached: int | None = None) -> AttentionSequence:
    """Return a sequence whose first `num_cached` tokens are in the cache; by default, all but the last."""
    sequence = harness.make_random_sequence(length)
    harness.write_to_cache(sequence, 0, length - 1 if num_cached is None else num_cached)
    return sequence


@pytest.mark.parametrize("block_size", [16, 48, 64])
def test_result_does_not_depend_on_the_block_size(block_size: int) -> None:
    results = []
    for size in (16, block_size):
        harness = AttentionHarness(block_size=size, num_blocks=40)
        torch.manual_seed(0)
        sequence = harness.allocate_sequence(torch.randn(150, 4, 32), torch.randn(150, 64), torch.randn(150, 64))
        results.append(torch.cat([*harness.run_step(chunks=[(sequence, 0, 149)]),
                                  *harness.run_step([(sequence, 149)])]))
    assert torch.equal(*results)


def test_a_row_in_no_span_gets_zeros() -> None:
    harness = AttentionHarness()
    sequence = harness.make_random_sequence(1)
    plan = harness.attention.plan([sequence.make_span(0, 0, 1)], [], 2, harness.cache)
    result = harness.attention.run(torch.full((2, 4, 32), torch.nan), harness.cache, 0, plan)
    assert not result[1].any()


def test_all_layers_share_one_attention_plan() -> None:
    harness = AttentionHarness()
    sequence = harness.make_random_sequence(20)
    harness.cache.write(0, sequence.values, sequence.keys,
                        torch.tensor(harness.cache.list_slots(sequence.blocks, 0, 20)))
    harness.write_to_cache(sequence, 0, 20)
    plan = harness.attention.plan([], [sequence.make_span(0, 0, 20)], 20, harness.cache)
    swapped = AttentionSequence(sequence.queries, sequence.values, sequence.keys, sequence.blocks)
    for layer, expected in ((0, swapped), (1, sequence), (0, swapped)):
        (alone,) = AttentionHarness().run_step(chunks=[(expected, 0, 20)])
        assert torch.equal(harness.attention.run(sequence.queries, harness.cache, layer, plan), alone)


# ---------------------------------------------------------------------------------------------------------------------
# Same request, same bytes


def decode_one_by_one(harness: AttentionHarness, sequence: AttentionSequence, start: int, end: int) -> Tensor:
    """Decode every token alone and return the results."""
    harness.write_to_cache(sequence, 0, start)
    return torch.cat([harness.run_step([(sequence, position)])[0] for position in range(start, end)])


@pytest.mark.slow
@pytest.mark.usefixtures("num_torch_threads")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("border", "variant"),
                         [*((border, DEFAULT_ATTENTION_OPTIONS) for border in GATHER_LENGTH_BORDERS), (64, VARIANTS[3]),
                          (256, VARIANTS[4]), (576, VARIANTS[1]), (832, VARIANTS[2])], ids=str)
def test_result_does_not_depend_on_how_a_prompt_is_chunked(border: int, variant: AttentionOptions,
                                                           dtype: torch.dtype) -> None:
    """The last tokens are cut, across a change of the gathered length or of where gathering begins; the tokens before
    them come from the prefix cache."""
    harness, start, end = AttentionHarness(group=7, dtype=dtype, variant=variant), border - 3, border + 2
    sequence = harness.make_random_sequence(end)
    expected = decode_one_by_one(harness, sequence, start, end)
    for cuts in range(2 ** (end - start - 1)):
        ends = [start, *(start + i + 1 for i in range(end - start - 1) if cuts >> i & 1), end]
        chunks = [harness.run_step(chunks=[(sequence, one, two)])[0] for one, two in pairwise(ends)]
        assert torch.equal(torch.cat(chunks), expected)


@pytest.mark.parametrize("num_tokens", [2, 17, 40])
def test_a_single_softcapped_tile_has_the_bits_of_several(num_tokens: int) -> None:
    """With AVX-512, MKL gave a single matrix other bits than one of a batch."""
    harness = AttentionHarness(kv_heads=1, group=7, variant=AttentionOptions(softcap=2.0))
    sequence = harness.make_random_sequence(512 + num_tokens)
    expected = decode_one_by_one(harness, sequence, 512, sequence.length)
    assert torch.equal(harness.run_step(chunks=[(sequence, 512, sequence.length)])[0], expected)


@pytest.mark.slow
@pytest.mark.usefixtures("num_torch_threads")
@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data(), attention_harnesses(), st.sampled_from([0, *GATHER_LENGTH_BORDERS]))
def test_result_does_not_depend_on_other_rows_or_chunking(data: st.DataObject, harness: AttentionHarness,
                                                          border: int) -> None:
    check_result_beside_other_rows(data, harness, border)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("num_torch_threads")
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data(), attention_harnesses(), st.sampled_from([0, *GATHER_LENGTH_BORDERS]))
def test_result_does_not_depend_on_many_other_rows_or_chunkings(data: st.DataObject, harness: AttentionHarness,
                                                                border: int) -> None:
    check_result_beside_other_rows(data, harness, border)


def check_result_beside_other_rows(data: st.DataObject, harness: AttentionHarness, border: int) -> None:
    """Compare a sequence run alone with random steps beside other sequences, some of them non-finite, in a cache whose
    unowned slots are NaN."""
    start = max(0, border - data.draw(st.integers(0, 20)))
    sequence = harness.make_random_sequence(start + data.draw(st.integers(1, 30)))
    expected = decode_one_by_one(harness, sequence, start, sequence.length)
    harness.fill_all_blocks(torch.nan)
    other_sequences, sequence_copy = [draw_other_sequence(data.draw, harness)
                                      for _ in range(4)], harness.copy_sequence(sequence)
    harness.fill_blocks_of(sequence_copy, data.draw(st.sampled_from([0.0, 7.0])))
    harness.write_to_cache(sequence_copy, 0, start)
    for chunk_start, end in pairwise(draw_chunk_ends(data.draw, start, sequence.length)):
        decodes = data.draw(st.lists(decode_strategy(other_sequences), max_size=9))
        chunks = data.draw(st.lists(chunk_strategy(other_sequences), max_size=2))
        if end == chunk_start + 1 and data.draw(st.booleans()):
            decodes.insert(index := data.draw(st.integers(0, len(decodes))), (sequence_copy, chunk_start))
        else:
            chunks.insert(index := data.draw(st.integers(0, len(chunks))), (sequence_copy, chunk_start, end))
            index += len(decodes)
        assert torch.equal(harness.run_step(decodes, chunks)[index], expected[chunk_start - start:end - start])


def draw_other_sequence(draw: st.DrawFn, harness: AttentionHarness) -> AttentionSequence:
    sequence = harness.make_random_sequence(draw(st.sampled_from([5, 60, 70, 140, 300, 600])))
    if draw(st.booleans()):
        for tensor in (sequence.queries, sequence.keys, sequence.values):
            tensor[draw(st.integers(0, sequence.length - 1)):] = draw(st.sampled_from([torch.nan, torch.inf]))
    harness.write_to_cache(sequence, 0, sequence.length)
    return sequence


def decode_strategy(sequences: list[AttentionSequence]) -> st.SearchStrategy[tuple[AttentionSequence, int]]:
    return st.sampled_from(sequences).flatmap(lambda part: st.tuples(st.just(part), st.integers(0, part.length - 1)))


@st.composite
def chunk_strategy(draw: st.DrawFn, sequences: list[AttentionSequence]) -> ChunkRange:
    sequence, start = draw(decode_strategy(sequences))
    return sequence, start, draw(st.integers(start + 1, min(sequence.length, start + 80)))


def draw_chunk_ends(draw: st.DrawFn, start: int, end: int) -> list[int]:
    """Draw the ends of chunks, preceded by the first start."""
    inner = draw(st.sets(st.integers(start + 1, end - 1), max_size=6)) if end > start + 1 else set()
    return [start, *sorted(inner), end]


def test_nan_in_other_blocks_does_not_reach_a_sequence() -> None:
    """All blocks but the sequence's own and the zero block are NaN: those of others, free ones, the scratch block."""
    harness = AttentionHarness()
    sequence = harness.make_random_sequence(100)
    expected = torch.cat(harness.run_step(chunks=[(sequence, 0, 100)]))
    harness.fill_all_blocks(torch.nan)
    sequence_copy = harness.copy_sequence(sequence)
    harness.cache.zero_blocks(sequence_copy.blocks)
    assert torch.equal(torch.cat(harness.run_step(chunks=[(sequence_copy, 0, 100)])), expected)


def test_zero_block_stays_zero_and_is_used_as_padding() -> None:
    harness, sequence = AttentionHarness(), AttentionHarness().make_random_sequence(20)
    harness.run_step(chunks=[(sequence, 0, 20)])
    zeros = slice(harness.cache.zero_block * 16, harness.cache.zero_block * 16 + 16)
    assert not harness.cache.keys[1][zeros].any()
    harness.cache.values[1][zeros] = torch.nan
    assert harness.run_step([(sequence, 19)])[0].isnan().all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_result_does_not_depend_on_how_many_decodes_share_a_call(dtype: torch.dtype,
                                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    harness = AttentionHarness(dtype=dtype)
    decodes = [(make_cached_sequence(harness, length), length - 1) for length in (70, 3, 100, 128, 65, 9, 90)]
    batched_results = harness.run_step(decodes)
    monkeypatch.setattr(cpu, "MAX_GATHERED_BYTES", 1)
    assert all(map(torch.equal, harness.run_step(decodes), batched_results))
    assert all(torch.equal(harness.run_step([decode])[0], row)
               for decode, row in zip(decodes, batched_results, strict=True))


def test_more_heads_than_a_tile_do_not_depend_on_other_rows() -> None:
    harness = AttentionHarness(kv_heads=1, group=24)
    sequence = harness.make_random_sequence(70)
    expected = decode_one_by_one(harness, sequence, 60, 70)
    other_decodes = [(make_cached_sequence(harness, length), length - 1) for length in (80, 5)]
    assert torch.equal(harness.run_step([*other_decodes, (sequence, 69)])[2], expected[-1:])
    assert torch.equal(harness.run_step(other_decodes, [(sequence, 60, 70)])[2], expected)
