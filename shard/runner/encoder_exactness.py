"""The exactness gate at start for encoders: whether a text gets the same bits alone and in any batch.

It runs one layer and the classifier on this machine and compares bits, not closeness.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from shard.models.encoder import Encoder, lay_out
from shard.runner.exactness import same_bits
from shard.state.columns import Text

LENGTHS = (1, 7, 100)  # tokens of the texts that are compared
COMPANIES = ((1,), (16,), (299,), (3, 2, 40))  # tokens of the texts in the batch: these before the text and behind it


@torch.inference_mode()
def verdict(model: Encoder, device: torch.device) -> str:
    """Return what differs, or an empty string. `model` needs one layer."""
    for length in LENGTHS:
        text = drawn(model, length)
        alone = states(model, [text], 0, device)
        for company in companies(model):
            among = [*company, text, *company]
            if not all(map(same_bits, states(model, among, len(company), device), alone)):
                return f"a text of {len(text.tokens)} tokens has other bits among {len(among)} texts than alone"
    return ""


def companies(model: Encoder) -> Iterator[list[Text]]:
    return ([drawn(model, length) for length in lengths] for lengths in COMPANIES)


def drawn(model: Encoder, length: int) -> Text:
    config, generator = model.config, torch.Generator().manual_seed(length)
    length = min(length, config.max_positions)
    return Text(torch.randint(config.vocabulary_size, (length,), generator=generator).tolist())


def states(model: Encoder, texts: list[Text], place: int, device: torch.device) -> list[Tensor]:
    """Return the hidden states of the text at index `place`, and its probabilities of labels if there is a classifier.
    """
    hidden = model.hidden(lay_out(texts, model.config, device))
    first = sum(len(text.tokens) for text in texts[:place])
    rows = slice(first, first + len(texts[place].tokens))
    told = [hidden] if model.classifier is None else [hidden, model.probabilities(hidden)]
    return [states[rows].contiguous() for states in told]
