"""The gate at start for encoders: whether a text gets the same bits alone and in any company.

Runs a layer and what tells labels on the machine at hand and compares bits, not closeness. Knows nothing of what
follows from the verdict.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from shard.exactness import same_bits
from shard.models.encoder import Encoder, lay_out
from shard.texts import Text

LENGTHS = (1, 7, 100)  # tokens of the texts that are looked at
COMPANIES = ((1,), (16,), (299,), (3, 2, 40))  # tokens of the texts around one: as many before it as behind


@torch.inference_mode()
def verdict(model: Encoder, device: torch.device) -> str:
    """What differs, or nothing. `model` needs one layer."""
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
    """Of the text at this place: hidden states, and what follows from them."""
    hidden = model.hidden(lay_out(texts, model.config, device))
    first = sum(len(text.tokens) for text in texts[:place])
    rows = slice(first, first + len(texts[place].tokens))
    told = [hidden] if model.classifier is None else [hidden, model.probabilities(hidden)]
    return [states[rows].contiguous() for states in told]
