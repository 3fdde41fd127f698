"""The cuBLAS settings are accepted by torch; only a test on a GPU can show whether they suffice."""

import os

import pytest
import torch

from shard.config import ShardConfig
from shard.host import cublas
from shard.workers import load_decoder


class Told:
    """Stand-in for torch's settings, some of which need a GPU."""


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    for name in cublas.ROOM:
        monkeypatch.setenv(name, "")  # so that the old value is restored after the test
    told = Told()
    monkeypatch.setattr(torch.backends.cuda, "matmul", told)
    monkeypatch.setattr(torch.backends.cuda, "preferred_blas_library", lambda name: setattr(told, "library", name))
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    return told


def test_on_a_gpu_sums_are_not_cut_into_parts_if_bits_must_not_depend_on_company(told: Told) -> None:
    load_decoder.compute_on(torch.device("cuda", 0), ShardConfig(exact=True))
    assert vars(told) == {"library": "cublaslt", "allow_bf16_reduced_precision_reduction": (False, False),
                          "allow_fp16_reduced_precision_reduction": (False, False)}
    assert {name: os.environ[name] for name in cublas.ROOM} == cublas.ROOM


def test_otherwise_nothing_is_told(told: Told) -> None:
    load_decoder.compute_on(torch.device("cuda", 0), ShardConfig())
    assert vars(told) == {}


def test_torch_takes_two_answers_about_sums() -> None:
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_bf16_reduced_precision_reduction, matmul.allow_bf16_reduced_precision_reduction_split_k
    try:
        matmul.allow_bf16_reduced_precision_reduction = (False, False)
        assert not matmul.allow_bf16_reduced_precision_reduction_split_k
    finally:
        matmul.allow_bf16_reduced_precision_reduction = before
