"""Tests of the doctor's findings, and their remedies, from a child's survey of machine and model."""

from typing import Any

import pytest

from launcher.doctor import diagnosis
from launcher.doctor.findings import Finding

GIB = 2**30
LAPTOP = {"torch": "2.13.0+cpu", "cuda": "", "instructions": ["avx2"], "packs_bfloat16": True, "gpus": [], "cores": 4,
          "processors": 4, "memory": 8 * GIB, "memory_source": "that the system has available"}
GPU = {"name": "H200", "free": 130 * GIB, "total": 140 * GIB}
MODEL = {"architecture": "LlamaForCausalLM", "dtype": "bfloat16", "device": "cpu", "weights": 2 * GIB,
         "max_positions": 4096, "block": 2**20, "free": 8 * GIB, "tokens": 50_000}


def machine(driver: str = "", **changes: Any) -> dict[str, Finding]:
    return {finding.subject: finding for finding in diagnosis.machine(LAPTOP | changes, driver)}


def fits(**changes: Any) -> Finding:
    [_, finding] = diagnosis.model({"model": MODEL | changes}, "org/name")
    return finding


def test_a_laptop_is_fine() -> None:
    assert {finding.state for finding in machine().values()} == {"ok"}


def test_gpus_are_named_with_memory_and_driver() -> None:
    assert machine("570.86", gpus=[GPU, GPU], cuda="12.8")["gpu 1"].text == (
        "H200, 130.0 GiB of 140.0 GiB free, driver 570.86")


@pytest.mark.parametrize(("cuda", "words"), [("", "torch is for CPU only"), ("12.8", "one for CUDA 12.8 or above")])
def test_a_gpu_that_torch_does_not_see_is_a_problem(cuda: str, words: str) -> None:
    finding = machine("570.86", cuda=cuda)["gpu"]
    assert finding.state == "problem"
    assert words in finding.cure


def test_a_processor_without_units_for_bfloat16_is_told() -> None:
    assert machine(packs_bfloat16=False)["instructions"].state == "warning"


def test_the_instructions_of_the_processor_do_not_matter_beside_a_gpu() -> None:
    assert "instructions" not in machine(packs_bfloat16=False, gpus=[GPU])


def test_limits_on_cores_and_memory_are_told() -> None:
    found = machine(cores=2, memory=2**20, memory_source="that the control group of this process may still use")
    assert found["cores"].text.startswith("2 of the 4 ")
    assert (found["memory"].state, "control group" in found["memory"].text) == ("warning", True)


def test_a_model_that_cannot_be_served_is_a_problem() -> None:
    assert [*diagnosis.model({"problem": "architecture X is not supported"}, "org/name")] == [
        Finding("model", "problem", "architecture X is not supported")]


def test_a_model_is_told_with_its_weights() -> None:
    told, _ = diagnosis.model({"model": MODEL}, "org/name")
    assert told.text == "org/name: LlamaForCausalLM, 2.0 GiB of weights in bfloat16 on cpu"


@pytest.mark.parametrize(("changes", "state", "words"), [
    ({}, "ok", "a cache of about 50,000 tokens"),
    ({"tokens": 2**30}, "ok", "a cache of about 1,048,576 tokens"),  # as much as 256 sequences can use
    ({"tokens": 2048}, "warning", "--max-total-tokens 2048"),
    ({"tokens": 0}, "problem", "no room for a cache"),
    ({"weights": 9 * GIB}, "problem", "a machine with more memory"),
    ({"weights": 9 * GIB, "device": "cuda"}, "problem", "--num-shard with more GPUs"),
])
def test_it_fits_or_not(changes: dict[str, Any], state: str, words: str) -> None:
    finding = fits(**changes)
    assert finding.state == state
    assert words in str(finding)
