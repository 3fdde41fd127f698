"""Loading an encoder: reported progress, the resulting embeddings, and rejected configurations."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from support.small_checkpoints import LABELS, tiny_encoder

from shard.config import ShardConfig
from shard.workers.load_encoder import load
from tests.shard.encoders import text


@pytest.fixture
def config(tmp_path_factory: pytest.TempPathFactory) -> ShardConfig:
    return ShardConfig(model=str(tiny_encoder(tmp_path_factory.getbasetemp(), "bert")), device="cpu", threads=1)


def test_who_waits_hears_of_all_bytes_and_then_of_the_check(config: ShardConfig) -> None:
    heard: list[tuple[str, int, int]] = []
    assert load(config, lambda *told: heard.append(told)).inexact == ""
    *read, last = heard
    assert {phase for phase, _, _ in read} == {"load"}
    assert last == ("check", 0, 0)


def test_the_folder_and_the_settings_say_what_an_embedding_is(config: ShardConfig, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(config.model, folder)
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_cls_token": True}))
    mean = load(config).encoding.vectors([text(9)])
    first = load(replace(config, model=str(folder), embedding_dim=7)).encoding.vectors([text(9)])
    assert mean[0] is not None
    assert first[0] is not None
    assert (len(mean[0]), len(first[0])) == (64, 7)
    assert first[0] != mean[0][:7]


def test_more_values_than_there_are_cannot_be_asked_for(config: ShardConfig) -> None:
    with pytest.raises(ValueError, match="--embedding-dim must be at most 64"):
        load(replace(config, embedding_dim=65))


def test_a_tensor_that_nobody_asked_for_is_named(config: ShardConfig, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(config.model, folder)
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | {"encoder.layer.9.output.dense.bias": tensors["pooler.dense.bias"].clone()},
              folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=r"BertModel has no use for encoder\.layer\.9"):
        load(replace(config, model=str(folder)))


def test_labels_are_those_of_the_folder(tmp_path_factory: pytest.TempPathFactory, config: ShardConfig) -> None:
    folder = tiny_encoder(tmp_path_factory.getbasetemp(), "bert", labels=True)
    assert load(replace(config, model=str(folder))).config.labels == LABELS
