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
from support.core_with_workers import Loom
from support.header_mutations import OF_BYTES, OF_ENTRIES, mutate
from support.peft_adapters import tiny_adapter
from support.small_checkpoints import tiny_checkpoint

from shard.adapters.files import plain
from shard.errors import Refused

Tensors = dict[str, torch.Tensor]
LAYER = "base_model.model.model.layers.0."
Q, DOWN = f"{LAYER}self_attn.q_proj.lora_A.weight", f"{LAYER}mlp.down_proj.lora_B.weight"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.getbasetemp(), "llama")


@pytest.fixture(scope="module")
def adapter(base: Path) -> Path:
    return tiny_adapter(base, r=4)


@pytest.fixture
def copied(adapter: Path, tmp_path: Path) -> Path:
    return Path(copytree(adapter, tmp_path / "adapter"))


@pytest.fixture(scope="module")
def loom(base: Path) -> Any:
    with Loom(base, adaptable=True) as loom:
        yield loom


def refused(loom: Loom, folder: Path) -> str:
    with pytest.raises(Refused) as complaint:
        loom.load_adapter(1, folder)
    assert list(loom.everywhere("info")[0].loaded_adapters) == []
    assert loom.workers[0]._loaded.wardrobe._racks.find(1) is None
    return str(complaint.value)


def rewrite(folder: Path, change: Callable[[Tensors], object]) -> None:
    path = folder / "adapter_model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


@pytest.mark.parametrize(("change", "reason"), [
    (lambda all_: all_.pop(Q), "q_proj.lora_B.weight without the other matrix of model.layers.0.self_attn.q_proj"),
    (lambda all_: all_.update({Q: torch.zeros(4, 65)}), r"q_proj.lora_A.weight is [4, 65]"),
    (lambda all_: all_.update({Q: torch.zeros(5, 64)}), "the adapter's rank ask for [4, 64]"),
    (lambda all_: all_.update({Q: torch.zeros(4, 64, dtype=torch.int32)}), "is stored as I32; supported: F64, F32"),
    (lambda all_: all_[DOWN][3].fill_(float("nan")), "down_proj.lora_B.weight has numbers that are infinite"),
    (lambda all_: all_[DOWN][3].fill_(float("inf")), "down_proj.lora_B.weight has numbers that are infinite"),
    (lambda all_: all_.update({Q.replace("layers.0", "layers.2"): torch.zeros(4, 64)}),
     "this model has no product for base_model.model.model.layers.2.self_attn.q_proj.lora_A.weight"),
    (lambda all_: all_.update({"base_model.model.model.norm.weight": torch.zeros(64)}), "no product for base_model"),
    (lambda all_: all_.update({f"{LAYER}self_attn.q_proj.weight": torch.zeros(64, 64)}), "no product for base_model"),
    (lambda all_: all_.update({f"{LAYER}self_attn.q_proj.lora_magnitude_vector": torch.zeros(64)}), "no product for"),
    (lambda all_: all_.update({Q.replace("model.model.model", "model.model.model.model"): torch.zeros(4, 64)}),
     "for the same product"),
], ids=range(11))
def test_what_is_wrong_is_named(loom: Loom, copied: Path, change: Callable[[Tensors], object], reason: str) -> None:
    rewrite(copied, change)
    assert reason in refused(loom, copied)


def test_an_adapter_of_another_model_is_refused(loom: Loom, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tiny_checkpoint(tmp_path_factory.getbasetemp(), "llama", hidden_size=128)
    assert "is [4, 128], this model and the adapter's rank ask for [4, 64]" in refused(loom, tiny_adapter(other, r=4))


def test_pickled_weights_are_never_read(loom: Loom, copied: Path) -> None:
    (copied / "adapter_model.safetensors").rename(copied / "adapter_model.bin")
    assert "which is a program as much as it is data" in refused(loom, copied)


def test_a_folder_without_weights_is_none(loom: Loom, copied: Path) -> None:
    (copied / "adapter_model.safetensors").unlink()
    assert "adapter_model.safetensors cannot be read: No such file or directory" in refused(loom, copied)


def test_another_rank_than_its_config_says_is_refused(loom: Loom, copied: Path) -> None:
    path = copied / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"rank_pattern": {"k_proj": 2}}))
    assert "k_proj.lora_A.weight is [4, 64], this model and the adapter's rank ask for [2, 64]" in refused(loom, copied)


@pytest.mark.parametrize("kind", [*OF_BYTES, *OF_ENTRIES])
def test_mutated_files_are_refused(loom: Loom, adapter: Path, tmp_path: Path, kind: str) -> None:
    """About 2,000 mutations over all kinds."""
    folder = Path(copytree(adapter, tmp_path / "adapter"))
    path = folder / "adapter_model.safetensors"
    content = path.read_bytes()
    for seed in range(2000 // len([*OF_BYTES, *OF_ENTRIES])):
        path.write_bytes(mutate(content, kind, Random(seed)).content)
        assert str(path) in refused(loom, folder)


@pytest.mark.parametrize(("name", "expected"), [
    ("model.layers.0.self_attn.q_proj", "layers.0.self_attn.q_proj"),
    ("model.language_model.layers.0.mlp.up_proj", "layers.0.mlp.up_proj"),
    ("language_model.model.layers.0.mlp.up_proj", "layers.0.mlp.up_proj"),
    ("transformer.h.1.attn.c_attn", "h.1.attn.c_attn"),
    ("gpt_neox.layers.1.attention.dense", "layers.1.attention.dense"),
    ("lm_head", "lm_head"),
    ("modeling.layers.0", "modeling.layers.0"),
])
def test_models_may_be_wrapped_when_they_are_trained(name: str, expected: str) -> None:
    assert plain(name) == expected
