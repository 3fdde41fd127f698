"""Written adapter folders can be read by safetensors, peft and the shard's own reader."""

import json
from pathlib import Path

import pytest
import torch
from peft import LoraConfig
from safetensors.torch import load_file, save_file

from shard.adapters.config import AdapterConfig, load_adapter_config
from shard.adapters.peft_export import write_adapter_config, write_adapter_tensors

TENSORS = {
    "base_model.model.a.lora_A.weight": torch.arange(12.0).view(2, 6),
    "base_model.model.a.lora_B.weight": torch.ones(3, 2),
    "base_model.model.é.lora_embedding_A": torch.zeros(1, 5), "none": torch.zeros(0, 4)}


def write_and_read_config(folder: Path, ranks: dict[str, int]) -> AdapterConfig:
    write_adapter_config(folder, {"base_model_name_or_path": "a/base"}, ranks)
    return load_adapter_config(folder)


@pytest.mark.parametrize(("dtype", "name"), [(torch.float32, "F32"), (torch.bfloat16, "BF16"), (torch.float16, "F16")])
def test_written_tensors_equal_those_of_safetensors(tmp_path: Path, dtype: torch.dtype, name: str) -> None:
    tensors = {key: tensor.to(dtype) for key, tensor in TENSORS.items()}
    write_adapter_tensors(tmp_path, name, {key: tuple(tensor.shape) for key, tensor in tensors.items()},
                          tensors.values())
    save_file(tensors, tmp_path / "theirs", metadata={"format": "pt"})
    assert (tmp_path / "adapter_model.safetensors").read_bytes() == (tmp_path / "theirs").read_bytes()
    assert load_file(tmp_path / "adapter_model.safetensors").keys() == tensors.keys()


def test_non_contiguous_tensors_are_written_in_row_order(tmp_path: Path) -> None:
    transposed = torch.arange(6.0).view(2, 3).T
    write_adapter_tensors(tmp_path, "F32", {"x": (3, 2)}, [transposed])
    assert torch.equal(load_file(tmp_path / "adapter_model.safetensors")["x"], transposed)


RANKS_BY_MODULE = {
    "one rank": {"model.layers.0.q_proj": 4, "model.layers.1.q_proj": 4},
    "by kind": {"model.layers.0.q_proj": 4, "model.layers.0.v_proj": 8, "model.layers.1.v_proj": 8},
    "by layer": {"model.layers.1.q_proj": 4, "model.layers.11.q_proj": 8, "model.layers.2.q_proj": 8, "lm_head": 2},
    "within another": {"vision.layers.0.q_proj": 4, "model.layers.0.q_proj": 8, "model.layers.1.q_proj": 8},
}


@pytest.mark.parametrize("ranks", RANKS_BY_MODULE.values(), ids=list(RANKS_BY_MODULE))
def test_every_module_keeps_its_rank_and_has_a_scale_of_one(tmp_path: Path, ranks: dict[str, int]) -> None:
    config = write_and_read_config(tmp_path, ranks)
    assert {module: config.rank_for_module(module) for module in ranks} == ranks
    assert {config.scale_for_module(module) for module in ranks} == {1.0}


def test_modules_of_one_kind_share_one_rank_pattern(tmp_path: Path) -> None:
    many = {f"layers.{number}.{end}": rank for number in range(99) for end, rank in (("q", 4), ("k", 4), ("v", 8))}
    assert write_and_read_config(tmp_path, many).rank_pattern == {"v": 8}


def test_written_config_can_be_read_by_peft(tmp_path: Path) -> None:
    write_adapter_config(tmp_path, {"task_type": "CAUSAL_LM"}, {"model.q_proj": 4})
    config = LoraConfig.from_pretrained(tmp_path)
    assert (config.r, config.lora_alpha, config.target_modules, config.task_type) == (
        4, 4, {"model.q_proj"}, "CAUSAL_LM")
    assert set(json.loads((tmp_path / "adapter_config.json").read_text())) <= set(LoraConfig().to_dict())


def test_ranks_that_no_pattern_can_express_are_rejected(tmp_path: Path) -> None:
    ranks = {"model.layers.0.q_proj": 4, "vision.layers.0.q_proj": 8, "vision.layers.1.q_proj": 8}
    with pytest.raises(ValueError, match=r"has no words for a rank of 8 of vision.layers.0.q_proj beside"):
        write_adapter_config(tmp_path, {}, ranks)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_config_too_large_to_be_read_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="bytes for 40000 modules, more than 1048576"):
        write_adapter_config(tmp_path, {}, {f"model.layers.{number}.experts.q_proj": 4 for number in range(40000)})
    assert list(tmp_path.iterdir()) == []


def test_existing_files_are_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "adapter_model.safetensors").write_text("mine")
    with pytest.raises(ValueError, match=r"adapter_model.safetensors cannot be written: File exists"):
        write_adapter_tensors(tmp_path, "F32", {}, [])
    assert (tmp_path / "adapter_model.safetensors").read_text() == "mine"
