"""Replay of recorded steps on CPUs: the kernels of all layers are recorded for a number of rows, with and without
adapters, and then run in one call, in which torch and Python do nothing between them. A step is recorded when it is
first needed, and again if its block tables outgrow the recording or the cache is another.

Only what consists of compiled kernels alone is recorded. Every other step runs piece by piece, with the same bits,
since kernels and their order are the same.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from shard.attention.backend import AttentionBackend
from shard.attention.kv_cache import KVCache, make_int64_tensor
from shard.attention.model_inputs import ModelInputs, make_token_columns
from shard.attention.native import NativeAttention, NativeAttentionPlan
from shard.lora.routing import AdapterRouting, AdapterTableRows
from shard.models.decoder import Decoder, RunnableModel
from shard.native.kernel_recording import KernelRecording, PhaseArray, ResultMemory, UnrecordableOperation
from shard.native.library import NativeLibrary
from shard.state.step import StepLayout

MAX_RECORDED_ROWS = 256  # with more, what happens between kernels is a small part of a step
MAX_EXACT_ROWS = 32  # with more, a step gets dummy rows up to a multiple of ROWS_MULTIPLE, so that it fits a recording
ROWS_MULTIPLE = 4
MIN_TABLE_BLOCKS = 64  # room for blocks of a recorded step's sequences together
MIN_PIECES = 64  # room for pieces of a recorded step's spans, unless it has fewer rows

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CpuGraph:
    """Recorded layers for one number of rows, with the tensors that they read and write."""

    columns: Tensor  # [3, rows]: tokens, positions and slots
    plan: NativeAttentionPlan
    embeddings: Tensor  # [rows, hidden]
    hidden_states: Tensor  # [rows, hidden]
    recording: KernelRecording  # keeps alive what the phases refer to
    phases: PhaseArray
    adapter_table_rows: AdapterTableRows  # which the kernels of adapters read


class CpuGraphRunner:
    """Recorded steps of a model with one cache, by number of rows; each is recorded when it is first needed. All use
    the same memory for their results."""

    def __init__(self, model: Decoder, attention: NativeAttention, library: NativeLibrary,
                 adapter_routing: AdapterRouting | None) -> None:
        """`adapter_routing`: None if rows with adapters cannot be recorded."""
        self._model, self._attention, self._library = model, attention, library
        self._adapter_routing = adapter_routing
        self._cache: KVCache | None = None
        self._graphs: dict[tuple[int, bool], CpuGraph] = {}  # by number of rows, and whether some have adapters
        self._memory = ResultMemory()
        self._max_rows = MAX_RECORDED_ROWS  # fewer, once a recording has failed

    def run(self, layout: StepLayout, cache: KVCache) -> tuple[ModelInputs, Tensor] | None:
        """Return the inputs and the hidden states `[rows, hidden]` of a step, valid until the next step; None if it
        cannot be recorded, or has too many rows. The rows' adapters must be set."""
        num_rows = sum(span.length for span in layout.spans)
        padded_rows = num_rows if num_rows <= MAX_EXACT_ROWS else -(-num_rows // ROWS_MULTIPLE) * ROWS_MULTIPLE
        has_adapters = any(sequence.adapter_id for sequence in layout.sequences)
        if not 0 < padded_rows <= self._max_rows or (has_adapters and self._adapter_routing is None):
            return None
        if cache is not self._cache:
            self._graphs.clear()
            self._cache = cache
        key, spans = (padded_rows, has_adapters), layout.spans
        graph = self._graphs.get(key)
        if graph is None or not self._attention.write_spans(graph.plan, spans):
            num_pieces = max(MIN_PIECES, 2 * self._attention.count_pieces(spans))
            num_blocks = max(MIN_TABLE_BLOCKS, 2 * sum(len(span.blocks) for span in spans))
            plan = self._attention.make_static_plan(padded_rows, min(num_pieces, padded_rows), num_blocks)
            graph = self._record(padded_rows, plan, cache, has_adapters=has_adapters)
            if graph is None:
                return None
            self._graphs[key] = graph
            self._attention.write_spans(plan, spans)
        graph.columns.copy_(make_token_columns(layout, cache, padded_rows - num_rows))
        if has_adapters and self._adapter_routing is not None:
            graph.adapter_table_rows[:num_rows] = self._adapter_routing.rows.adapter_table_rows
            graph.adapter_table_rows[num_rows:] = -1
        tokens, positions, slots = graph.columns[:, :num_rows]
        inputs = ModelInputs(tokens, positions, slots, make_int64_tensor(layout.sampled_rows), graph.plan)
        graph.embeddings[:num_rows] = self._model.embedding(inputs)
        self._library.run_phases(graph.phases, len(graph.phases))
        return inputs, graph.hidden_states[:num_rows]

    def _record(self, rows: int, plan: NativeAttentionPlan, cache: KVCache, *, has_adapters: bool) -> CpuGraph | None:
        columns = torch.zeros(3, rows, dtype=torch.int64)
        tokens, positions, slots = columns
        inputs = ModelInputs(tokens, positions, slots, torch.arange(rows), plan)
        embeddings = torch.zeros(rows, self._model.config.hidden_size, dtype=cache.dtype)
        recording, adapter_table_rows = KernelRecording(self._memory), np.full(rows, -1, dtype=np.int32)
        try:
            with self._read_table_rows(adapter_table_rows if has_adapters else None), recording.record():
                hidden_states = self._model.run_layers(embeddings, inputs, cache, self._attention)
        except UnrecordableOperation as error:
            logger.debug("steps of %d rows or more run piece by piece, because of %s", rows, error)
            self._max_rows = rows - 1
            return None
        return CpuGraph(columns, plan, embeddings, hidden_states, recording, recording.make_native_phases(),
                        adapter_table_rows)

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
