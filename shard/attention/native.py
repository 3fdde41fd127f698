"""Attention on CPU by the compiled kernels of shard/native/attention.c, which read keys and values where they are in
the cache. A row's bits depend on nothing but what it attends to: docs/concepts/exactness.md, "Blocks of 64 keys"."""

import ctypes
from array import array
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from shard.attention.backend import AttentionOptions
from shard.attention.kv_cache import KVCache
from shard.native.library import ACTIVATION_DTYPES, load_library
from shard.ops.native_linear import has_native_matmul
from shard.state.step import TokenSpan

MAX_PIECE_ROWS = 48  # heads of one key/value head times tokens; MAX_ROWS in attention.c
MAX_HEAD_DIM = 256  # as in attention.c
PIECE_INTS = 4  # of a `Piece` in attention.c
FORMATS = (torch.float32, torch.bfloat16, torch.float16)  # of the cache, in the order of attention.c


def can_use_native_attention(dtype: torch.dtype, num_heads_per_kv_head: int, head_dim: int) -> bool:
    """Return whether the kernels compute this kind of attention on this machine."""
    return (has_native_matmul(dtype, torch.device("cpu")) and num_heads_per_kv_head <= MAX_PIECE_ROWS
            and head_dim <= MAX_HEAD_DIM)


class AttentionArguments(ctypes.Structure):
    """`Attention` in attention.c."""

    _fields_: ClassVar = [
        *((name, ctypes.c_void_p) for name in ("queries", "keys", "values", "output", "pieces", "blocks")),
        *((name, ctypes.c_int64) for name in (
            "num_pieces", "kv_heads", "group", "head_dim", "block_size", "slot_bytes", "item_bytes", "format",
            "query_stride", "output_stride", "window", "activation_format")),
        ("scale", ctypes.c_float), ("softcap", ctypes.c_float)]


@dataclass(frozen=True, slots=True)
class NativeAttentionPlan:
    """Pieces of a step's spans, their block tables, and the output, which all layers use."""

    pieces: "array[int]"  # for each piece: first row, start, length, index of its first block in `blocks`; or zeros
    blocks: "array[int]"
    memory: Tensor  # of the output, [tokens, heads * head_dim] in float32; rows of no span are not written

    @property
    def num_pieces(self) -> int:
        return len(self.pieces) // PIECE_INTS

    def view_output(self, dtype: torch.dtype) -> Tensor:
        """Return the output in `dtype`, which takes no more memory than float32."""
        return self.memory.view(dtype).flatten()[:self.memory.numel()].view(self.memory.shape)


class NativeAttention:
    """Attention backend on CPU by compiled kernels, which compute in float32."""

    def __init__(self, num_heads: int, num_kv_heads: int, head_dim: int, attention_options: AttentionOptions) -> None:
        library = load_library()
        assert library is not None
        self.library = library
        self._num_kv_heads, self._group, self._head_dim = num_kv_heads, num_heads // num_kv_heads, head_dim
        self._scale, self._softcap = attention_options.compute_score_scale(head_dim), attention_options.softcap
        self._sliding_windows = attention_options.sliding_windows

    def plan(self, decodes: list[TokenSpan], chunks: list[TokenSpan], num_tokens: int,
             cache: KVCache) -> NativeAttentionPlan:  # noqa: ARG002
        pieces, blocks = self._cut_into_pieces([*decodes, *chunks])
        return NativeAttentionPlan(pieces, blocks, self.allocate_output(num_tokens))

    def allocate_output(self, num_rows: int) -> Tensor:
        """Return memory for the output of a step's rows, or of fewer."""
        return torch.zeros(num_rows, self._num_kv_heads * self._group * self._head_dim)

    def _cut_into_pieces(self, spans: list[TokenSpan]) -> "tuple[array[int], array[int]]":
        """Return pieces and block tables as in `NativeAttentionPlan`."""
        pieces, blocks = array("q"), array("i")
        max_tokens = MAX_PIECE_ROWS // self._group
        for first_row, start, length, span_blocks in spans:
            for first in range(0, length, max_tokens):
                pieces.extend((first_row + first, start + first, min(max_tokens, length - first), len(blocks)))
            blocks.extend(span_blocks)
        return pieces, blocks

    def count_pieces(self, spans: list[TokenSpan]) -> int:
        return len(self._cut_into_pieces(spans)[0]) // PIECE_INTS

    def make_static_plan(self, output: Tensor, max_pieces: int, max_blocks: int) -> NativeAttentionPlan:
        """Return a plan whose memory keeps its addresses; `write_spans` writes the spans."""
        return NativeAttentionPlan(array("q", bytes(8 * PIECE_INTS * max_pieces)), array("i", bytes(4 * max_blocks)),
                                   output)

    def write_spans(self, plan: NativeAttentionPlan, spans: list[TokenSpan]) -> bool:
        """Write the spans of the next step, of no more rows than the plan has. Return False if they do not fit."""
        pieces, blocks = self._cut_into_pieces(spans)
        num_unused = len(plan.pieces) - len(pieces)
        if len(blocks) > len(plan.blocks) or num_unused < 0:
            return False
        pieces.extend([0] * num_unused)  # of no tokens
        plan.pieces[:] = pieces
        plan.blocks[:len(blocks)] = blocks
        return True

    def run(self, queries: Tensor, cache: KVCache, layer: int, plan: NativeAttentionPlan) -> Tensor:
        if queries.dtype not in ACTIVATION_DTYPES or (
                queries.stride(2) != 1 or (queries.shape[1] != 1 and queries.stride(1) != self._head_dim)):
            raise ValueError(f"needs heads of {self._head_dim} side by side in float32 or bfloat16, got strides "
                             f"{queries.stride()}, {queries.dtype}")
        keys, values, output = cache.keys[layer], cache.values[layer], plan.view_output(queries.dtype)
        window = self._sliding_windows[layer] if self._sliding_windows else 0
        arguments = AttentionArguments(
            queries.data_ptr(), keys.data_ptr(), values.data_ptr(), output.data_ptr(),
            plan.pieces.buffer_info()[0], plan.blocks.buffer_info()[0], plan.num_pieces,
            self._num_kv_heads, self._group, self._head_dim, cache.block_size, cache.slot_bytes_per_layer,
            cache.dtype.itemsize, FORMATS.index(cache.dtype), queries.stride(0), output.stride(0), window,
            ACTIVATION_DTYPES.index(queries.dtype), self._scale, self._softcap)
        self.library.attend(arguments)
        return output
