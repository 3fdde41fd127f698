"""Embeddings by a model that generates: texts are run as prompts and leave no state behind.

Their keys and values are in a separate cache, not the one that the router allocates; it is as large as the largest step
so far needed.
"""

from collections.abc import Callable
from collections.abc import Sequence as GenericSequence

import torch

from shard.attention.backend import AttentionBackend
from shard.attention.forward_inputs import build_forward_inputs
from shard.attention.kv_cache import KVCache
from shard.lora.routing import AdapterRouting
from shard.models.decoder import RunnableModel
from shard.runner.model_runner import make_adapter_runs
from shard.runner.pooling import Pooling
from shard.state.block_usage import MIN_BLOCK_SIZE
from shard.state.sequence import PoolingText, Sequence
from shard.state.step import PrefillChunk, Step, lay_out_step


class DecoderEmbedder:
    """Computes embeddings of texts with a model that generates."""

    def __init__(self, model: RunnableModel, attention: AttentionBackend, pooling: Pooling,
                 adapter_routing: AdapterRouting, *, make_cache: Callable[[int], KVCache],
                 device: torch.device) -> None:
        """Create an embedder; `make_cache` allocates a cache of a number of blocks of `MIN_BLOCK_SIZE` slots."""
        self._model = model
        self._attention = attention
        self._pooling = pooling
        self._adapter_routing = adapter_routing
        self._make_cache = make_cache
        self._device = device
        self._cache = make_cache(0)

    @torch.inference_mode()
    def embed(self, texts: GenericSequence[PoolingText]) -> list[list[float] | None]:
        """Return the embedding of each text; None where it is not finite."""
        step = make_prefill_step(texts)
        self._grow_cache(sum(len(sequence.blocks) for sequence in step.sequences))
        layout = lay_out_step(step)
        inputs = build_forward_inputs(layout, self._cache, self._attention, self._device)
        self._adapter_routing.set_rows(make_adapter_runs(layout))
        hidden_states = self._model.forward(inputs, self._cache, self._attention)  # [tokens, hidden_size]
        if not bool(hidden_states.sum(dtype=torch.float32).isfinite()):
            self._cache.zero_blocks(range(self._cache.num_blocks))
        return self._pooling.compute_embeddings(hidden_states, [len(text.tokens) for text in texts])

    def _grow_cache(self, num_blocks: int) -> None:
        if self._cache.num_blocks < num_blocks:
            self._cache = self._make_cache(0)  # free the old one before allocating the new one
            self._cache = self._make_cache(num_blocks)


def make_prefill_step(texts: GenericSequence[PoolingText]) -> Step:
    """Return a step with each text as a chunk that is a whole prompt, in blocks of its own."""
    step, first_block = Step(), 0
    for sequence_id, text in enumerate(texts):
        blocks = list(range(first_block, first_block + -(-len(text.tokens) // MIN_BLOCK_SIZE)))
        step.chunks.append(PrefillChunk(Sequence.from_prompt(sequence_id, text.tokens, blocks,
                                                             adapter_id=text.adapter_id), 0, len(text.tokens)))
        first_block += len(blocks)
    return step
