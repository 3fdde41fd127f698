"""Model whose decode steps can run eagerly or be replayed from captures, with sequences in its KV cache."""

from collections import deque
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from shard.adapters.loaded_adapters import LoadedAdapters
from shard.attention.backend import AttentionBackend, AttentionOptions, make_attention_backend
from shard.attention.kv_cache import KVCache
from shard.checkpoint.reader import CheckpointReader
from shard.hardware.device_transfers import MAX_IN_FLIGHT_STEPS
from shard.models.registry import load_model, load_model_config
from shard.parallel.group import SingleRankGroup
from shard.runner.cuda_graphs import CaptureFunction, CudaGraphRunner, InFlightReplay, LaunchFunction
from shard.runner.model_runner import ModelRunner, StepOutputs
from shard.sampling.sampler import Sampler
from shard.state.sequence import PLACEHOLDER_TOKEN, Sequence
from shard.state.step import PrefillChunk, Step, TokenSpan
from shard.workers.model_loading import LoadedDecoder

CPU = torch.device("cpu")
NUM_BLOCKS, MAX_ROWS, MAX_LENGTH = 60, 3, 600  # so long that attention has several splits per sequence


def capture_by_calling(run_step: LaunchFunction) -> LaunchFunction:
    """Capture a step on a device without CUDA graphs: a replay calls `run_step` again.

    As with a graph, whatever changes between steps must be passed in tensors that keep their addresses.
    """
    run_step()
    return run_step


class CapturableAttentionWrapper:
    """Wrapper of any attention backend for captures that are called again: the plan is replaced between the calls."""

    def __init__(self, attention: AttentionBackend) -> None:
        self.plan = attention.plan
        self._attention = attention

    def run(self, queries: Tensor, cache: KVCache, layer: int, plan: Any) -> Tensor:
        return self._attention.run(queries, cache, layer,
                                   plan.current_plan if isinstance(plan, ReplaceableAttentionPlan) else plan)

    def make_static_plans(self, max_rows: int, max_length: int, cache: KVCache) -> "ReplaceableAttentionPlan":
        return ReplaceableAttentionPlan(self, cache)


class ReplaceableAttentionPlan:
    def __init__(self, attention: CapturableAttentionWrapper, cache: KVCache) -> None:
        self._attention, self._cache = attention, cache
        self.current_plan: Any = None

    def make_plan(self, num_rows: int) -> "ReplaceableAttentionPlan":
        return self

    def write_spans(self, decodes: list[TokenSpan]) -> bool:
        self.current_plan = self._attention.plan(decodes, [], len(decodes), self._cache)
        return True


def replay_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make workers that are created from now on replay their decode steps on a CPU."""
    def capture_decode_steps(self: LoadedDecoder, cache: KVCache, max_rows: int, max_length: int) -> CudaGraphRunner:
        return CudaGraphRunner(self.model, CapturableAttentionWrapper(self.attention), cache, capture_by_calling,
                               max_rows=max_rows, max_sequence_length=max_length,
                               adapter_routing=self.loaded_adapters.capturable_routing)
    monkeypatch.setattr(LoadedDecoder, "capture_decode_steps", capture_decode_steps)


class ReplayableModel:
    """Model with a KV cache, captured decode steps, and runners with Triton and with reference attention."""

    def __init__(self, folder: Path, capture: CaptureFunction = capture_by_calling, device: torch.device = CPU, *,
                 max_rows: int = MAX_ROWS, quantize: str = "", adaptable: bool = False) -> None:
        config = load_model_config(folder)
        adapter_registry = self.loaded_adapters = LoadedAdapters(torch.float32, device, adaptable=adaptable)
        with CheckpointReader(folder, torch.float32, device, config.quantization, quantize,
                              lora_targets=adapter_registry.lora_targets) as weights:
            self.model = load_model(config, weights, SingleRankGroup())
        variant, num_kv_heads = AttentionOptions(config.attention_scale, config.attention_softcap,
                                                 config.sliding_windows), self.model.num_kv_heads
        attentions: list[Any] = [make_attention_backend(name, config.num_heads, num_kv_heads, config.head_dim, variant)
                                 for name in ("reference", "triton")]
        reference_attention, self.attention = attentions
        self.cache = self.make_cache(device)
        self._prefill_runner, self.runner = [
            ModelRunner(self.model, attention, Sampler(config.vocabulary_size, device), SingleRankGroup(),
                        adapter_registry.adapter_routing, device=device)
            for attention in (reference_attention, self.attention)]
        self.replays = CudaGraphRunner(self.model, self.attention, self.cache, capture, max_rows=max_rows,
                                       max_sequence_length=MAX_LENGTH,
                                       adapter_routing=adapter_registry.capturable_routing)

    def make_cache(self, device: torch.device) -> KVCache:
        model = self.model
        return KVCache(model.num_layers, model.num_kv_heads, model.head_dim, block_size=16, num_blocks=NUM_BLOCKS,
                       dtype=torch.float32, device=device)

    def run_step(self, step: Step, *, is_replayed: bool) -> StepOutputs:
        self.runner.cuda_graph_runner = self.replays if is_replayed else None
        return self.runner.run(step, self.cache)

    def check_replay_equals_eager(self, sequences: list[Sequence], tolerance: float) -> None:
        """Assert that two steps give the same output whether they are replayed or launched.

        The second step has other rows, and stale values of the first are in the static buffers.
        """
        for _ in range(2):
            replayed_outputs, eager_outputs = (self.run_step(Step(decodes=sequences), is_replayed=replayed)
                                             for replayed in (True, False))
            assert not replayed_outputs.failures
            for sequence in sequences:
                actual, expected = replayed_outputs.by_sequence[sequence.id], eager_outputs.by_sequence[sequence.id]
                assert actual.tokens == expected.tokens
                assert actual.logprobs == pytest.approx(expected.logprobs, abs=tolerance)
                sequence.tokens += expected.tokens
            sequences = sequences[1:] or sequences

    def check_overlap_equals_waiting(self, sequences: list[Sequence], num_steps: int) -> None:
        """Assert that steps give the same output whether each waits for the last or begins before the last is over.

        No row may fail, since the step would have to be run again.
        """
        step, initial_tokens = Step(decodes=sequences), [list(sequence.tokens) for sequence in sequences]
        expected = []
        for _ in range(num_steps):
            results = self.run_step(step, is_replayed=True).by_sequence
            expected.append([(results[sequence.id].tokens[0], results[sequence.id].logprobs[0])
                             for sequence in sequences])
            for sequence in sequences:
                sequence.tokens += results[sequence.id].tokens
        for sequence, tokens in zip(sequences, initial_tokens, strict=True):
            sequence.tokens = tokens
        actual, steps_in_flight = [], deque[InFlightReplay]()
        for _ in range(num_steps):
            started_step = self.replays.begin_step(step, self.cache, steps_in_flight[-1] if steps_in_flight else None)
            assert started_step is not None
            steps_in_flight.append(started_step)
            for sequence in sequences:
                sequence.tokens.append(PLACEHOLDER_TOKEN)
            if len(steps_in_flight) == MAX_IN_FLIGHT_STEPS:
                actual.append(self._finish_step(sequences, steps_in_flight.popleft(), -2))
        actual.append(self._finish_step(sequences, steps_in_flight.popleft(), -1))
        assert actual == expected

    def _finish_step(self, sequences: list[Sequence], started_step: InFlightReplay,
                     token_index: int) -> list[tuple[int, float]]:
        choices = started_step.get_sampled_tokens()
        assert choices is not None
        for sequence, (token, _) in zip(sequences, choices, strict=True):
            assert sequence.tokens[token_index] == PLACEHOLDER_TOKEN
            sequence.tokens[token_index] = token
        return choices

    def make_prefilled_sequences(self, lengths: list[int], seed: int, num_extra_tokens: int = 1) -> list[Sequence]:
        """Return sequences of these lengths; all but the last token of each is in the KV cache.

        Each sequence has blocks for `num_extra_tokens` more tokens. The cache is filled with reference attention, since
        Triton's interpreter is slow.
        """
        generator, free_blocks = torch.Generator().manual_seed(seed), list(range(NUM_BLOCKS))
        sequences = []
        for sequence_id, length in enumerate(lengths):
            tokens = torch.randint(2, 480, (length,), generator=generator).tolist()
            blocks = [free_blocks.pop() for _ in range(-(-(length + num_extra_tokens) // self.cache.block_size))]
            sequences.append(Sequence.from_prompt(sequence_id, tokens, blocks))
            if length > 1:
                self._prefill_runner.run(Step(chunks=[PrefillChunk(sequences[-1], 0, length - 1)]), self.cache)
        return sequences
