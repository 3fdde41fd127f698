"""Recorded steps return the bits of steps that run piece by piece."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.checkpoints.peft_adapters import make_tiny_adapter
from support.checkpoints.quantized_checkpoints import AwqTool, write_quantized_checkpoint
from support.checkpoints.small_checkpoints import make_tiny_checkpoint

from shard.attention.kv_cache import KVCache, TransientKVCache
from shard.config import ShardConfig
from shard.lora.routing import AdapterRowSpan
from shard.models.decoder import Decoder
from shard.native.kernel_recording import UnrecordableOperation
from shard.native.library import load_library
from shard.ops.native_linear import has_native_matmul
from shard.runner.cpu_graphs import MAX_RECORDED_ROWS
from shard.state.sequence import Sequence
from shard.state.step import PrefillChunk, Step, lay_out_step
from shard.workers.model_loading import LoadedDecoder, load_decoder_model

pytestmark = pytest.mark.skipif(load_library() is None, reason="there are no compiled kernels here")
needs_bfloat16_products = pytest.mark.skipif(not has_native_matmul(torch.bfloat16, torch.device("cpu")),
                                             reason="the processor has no products of bfloat16")
RECORDED_FAMILIES = ["llama", "qwen2", "qwen3", "gemma", "gemma2", "gemma3", "mistral"]


@pytest.fixture(scope="module")
def loaded_llama(tmp_path_factory: pytest.TempPathFactory) -> LoadedDecoder:
    return load(tmp_path_factory.mktemp("llama"), "llama")


def load(folder: Path, family: str, *, dtype: str = "float32", **settings: Any) -> LoadedDecoder:
    checkpoint = make_tiny_checkpoint(folder, family, dtype="bfloat16")  # whose weights kernels keep in 16 bits
    return load_decoder_model(ShardConfig(model=str(checkpoint), dtype=dtype, device="cpu", **settings))


def prefill(loaded: LoadedDecoder, lengths: list[int], num_extra_tokens: int = 1) -> tuple[KVCache, list[Sequence]]:
    """Return a cache and sequences that are each about to compute their last token."""
    generator, sequences, first = torch.Generator().manual_seed(0), [], 0
    for sequence_id, length in enumerate(lengths):
        last = first - (-(length + num_extra_tokens) // 16)
        tokens = torch.randint(2, 200, (length,), generator=generator).tolist()
        sequences.append(Sequence.from_prompt(sequence_id, tokens, [*range(first, last)]))
        first = last
    cache = loaded.make_cache(16, first)
    chunks = [PrefillChunk(sequence, 0, length - 1) for sequence, length in zip(sequences, lengths, strict=True)
              if length > 1]
    loaded.runner.run(Step(chunks=chunks), cache)
    return cache, sequences


def run_both(loaded: LoadedDecoder, step: Step | list[Sequence], cache: KVCache) -> None:
    """Assert that the step, or the decode, gives the same hidden states, keys and values recorded and piece by
    piece."""
    layout = lay_out_step(step if isinstance(step, Step) else Step(decodes=step))
    runner, recorder = loaded.runner, loaded.runner.cpu_graph_runner
    assert recorder is not None
    num_rows = sum(span.length for span in layout.spans)
    runner.adapter_routing.set_rows([AdapterRowSpan(sequence.adapter_id, span.length)
                                     for sequence, span in zip(layout.sequences, layout.spans, strict=True)])
    with torch.inference_mode():
        recorded = recorder.run(layout, cache)
        assert recorded is not None
        states, slots = recorded[1].clone(), recorded[0].slots.clone()
        assert recorded[0].sampled_rows.tolist() == layout.sampled_rows
        assert len(states) == num_rows
        written = [layer[slots].clone() for layer in (*cache.keys, *cache.values)]
        runner.cpu_graph_runner = None
        try:
            _, expected = runner.forward(layout, cache)
        finally:
            runner.cpu_graph_runner = recorder
        assert torch.equal(states, expected[:num_rows])
        assert all(map(torch.equal, written, (layer[slots] for layer in (*cache.keys, *cache.values))))


@pytest.mark.parametrize(("family", "settings"), [
    *((family, {}) for family in RECORDED_FAMILIES), ("qwen2", {"quantize": "int8"}), ("llama", {"quantize": "int4"})])
def test_recorded_step_has_the_bits_of_its_pieces(family: str, settings: dict[str, str], tmp_path: Path) -> None:
    """Also when a smaller step is recorded into memory that a larger one uses, and in steps after that."""
    loaded = load(tmp_path, family, **settings)
    cache, sequences = prefill(loaded, [20, 1, 17, 70, 5])
    for part in (sequences[2:3], sequences, sequences[1:3], sequences[4:], sequences):
        run_both(loaded, part, cache)


@needs_bfloat16_products
@pytest.mark.parametrize(("family", "settings"), [
    *((family, {}) for family in RECORDED_FAMILIES), ("qwen2", {"quantize": "int8"}), ("llama", {"quantize": "int4"})])
def test_recorded_step_in_bfloat16_has_the_bits_of_its_pieces(family: str, settings: dict[str, str],
                                                              tmp_path: Path) -> None:
    """Also with more sequences than a tile has rows."""
    loaded = load(tmp_path, family, dtype="bfloat16", **settings)
    cache, sequences = prefill(loaded, [20, 1, 17, 70, 5, *range(1, 16)])
    for part in (sequences[2:3], sequences):
        run_both(loaded, part, cache)


@pytest.mark.parametrize(("family", "settings"), [
    ("llama", {}), ("qwen2", {"quantize": "int8"}), ("gemma", {}),
    pytest.param("llama", {"dtype": "bfloat16"}, marks=needs_bfloat16_products)])
def test_recorded_step_with_adapters_has_the_bits_of_its_pieces(
        family: str, settings: dict[str, str], tmp_path: Path) -> None:
    """Adapters change from step to step, and one is loaded after the step was recorded."""
    loaded = load(tmp_path, family, adaptable=True, **settings)
    base = make_tiny_checkpoint(tmp_path, family, dtype="bfloat16")
    cache, sequences = prefill(loaded, [20, 1, 17, 70, 5])
    for adapter, config in ((1, {"r": 4}), (2, {"r": 11, "target_modules": ["q_proj", "down_proj"]})):
        loaded.loaded_adapters.load(adapter, make_tiny_adapter(base, seed=adapter, **config))
    for adapters in ([1, 0, 2, 1, 0], [0, 2, 0, 0, 1], [0, 0, 0, 0, 0]):
        for sequence, adapter in zip(sequences, adapters, strict=True):
            sequence.adapter_id = adapter
        for part in (sequences, sequences[:1], sequences[1:3]):
            run_both(loaded, part, cache)
    loaded.loaded_adapters.unload(1)
    loaded.loaded_adapters.load(3, make_tiny_adapter(base, seed=3, r=2))
    for sequence in sequences:
        sequence.adapter_id = 3
    run_both(loaded, sequences, cache)


def test_tokens_are_the_same_alone_and_in_company(tmp_path: Path) -> None:
    loaded = load(tmp_path, "llama")
    cache, sequences = prefill(loaded, [9, 33, 20])
    together = loaded.runner.run(Step(decodes=sequences), cache).by_sequence
    for sequence in sequences:
        alone = loaded.runner.run(Step(decodes=[sequence]), cache).by_sequence[sequence.id]
        assert alone == together[sequence.id]


def test_block_tables_may_outgrow_the_recording(tmp_path: Path) -> None:
    loaded = load(tmp_path, "llama")
    cache, [short, long] = prefill(loaded, [9, 40])
    run_both(loaded, [short], cache)
    long.blocks += range(3, 300)  # none of which is read
    run_both(loaded, [long], cache)
    run_both(loaded, [short], cache)


def test_another_cache_is_recorded_anew(tmp_path: Path) -> None:
    loaded = load(tmp_path, "llama")
    for lengths in ([9, 40], [40, 9]):
        cache, sequences = prefill(loaded, lengths)
        run_both(loaded, sequences, cache)


def make_chunk(sequence: Sequence, start: int, length: int) -> PrefillChunk:
    sequence.num_tokens_to_prefill = len(sequence.tokens)
    return PrefillChunk(sequence, start, length)


@pytest.mark.parametrize(("family", "settings"), [
    *((family, {}) for family in RECORDED_FAMILIES), ("qwen2", {"quantize": "int8"}), ("llama", {"quantize": "int4"}),
    pytest.param("qwen2", {"dtype": "bfloat16"}, marks=needs_bfloat16_products),
    pytest.param("llama", {"dtype": "bfloat16", "quantize": "int8"}, marks=needs_bfloat16_products)])
def test_recorded_step_with_chunks_has_the_bits_of_its_pieces(family: str, settings: dict[str, str],
                                                              tmp_path: Path) -> None:
    """Chunks at the beginning, in the middle and at the end of prompts, alone, beside decodes and beside each other;
    with and without dummy rows; guesses of tokens."""
    loaded = load(tmp_path, family, **settings)
    cache, [first, second, third, long] = prefill(loaded, [20, 9, 33, 120], num_extra_tokens=5)
    for step in (Step(chunks=[make_chunk(long, 0, 48)]),
                 Step(decodes=[first, second], chunks=[make_chunk(long, 48, 32)]),
                 Step(decodes=[second], chunks=[make_chunk(third, 16, 17), make_chunk(long, 80, 40)]),
                 Step(chunks=[make_chunk(third, 32, 1)]),
                 Step(decodes=[first, second], drafts={second.id: [3, 4, 5]}),
                 Step(decodes=[first, second], chunks=[make_chunk(long, 0, 120)], drafts={first.id: [7, 8]})):
        run_both(loaded, step, cache)


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=needs_bfloat16_products)])
@pytest.mark.parametrize("group_size", [16, 64])
def test_recorded_steps_of_a_four_bit_checkpoint_have_the_bits_of_their_pieces(group_size: int, dtype: str,
                                                                               tmp_path: Path) -> None:
    """With groups of 64 AMX multiplies more than a few rows."""
    plain = make_tiny_checkpoint(tmp_path, "llama", dtype="bfloat16")
    folder = write_quantized_checkpoint(plain, AwqTool(group_size), tmp_path / "awq")
    loaded = load_decoder_model(ShardConfig(model=str(folder), dtype=dtype, device="cpu"))
    cache, [first, second, long] = prefill(loaded, [20, 9, 90])
    for step in (Step(decodes=[first, second]), Step(decodes=[first], chunks=[make_chunk(long, 0, 48)]),
                 Step(chunks=[make_chunk(long, 16, 70)])):
        run_both(loaded, step, cache)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(lengths=st.lists(st.integers(1, 70), min_size=1, max_size=6),
       choices=st.lists(st.integers(0, 2**16), min_size=6))
def test_drawn_steps_have_the_bits_of_their_pieces(loaded_llama: LoadedDecoder, lengths: list[int],
                                                   choices: list[int]) -> None:
    """Each sequence decodes, with or without guesses, or runs a part of its prompt."""
    cache, sequences = prefill(loaded_llama, lengths, num_extra_tokens=4)
    step = Step()
    for sequence, choice in zip(sequences, choices, strict=False):
        length = len(sequence.tokens)
        if choice % 3 == 0:
            start = choice // 3 % length
            step.chunks.append(make_chunk(sequence, start, 1 + choice // 7 % (length - start)))
            continue
        step.decodes.append(sequence)
        if choice % 3 == 1:
            step.drafts[sequence.id] = [2 + choice % 50, 9, 11][:1 + choice % 3]
    run_both(loaded_llama, step, cache)


def test_recorded_chunks_of_adapters_have_the_bits_of_their_pieces(tmp_path: Path) -> None:
    loaded = load(tmp_path, "llama", adaptable=True)
    base = make_tiny_checkpoint(tmp_path, "llama", dtype="bfloat16")
    cache, [first, second, third] = prefill(loaded, [20, 40, 33])
    for adapter, config in ((1, {"r": 4}), (2, {"r": 11, "target_modules": ["q_proj", "down_proj"]})):
        loaded.loaded_adapters.load(adapter, make_tiny_adapter(base, seed=adapter, **config))
    for adapters in ([1, 0, 2], [0, 2, 0], [2, 2, 1], [0, 0, 0]):
        for sequence, adapter in zip((first, second, third), adapters, strict=True):
            sequence.adapter_id = adapter
        run_both(loaded, Step(decodes=[first], chunks=[make_chunk(second, 0, 32), make_chunk(third, 16, 17)]), cache)
        run_both(loaded, Step(decodes=[first, second, third]), cache)


def test_pieces_may_outgrow_the_recording(tmp_path: Path) -> None:
    """A step of many short spans has more pieces than one of a single long span with as many rows."""
    loaded = load(tmp_path, "llama")
    cache, sequences = prefill(loaded, [*[2] * 72, 80])
    run_both(loaded, Step(chunks=[make_chunk(sequences[-1], 0, 72)]), cache)
    run_both(loaded, sequences[:72], cache)


def test_recording_that_was_outgrown_gives_way_to_one_with_room_for_both_steps(tmp_path: Path) -> None:
    """Regression: it was sized by the present step alone, so that two steps in turn, one of many pieces and one of many
    blocks, were recorded every time."""
    loaded = load(tmp_path, "llama")
    cache, sequences = prefill(loaded, [*[2] * 72, 80])
    sequences[-1].blocks += [0] * 300  # none of which is read
    many_blocks, many_pieces = Step(chunks=[make_chunk(sequences[-1], 0, 72)]), sequences[:72]
    run_both(loaded, many_pieces, cache)
    run_both(loaded, many_blocks, cache)
    graph_recording_seconds = loaded.runner.graph_recording_seconds
    run_both(loaded, many_pieces, cache)
    run_both(loaded, many_blocks, cache)
    assert loaded.runner.graph_recording_seconds == graph_recording_seconds


def test_a_kind_of_step_that_cannot_be_recorded_leaves_smaller_ones_recorded(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = load(tmp_path, "llama")
    cache, [first, second] = prefill(loaded, [9, 40])
    recorder, chunk_step = loaded.runner.cpu_graph_runner, Step(chunks=[make_chunk(second, 0, 40)])
    assert recorder is not None
    run_layers = Decoder.run_layers

    def refuse(model: Decoder, embeddings: torch.Tensor, *arguments: Any) -> torch.Tensor:
        if len(embeddings) >= 40:
            raise UnrecordableOperation("an operation")
        return run_layers(model, embeddings, *arguments)

    monkeypatch.setattr(Decoder, "run_layers", refuse)
    with torch.inference_mode():
        assert recorder.run(lay_out_step(chunk_step), cache) is None
    monkeypatch.undo()
    with torch.inference_mode():
        assert recorder.run(lay_out_step(chunk_step), cache) is None
    run_both(loaded, [first, second], cache)


def test_steps_of_many_rows_are_not_recorded(tmp_path: Path) -> None:
    loaded = load(tmp_path, "llama")
    cache, [first] = prefill(loaded, [9])
    recorder = loaded.runner.cpu_graph_runner
    assert recorder is not None
    many = [replace(first, id=number) for number in range(MAX_RECORDED_ROWS + 1)]
    assert recorder.run(lay_out_step(Step()), cache) is None
    assert recorder.run(lay_out_step(Step(decodes=many)), cache) is None
    with_adapter = lay_out_step(Step(decodes=[replace(first, adapter_id=3)]))
    assert recorder.run(with_adapter, cache) is None, "the model takes no adapters"


def test_embeddings_leave_the_recordings_of_the_cache_alone(tmp_path: Path) -> None:
    """Regression: texts have a cache of their own, and each change of the cache dropped all recordings."""
    loaded = load(tmp_path, "llama")
    cache, sequences = prefill(loaded, [9, 40])
    run_both(loaded, sequences, cache)
    recorder = loaded.runner.cpu_graph_runner
    assert recorder is not None
    recorded = dict(recorder._graphs)
    texts = TransientKVCache(2, 1, 16, block_size=16, num_blocks=4, dtype=cache.dtype, device=cache.device)
    assert recorder.run(lay_out_step(Step(chunks=[make_chunk(sequences[1], 0, 40)])), texts) is None
    run_both(loaded, sequences, cache)
    assert recorder._graphs == recorded


def test_recordings_share_their_memory(tmp_path: Path) -> None:
    """However many numbers of rows are recorded, in whatever order."""
    loaded = load(tmp_path, "llama")
    cache, [sequence] = prefill(loaded, [200])
    recorder = loaded.runner.cpu_graph_runner
    assert recorder is not None
    with torch.inference_mode():
        for length in (200, *range(8, 200, 8)):
            assert recorder.run(lay_out_step(Step(chunks=[make_chunk(sequence, 0, length)])), cache) is not None
            if length == 200:
                num_bytes = recorder._memory.num_bytes
    assert recorder._memory.num_bytes <= 1.5 * num_bytes


def test_time_of_a_recording_is_not_the_step_s(tmp_path: Path) -> None:
    loaded = load(tmp_path, "llama")
    cache, sequences = prefill(loaded, [9, 40])
    recorder = loaded.runner.cpu_graph_runner
    assert recorder is not None
    before = loaded.runner.graph_recording_seconds
    run_both(loaded, sequences, cache)
    recorded_seconds = loaded.runner.graph_recording_seconds
    assert recorded_seconds > before
    run_both(loaded, sequences, cache)
    assert loaded.runner.graph_recording_seconds == recorded_seconds


@pytest.mark.parametrize("family", ["gpt2", "mixtral", "olmo2"])
def test_models_with_other_operations_run_piece_by_piece(family: str, tmp_path: Path) -> None:
    loaded = load(tmp_path, family)
    cache, sequences = prefill(loaded, [9, 40])
    outputs = loaded.runner.run(Step(decodes=sequences), cache)
    recorder = loaded.runner.cpu_graph_runner
    assert recorder is None or recorder.run(lay_out_step(Step(decodes=sequences)), cache) is None
    assert outputs == loaded.runner.run(Step(decodes=sequences), cache)


def test_recording_imports_no_compiler_of_torch(tmp_path: Path) -> None:
    """It would take as long as the import of torch, at every start."""
    checkpoint = make_tiny_checkpoint(tmp_path, "llama", dtype="bfloat16")
    program = ("import sys\nfrom shard.config import ShardConfig\nfrom shard.workers.decoder import DecoderWorker\n"
               "from support.model_runs.generation import WARMUP_REQUEST\n"
               f"worker = DecoderWorker(ShardConfig(model={str(checkpoint)!r}, device='cpu', dtype='float32'))\n"
               "worker.warmup(WARMUP_REQUEST)\nassert worker._loaded_model.runner.cpu_graph_runner._graphs\n"
               "print('torch._dynamo' in sys.modules)")
    completed = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True,
                               env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    assert completed.stdout == "False\n"
