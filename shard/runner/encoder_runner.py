"""Runner of texts through an encoder: from tokens to one embedding per text, or one label per token.

All ranks do the same.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from shard.adapters.routing import Bearers, Run
from shard.attention.encoder import rows_of
from shard.models.encoder import Encoder, lay_out
from shard.runner.pooling import Pooling
from shard.state.columns import Text
from shard.state.results import Labelled


class Encoding:
    def __init__(self, model: Encoder, pooling: Pooling, bearers: Bearers, device: torch.device) -> None:
        """Create the runner; the model's linears read from `bearers` which adapter each row uses."""
        self._model = model
        self._pooling = pooling
        self._bearers = bearers
        self._device = device

    @torch.inference_mode()
    def vectors(self, texts: Sequence[Text]) -> list[list[float] | None]:
        """Return the embedding of each text; None where it is not finite."""
        return self._pooling.embeddings(self._hidden(texts), [len(text.tokens) for text in texts])

    @torch.inference_mode()
    def labels(self, texts: Sequence[Text]) -> list[Labelled | None]:
        """Return the labels of each text's tokens; None where a probability is not finite."""
        probabilities = self._model.probabilities(self._hidden(texts))  # [tokens, labels]
        scores, labels = probabilities.max(-1)
        fine = probabilities.isfinite().all(-1)
        return [Labelled(labels[rows].tolist(), scores[rows].tolist()) if bool(fine[rows].all()) else None
                for rows in rows_of([len(text.tokens) for text in texts])]

    def _hidden(self, texts: Sequence[Text]) -> Tensor:
        """Return the hidden states `[tokens, hidden]`."""
        with self._bearers.rows([Run(text.adapter, len(text.tokens)) for text in texts]):
            return self._model.hidden(lay_out(texts, self._model.config, self._device))
