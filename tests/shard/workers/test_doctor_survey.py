"""Findings of the doctor's child process."""

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from support.checkpoints.quantized_checkpoints import GptqTool, write_quantized_checkpoint
from support.checkpoints.small_checkpoints import make_tiny_checkpoint

from shard.attention.kv_cache import KVCache
from shard.ops import native_linear
from shard.workers import doctor_survey

GIB = 2**30


@pytest.fixture
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.getbasetemp(), "llama", dtype="bfloat16")


def test_machine_is_described() -> None:
    machine = doctor_survey.survey_machine()
    assert machine["torch"] == torch.__version__
    assert machine["cores"] <= machine["processors"]
    assert machine["memory"] > 0


def test_only_relevant_cpu_features_are_listed(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("model name\t: avx512f\nflags\t\t: fpu avx2 amx_bf16 avx2_old\n")
    assert doctor_survey.read_cpu_features(tmp_path / "cpuinfo") == ["avx2", "amx_bf16"]


@pytest.mark.parametrize(("has_kernels", "factor"), [(True, 1), (False, 2)])
def test_a_model_is_estimated_without_reading_its_weights(checkpoint: Path, monkeypatch: pytest.MonkeyPatch,
                                                          has_kernels: bool, factor: int) -> None:
    """Compiled kernels multiply in float32 with weights of 16 bits."""
    monkeypatch.setattr(doctor_survey, "read_device_memory", lambda *_: (8 * GIB, 8 * GIB))
    monkeypatch.setattr(native_linear, "has_native_matmul", lambda *_: has_kernels)
    needs = doctor_survey.estimate_model_needs(checkpoint, "float32", "cpu", 1, 16)
    size = sum(path.stat().st_size for path in checkpoint.glob("*.safetensors"))
    assert (needs["architecture"], needs["dtype"], needs["weights"]) == (
        "LlamaForCausalLM", "float32", factor * size)
    assert needs["block"] == KVCache.bytes_per_block(2, 2, 16, 16, torch.float32)
    assert needs["tokens"] == pytest.approx(4 * GIB / needs["block"] * 16, rel=1e-3)


@pytest.mark.parametrize(("quantize", "low", "high"), [("int8", 0.5, 0.75), ("int4", 0.375, 0.7)])
def test_quantized_weights_take_less_than_the_checkpoint(checkpoint: Path, quantize: str, low: float,
                                                         high: float) -> None:
    unquantized, quantized = (
        doctor_survey.estimate_model_needs(checkpoint, "bfloat16", "cpu", 1, 16, quantize=name)["weights"]
        for name in ("", quantize))
    assert low * unquantized < quantized < high * unquantized


def test_head_that_is_the_embedding_is_counted_twice_if_it_is_quantized(checkpoint: Path, tmp_path: Path) -> None:
    folder = tmp_path / "tied"
    shutil.copytree(checkpoint, folder)
    config = json.loads((folder / "config.json").read_text()) | {"tie_word_embeddings": True}
    (folder / "config.json").write_text(json.dumps(config))
    separate, tied = (doctor_survey.estimate_model_needs(each, "bfloat16", "cpu", 1, 16, quantize="int8")["weights"]
                      for each in (checkpoint, folder))
    assert tied - separate == config["vocab_size"] * config["hidden_size"]


def test_checkpoint_that_is_quantized_already_is_not_quantized_again(checkpoint: Path, tmp_path: Path) -> None:
    quantized_checkpoint = write_quantized_checkpoint(checkpoint, GptqTool(), tmp_path)
    with pytest.raises(ValueError, match="--quantize int8 is for weights that are not quantized"):
        doctor_survey.estimate_model_needs(quantized_checkpoint, "bfloat16", "cpu", 1, 16, quantize="int8")


def test_cache_is_no_larger_than_the_user_allows(checkpoint: Path) -> None:
    assert doctor_survey.estimate_model_needs(checkpoint, "auto", "cpu", 1, 16, max_cache_tokens=100)["tokens"] == 96


def test_auto_dtype_follows_from_the_processor(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_survey, "can_pack", lambda _: False)
    assert doctor_survey.estimate_model_needs(checkpoint, "auto", "cpu", 1, 16)["dtype"] == "float32"


def test_a_model_that_cannot_be_served_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["Loom"]}')
    with pytest.raises(ValueError, match="Loom is not supported"):
        doctor_survey.estimate_model_needs(tmp_path, "auto", "cpu", 1, 16)


def test_gpu_that_is_not_there_is_named_as_when_serving(
        checkpoint: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    request = {"model": str(checkpoint), "dtype": "auto", "device": "cuda", "num_shards": 1, "block_size": 16,
               "quantize": "", "max_cache_tokens": None}
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(sys, "argv", ["doctor_survey", json.dumps(request)])
    doctor_survey.main()
    assert json.loads(capsys.readouterr().out)["problem"].startswith("--device cuda needs a GPU")


def test_a_tenth_of_gpu_memory_stays_free_as_when_serving() -> None:
    budget = doctor_survey.compute_cache_budget(2 * GIB, 9 * GIB, 10 * GIB, "cuda")
    assert budget.bytes == pytest.approx(6 * GIB, rel=1e-6)
