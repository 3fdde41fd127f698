"""Tests that CUDA graphs of decode steps match steps launched kernel by kernel.

Without a GPU, a replay calls the captured function again, and Triton's interpreter runs the kernels.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from support.core_with_workers import Loom, Thread
from support.peft_adapters import tiny_adapter
from support.replayable_model import Bench, called_again
from support.small_checkpoints import tiny_checkpoint

from router.request import Request, SamplingParams
from router.shards.resource_loader import Resource
from shard.runner.cuda_graphs import cuda_capture
from shard.state.sequence import Sampling
from shard.state.transaction import Step

pytestmark = pytest.mark.gpu
triton = pytest.importorskip("triton")

LENGTHS = [[1], [300], [17, 257], [16, 90, 255, 1], [40, 40, 2, 31, 5]]


@pytest.mark.parametrize(("family", "more"), [
    ("llama", {}), ("qwen3", {}), ("gemma3", {}), ("gpt2", {}), ("olmo2", {}), ("cohere", {}),
    ("llama", {"quantize": "int8"}), ("llama", {"adaptable": True})], ids=str)
def test_a_replayed_step_says_what_a_launched_one_says(
        family: str, more: dict[str, Any], tmp_path: Path, device: str) -> None:
    where = torch.device(device)
    capture = cuda_capture(where) if device == "cuda" else called_again
    bench = Bench(tiny_checkpoint(tmp_path, family), capture, where, rows=5, **more)
    for lengths in LENGTHS:
        bench.says_the_same(bench.filled(lengths, len(lengths)), 1e-3)


def test_who_goes_by_adapters_that_came_after_the_capture_is_replayed_too(tmp_path: Path, device: str) -> None:
    where, folder = torch.device(device), tiny_checkpoint(tmp_path, "llama")
    bench = Bench(folder, cuda_capture(where) if device == "cuda" else called_again, where, rows=5, adaptable=True)
    for number, rank in enumerate((4, 12, 40), 1):
        bench.wardrobe.load(number, tiny_adapter(folder, seed=number, r=rank))
    for lengths in LENGTHS:
        sequences = bench.filled(lengths, len(lengths), room=8)
        for adapter, sequence in enumerate(sequences):
            sequence.adapter = adapter % 4
        if device == "cuda" and len(sequences) > 1:
            assert bench.replays.run(Step(decodes=sequences), bench.cache) is not None
            bench.begins_the_same(sequences, 3)
        bench.says_the_same(sequences, 1e-3)


@pytest.mark.parametrize("sampling", [
    Sampling(), Sampling(temperature=0.8), Sampling(temperature=1.0, top_k=9, top_p=0.9, typical_p=0.9, min_p=0.01),
    Sampling(temperature=1.0, top_p=0.9, raw_logprobs=True)], ids=["greedy", "drawn", "filtered", "raw"])
def test_a_step_that_begins_before_the_last_is_over_says_what_one_says_that_waited(
        sampling: Sampling, tmp_path: Path, device: str) -> None:
    """No step has to wait for sampling on the host: the vocabulary is so small that few candidates suffice."""
    where = torch.device(device)
    capture = cuda_capture(where) if device == "cuda" else called_again
    bench = Bench(tiny_checkpoint(tmp_path, "llama"), capture, where, rows=5)
    for lengths in LENGTHS:
        sequences = bench.filled(lengths, len(lengths), room=8)
        for sequence in sequences[::2]:
            sequence.sampling = sampling
        bench.begins_the_same(sequences, 5)


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3"])
def test_nothing_is_compiled_after_warm_up(
        family: str, tmp_path: Path, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run prompts of many lengths, whole and in chunks, alone and batched, sampled and greedy, with prompt logprobs
    and with an adapter. Without a GPU nothing is compiled anyway."""
    folder, compiled = tiny_checkpoint(tmp_path, family), list[object]()
    requests = [asked(number, length) for number, length in enumerate((1, 2, 15, 16, 17, 33, 64, 100, 150))]
    with Loom(folder, device=device, adaptable=True, max_batch_size=8) as loom:
        loom.load_adapter(1, tiny_adapter(folder))
        monkeypatch.setattr(triton.knobs.runtime, "jit_post_compile_hook", lambda **told: compiled.append(told["repr"]))
        for settings in ({"look_ahead": 2}, {"look_ahead": 1, "prefill_policy": "pause"},
                         {"look_ahead": 2, "max_batch_prefill_tokens": 48}):
            heard = loom.weave([Thread(request, arrival=number) for number, request in enumerate(requests)], **settings)
            assert [each.end for each in heard] == ["length"] * len(requests)
    assert not compiled


def asked(number: int, length: int) -> Request:
    """Return a request; of each three, one is sampled, one returns prompt logprobs and one uses the adapter."""
    sampling = SamplingParams(temperature=0.8, top_k=20) if number % 3 == 0 else SamplingParams()
    return Request(str(number), tuple(range(2, 2 + length)), 5 + number, key=number, sampling=sampling,
                   prompt_logprobs=number % 3 == 1, adapter=Resource("adapter", 1) if number % 3 == 2 else None)
