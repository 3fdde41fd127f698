"""Tests that CUDA graphs of decode steps match steps launched kernel by kernel.

Without a GPU, a replay calls the captured function again, and Triton's interpreter runs the kernels.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from support.checkpoints.peft_adapters import make_tiny_adapter
from support.checkpoints.small_checkpoints import make_tiny_checkpoint
from support.model_runs.replayable_model import ReplayableModel, capture_by_calling
from support.shards.scheduler_with_workers import ScheduledRequest, SchedulerWithWorkers

from router.request import Request, SamplingParams
from router.shards.adapter_grammar_loader import LoadableResource
from shard.runner.cuda_graphs import make_capture_function
from shard.state.sequence import SamplingParams as ShardSamplingParams
from shard.state.step import Step, lay_out_step

pytestmark = pytest.mark.gpu
triton = pytest.importorskip("triton")

SEQUENCE_LENGTHS = [[1], [300], [17, 257], [16, 90, 255, 1], [40, 40, 2, 31, 5]]


@pytest.mark.parametrize(("family", "more"), [
    ("llama", {}), ("qwen3", {}), ("gemma3", {}), ("gpt2", {}), ("olmo2", {}), ("cohere", {}),
    ("llama", {"quantize": "int8"}), ("llama", {"adaptable": True})], ids=str)
def test_replayed_step_equals_eager_step(
        family: str, more: dict[str, Any], tmp_path: Path, device: str) -> None:
    torch_device = torch.device(device)
    capture = make_capture_function(torch_device) if device == "cuda" else capture_by_calling
    model = ReplayableModel(make_tiny_checkpoint(tmp_path, family), capture, torch_device, max_rows=5, **more)
    for lengths in SEQUENCE_LENGTHS:
        model.check_replay_equals_eager(model.make_prefilled_sequences(lengths, len(lengths)), 1e-3)


def test_steps_with_adapters_loaded_after_the_capture_are_replayed(tmp_path: Path, device: str) -> None:
    torch_device, folder = torch.device(device), make_tiny_checkpoint(tmp_path, "llama")
    model = ReplayableModel(folder, make_capture_function(torch_device) if device == "cuda" else capture_by_calling,
                            torch_device, max_rows=5, adaptable=True)
    for number, rank in enumerate((4, 12, 40), 1):
        model.loaded_adapters.load(number, make_tiny_adapter(folder, seed=number, r=rank))
    for lengths in SEQUENCE_LENGTHS:
        sequences = model.make_prefilled_sequences(lengths, len(lengths), num_extra_tokens=8)
        for adapter, sequence in enumerate(sequences):
            sequence.adapter_id = adapter % 4
        if device == "cuda" and len(sequences) > 1:
            assert model.replays.run(lay_out_step(Step(decodes=sequences)), model.cache) is not None
            model.check_overlap_equals_waiting(sequences, 3)
        model.check_replay_equals_eager(sequences, 1e-3)


@pytest.mark.parametrize("sampling",
                         [ShardSamplingParams(), ShardSamplingParams(temperature=0.8),
                          ShardSamplingParams(temperature=1.0, top_k=9, top_p=0.9, typical_p=0.9, min_p=0.01),
                          ShardSamplingParams(temperature=1.0, top_p=0.9, raw_logprobs=True)],
                         ids=["greedy", "drawn", "filtered", "raw"])
def test_overlapped_step_equals_step_that_waited_for_the_previous_one(
        sampling: ShardSamplingParams, tmp_path: Path, device: str) -> None:
    """No step has to wait for sampling on the host: the vocabulary is so small that few candidates suffice."""
    torch_device = torch.device(device)
    capture = make_capture_function(torch_device) if device == "cuda" else capture_by_calling
    model = ReplayableModel(make_tiny_checkpoint(tmp_path, "llama"), capture, torch_device, max_rows=5)
    for lengths in SEQUENCE_LENGTHS:
        sequences = model.make_prefilled_sequences(lengths, len(lengths), num_extra_tokens=8)
        for sequence in sequences[::2]:
            sequence.sampling = sampling
        model.check_overlap_equals_waiting(sequences, 5)


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3"])
def test_no_kernel_is_compiled_after_warmup(
        family: str, tmp_path: Path, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run prompts of many lengths, whole and in chunks, alone and batched, sampled and greedy, with prompt logprobs
    and with an adapter. Without a GPU nothing is compiled anyway."""
    folder, compiled_kernels = make_tiny_checkpoint(tmp_path, family), list[object]()
    requests = [make_request(number, length) for number, length in enumerate((1, 2, 15, 16, 17, 33, 64, 100, 150))]
    with SchedulerWithWorkers(folder, device=device, adaptable=True, max_batch_size=8) as harness:
        harness.load_adapter(1, make_tiny_adapter(folder))
        monkeypatch.setattr(triton.knobs.runtime, "jit_post_compile_hook",
                            lambda **arguments: compiled_kernels.append(arguments["repr"]))
        for settings in ({"look_ahead": 2}, {"look_ahead": 1, "prefill_policy": "pause"},
                         {"look_ahead": 2, "max_batch_prefill_tokens": 48}):
            outputs = harness.run_together(
                [ScheduledRequest(request, arrival_step=number) for number, request in enumerate(requests)], **settings)
            assert [each.end_reason for each in outputs] == ["length"] * len(requests)
    assert not compiled_kernels


def make_request(number: int, length: int) -> Request:
    """Return a request; of each three, one is sampled, one returns prompt logprobs and one uses the adapter."""
    sampling = SamplingParams(temperature=0.8, top_k=20) if number % 3 == 0 else SamplingParams()
    return Request(str(number), tuple(range(2, 2 + length)), 5 + number, sampling_key=number, sampling=sampling,
                   prompt_logprobs=number % 3 == 1, adapter=LoadableResource("adapter", 1) if number % 3 == 2 else None)
