"""Tests of the doctor's findings, and their remedies, from a child's survey of machine and model."""

from typing import Any

import pytest

from launcher.doctor import diagnosis
from launcher.doctor.findings import Finding

GIB = 2**30
LAPTOP_SURVEY = {"torch": "2.13.0+cpu", "cuda": "", "instructions": ["avx2"], "packs_bfloat16": True,
                 "missing_kernels": "", "gpus": [], "cores": 4, "processors": 4, "memory": 8 * GIB,
                 "memory_source": "that the system has available"}
GPU_SURVEY = {"name": "H200", "free": 130 * GIB, "total": 140 * GIB}
MODEL_SURVEY = {"architecture": "LlamaForCausalLM", "dtype": "bfloat16", "device": "cpu", "weights": 2 * GIB,
                "max_positions": 4096, "block": 2**20, "free": 8 * GIB, "quantize": "",
                "tokens": 50_000}


def diagnose_machine(driver: str = "", **changes: Any) -> dict[str, Finding]:
    return {finding.subject: finding for finding in diagnosis.diagnose_machine(LAPTOP_SURVEY | changes, driver)}


def diagnose_memory_fit(**changes: Any) -> Finding:
    [_, finding] = diagnosis.diagnose_model({"model": MODEL_SURVEY | changes}, "org/name")
    return finding


def test_laptop_has_no_problems() -> None:
    assert {finding.state for finding in diagnose_machine().values()} == {"ok"}


def test_gpus_are_named_with_memory_and_driver() -> None:
    assert diagnose_machine("570.86", gpus=[GPU_SURVEY, GPU_SURVEY], cuda="12.8")["gpu 1"].text == (
        "H200, 130.0 GiB of 140.0 GiB free, driver 570.86")


@pytest.mark.parametrize(("cuda", "words"), [("", "torch is for CPU only"), ("12.8", "one for CUDA 12.8 or above")])
def test_gpu_invisible_to_torch_is_a_problem(cuda: str, words: str) -> None:
    finding = diagnose_machine("570.86", cuda=cuda)["gpu"]
    assert finding.state == "problem"
    assert words in finding.cure


def test_processor_without_bfloat16_needs_compiled_kernels() -> None:
    assert diagnose_machine(packs_bfloat16=False)["instructions"].state == "ok"
    findings = diagnose_machine(packs_bfloat16=False, missing_kernels="there is no C compiler; install gcc")
    assert findings["instructions"].state == "warning"
    assert findings["kernels"] == Finding(
        "kernels", "warning", "not compiled, so models are slower: there is no C compiler; install gcc")


def test_processor_instructions_do_not_matter_with_a_gpu() -> None:
    assert "instructions" not in diagnose_machine(packs_bfloat16=False, gpus=[GPU_SURVEY])


def test_core_and_memory_limits_are_reported() -> None:
    findings = diagnose_machine(cores=2, memory=2**20,
                                memory_source="that the control group of this process may still use")
    assert findings["cores"].text.startswith("2 of the 4 ")
    assert (findings["memory"].state, "control group" in findings["memory"].text) == ("warning", True)


def test_unsupported_model_is_a_problem() -> None:
    assert [*diagnosis.diagnose_model({"problem": "architecture X is not supported"}, "org/name")] == [
        Finding("model", "problem", "architecture X is not supported")]


def test_model_finding_names_its_weights() -> None:
    finding, _ = diagnosis.diagnose_model({"model": MODEL_SURVEY}, "org/name")
    assert finding.text == "org/name: LlamaForCausalLM, 2.0 GiB of weights in bfloat16 on cpu"
    finding, _ = diagnosis.diagnose_model({"model": MODEL_SURVEY | {"quantize": "int8"}}, "org/name")
    assert finding.text == "org/name: LlamaForCausalLM, 2.0 GiB of weights in int8, computed in bfloat16, on cpu"


@pytest.mark.parametrize(("changes", "state", "words"), [
    ({}, "ok", "a cache of about 50,000 tokens"),
    ({"tokens": 2**30}, "ok", "a cache of about 1,048,576 tokens"),  # as much as 256 sequences can use
    ({"tokens": 2048}, "warning", "--max-total-tokens 2048"),
    ({"tokens": 0}, "problem", "no room for a cache"),
    ({"weights": 9 * GIB}, "problem", "a machine with more memory"),
    ({"weights": 9 * GIB, "device": "cuda"}, "problem", "--num-shard with more GPUs"),
])
def test_memory_fit_is_ok_warning_or_problem(changes: dict[str, Any], state: str, words: str) -> None:
    finding = diagnose_memory_fit(**changes)
    assert finding.state == state
    assert words in str(finding)
