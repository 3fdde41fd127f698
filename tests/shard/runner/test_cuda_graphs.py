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
from support.checkpoints.peft_adapters import make_tiny_adapter
from support.checkpoints.small_checkpoints import make_tiny_checkpoint
from support.model_runs.replayable_model import CPU, MAX_LENGTH, MAX_ROWS, ReplayableModel
from support.model_runs.uninitialized_memory import fill_uninitialized_with_nan

from shard.attention.kv_cache import KVCache
from shard.runner.cuda_graphs import (
    CudaGraphRunner,
    LaunchFunction,
    iter_capture_sizes,
    without_garbage_collection,
)
from shard.state.step import PrefillChunk, Step, TokenSpan, lay_out_step

pytest.importorskip("triton")  # published for Linux only

from shard.attention import triton
from shard.lora import lora_linear, triton_lora_store

ADAPTER_OPTIONS = [{"r": 4}, {"r": 12, "target_modules": ["q_proj", "down_proj"]},
                   {"r": 4, "modules_to_save": ["lm_head"]}]
EDGE_LENGTHS = [1, 2, 15, 16, 17, 90, 255, 256, 257, 300]  # of blocks and splits


@pytest.fixture(autouse=True)
def fill_uninitialized_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    fill_uninitialized_with_nan(monkeypatch)


@pytest.fixture(scope="module", params=[
    "gemma3", *(pytest.param(family, marks=pytest.mark.long) for family in ("llama", "gpt2"))])
def replayable_model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ReplayableModel:
    """Model with replayable steps: one whose layers have windows or none, llama, or one without rotary embedding."""
    return ReplayableModel(make_tiny_checkpoint(tmp_path_factory.mktemp("replay"), request.param))


@pytest.mark.slow
@settings(max_examples=3)
@given(st.integers(0, 2**32), st.lists(st.sampled_from(EDGE_LENGTHS), min_size=1, max_size=3))
def test_replayed_step_equals_eager_step(replayable_model: ReplayableModel, seed: int, lengths: list[int]) -> None:
    replayable_model.check_replay_equals_eager(replayable_model.make_prefilled_sequences(lengths, seed), 1e-4)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:All-NaN slice encountered")  # from Triton's interpreter
def test_sequence_with_nan_values_fails_alone(replayable_model: ReplayableModel) -> None:
    first, poisoned, last = replayable_model.make_prefilled_sequences([20, 40, 33], 0)
    expected = replayable_model.run_step(Step(decodes=[first, last]), is_replayed=True).by_sequence
    slots = replayable_model.cache.list_slots(poisoned.blocks, 0, 39)
    for rows in replayable_model.cache.values:
        rows[slots] = torch.nan
    outcome = replayable_model.run_step(Step(decodes=[first, poisoned, last]), is_replayed=True)
    assert [*outcome.failures] == [poisoned.id]
    assert outcome.new_tokens == {sequence_id: output.tokens for sequence_id, output in expected.items()}
    replayable_model.cache.zero_blocks(poisoned.blocks)


@pytest.mark.slow
def test_steps_that_were_not_captured_are_not_replayed(replayable_model: ReplayableModel) -> None:
    sequences = replayable_model.make_prefilled_sequences([5] * (MAX_ROWS + 4), 1)

    def try_replay(step: Step, cache: KVCache) -> object:
        return replayable_model.replays.run(lay_out_step(step), cache)

    assert try_replay(Step(decodes=sequences[:MAX_ROWS]), replayable_model.cache) is not None
    assert try_replay(Step(decodes=sequences), replayable_model.cache) is None  # more than were captured
    assert try_replay(Step(decodes=sequences[:1], chunks=[PrefillChunk(sequences[1], 0, 5)]),
                      replayable_model.cache) is None
    assert try_replay(Step(decodes=sequences[:1]), replayable_model.make_cache(CPU)) is None
    assert try_replay(Step(decodes=[replace(sequences[0], adapter_id=3)]), replayable_model.cache) is None


@pytest.mark.slow
def test_captured_graphs_are_freed_with_their_owner(replayable_model: ReplayableModel) -> None:
    """Dropping the owner frees the graphs and their memory at once, without the garbage collector."""
    def fake_capture(launch: LaunchFunction) -> LaunchFunction:
        launch()
        return int  # like a graph, it holds no reference to its owner

    with without_garbage_collection():
        assert not gc.isenabled()
        cuda_graph_runner = CudaGraphRunner(replayable_model.model, replayable_model.attention, replayable_model.cache,
                                            fake_capture, max_rows=2, max_sequence_length=MAX_LENGTH)
        weak_reference = weakref.ref(cuda_graph_runner)
        replayable_model.runner.cuda_graph_runner = cuda_graph_runner
        replayable_model.runner.run(Step(decodes=replayable_model.make_prefilled_sequences([5], 0)),
                                    replayable_model.cache)
        replayable_model.runner.cuda_graph_runner = None
        del cuda_graph_runner
        assert weak_reference() is None


def test_garbage_collection_setting_is_restored() -> None:
    was_enabled = gc.isenabled()
    for enabled in (True, False):
        (gc.enable if enabled else gc.disable)()
        with pytest.raises(ZeroDivisionError), without_garbage_collection():
            print(1 / 0)
        assert gc.isenabled() is enabled
    (gc.enable if was_enabled else gc.disable)()


@pytest.mark.slow
def test_step_with_too_many_splits_for_memory_is_not_replayed(replayable_model: ReplayableModel,
                                                              monkeypatch: pytest.MonkeyPatch) -> None:
    attention = replayable_model.attention
    monkeypatch.setattr(triton, "MAX_PARTIALS_BYTES", 12 * attention.bytes_per_split)
    static_plans = attention.make_static_plans(5, MAX_LENGTH, replayable_model.cache)
    spans = [TokenSpan(row, MAX_LENGTH - 1, 1, [*range(MAX_LENGTH // 16 + 1)]) for row in range(5)]
    assert static_plans.write_spans(spans[:4])
    assert not static_plans.write_spans(spans)


@pytest.fixture(scope="module")
def adaptable_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplayableModel]:
    """Model whose steps are captured before adapters are loaded; the last adapter replaces the head."""
    folder = make_tiny_checkpoint(tmp_path_factory.mktemp("adaptable"), "llama")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lora_linear, "import_kernels", lambda *_: triton_lora_store)
        model = ReplayableModel(folder, adaptable=True)
        for number, more in enumerate(ADAPTER_OPTIONS, 1):
            model.loaded_adapters.load(number, make_tiny_adapter(folder, seed=number, **more))
        yield model


@pytest.mark.slow
def test_steps_with_adapters_are_replayed(adaptable_model: ReplayableModel) -> None:
    """A replayed step agrees with a launched one; only rows without an adapter agree with the base model."""
    sequences = adaptable_model.make_prefilled_sequences([17, 90, 5], 3)
    base_outputs = adaptable_model.run_step(Step(decodes=sequences), is_replayed=True).by_sequence
    for adapters in ([1, 0, 2], [2, 2, 2]):
        for sequence, adapter in zip(sequences, adapters, strict=True):
            sequence.adapter_id = adapter
        assert adaptable_model.replays.run(lay_out_step(Step(decodes=sequences)), adaptable_model.cache) is not None
        replayed, eager = (adaptable_model.run_step(Step(decodes=sequences), is_replayed=replayed)
                           for replayed in (True, False))
        assert replayed.failures == {}
        for sequence in sequences:
            output, expected, base_output = (outputs[sequence.id]
                                             for outputs in (replayed.by_sequence, eager.by_sequence, base_outputs))
            assert output.tokens == expected.tokens
            assert output.logprobs == pytest.approx(expected.logprobs, abs=1e-4)
            assert (output.logprobs == base_output.logprobs) == (sequence.adapter_id == 0)


@pytest.mark.slow
def test_step_with_adapters_overlaps_the_previous_one(adaptable_model: ReplayableModel) -> None:
    sequences = adaptable_model.make_prefilled_sequences([17, 90, 5], 4, num_extra_tokens=8)
    for sequence, adapter in zip(sequences, [2, 0, 1], strict=True):
        sequence.adapter_id = adapter
    adaptable_model.check_overlap_equals_waiting(sequences, 4)


@pytest.mark.slow
def test_step_with_a_replaced_head_is_not_replayed(adaptable_model: ReplayableModel) -> None:
    sequences = adaptable_model.make_prefilled_sequences([5, 5], 1)
    sequences[1].adapter_id = len(ADAPTER_OPTIONS)
    assert adaptable_model.replays.run(lay_out_step(Step(decodes=sequences)), adaptable_model.cache) is None
    assert adaptable_model.replays.begin_step(Step(decodes=sequences), adaptable_model.cache, None) is None
    adaptable_model.loaded_adapters.unload(len(ADAPTER_OPTIONS))
    assert not adaptable_model.loaded_adapters.adapter_routing.head_or_embedding_adapters


@given(st.integers(1, 2000))
def test_capture_sizes_need_little_padding(rows: int) -> None:
    sizes = list(iter_capture_sizes(rows))
    assert sizes == sorted(set(sizes))
    assert sizes[0] == 2
    assert all(size < rows for size in sizes[:-1])
    assert rows <= sizes[-1] < rows + 64
    assert all(after - before <= max(before, 8) and after - before <= 64
               for before, after in pairwise(sizes))
