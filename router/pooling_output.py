"""Results of pooling requests: embeddings and token classifications."""

from collections.abc import Sequence as GenericSequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenClassificationOutput:
    """Token classification of one text: for each token the index of its most probable label and the probability."""

    label_ids: GenericSequence[int]
    scores: GenericSequence[float]


EmbeddingVector = GenericSequence[float]
PoolingOutput = EmbeddingVector | TokenClassificationOutput
