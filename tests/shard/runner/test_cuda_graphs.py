"""Replayed steps return what steps launched kernel by kernel return."""

import gc
import weakref
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.peft_adapters import tiny_adapter
from support.replayable_model import CPU, LENGTH, ROWS, Bench
from support.small_checkpoints import tiny_checkpoint
from support.uninitialized_memory import poison_memory

from shard.attention.span import Span
from shard.runner.cuda_graphs import Call, Extent, Replays, sizes_up_to, uncollected
from shard.state.transaction import Chunk, Step

pytest.importorskip("triton")  # published for Linux only

from shard.adapters import lora_linear, lora_triton
from shard.attention import triton

ADAPTERS = [{"r": 4}, {"r": 12, "target_modules": ["q_proj", "down_proj"]}, {"r": 4, "modules_to_save": ["lm_head"]}]
EDGES = [1, 2, 15, 16, 17, 90, 255, 256, 257, 300]  # of blocks and splits


@pytest.fixture(autouse=True)
def unwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    poison_memory(monkeypatch)


@pytest.fixture(scope="module", params=["llama", "gemma3", pytest.param("gpt2", marks=pytest.mark.long)])
def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """Bench of a model: llama, one with windows, or one without rotary embedding."""
    return Bench(tiny_checkpoint(tmp_path_factory.mktemp("replay"), request.param))


@pytest.mark.slow
@settings(max_examples=3)
@given(st.integers(0, 2**32), st.lists(st.sampled_from(EDGES), min_size=1, max_size=3))
def test_what_is_replayed_says_what_is_launched(bench: Bench, seed: int, lengths: list[int]) -> None:
    bench.says_the_same(bench.filled(lengths, seed), 1e-4)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:All-NaN slice encountered")  # from Triton's interpreter
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
def test_nobody_but_its_owner_holds_what_was_captured(bench: Bench) -> None:
    """Dropping the owner frees the graphs and their memory at once, without the garbage collector."""
    def captured(make: Call) -> Call:
        make()
        return int  # like a graph, it holds no reference to its owner

    with uncollected():
        assert not gc.isenabled()
        replays = Replays(bench.model, bench.attention, bench.cache, Extent(2, LENGTH), captured)
        held = weakref.ref(replays)
        bench.runner.replay(replays)
        bench.runner.run(Step(decodes=bench.filled([5], 0)), bench.cache)
        bench.runner.replay(None)
        del replays
        assert held() is None


def test_whoever_wants_no_collector_has_none_afterwards_either() -> None:
    was_enabled = gc.isenabled()
    for enabled in (True, False):
        (gc.enable if enabled else gc.disable)()
        with pytest.raises(ZeroDivisionError), uncollected():
            print(1 / 0)
        assert gc.isenabled() is enabled
    (gc.enable if was_enabled else gc.disable)()


@pytest.mark.slow
def test_so_is_what_has_more_splits_than_there_is_memory_for(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    attention = bench.attention
    monkeypatch.setattr(triton, "MOST_BYTES", 12 * attention.split_bytes)
    frames = attention.frames(5, LENGTH, bench.cache)
    spans = [Span(row, LENGTH - 1, 1, [*range(LENGTH // 16 + 1)]) for row in range(5)]
    assert frames.write(spans[:4])
    assert not frames.write(spans)


@pytest.fixture(scope="module")
def adaptable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """Bench whose steps are captured before adapters are loaded; the last adapter replaces the head."""
    folder = tiny_checkpoint(tmp_path_factory.mktemp("adaptable"), "llama")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lora_linear, "kernels", lambda *_: lora_triton)
        bench = Bench(folder, adaptable=True)
        for number, more in enumerate(ADAPTERS, 1):
            bench.wardrobe.load(number, tiny_adapter(folder, seed=number, **more))
        yield bench


@pytest.mark.slow
def test_who_goes_by_adapters_is_replayed_too(adaptable: Bench) -> None:
    """A replayed step agrees with a launched one; only rows without an adapter agree with the base model."""
    sequences = adaptable.filled([17, 90, 5], 3)
    plain = adaptable.run(Step(decodes=sequences), replayed=True).said
    for adapters in ([1, 0, 2], [2, 2, 2]):
        for sequence, adapter in zip(sequences, adapters, strict=True):
            sequence.adapter = adapter
        assert adaptable.replays.run(Step(decodes=sequences), adaptable.cache) is not None
        replayed, launched = (adaptable.run(Step(decodes=sequences), replayed=replayed) for replayed in (True, False))
        assert replayed.failures == {}
        for sequence in sequences:
            said, expected, before = (told[sequence.id] for told in (replayed.said, launched.said, plain))
            assert said.tokens == expected.tokens
            assert said.logprobs == pytest.approx(expected.logprobs, abs=1e-4)
            assert (said.logprobs == before.logprobs) == (sequence.adapter == 0)


@pytest.mark.slow
def test_a_step_with_adapters_begins_before_the_last_is_over(adaptable: Bench) -> None:
    sequences = adaptable.filled([17, 90, 5], 4, room=8)
    for sequence, adapter in zip(sequences, [2, 0, 1], strict=True):
        sequence.adapter = adapter
    adaptable.begins_the_same(sequences, 4)


@pytest.mark.slow
def test_whoever_has_a_head_of_its_own_is_launched(adaptable: Bench) -> None:
    sequences = adaptable.filled([5, 5], 1)
    sequences[1].adapter = len(ADAPTERS)
    assert adaptable.replays.run(Step(decodes=sequences), adaptable.cache) is None
    assert adaptable.replays.begin(Step(decodes=sequences), adaptable.cache, None) is None
    adaptable.wardrobe.unload(len(ADAPTERS))
    assert not adaptable.wardrobe.bearers.others


@given(st.integers(1, 2000))
def test_few_rows_are_nobodys(rows: int) -> None:
    sizes = list(sizes_up_to(rows))
    assert sizes == sorted(set(sizes))
    assert sizes[0] == 2
    assert all(size < rows for size in sizes[:-1])
    assert rows <= sizes[-1] < rows + 64
    assert all(after - before <= max(before, 8) and after - before <= 64
               for before, after in pairwise(sizes))
