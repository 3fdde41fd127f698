from pathlib import Path

import pytest
import torch
from support.quantized_checkpoints import Compressed, Gptq, written
from support.small_checkpoints import tiny_checkpoint

from shard.checkpoint.reader import Weights
from shard.models.read_config import read_config
from shard.models.registry import load_model
from shard.parallel.group import Alone

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.getbasetemp(), "llama")


def said(folder: Path, quantize: str = "") -> str:
    config = read_config(folder)
    with Weights(folder, torch.float32, CPU, config.quantization, quantize) as weights:
        load_model(config, weights, Alone())
        return weights.quantization


def test_a_line_says_what_the_checkpoint_is_and_how_it_is_kept(plain: Path, tmp_path: Path) -> None:
    assert said(written(plain, Gptq(), tmp_path)) == (
        "quantised checkpoint (GPTQ, 4 bits, groups of 32): 0 weights kept as int8, 14 made into float32 at load")


def test_one_scale_for_each_output_is_kept(plain: Path, tmp_path: Path) -> None:
    assert said(written(plain, Compressed("int-quantized", 8, None), tmp_path)) == (
        "quantised checkpoint (compressed-tensors, int-quantized, 8 bits, activations not quantised): "
        "12 weights kept as int8, 0 made into float32 at load")


def test_what_is_quantised_on_load_is_counted(plain: Path) -> None:
    assert said(plain, "int8") == "14 weights quantised to int8 and kept so"
    assert said(plain) == ""


def test_what_is_quantised_already_is_not_quantised_again(plain: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--quantize int8 is for weights that are not quantised, and these are: "
                                         "GPTQ, 4 bits, groups of 32; leave it out"):
        said(written(plain, Gptq(), tmp_path), "int8")


def test_a_quantised_head_is_read(plain: Path, tmp_path: Path) -> None:
    assert "15 made into float32" in said(written(plain, Gptq(), tmp_path, head=True))
