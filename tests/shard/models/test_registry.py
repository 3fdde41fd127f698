import pytest
import torch
from support.checkpoints.small_checkpoints import MODEL_FAMILIES, make_tiny_checkpoint
from support.model_runs.decoder_reference import load_decoder_model

from shard.models.registry import DECODER_ARCHITECTURES
from shard.parallel.group import SingleRankGroup

MULTIMODAL_ARCHITECTURES = {"Gemma3ForConditionalGeneration"}  # tested in tests/shard/models/test_gemma3.py


def test_every_registered_architecture_has_a_test_family() -> None:
    assert DECODER_ARCHITECTURES.keys() - MULTIMODAL_ARCHITECTURES == {model_class.__name__
                                                                       for _, model_class, _ in MODEL_FAMILIES.values()}


@pytest.mark.parametrize("family", MODEL_FAMILIES)
@pytest.mark.parametrize("indexed", [False, True])
def test_all_weights_of_a_model_are_read(
        tmp_path_factory: pytest.TempPathFactory, family: str, indexed: bool) -> None:
    folder = make_tiny_checkpoint(tmp_path_factory.getbasetemp(), family, indexed=indexed, dtype="bfloat16")
    assert load_decoder_model(folder, torch.float32, SingleRankGroup()).num_layers == 2
