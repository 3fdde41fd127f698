"""Random sequences with a KV cache, and the attention output of their steps."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from shard.attention.backend import make_attention
from shard.attention.kv_cache import Cache
from shard.attention.span import Span, integers
from shard.attention.variant import PLAIN, Variant

CPU = torch.device("cpu")
LAYER = 1


@dataclass(frozen=True)
class Part:
    """Queries, keys and values of one sequence, and its blocks."""

    queries: Tensor  # [length, heads, head_dim]
    keys: Tensor  # [length, kv_heads * head_dim]
    values: Tensor  # [length, kv_heads * head_dim]
    blocks: list[int]

    @property
    def length(self) -> int:
        return len(self.queries)

    def span(self, row: int, start: int, end: int) -> Span:
        return Span(row, start, end - start, self.blocks)


Run = tuple[Part, int, int]  # a chunk: sequence, first position, end position


class Scene:
    def __init__(self, backend: str = "cpu", *, kv_heads: int = 2, group: int = 2, head_dim: int = 32, seed: int = 0,
                 dtype: torch.dtype = torch.float32, block_size: int = 16, num_blocks: int = 512,
                 variant: Variant = PLAIN, device: torch.device = CPU) -> None:
        self.shape = (kv_heads, group, head_dim)
        self.attention = make_attention(backend, kv_heads * group, kv_heads, head_dim, variant)
        self.cache = Cache(2, kv_heads, head_dim, block_size=block_size, num_blocks=num_blocks, dtype=dtype,
                           device=device)
        self._random = torch.Generator().manual_seed(seed)
        self._free: list[int] = torch.randperm(num_blocks, generator=self._random).tolist()

    def part(self, length: int) -> Part:
        kv_heads, group, head_dim = self.shape
        sizes = [(length, kv_heads * group, head_dim), (length, kv_heads * head_dim), (length, kv_heads * head_dim)]
        return self.place(*(torch.randn(size, generator=self._random).to(self.cache.device, self.cache.dtype)
                            for size in sizes))

    def place(self, queries: Tensor, keys: Tensor, values: Tensor) -> Part:
        """Return a sequence that has newly allocated blocks; nothing is written to the cache yet."""
        blocks = [self._free.pop() for _ in range(-(-len(queries) // self.cache.block_size))]
        return Part(queries, keys, values, blocks)

    def copy(self, part: Part) -> Part:
        return self.place(part.queries, part.keys, part.values)

    def soil(self, value: float) -> None:
        """Fill all blocks but the zero block with `value`."""
        first = self.cache.zero_block * self.cache.block_size
        for rows in self.cache.keys + self.cache.values:
            rows[:first] = value
            rows[first + self.cache.block_size:] = value

    def blot(self, part: Part, value: float) -> None:
        """Fill the blocks of `part` with `value`."""
        slots = self.slots(part, 0, len(part.blocks) * self.cache.block_size)
        for rows in self.cache.keys + self.cache.values:
            rows[slots] = value

    def write(self, part: Part, start: int, end: int) -> None:
        self.cache.write(LAYER, part.keys[start:end], part.values[start:end], self.slots(part, start, end))

    def slots(self, part: Part, start: int, end: int) -> Tensor:
        return integers(self.cache.slots(part.blocks, start, end)).to(self.cache.device)

    def step(self, decodes: Iterable[tuple[Part, int]] = (), chunks: Iterable[Run] = ()) -> list[Tensor]:
        """Return the attention output of each decode and chunk, [tokens, heads * head_dim].

        A decode is a sequence and its position. The outputs are copies, since the next step may overwrite the buffer.
        """
        runs, num_decodes = [(part, at, at + 1) for part, at in decodes], len(list(decodes))
        runs += chunks
        spans: list[Span] = []
        for part, start, end in runs:
            self.write(part, start, end)
            spans.append(part.span(sum(span.length for span in spans), start, end))
        queries = torch.cat([part.queries[start:end] for part, start, end in runs])
        plan = self.attention.plan(spans[:num_decodes], spans[num_decodes:], len(queries), self.cache)
        result = self.attention.run(queries, self.cache, LAYER, plan).clone()
        return list(result.split([span.length for span in spans]))
