"""Replay of captured decode steps (CUDA graphs): the launches of a step are captured once per number of rows, and then
repeated with other inputs.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor, cuda

from shard.attention.backend import CapturableAttentionBackend
from shard.attention.kv_cache import KVCache
from shard.attention.model_inputs import DUMMY_TOKEN, ModelInputs
from shard.hardware.device_transfers import DeviceToHostCopier, DeviceToHostCopy, StaticDeviceBuffers
from shard.lora.routing import AdapterRouting, LoraWorkList, StaticLoraWorkList
from shard.models.decoder import RunnableModel
from shard.sampling.cuda_graph_sampler import CudaGraphSampler, CudaGraphSamples, can_sample_in_cuda_graph
from shard.state.sequence import PLACEHOLDER_TOKEN, Sequence
from shard.state.step import MIN_ROWS, Step, StepLayout, TokenSpan, lay_out_step

LaunchFunction = Callable[[], object]
# from a function that launches a step to one that repeats it with the same tensors
CaptureFunction = Callable[[LaunchFunction], LaunchFunction]
# captured numbers of rows are 8 apart up to the first, 32 apart up to the second, then 64
MAX_ROWS_SPACED_BY_8, MAX_ROWS_SPACED_BY_32 = 64, 256


class GraphOutputs(NamedTuple):
    """Outputs of a captured step, one row per decode, which are valid until the next step."""

    hidden_states: Tensor  # [rows, hidden_size]
    logits: Tensor  # [rows, vocabulary]

    def first_rows(self, num_rows: int) -> "GraphOutputs":
        return GraphOutputs(self.hidden_states[:num_rows], self.logits[:num_rows])


class InFlightReplay:
    """Step under way whose tokens are chosen on the device."""

    def __init__(self, sequences: list[Sequence], host_copy: DeviceToHostCopy) -> None:
        self.row_by_sequence = {sequence.id: row for row, sequence in enumerate(sequences)}
        self._host_copy = host_copy

    def wait(self) -> None:
        """Wait until the step is over. Any thread may call this."""
        self._host_copy.wait()

    def get_sampled_tokens(self) -> list[tuple[int, float]] | None:
        """Return every row's token and its logprob, or None if a row needs a decision of the host: then
        `workers/step_overlap.py` runs the step again with `ModelRunner.run`."""
        rows = self._host_copy.read_rows()
        return [(int(token), logprob) for token, logprob, _ in rows] if all(is_valid for *_, is_valid in rows) else None


class CapturedDecodeStep(NamedTuple):
    """A decode step that is captured for one number of rows: its calls."""

    forward: LaunchFunction
    sample_greedy: LaunchFunction  # picks the best tokens from the outputs of `forward`
    sample_random: LaunchFunction  # draws tokens from them instead
    forward_with_adapters: LaunchFunction | None  # in place of `forward` if some rows use adapters


class CudaGraphRunner:
    """Captured decode steps of a model with one cache, by number of rows. The largest is captured first so that the
    others reuse its memory; all share their output buffers.

    A step uses the smallest capture with enough rows; the rows beyond are padding and read the scratch block. If no
    sequence needs more than `sampling/cuda_graph_sampler.py` does, the captured step chooses the tokens, too: the next
    step reads them on the device, and can begin before the host knows them.
    """

    @torch.inference_mode()
    def __init__(self, model: RunnableModel, attention: CapturableAttentionBackend, cache: KVCache,
                 capture: CaptureFunction, *, max_rows: int, max_sequence_length: int,
                 adapter_routing: AdapterRouting | None = None) -> None:
        """Capture steps of all sizes up to `max_rows`, rounded up by `iter_capture_sizes`; with `adapter_routing` also
        steps in which some rows use adapters."""
        *smaller_sizes, max_rows = iter_capture_sizes(max_rows)
        self._model, self._attention, self._cache = model, attention, cache
        self._static_plans = attention.make_static_plans(max_rows, max_sequence_length, cache)
        self._padding_blocks = [cache.scratch_block]  # block table of padding rows
        self._input_buffers = StaticDeviceBuffers([max_rows] * 3, torch.int64, cache.device)
        # chosen by the last step
        self._last_sampled_tokens = torch.zeros(max_rows, dtype=torch.int64, device=cache.device)
        # token, logprob, whether valid
        self._sampling_results = torch.zeros(max_rows, 3, dtype=torch.float64, device=cache.device)
        self._result_copier = DeviceToHostCopier(self._sampling_results)
        self._adapter_routing, self._lora_work = adapter_routing, StaticLoraWorkList(max_rows, cache.device)
        self._write_inputs([], max_rows)
        self._outputs = GraphOutputs(*map(torch.empty_like, self._forward(self._make_inputs(max_rows))))
        self._sampler = CudaGraphSampler(max_rows, cache.device)
        self._captured_steps: dict[int, CapturedDecodeStep] = {}
        for rows in (max_rows, *reversed(smaller_sizes)):
            self._write_inputs([], rows)
            forward = partial(self._forward_into_outputs, self._make_inputs(rows))
            self._captured_steps[rows] = CapturedDecodeStep(
                capture(partial(forward, None)),
                capture(partial(self._sample_into_buffers, self._sampler.sample_greedy, rows)),
                capture(partial(self._sample_into_buffers, self._sampler.sample_random, rows)),
                None if adapter_routing is None else capture(partial(forward, self._lora_work.view_rows(rows))))

    @torch.inference_mode()
    def run(self, layout: StepLayout, cache: KVCache) -> GraphOutputs | None:
        """Run the step. Return None if no capture fits: it has chunks, too many rows, adapters that do more than add to
        linears, or needs more room in the attention plan than was allocated."""
        captured = self._prepare_step(layout, cache, {})
        if captured is None:
            return None
        captured.forward()
        return self._outputs.first_rows(layout.num_decodes)

    @torch.inference_mode()
    def begin_step(self, step: Step, cache: KVCache, previous: InFlightReplay | None) -> InFlightReplay | None:
        """Begin the step and choose its tokens on the device. The last tokens of sequences in the step `previous` need
        not be known. Return None where `run` does, and if a sequence needs more than `sampling/cuda_graph_sampler.py`
        does."""
        sequences = step.decodes
        if not sequences or not all(map(can_sample_in_cuda_graph, sequences)):
            return None
        captured = self._prepare_step(lay_out_step(step), cache, previous.row_by_sequence if previous else {})
        if captured is None:
            return None
        sample = captured.sample_greedy
        if any(sequence.sampling.temperature for sequence in sequences):  # others are greedy
            self._sampler.write_parameters(sequences)
            sample = captured.sample_random
        self._result_copier.block_stream_until_copied()
        captured.forward()
        sample()
        return InFlightReplay(sequences, self._result_copier.begin_copy(len(sequences)))

    def _prepare_step(self, layout: StepLayout, cache: KVCache,
                      previous_rows: dict[int, int]) -> CapturedDecodeStep | None:
        """Write the inputs of this step into the graph's buffers and return the captured calls for it; None if no
        capture fits. `previous_rows` has the rows of the tokens that the last step chose, by sequence; a sequence that
        ends in a placeholder was in that step."""
        count = len(layout.sequences)
        rows = min((rows for rows in self._captured_steps if rows >= count), default=0)
        if not rows or count > layout.num_decodes or cache is not self._cache:
            return None
        captured = self._captured_steps[rows]
        adapters = [sequence.adapter_id for sequence in layout.sequences]
        if any(adapters):
            if (self._adapter_routing is None or captured.forward_with_adapters is None
                or not self._adapter_routing.write_static_work(self._lora_work, adapters)):
                return None
            captured = captured._replace(forward=captured.forward_with_adapters)
        # a token -1 - row refers to that row of the last step's tokens
        tokens = (sequence.tokens[-1] if sequence.tokens[-1] != PLACEHOLDER_TOKEN else -1 - previous_rows[sequence.id]
                  for sequence in layout.sequences)
        return captured if self._write_inputs([*zip(tokens, layout.spans, strict=True)], rows) else None

    def _forward(self, inputs: ModelInputs) -> GraphOutputs:
        hidden_states = self._model.forward(inputs, self._cache, self._attention)
        logits = self._model.compute_logits(hidden_states)
        assert logits is not None, "only a model on one rank is captured"
        return GraphOutputs(hidden_states, logits)

    def _forward_into_outputs(self, inputs: ModelInputs, lora_work: LoraWorkList | None) -> None:
        if self._adapter_routing is not None:
            self._adapter_routing.set_rows((), lora_work)
        token_codes = inputs.tokens
        tokens = torch.where(token_codes < 0, self._last_sampled_tokens[(-1 - token_codes).clamp(min=0)], token_codes)
        outputs = self._forward(replace(inputs, tokens=tokens))
        for buffer, output in zip(self._outputs.first_rows(len(tokens)), outputs, strict=True):
            buffer.copy_(output)

    def _sample_into_buffers(self, sample: Callable[[Tensor], CudaGraphSamples], num_rows: int) -> None:
        outputs = self._outputs.first_rows(num_rows)
        samples = sample(outputs.logits)
        self._last_sampled_tokens[:num_rows].copy_(samples.tokens)
        columns = samples.tokens, samples.logprobs, samples.is_valid & outputs.hidden_states.isfinite().all(-1)
        for column, values in enumerate(columns):
            self._sampling_results[:num_rows, column].copy_(values)

    def _write_inputs(self, tokens_and_spans: list[tuple[int, TokenSpan]], num_rows: int) -> bool:
        padding = [(DUMMY_TOKEN, TokenSpan(row, 0, 1, self._padding_blocks))
                   for row in range(len(tokens_and_spans), num_rows)]
        tokens, spans = zip(*tokens_and_spans, *padding, strict=True)
        if not self._static_plans.write_spans([*spans]):
            return False
        slots = chain(*(self._cache.list_slots(span.blocks, span.start, span.end) for span in spans))
        self._input_buffers.copy_to_device([tokens, [span.start for span in spans], [*slots]])
        return True

    def _make_inputs(self, num_rows: int) -> ModelInputs:
        tokens, positions, slots = (column[:num_rows] for column in self._input_buffers.device_lists)
        return ModelInputs(tokens, positions, slots, torch.arange(num_rows, device=tokens.device),
                           self._static_plans.make_plan(num_rows))


def iter_capture_sizes(max_rows: int) -> Iterator[int]:
    """Yield the numbers of rows to capture, close enough that steps have little padding. The last is `max_rows` or the
    next such number above it."""
    num_rows = MIN_ROWS
    while num_rows < max_rows:
        yield num_rows
        num_rows += (num_rows if num_rows < 8 else 8 if num_rows < MAX_ROWS_SPACED_BY_8
                     else 32 if num_rows < MAX_ROWS_SPACED_BY_32 else 64)
    yield num_rows


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Disable garbage collection: a CUDA graph that it destroys would spoil the one that is being captured."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def make_capture_function(device: torch.device) -> CaptureFunction:
    """Return a function that captures CUDA graphs, which share their memory. All are captured on one stream, since
    libraries keep a workspace per stream."""
    pool, capture_stream = cuda.graph_pool_handle(), cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch has no types there

    def capture(launch: LaunchFunction) -> LaunchFunction:
        current_stream = cuda.current_stream(device)
        capture_stream.wait_stream(current_stream)
        with cuda.stream(capture_stream):
            launch()  # compiles kernels and allocates workspaces of libraries
        current_stream.wait_stream(capture_stream)
        graph = cuda.CUDAGraph()
        with without_garbage_collection(), cuda.graph(graph, pool=pool, stream=capture_stream,
                                                      capture_error_mode="thread_local"):
            launch()
        return graph.replay

    return capture
