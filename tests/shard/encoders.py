"""Hidden states and label probabilities of an encoder, on one rank or several, and those of transformers."""

from functools import cache
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModel, AutoModelForTokenClassification

from shard.adapters.routing import Bearers
from shard.adapters.slots import Racks
from shard.checkpoint.reader import Weights
from shard.models.encoder import Encoder, EncoderConfig, lay_out
from shard.models.read_config import read_config
from shard.models.registry import load_encoder
from shard.parallel.group import Group
from shard.runner.encoder_runner import Encoding
from shard.runner.pooling import Pooling
from shard.state.columns import Text
from tests.shard.forward import CPU, distance
from tests.shard.side_by_side import side_by_side

LENGTHS = (1, 2, 17, 63, 100, 5)


def text(length: int, seed: int = 0) -> Text:
    generator = torch.Generator().manual_seed(1000 * length + seed)
    return Text(torch.randint(2, 480, (length,), generator=generator).tolist())


TEXTS = [text(length) for length in LENGTHS]


def read_model(folder: Path, dtype: torch.dtype, group: Group, quantize: str = "") -> Encoder:
    config = read_config(folder)
    assert isinstance(config, EncoderConfig)
    with Weights(folder, dtype, CPU, config.quantization, quantize) as weights:
        model = load_encoder(config, weights, group)
        assert weights.unclaimed() == []
    return model


def encoding(model: Encoder, kind: str = "mean") -> Encoding:
    return Encoding(model, Pooling(kind, model.config.hidden_size), Bearers(CPU, Racks()), CPU)


def run(model: Encoder, texts: list[Text]) -> list[Tensor]:
    """Return a tensor per text: its hidden states, followed by the label probabilities as further columns."""
    with torch.inference_mode():
        hidden = model.hidden(lay_out(texts, model.config, CPU))
        told = hidden if model.classifier is None else torch.cat([hidden.float(), model.probabilities(hidden)], dim=1)
    return list(told.split([len(text.tokens) for text in texts]))


def outcomes(folder: Path, dtype: torch.dtype, num_ranks: int = 1) -> list[list[Tensor]]:
    return side_by_side(num_ranks, lambda group: run(read_model(folder, dtype, group), TEXTS))


@cache
def oracle(folder: Path, dtype: torch.dtype) -> list[Tensor]:
    """Return transformers' tensor per text, each text run alone."""
    kind = AutoModelForTokenClassification if read_labels(folder) else AutoModel
    model = kind.from_pretrained(folder, dtype=dtype)
    with torch.inference_mode():
        return [told(model(torch.tensor([text.tokens]), output_hidden_states=True)) for text in TEXTS]


def told(said: object) -> Tensor:
    hidden: Tensor = said.hidden_states[-1][0]  # type: ignore[attr-defined]
    logits = getattr(said, "logits", None)
    return hidden if logits is None else torch.cat([hidden.float(), logits[0].float().softmax(-1)], dim=1)


def read_labels(folder: Path) -> bool:
    return "TokenClassification" in AutoConfig.from_pretrained(folder).architectures[0]


def agrees(folder: Path, dtype: torch.dtype, num_ranks: int = 1) -> None:
    """Compare with transformers: float32 agrees, and bfloat16's error is below 1.25 times that of transformers."""
    first, *others = outcomes(folder, dtype, num_ranks)
    assert all(all(map(torch.equal, other, first)) for other in others)
    truth, theirs = (torch.cat(oracle(folder, kind)) for kind in (torch.float32, dtype))
    if dtype == torch.float32:
        torch.testing.assert_close(torch.cat(first), truth, rtol=1e-4, atol=1e-4)
    else:
        assert distance(torch.cat(first), truth) < 1.25 * distance(theirs, truth)


def agrees_shared(folder: Path) -> None:
    """Compare with transformers in float32 and bfloat16, on one, two and four ranks."""
    for dtype in (torch.float32, torch.bfloat16):
        for num_ranks in (1, 2, 4):
            agrees(folder, dtype, num_ranks)
