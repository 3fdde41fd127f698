"""Embeddings by a model that generates: texts are run as prompts and leave no state behind.

Their keys and values are in a separate cache, not the one that the router allocates; it is as large as the largest step
so far needed.
"""

from collections.abc import Callable, Sequence

import torch

from shard.adapters.routing import Bearers
from shard.attention.backend import Attention
from shard.attention.inputs import build
from shard.attention.kv_cache import Cache
from shard.runner.pooling import Pooling
from shard.runner.runner import Model, token_runs
from shard.state.columns import Text
from shard.state.sequence import Sampling
from shard.state.sequence import Sequence as Prompt
from shard.state.transaction import Chunk, Step

BLOCK_SIZE = 16


class Embedder:
    def __init__(self, model: Model, attention: Attention, pooling: Pooling, bearers: Bearers, *,
                 make_cache: Callable[[int], Cache], device: torch.device) -> None:
        """Create an embedder; `make_cache` allocates a cache of a number of blocks of 16 slots."""
        self._model = model
        self._attention = attention
        self._pooling = pooling
        self._bearers = bearers
        self._make_cache = make_cache
        self._device = device
        self._cache = make_cache(0)

    @torch.inference_mode()
    def vectors(self, texts: Sequence[Text]) -> list[list[float] | None]:
        """Return the embedding of each text; None where it is not finite."""
        step = as_step(texts)
        self._grow(sum(len(sequence.blocks) for sequence in step.sequences))
        inputs = build(step, self._cache, self._attention, self._device)
        with self._bearers.rows(token_runs(step, len(inputs.tokens))):
            hidden = self._model.hidden(inputs, self._cache, self._attention)  # [tokens, hidden_size]
        if not bool(hidden.sum(dtype=torch.float32).isfinite()):
            self._cache.zero(range(self._cache.num_blocks))
        return self._pooling.embeddings(hidden, [len(text.tokens) for text in texts])

    def _grow(self, num_blocks: int) -> None:
        if self._cache.num_blocks < num_blocks:
            self._cache = self._make_cache(0)  # free the old one before allocating the new one
            self._cache = self._make_cache(num_blocks)


def as_step(texts: Sequence[Text]) -> Step:
    """Return a step with each text as a chunk that is a whole prompt, in blocks of its own."""
    step, first = Step(), 0
    for number, text in enumerate(texts):
        blocks = list(range(first, first + -(-len(text.tokens) // BLOCK_SIZE)))
        step.chunks.append(Chunk(as_prompt(number, text, blocks), 0, len(text.tokens)))
        first += len(blocks)
    return step


def as_prompt(number: int, text: Text, blocks: list[int]) -> Prompt:
    length = len(text.tokens)
    return Prompt(id=number, tokens=text.tokens, num_prompt_tokens=length, num_given=length, computed=0, num_cached=0,
                  blocks=blocks, key=0, sampling=Sampling(), prompt_logprobs=False, adapter=text.adapter, grammar=0)
