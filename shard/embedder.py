"""Embeddings by a model that generates: texts are run as prompts of which nothing stays.

Their keys and values stand in a cache beside the router's, which is as large as the largest step so far needed. Knows
nothing of messages.
"""

from collections.abc import Callable, Sequence

import torch

from shard.adapters.bearers import Bearers
from shard.attention.backends import Attention
from shard.cache import Cache
from shard.change import Chunk, Step
from shard.pooling import Pooling
from shard.runner import Model, token_runs
from shard.sequence import Sampling
from shard.sequence import Sequence as Prompt
from shard.step import build
from shard.texts import Text

BLOCK_SIZE = 16


class Embedder:
    def __init__(self, model: Model, attention: Attention, pooling: Pooling, bearers: Bearers, *,
                 make_cache: Callable[[int], Cache], device: torch.device) -> None:
        """`make_cache` makes one of so many blocks of 16 places."""
        self._model = model
        self._attention = attention
        self._pooling = pooling
        self._bearers = bearers
        self._make_cache = make_cache
        self._device = device
        self._cache = make_cache(0)

    @torch.inference_mode()
    def vectors(self, texts: Sequence[Text]) -> list[list[float] | None]:
        """By text; none where a number is none."""
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
            self._cache = self._make_cache(0)  # the old one goes before the new one comes
            self._cache = self._make_cache(num_blocks)


def as_step(texts: Sequence[Text]) -> Step:
    """Each as a chunk that is a whole prompt, in blocks of its own."""
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
