"""Hidden states and label probabilities of an encoder, on one rank or several, and those of transformers."""

from functools import cache
from pathlib import Path

import torch
from support.model_runs.decoder_reference import CPU, rms_distance
from support.model_runs.ranks_in_threads import run_on_ranks
from torch import Tensor
from transformers import AutoConfig, AutoModel, AutoModelForTokenClassification

from shard.checkpoint.reader import CheckpointReader
from shard.lora.routing import AdapterRouting, AdapterSlots
from shard.models.encoder import Encoder, EncoderConfig, build_encoder_inputs
from shard.models.registry import load_encoder, load_model_config
from shard.parallel.group import RankGroup
from shard.runner.pooling import Pooling
from shard.runner.pooling_runners import EncoderRunner
from shard.state.sequence import PoolingText

TEXT_LENGTHS = (1, 2, 17, 63, 100, 5)


def make_random_text(length: int, seed: int = 0) -> PoolingText:
    generator = torch.Generator().manual_seed(1000 * length + seed)
    return PoolingText(torch.randint(2, 480, (length,), generator=generator).tolist())


RANDOM_TEXTS = [make_random_text(length) for length in TEXT_LENGTHS]


def load_encoder_model(folder: Path, dtype: torch.dtype, group: RankGroup, quantize: str = "") -> Encoder:
    config = load_model_config(folder)
    assert isinstance(config, EncoderConfig)
    with CheckpointReader(folder, dtype, CPU, config.quantization, quantize) as weights:
        model = load_encoder(config, weights, group)
        assert weights.list_unclaimed_names() == []
    return model


def make_encoder_runner(model: Encoder, reduction: str = "mean") -> EncoderRunner:
    return EncoderRunner(model, Pooling(reduction, model.config.hidden_size), AdapterRouting(CPU, AdapterSlots()), CPU)


def run_encoder(model: Encoder, texts: list[PoolingText]) -> list[Tensor]:
    """Return a tensor per text: its hidden states, followed by the label probabilities as further columns."""
    with torch.inference_mode():
        hidden = model.forward(build_encoder_inputs(texts, model.config, CPU))
        outputs = hidden if model.classifier is None else torch.cat([hidden.float(),
                                                                     model.classify_tokens(hidden)], dim=1)
    return list(outputs.split([len(text.tokens) for text in texts]))


def run_encoder_on_ranks(folder: Path, dtype: torch.dtype, num_ranks: int = 1) -> list[list[Tensor]]:
    return run_on_ranks(num_ranks, lambda group: run_encoder(load_encoder_model(folder, dtype, group), RANDOM_TEXTS))


@cache
def run_transformers_encoder(folder: Path, dtype: torch.dtype) -> list[Tensor]:
    """Return transformers' tensor per text, each text run alone."""
    model_class = AutoModelForTokenClassification if has_token_labels(folder) else AutoModel
    model = model_class.from_pretrained(folder, dtype=dtype)
    with torch.inference_mode():
        return [join_states_and_probabilities(model(torch.tensor([text.tokens]), output_hidden_states=True))
                for text in RANDOM_TEXTS]


def join_states_and_probabilities(model_output: object) -> Tensor:
    hidden: Tensor = model_output.hidden_states[-1][0]  # type: ignore[attr-defined]
    logits = getattr(model_output, "logits", None)
    return hidden if logits is None else torch.cat([hidden.float(), logits[0].float().softmax(-1)], dim=1)


def has_token_labels(folder: Path) -> bool:
    return "TokenClassification" in AutoConfig.from_pretrained(folder).architectures[0]


def check_encoder_matches_transformers(folder: Path, dtype: torch.dtype, num_ranks: int = 1) -> None:
    """Compare with transformers: float32 agrees, and bfloat16's error is below 1.25 times that of transformers."""
    first, *others = run_encoder_on_ranks(folder, dtype, num_ranks)
    assert all(all(map(torch.equal, other, first)) for other in others)
    float32_reference, transformers_output = (torch.cat(run_transformers_encoder(folder, kind))
                                              for kind in (torch.float32, dtype))
    if dtype == torch.float32:
        torch.testing.assert_close(torch.cat(first), float32_reference, rtol=1e-4, atol=1e-4)
    else:
        assert rms_distance(torch.cat(first),
                            float32_reference) < 1.25 * rms_distance(transformers_output, float32_reference)


def check_encoder_on_all_rank_counts(folder: Path) -> None:
    """Compare with transformers in float32 and bfloat16, on one, two and four ranks."""
    for dtype in (torch.float32, torch.bfloat16):
        for num_ranks in (1, 2, 4):
            check_encoder_matches_transformers(folder, dtype, num_ranks)
