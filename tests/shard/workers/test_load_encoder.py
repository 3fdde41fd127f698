"""Loading an encoder: reported progress, the resulting embeddings, and rejected configurations."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from support.checkpoints.small_checkpoints import TOKEN_LABELS, make_tiny_encoder
from support.model_runs.encoder_reference import make_random_text

from shard.config import ShardConfig
from shard.workers.load_encoder import load_encoder_model


@pytest.fixture
def config(tmp_path_factory: pytest.TempPathFactory) -> ShardConfig:
    return ShardConfig(model=str(make_tiny_encoder(tmp_path_factory.getbasetemp(), "bert")), device="cpu", threads=1)


def test_progress_covers_all_bytes_and_then_the_check(config: ShardConfig) -> None:
    progress: list[tuple[str, int, int]] = []
    assert load_encoder_model(config, lambda *report: progress.append(report)).inexact_reason == ""
    *read, last = progress
    assert {phase for phase, _, _ in read} == {"load"}
    assert last == ("check", 0, 0)


def test_pooling_and_dimension_follow_from_folder_and_settings(config: ShardConfig, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(config.model, folder)
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_cls_token": True}))
    mean = load_encoder_model(config).runner.embed([make_random_text(9)])
    first = load_encoder_model(replace(config, model=str(folder), embedding_dim=7)).runner.embed([make_random_text(9)])
    assert mean[0] is not None
    assert first[0] is not None
    assert (len(mean[0]), len(first[0])) == (64, 7)
    assert first[0] != mean[0][:7]


def test_embedding_dim_beyond_the_model_is_rejected(config: ShardConfig) -> None:
    with pytest.raises(ValueError, match="--embedding-dim must be at most 64"):
        load_encoder_model(replace(config, embedding_dim=65))


def test_unexpected_tensor_is_rejected_by_name(config: ShardConfig, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(config.model, folder)
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | {"encoder.layer.9.output.dense.bias": tensors["pooler.dense.bias"].clone()},
              folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=r"BertModel has no use for encoder\.layer\.9"):
        load_encoder_model(replace(config, model=str(folder)))


def test_labels_are_read_from_the_folder(tmp_path_factory: pytest.TempPathFactory, config: ShardConfig) -> None:
    folder = make_tiny_encoder(tmp_path_factory.getbasetemp(), "bert", labels=True)
    assert load_encoder_model(replace(config, model=str(folder))).config.labels == TOKEN_LABELS
