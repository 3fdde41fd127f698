"""Runner of texts through an encoder: from tokens to one embedding per text, or one label per token.

All ranks do the same.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from shard.attention.encoder import iter_text_slices
from shard.lora.routing import AdapterRouting, AdapterRowSpan
from shard.models.encoder import Encoder, build_encoder_inputs
from shard.runner.pooling import Pooling
from shard.state.result_encoding import TokenLabels
from shard.state.sequence import PoolingText


class EncoderRunner:
    """Runs texts through an encoder."""

    def __init__(self, model: Encoder, pooling: Pooling, adapter_routing: AdapterRouting, device: torch.device) -> None:
        """Create the runner; the model's linears read from `adapter_routing` which adapter each row uses."""
        self._model = model
        self._pooling = pooling
        self._adapter_routing = adapter_routing
        self._device = device

    @torch.inference_mode()
    def embed(self, texts: Sequence[PoolingText]) -> list[list[float] | None]:
        """Return the embedding of each text; None where it is not finite."""
        return self._pooling.compute_embeddings(self._compute_hidden_states(texts),
                                                [len(text.tokens) for text in texts])

    @torch.inference_mode()
    def label_tokens(self, texts: Sequence[PoolingText]) -> list[TokenLabels | None]:
        """Return the labels of each text's tokens; None where a probability is not finite."""
        probabilities = self._model.compute_label_probabilities(self._compute_hidden_states(texts))  # [tokens, labels]
        scores, labels = probabilities.max(-1)
        is_finite = probabilities.isfinite().all(-1)
        return [TokenLabels(labels[rows].tolist(), scores[rows].tolist()) if bool(is_finite[rows].all()) else None
                for rows in iter_text_slices([len(text.tokens) for text in texts])]

    def _compute_hidden_states(self, texts: Sequence[PoolingText]) -> Tensor:
        """Return the hidden states `[tokens, hidden]`."""
        self._adapter_routing.set_rows([AdapterRowSpan(text.adapter_id, len(text.tokens)) for text in texts])
        return self._model.forward(build_encoder_inputs(texts, self._model.config, self._device))
