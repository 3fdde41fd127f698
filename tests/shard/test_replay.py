"""Steps that are replayed say what steps say that are launched piece by piece."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from checkpoints import tiny_checkpoint
from hypothesis import given, settings
from hypothesis import strategies as st
from replaying import CPU, LENGTH, ROWS, Bench
from unwritten import poison_memory

from shard.attention.span import Span
from shard.change import Chunk, Step
from shard.replay import sizes_up_to

pytest.importorskip("triton")  # which comes for Linux only

from shard.attention import triton_paged

EDGES = [1, 2, 15, 16, 17, 90, 255, 256, 257, 300]  # of blocks and splits


@pytest.fixture(autouse=True)
def unwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    poison_memory(monkeypatch)


@pytest.fixture(scope="module", params=["llama", "gemma3", pytest.param("gpt2", marks=pytest.mark.long)])
def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """Of which one has windows, and one no rotary embedding."""
    return Bench(tiny_checkpoint(tmp_path_factory.mktemp("replay"), request.param))


@pytest.mark.slow
@settings(max_examples=3)
@given(st.integers(0, 2**32), st.lists(st.sampled_from(EDGES), min_size=1, max_size=3))
def test_what_is_replayed_says_what_is_launched(bench: Bench, seed: int, lengths: list[int]) -> None:
    bench.says_the_same(bench.filled(lengths, seed), 1e-4)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:All-NaN slice encountered")  # says the interpreter
def test_a_sequence_whose_numbers_are_none_fails_alone(bench: Bench) -> None:
    first, poisoned, last = bench.filled([20, 40, 33], 0)
    expected = bench.run(Step(decodes=[first, last]), replayed=True).said
    slots = bench.cache.slots(poisoned.blocks, 0, 39)
    for rows in bench.cache.values:
        rows[slots] = torch.nan
    outcome = bench.run(Step(decodes=[first, poisoned, last]), replayed=True)
    assert [*outcome.failures] == [poisoned.id]
    assert {number: said.tokens for number, said in outcome.said.items()} == {
        number: said.tokens for number, said in expected.items()}
    bench.cache.zero(poisoned.blocks)


@pytest.mark.slow
def test_what_depends_on_the_step_is_launched(bench: Bench) -> None:
    sequences, run = bench.filled([5] * (ROWS + 4), 1), bench.replays.run
    assert run(Step(decodes=sequences[:ROWS]), bench.cache) is not None
    assert run(Step(decodes=sequences), bench.cache) is None  # more than were captured
    assert run(Step(decodes=sequences[:1], chunks=[Chunk(sequences[1], 0, 5)]), bench.cache) is None
    assert run(Step(decodes=sequences[:1]), bench.new_cache(CPU)) is None
    assert run(Step(decodes=[replace(sequences[0], adapter=3)]), bench.cache) is None


@pytest.mark.slow
def test_so_is_what_has_more_splits_than_there_is_memory_for(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    attention = bench.attention
    monkeypatch.setattr(triton_paged, "MOST_BYTES", 12 * attention.split_bytes)
    frames = attention.frames(5, LENGTH, bench.cache)
    spans = [Span(row, LENGTH - 1, 1, [*range(LENGTH // 16 + 1)]) for row in range(5)]
    assert frames.write(spans[:4])
    assert not frames.write(spans)


@given(st.integers(1, 2000))
def test_few_rows_are_nobodys(rows: int) -> None:
    sizes = list(sizes_up_to(rows))
    assert sizes == sorted(set(sizes))
    assert sizes[0] == 2
    assert all(size < rows for size in sizes[:-1])
    assert rows <= sizes[-1] < rows + 64
    assert all(after - before <= max(before, 8) and after - before <= 64
               for before, after in pairwise(sizes))
