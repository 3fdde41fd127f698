"""Random sequences with a KV cache, and the attention output of their steps."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from shard.attention.backend import DEFAULT_ATTENTION_OPTIONS, AttentionOptions, make_attention_backend
from shard.attention.kv_cache import KVCache, make_int64_tensor
from shard.state.step import TokenSpan

CPU = torch.device("cpu")
LAYER = 1


@dataclass(frozen=True)
class AttentionSequence:
    """Queries, keys and values of one sequence, and its blocks."""

    queries: Tensor  # [length, heads, head_dim]
    keys: Tensor  # [length, kv_heads * head_dim]
    values: Tensor  # [length, kv_heads * head_dim]
    blocks: list[int]

    @property
    def length(self) -> int:
        return len(self.queries)

    def make_span(self, row: int, start: int, end: int) -> TokenSpan:
        return TokenSpan(row, start, end - start, self.blocks)


ChunkRange = tuple[AttentionSequence, int, int]  # a chunk: sequence, first position, end position


class AttentionHarness:
    def __init__(self, backend: str = "cpu", *, kv_heads: int = 2, group: int = 2, head_dim: int = 32, seed: int = 0,
                 dtype: torch.dtype = torch.float32, block_size: int = 16, num_blocks: int = 512,
                 variant: AttentionOptions = DEFAULT_ATTENTION_OPTIONS, device: torch.device = CPU) -> None:
        self.shape = (kv_heads, group, head_dim)
        self.attention = make_attention_backend(backend, kv_heads * group, kv_heads, head_dim, variant)
        self.cache = KVCache(2, kv_heads, head_dim, block_size=block_size, num_blocks=num_blocks, dtype=dtype,
                             device=device)
        self._random = torch.Generator().manual_seed(seed)
        self._free_blocks: list[int] = torch.randperm(num_blocks, generator=self._random).tolist()

    def make_random_sequence(self, length: int) -> AttentionSequence:
        kv_heads, group_size, head_dim = self.shape
        sizes = [(length, kv_heads * group_size, head_dim), (length, kv_heads * head_dim),
                 (length, kv_heads * head_dim)]
        return self.allocate_sequence(
            *(torch.randn(size, generator=self._random).to(self.cache.device, self.cache.dtype) for size in sizes))

    def allocate_sequence(self, queries: Tensor, keys: Tensor, values: Tensor) -> AttentionSequence:
        """Return a sequence that has newly allocated blocks; nothing is written to the cache yet."""
        blocks = [self._free_blocks.pop() for _ in range(-(-len(queries) // self.cache.block_size))]
        return AttentionSequence(queries, keys, values, blocks)

    def copy_sequence(self, sequence: AttentionSequence) -> AttentionSequence:
        return self.allocate_sequence(sequence.queries, sequence.keys, sequence.values)

    def fill_all_blocks(self, value: float) -> None:
        """Fill all blocks but the zero block with `value`."""
        zero_block_start = self.cache.zero_block * self.cache.block_size
        for rows in self.cache.keys + self.cache.values:
            rows[:zero_block_start] = value
            rows[zero_block_start + self.cache.block_size:] = value

    def fill_blocks_of(self, sequence: AttentionSequence, value: float) -> None:
        """Fill the blocks of `sequence` with `value`."""
        slots = self.get_slots(sequence, 0, len(sequence.blocks) * self.cache.block_size)
        for rows in self.cache.keys + self.cache.values:
            rows[slots] = value

    def write_to_cache(self, sequence: AttentionSequence, start: int, end: int) -> None:
        self.cache.write(LAYER, sequence.keys[start:end], sequence.values[start:end],
                         self.get_slots(sequence, start, end))

    def get_slots(self, sequence: AttentionSequence, start: int, end: int) -> Tensor:
        return make_int64_tensor(self.cache.list_slots(sequence.blocks, start, end)).to(self.cache.device)

    def run_step(self, decodes: Iterable[tuple[AttentionSequence, int]] = (),
                 chunks: Iterable[ChunkRange] = ()) -> list[Tensor]:
        """Return the attention output of each decode and chunk, [tokens, heads * head_dim].

        A decode is a sequence and its position. The outputs are copies, since the next step may overwrite the buffer.
        """
        ranges, num_decodes = [(part, at, at + 1) for part, at in decodes], len(list(decodes))
        ranges += chunks
        spans: list[TokenSpan] = []
        for part, start, end in ranges:
            self.write_to_cache(part, start, end)
            spans.append(part.make_span(sum(span.length for span in spans), start, end))
        queries = torch.cat([part.queries[start:end] for part, start, end in ranges])
        plan = self.attention.plan(spans[:num_decodes], spans[num_decodes:], len(queries), self.cache)
        result = self.attention.run(queries, self.cache, LAYER, plan).clone()
        return list(result.split([span.length for span in spans]))
