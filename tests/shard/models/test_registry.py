import pytest
import torch
from support.small_checkpoints import FAMILIES, tiny_checkpoint

from shard.models.registry import ARCHITECTURES
from shard.parallel.group import Alone
from tests.shard.forward import read_model

ALSO_SEE = {"Gemma3ForConditionalGeneration"}  # tests/shard/models/test_gemma3.py


def test_every_family_has_its_line() -> None:
    assert ARCHITECTURES.keys() - ALSO_SEE == {model_class.__name__ for _, model_class, _ in FAMILIES.values()}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("indexed", [False, True])
def test_all_weights_of_a_model_are_read(
        tmp_path_factory: pytest.TempPathFactory, family: str, indexed: bool) -> None:
    folder = tiny_checkpoint(tmp_path_factory.getbasetemp(), family, indexed=indexed, dtype="bfloat16")
    assert read_model(folder, torch.float32, Alone()).num_layers == 2
