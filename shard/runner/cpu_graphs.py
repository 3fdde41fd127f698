"""Replay of recorded steps on CPUs: the kernels of all layers are recorded for a number of rows, with and without
adapters, and then run in one call, in which torch and Python do nothing between them. A step is recorded when it is
first needed, and again if its block tables or pieces of attention outgrow the recording, or the cache is another.

Only what consists of compiled kernels alone is recorded. Every other step runs piece by piece, with the same bits,
since kernels and their order are the same.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter

import numpy as np
import torch
from torch import Tensor

from shard.attention.backend import AttentionBackend
from shard.attention.kv_cache import KVCache, TransientKVCache, make_int64_tensor
from shard.attention.model_inputs import ModelInputs, make_token_columns
from shard.attention.native import NativeAttention, NativeAttentionPlan
from shard.lora.routing import AdapterRouting, AdapterTableRows
from shard.models.decoder import Decoder, RunnableModel
from shard.native.kernel_recording import KernelRecording, PhaseArray, ResultMemory, UnrecordableOperation
from shard.native.library import NativeLibrary
from shard.state.step import StepLayout, TokenSpan

MAX_RECORDED_ROWS = 256  # with more, what happens between kernels is a small part of a step
MAX_UNPADDED_ROWS = 32  # with more, a step gets dummy rows up to a multiple of PADDED_ROWS_MULTIPLE
PADDED_ROWS_MULTIPLE = 4
MIN_TABLE_BLOCKS = 64  # room for blocks of a recorded step's sequences together
MIN_PIECES = 64  # room for pieces of a recorded step's spans, unless it has fewer rows

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StaticRows:
    """Tensors of the most rows that are recorded. Recordings read and write the first of them."""

    columns: Tensor  # [3, rows]: tokens, positions and slots
    embeddings: Tensor  # [rows, hidden]
    attention_output: Tensor  # [rows, heads * head_dim]


@dataclass(frozen=True, slots=True)
class CpuGraph:
    """Recorded layers for one number of rows."""

    plan: NativeAttentionPlan
    hidden_states: Tensor  # [rows, hidden], valid until another recording runs
    recording: KernelRecording  # keeps alive what the phases refer to
    phases: PhaseArray
    adapter_table_rows: AdapterTableRows  # which the kernels of adapters read


class CpuGraphRunner:
    """Recorded steps of a model with one cache, by number of rows; each is recorded when it is first needed. All use
    the same memory for their inputs and results."""

    def __init__(self, model: Decoder, attention: NativeAttention, library: NativeLibrary,
                 adapter_routing: AdapterRouting | None) -> None:
        """`adapter_routing`: None if rows with adapters cannot be recorded."""
        self.graph_recording_seconds = 0.0  # that all recordings took
        self._model, self._attention, self._library = model, attention, library
        self._adapter_routing = adapter_routing
        self._cache: KVCache | None = None
        self._graphs: dict[tuple[int, bool], CpuGraph] = {}  # by number of rows, and whether some have adapters
        self._memory = ResultMemory()
        self._static_rows: StaticRows | None = None
        self._max_rows = MAX_RECORDED_ROWS  # fewer, once a recording has failed

    def run(self, layout: StepLayout, cache: KVCache) -> tuple[ModelInputs, Tensor] | None:
        """Return the inputs and the hidden states `[rows, hidden]` of a step, valid until the next step; None if it
        cannot be recorded, or has too many rows. The rows' adapters must be set."""
        num_rows = sum(span.length for span in layout.spans)
        padded_rows = (num_rows if num_rows <= MAX_UNPADDED_ROWS
                       else -(-num_rows // PADDED_ROWS_MULTIPLE) * PADDED_ROWS_MULTIPLE)
        has_adapters = any(sequence.adapter_id for sequence in layout.sequences)
        # A transient cache is that of embeddings; recordings for it would take turns with those of the worker's cache.
        if (not 0 < padded_rows <= self._max_rows or isinstance(cache, TransientKVCache)
            or (has_adapters and self._adapter_routing is None)):
            return None
        if cache is not self._cache or self._static_rows is None:
            self._graphs.clear()
            self._cache, self._static_rows = cache, self._make_static_rows(cache)
        static_rows, spans = self._static_rows, layout.spans
        graph = self._graphs.get((padded_rows, has_adapters))
        if graph is None or not self._attention.write_spans(graph.plan, spans):
            graph = self._record(padded_rows, spans, cache, static_rows, has_adapters=has_adapters, outgrown=graph)
            if graph is None:
                return None
            self._graphs[padded_rows, has_adapters] = graph
            self._attention.write_spans(graph.plan, spans)
        static_rows.columns[:, :padded_rows] = make_token_columns(layout, cache, padded_rows - num_rows)
        if has_adapters and self._adapter_routing is not None:
            graph.adapter_table_rows[:num_rows] = self._adapter_routing.rows.adapter_table_rows
            graph.adapter_table_rows[num_rows:] = -1
        tokens, positions, slots = static_rows.columns[:, :num_rows]
        inputs = ModelInputs(tokens, positions, slots, make_int64_tensor(layout.sampled_rows), graph.plan)
        static_rows.embeddings[:num_rows] = self._model.embedding(inputs)
        static_rows.embeddings[num_rows:padded_rows] = 0.0
        self._library.run_phases(graph.phases, len(graph.phases))
        return inputs, graph.hidden_states[:num_rows]

    def _make_static_rows(self, cache: KVCache) -> StaticRows:
        return StaticRows(torch.zeros(3, MAX_RECORDED_ROWS, dtype=torch.int64),
                          torch.zeros(MAX_RECORDED_ROWS, self._model.config.hidden_size, dtype=cache.dtype),
                          self._attention.allocate_output(MAX_RECORDED_ROWS))

    def _record(self, rows: int, spans: list[TokenSpan], cache: KVCache, static_rows: StaticRows, *,
                has_adapters: bool, outgrown: CpuGraph | None) -> CpuGraph | None:
        """Record the layers with room for these spans, and for what `outgrown` has room for: the recording that this
        one replaces. Return None if they cannot be recorded."""
        started_at = perf_counter()
        num_pieces = max(MIN_PIECES, 2 * self._attention.count_pieces(spans))
        num_blocks = max(MIN_TABLE_BLOCKS, 2 * sum(len(span.blocks) for span in spans))
        if outgrown is not None:
            num_pieces = max(num_pieces, outgrown.plan.num_pieces)
            num_blocks = max(num_blocks, len(outgrown.plan.blocks))
        plan = self._attention.make_static_plan(static_rows.attention_output[:rows], min(num_pieces, rows), num_blocks)
        tokens, positions, slots = static_rows.columns[:, :rows]
        inputs = ModelInputs(tokens, positions, slots, torch.arange(rows), plan)
        recording, adapter_table_rows = KernelRecording(self._memory), np.full(rows, -1, dtype=np.int32)
        try:
            with self._read_table_rows(adapter_table_rows if has_adapters else None), recording.record():
                hidden_states = self._model.run_layers(static_rows.embeddings[:rows], inputs, cache, self._attention)
        except UnrecordableOperation as error:
            # A few tries, not one for each number of rows.
            self._max_rows = next((limit for limit in (MAX_UNPADDED_ROWS, 1) if limit < rows), 0)
            logger.debug("steps of more than %d rows run piece by piece, because of %s", self._max_rows, error)
            return None
        finally:
            self.graph_recording_seconds += perf_counter() - started_at
        return CpuGraph(plan, self._memory.view_without_keeping_alive(hidden_states), recording,
                        recording.make_native_phases(), adapter_table_rows)

    @contextmanager
    def _read_table_rows(self, adapter_table_rows: AdapterTableRows | None) -> Iterator[None]:
        """Let kernels that are recorded in the block read the rows' adapters from `adapter_table_rows`, if given."""
        routing = self._adapter_routing
        if routing is None or adapter_table_rows is None:
            yield
            return
        rows = routing.rows
        routing.set_rows((), static_table_rows=adapter_table_rows)
        try:
            yield
        finally:
            routing.rows = rows


def make_cpu_graph_runner(model: RunnableModel, attention: AttentionBackend, num_ranks: int,
                          adapter_routing: AdapterRouting | None = None) -> CpuGraphRunner | None:
    """Return a runner; None if the steps of this model are never made of compiled kernels alone. `adapter_routing`:
    None if those of rows with adapters are not."""
    if num_ranks > 1 or not isinstance(model, Decoder) or not isinstance(attention, NativeAttention):
        return None
    return CpuGraphRunner(model, attention, attention.library, adapter_routing)
