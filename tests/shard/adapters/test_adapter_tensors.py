"""Errors in an adapter's tensors are reported by name, and no part of the adapter is used."""

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from shutil import copytree
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.checkpoints.header_mutations import BYTE_MUTATIONS, ENTRY_MUTATIONS, mutate_file
from support.checkpoints.peft_adapters import make_tiny_adapter
from support.checkpoints.small_checkpoints import make_tiny_checkpoint
from support.shards.scheduler_with_workers import SchedulerWithWorkers

from shard.adapters.adapter_tensors import strip_wrapper_prefixes
from shard.errors import RejectedMessage

TensorsByName = dict[str, torch.Tensor]
LAYER_PREFIX = "base_model.model.model.layers.0."
Q_PROJ_LORA_A, DOWN_PROJ_LORA_B = (f"{LAYER_PREFIX}self_attn.q_proj.lora_A.weight",
                                   f"{LAYER_PREFIX}mlp.down_proj.lora_B.weight")


@pytest.fixture(scope="module")
def base_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.getbasetemp(), "llama")


@pytest.fixture(scope="module")
def adapter_folder(base_checkpoint: Path) -> Path:
    return make_tiny_adapter(base_checkpoint, r=4)


@pytest.fixture
def adapter_copy(adapter_folder: Path, tmp_path: Path) -> Path:
    return Path(copytree(adapter_folder, tmp_path / "adapter"))


@pytest.fixture(scope="module")
def scheduler_with_workers(base_checkpoint: Path) -> Any:
    with SchedulerWithWorkers(base_checkpoint, adaptable=True) as loom:
        yield loom


def get_load_error(harness: SchedulerWithWorkers, folder: Path) -> str:
    with pytest.raises(RejectedMessage) as error:
        harness.load_adapter(1, folder)
    assert list(harness.call_all_ranks("info")[0].loaded_adapters) == []
    assert harness.workers[0]._loaded_model.loaded_adapters._slots.find(1) is None
    return str(error.value)


def change_tensors(folder: Path, change: Callable[[TensorsByName], object]) -> None:
    path = folder / "adapter_model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


@pytest.mark.parametrize(("change", "reason"), [
    (lambda all_: all_.pop(Q_PROJ_LORA_A),
     "q_proj.lora_B.weight without the other matrix of model.layers.0.self_attn.q_proj"),
    (lambda all_: all_.update({Q_PROJ_LORA_A: torch.zeros(4, 65)}), r"q_proj.lora_A.weight is [4, 65]"),
    (lambda all_: all_.update({Q_PROJ_LORA_A: torch.zeros(5, 64)}), "the adapter's rank ask for [4, 64]"),
    (lambda all_: all_.update({Q_PROJ_LORA_A: torch.zeros(4, 64, dtype=torch.int32)}),
     "is stored as I32; supported: F64, F32"),
    (lambda all_: all_[DOWN_PROJ_LORA_B][3].fill_(float("nan")),
     "down_proj.lora_B.weight has numbers that are infinite"),
    (lambda all_: all_[DOWN_PROJ_LORA_B][3].fill_(float("inf")),
     "down_proj.lora_B.weight has numbers that are infinite"),
    (lambda all_: all_.update({Q_PROJ_LORA_A.replace("layers.0", "layers.2"): torch.zeros(4, 64)}),
     "this model has no product for base_model.model.model.layers.2.self_attn.q_proj.lora_A.weight"),
    (lambda all_: all_.update({"base_model.model.model.norm.weight": torch.zeros(64)}), "no product for base_model"),
    (lambda all_: all_.update({f"{LAYER_PREFIX}self_attn.q_proj.weight": torch.zeros(64, 64)}),
     "no product for base_model"),
    (lambda all_: all_.update({f"{LAYER_PREFIX}self_attn.q_proj.lora_magnitude_vector": torch.zeros(64)}),
     "no product for"),
    (lambda all_: all_.update({Q_PROJ_LORA_A.replace("model.model.model",
                                                     "model.model.model.model"): torch.zeros(4, 64)}),
     "for the same product"),
], ids=range(11))
def test_invalid_tensors_are_reported_by_name(scheduler_with_workers: SchedulerWithWorkers, adapter_copy: Path,
                                              change: Callable[[TensorsByName], object], reason: str) -> None:
    change_tensors(adapter_copy, change)
    assert reason in get_load_error(scheduler_with_workers, adapter_copy)


def test_adapter_of_another_model_is_rejected(scheduler_with_workers: SchedulerWithWorkers,
                                              tmp_path_factory: pytest.TempPathFactory) -> None:
    other_checkpoint = make_tiny_checkpoint(tmp_path_factory.getbasetemp(), "llama", hidden_size=128)
    assert "is [4, 128], this model and the adapter's rank ask for [4, 64]" in get_load_error(
        scheduler_with_workers, make_tiny_adapter(other_checkpoint, r=4))


def test_pickled_weights_are_never_read(scheduler_with_workers: SchedulerWithWorkers, adapter_copy: Path) -> None:
    (adapter_copy / "adapter_model.safetensors").rename(adapter_copy / "adapter_model.bin")
    assert "which is a program as much as it is data" in get_load_error(scheduler_with_workers, adapter_copy)


def test_folder_without_weights_is_rejected(scheduler_with_workers: SchedulerWithWorkers, adapter_copy: Path) -> None:
    (adapter_copy / "adapter_model.safetensors").unlink()
    assert "adapter_model.safetensors cannot be read: No such file or directory" in get_load_error(
        scheduler_with_workers, adapter_copy)


def test_tensors_of_another_rank_than_the_config_are_rejected(scheduler_with_workers: SchedulerWithWorkers,
                                                              adapter_copy: Path) -> None:
    path = adapter_copy / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"rank_pattern": {"k_proj": 2}}))
    assert "k_proj.lora_A.weight is [4, 64], this model and the adapter's rank ask for [2, 64]" in get_load_error(
        scheduler_with_workers, adapter_copy)


@pytest.mark.parametrize("num_mutations", [500, pytest.param(2000, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", [*BYTE_MUTATIONS, *ENTRY_MUTATIONS])
def test_mutated_files_are_rejected(scheduler_with_workers: SchedulerWithWorkers, adapter_folder: Path, tmp_path: Path,
                                    kind: str, num_mutations: int) -> None:
    """Some mutations over all kinds."""
    folder = Path(copytree(adapter_folder, tmp_path / "adapter"))
    path = folder / "adapter_model.safetensors"
    content = path.read_bytes()
    for seed in range(num_mutations // len([*BYTE_MUTATIONS, *ENTRY_MUTATIONS])):
        path.write_bytes(mutate_file(content, kind, Random(seed)).content)
        assert str(path) in get_load_error(scheduler_with_workers, folder)


@pytest.mark.parametrize(("name", "expected"), [
    ("model.layers.0.self_attn.q_proj", "layers.0.self_attn.q_proj"),
    ("model.language_model.layers.0.mlp.up_proj", "layers.0.mlp.up_proj"),
    ("language_model.model.layers.0.mlp.up_proj", "layers.0.mlp.up_proj"),
    ("transformer.h.1.attn.c_attn", "h.1.attn.c_attn"),
    ("gpt_neox.layers.1.attention.dense", "layers.1.attention.dense"),
    ("lm_head", "lm_head"),
    ("modeling.layers.0", "modeling.layers.0"),
])
def test_module_names_of_wrapped_models_are_normalized(name: str, expected: str) -> None:
    assert strip_wrapper_prefixes(name) == expected
