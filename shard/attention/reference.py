"""Reference attention in plain torch, on any device: simple and slow.

Every span is computed by itself, in float32. A row's bits do not depend on other spans, but on how a prompt is cut into
chunks: this backend does not follow docs/concepts/exactness.md, "Gathered lengths".
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from shard.attention.backend import AttentionOptions
from shard.attention.kv_cache import KVCache, make_int64_tensor
from shard.state.step import TokenSpan

MAX_PIECE_TOKENS = 128  # tokens


@dataclass(frozen=True, slots=True)
class TokenSpanMask:
    """Cache slots that one span attends to, and which of them each of its tokens may not see."""

    token_slice: slice  # on the token axis
    slots: Tensor  # [positions], from the sequence's first token to the span's last
    masked: Tensor  # [length, positions], True where a position is later than the token or outside its window


class ReferenceAttention:
    """Attention backend in plain torch, to compare others with."""

    def __init__(self, num_heads: int, num_kv_heads: int, head_dim: int, attention_options: AttentionOptions) -> None:
        self._head_shape = (num_kv_heads, num_heads // num_kv_heads, head_dim)
        self._options = attention_options
        self._scale = attention_options.compute_score_scale(head_dim)

    def plan(self, decodes: list[TokenSpan], chunks: list[TokenSpan], num_tokens: int,  # noqa: ARG002
             cache: KVCache) -> dict[int, list[TokenSpanMask]]:
        """Return the spans' slots and masks by window size."""
        # A chunk is cut, since the scores of a long chunk far into a prompt would not fit into memory together.
        spans = [*decodes, *(TokenSpan(chunk.first_row + first, chunk.start + first,
                                       min(MAX_PIECE_TOKENS, chunk.length - first), chunk.blocks)
                             for chunk in chunks for first in range(0, chunk.length, MAX_PIECE_TOKENS))]
        return {window: [make_span_mask(span, cache, window) for span in spans]
                for window in self._options.window_sizes}

    def run(self, queries: Tensor, cache: KVCache, layer: int, plan: dict[int, list[TokenSpanMask]]) -> Tensor:
        output = torch.zeros_like(queries)
        kv_heads, _, head_dim = self._head_shape
        for span_mask in plan[self._options.window_of_layer(layer)]:
            keys, values = (rows[layer].index_select(0, span_mask.slots).float().unflatten(1, (kv_heads, head_dim))
                            .transpose(0, 1) for rows in (cache.keys, cache.values))
            output[span_mask.token_slice] = self._attend(queries[span_mask.token_slice].float(), keys, values,
                                                         span_mask.masked)
        return output.flatten(1)

    def _attend(self, queries: Tensor, keys: Tensor, values: Tensor, masked: Tensor) -> Tensor:
        """`queries` is [length, heads, head_dim], `keys` and `values` are [kv_heads, positions, head_dim]."""
        grouped = queries.view(-1, *self._head_shape).permute(1, 2, 0, 3)  # [kv_heads, group, length, head_dim]
        scores = torch.matmul(grouped, keys[:, None].mT) * self._scale  # [kv_heads, group, length, positions]
        if self._options.softcap:
            scores = self._options.softcap * (scores / self._options.softcap).tanh()
        weights = scores.masked_fill(masked, -torch.inf).softmax(-1)
        return torch.matmul(weights, values[:, None]).permute(2, 0, 1, 3).flatten(1, 2)


def make_span_mask(span: TokenSpan, cache: KVCache, window: int) -> TokenSpanMask:
    slots = make_int64_tensor(cache.list_slots(span.blocks, 0, span.end)).to(cache.device)
    positions, token_positions = (torch.arange(first, span.end, device=cache.device) for first in (0, span.start))
    ahead = positions - token_positions[:, None]  # [length, positions]
    masked = (ahead > 0) | (ahead <= -window) if window else ahead > 0
    return TokenSpanMask(slice(span.first_row, span.first_row + span.length), slots, masked)
