"""Loading a model: reported progress, the memory check, exactness on demand, pooling, and rejected configurations."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.checkpoints.quantized_checkpoints import GptqTool, write_quantized_checkpoint
from support.checkpoints.small_checkpoints import TOKEN_LABELS, make_tiny_checkpoint, make_tiny_encoder
from support.model_runs.encoder_reference import make_random_text

from shard.config import ShardConfig
from shard.hardware.cache_budget import AvailableMemory
from shard.parallel.group import SingleRankGroup
from shard.workers import model_loading
from shard.workers.model_loading import load_decoder_model, load_encoder_model

CPU = torch.device("cpu")


@pytest.fixture
def config(tmp_path_factory: pytest.TempPathFactory) -> ShardConfig:
    folder = make_tiny_checkpoint(tmp_path_factory.getbasetemp(), "llama")
    return ShardConfig(model=str(folder), device="cpu", threads=1)


def test_progress_covers_all_bytes_and_then_the_check(config: ShardConfig) -> None:
    progress: list[tuple[str, int, int]] = []
    load_decoder_model(config, lambda *report: progress.append(report))
    *read, last = progress
    assert {phase for phase, _, _ in read} == {"load"}
    assert read[-1][1] == read[-1][2]
    assert last == ("check", 0, 0)


def test_inexact_model_is_rejected_if_exactness_is_demanded(
        config: ShardConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_decoder_model(replace(config, exact=True)).inexact_reason == ""
    monkeypatch.setattr(model_loading.ExactnessGate, "find_difference", lambda _: "something differs")
    assert load_decoder_model(config).inexact_reason == "something differs"
    with pytest.raises(ValueError, match="--exact cannot be kept here: something differs"):
        load_decoder_model(replace(config, exact=True))


def test_quantization_is_described(config: ShardConfig, tmp_path: Path) -> None:
    assert load_decoder_model(config).quantization == ""
    assert load_decoder_model(replace(config, quantize="int8")).quantization == "int8"
    folder = write_quantized_checkpoint(Path(config.model), GptqTool(), tmp_path)
    assert load_decoder_model(replace(config, model=str(folder))).quantization == "GPTQ, 4 bits, groups of 32"


def test_quantizing_a_model_of_transformers_is_rejected(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = make_tiny_checkpoint(tmp_path_factory.getbasetemp(), "granite")
    with pytest.raises(ValueError, match=r"--quantize int8 is for .*, and GraniteForCausalLM runs through"):
        load_decoder_model(ShardConfig(model=str(folder), device="cpu", threads=1, quantize="int8"))


def test_weights_that_do_not_fit_are_rejected_before_reading(
        config: ShardConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_loading, "read_host_memory",
                        lambda: AvailableMemory(1000, "that the system has available"))
    progress: list[tuple[str, int, int]] = []
    with pytest.raises(ValueError, match="there is no room for the weights"):
        load_decoder_model(config, lambda *report: progress.append(report))
    assert progress == []


def test_rank_with_the_least_memory_decides_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    class GroupWithLessMemory(SingleRankGroup):
        def all_reduce_min(self, number: int) -> int:
            return number // 2

    monkeypatch.setattr(model_loading, "read_host_memory",
                        lambda: AvailableMemory(1000, "that the system has available"))
    model_loading.check_weight_memory(1000, CPU, SingleRankGroup(), 1)
    with pytest.raises(ValueError, match="there is no room for the weights"):
        model_loading.check_weight_memory(1000, CPU, GroupWithLessMemory(), 1)


def test_gpu_rank_needs_memory_for_its_part_only(monkeypatch: pytest.MonkeyPatch) -> None:
    class TwoRankGroup(SingleRankGroup):
        rank, size = 0, 2

    monkeypatch.setattr(model_loading, "read_gpu_memory", lambda _: (1000, 2000))
    model_loading.check_weight_memory(2000, torch.device("cuda", 0), TwoRankGroup(), 1)
    with pytest.raises(ValueError, match=r"of 2 shards .* that the GPU has left"):
        model_loading.check_weight_memory(2000, torch.device("cuda", 0), TwoRankGroup(), 2)


# -- encoders


@pytest.fixture
def encoder_config(tmp_path_factory: pytest.TempPathFactory) -> ShardConfig:
    return ShardConfig(model=str(make_tiny_encoder(tmp_path_factory.getbasetemp(), "bert")), device="cpu", threads=1)


def test_progress_of_an_encoder_covers_all_bytes_and_then_the_check(encoder_config: ShardConfig) -> None:
    progress: list[tuple[str, int, int]] = []
    assert load_encoder_model(encoder_config, lambda *report: progress.append(report)).inexact_reason == ""
    *read, last = progress
    assert {phase for phase, _, _ in read} == {"load"}
    assert last == ("check", 0, 0)


def test_pooling_and_dimension_follow_from_folder_and_settings(encoder_config: ShardConfig, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(encoder_config.model, folder)
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_cls_token": True}))
    first_config = replace(encoder_config, model=str(folder), embedding_dim=7)
    mean = load_encoder_model(encoder_config).runner.embed([make_random_text(9)])
    first = load_encoder_model(first_config).runner.embed([make_random_text(9)])
    assert mean[0] is not None
    assert first[0] is not None
    assert (len(mean[0]), len(first[0])) == (64, 7)
    assert first[0] != mean[0][:7]


def test_embedding_dim_beyond_the_model_is_rejected(encoder_config: ShardConfig) -> None:
    with pytest.raises(ValueError, match="--embedding-dim must be at most 64"):
        load_encoder_model(replace(encoder_config, embedding_dim=65))


def test_unexpected_tensor_is_rejected_by_name(encoder_config: ShardConfig, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(encoder_config.model, folder)
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | {"encoder.layer.9.output.dense.bias": tensors["pooler.dense.bias"].clone()},
              folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=r"BertModel has no use for encoder\.layer\.9"):
        load_encoder_model(replace(encoder_config, model=str(folder)))


def test_labels_are_read_from_the_folder(tmp_path_factory: pytest.TempPathFactory, encoder_config: ShardConfig) -> None:
    folder = make_tiny_encoder(tmp_path_factory.getbasetemp(), "bert", labels=True)
    assert load_encoder_model(replace(encoder_config, model=str(folder))).config.labels == TOKEN_LABELS


def test_weights_of_four_bits_need_compiled_kernels(tmp_path_factory: pytest.TempPathFactory,
                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_tiny_checkpoint(tmp_path_factory.getbasetemp(), "llama")
    monkeypatch.setattr(model_loading, "load_library_or_reason", lambda: "there is no C compiler")
    with pytest.raises(ValueError, match=r"--quantize int4 needs compiled kernels: there is no C compiler; or use"):
        load_decoder_model(ShardConfig(model=str(folder), device="cpu", threads=1, quantize="int4"))
