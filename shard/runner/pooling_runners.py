"""Runners of texts, which leave no state behind: from tokens to one embedding per text, or to one label per token."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from shard.attention.encoder import iter_text_slices
from shard.attention.kv_cache import KVCache
from shard.lora.routing import AdapterRouting, AdapterRowSpan
from shard.models.encoder import Encoder, build_encoder_inputs
from shard.runner.model_runner import ModelRunner, find_non_finite_sequences, zero_blocks_of_sequences
from shard.runner.pooling import Pooling
from shard.state.block_usage import MIN_BLOCK_SIZE
from shard.state.result_encoding import TokenClassification
from shard.state.sequence import PoolingText, Sequence
from shard.state.step import PrefillChunk, Step, lay_out_step


@dataclass(eq=False)
class EncoderRunner:
    """Runs texts through an encoder."""

    model: Encoder
    pooling: Pooling
    adapter_routing: AdapterRouting  # from which the model's linears read which adapter each row uses
    device: torch.device

    @torch.inference_mode()
    def embed(self, texts: list[PoolingText]) -> list[list[float] | None]:
        """Return the embedding of each text; None where it is not finite."""
        return self.pooling.compute_embeddings(self._compute_hidden_states(texts),
                                                [len(text.tokens) for text in texts])

    @torch.inference_mode()
    def label_tokens(self, texts: list[PoolingText]) -> list[TokenClassification | None]:
        """Return the labels of each text's tokens; None where a probability is not finite."""
        probabilities = self.model.classify_tokens(self._compute_hidden_states(texts))  # [tokens, labels]
        scores, labels = probabilities.max(-1)
        is_finite = probabilities.isfinite().all(-1)
        return [TokenClassification(labels[rows].tolist(), scores[rows].tolist())
                if bool(is_finite[rows].all()) else None
                for rows in iter_text_slices([len(text.tokens) for text in texts])]

    def _compute_hidden_states(self, texts: list[PoolingText]) -> Tensor:
        """Return the hidden states `[tokens, hidden]`."""
        self.adapter_routing.set_rows([AdapterRowSpan(text.adapter_id, len(text.tokens)) for text in texts])
        return self.model.forward(build_encoder_inputs(texts, self.model.config, self.device))


class DecoderEmbedder:
    """Computes embeddings of texts with a model that generates: texts are run as prompts. Their keys and values are in
    a separate cache, not the one that the router allocates; it is as large as the largest step so far needed."""

    def __init__(self, runner: ModelRunner, pooling: Pooling, make_cache: Callable[[int], KVCache]) -> None:
        """Create an embedder; `make_cache` allocates a cache of a number of blocks of `MIN_BLOCK_SIZE` slots."""
        self._runner = runner
        self._pooling = pooling
        self._make_cache = make_cache
        self._cache = make_cache(0)

    @torch.inference_mode()
    def embed(self, texts: list[PoolingText]) -> list[list[float] | None]:
        """Return the embedding of each text; None where it is not finite."""
        step, num_blocks = Step(), 0
        for sequence_id, text in enumerate(texts):
            blocks = list(range(num_blocks, num_blocks + -(-len(text.tokens) // MIN_BLOCK_SIZE)))
            num_blocks += len(blocks)
            step.chunks.append(PrefillChunk(Sequence.from_prompt(sequence_id, text.tokens, blocks,
                                                                 adapter_id=text.adapter_id), 0, len(text.tokens)))
        if self._cache.num_blocks < num_blocks:
            self._cache = self._make_cache(0)  # free the old one before allocating the new one
            self._cache = self._make_cache(num_blocks)
        layout = lay_out_step(step)
        _, hidden_states = self._runner.forward(layout, self._cache)
        zero_blocks_of_sequences(layout, find_non_finite_sequences(layout, hidden_states), self._cache)
        return self._pooling.compute_embeddings(hidden_states, [len(text.tokens) for text in texts])
