"""The cuBLAS settings are accepted by torch; only a test on a GPU can show whether they suffice."""

import os

import pytest
import torch

from shard.config import ShardConfig
from shard.hardware import cublas
from shard.workers import model_loading


class RecordedTorchSettings:
    """Stand-in for torch's settings, some of which need a GPU."""


@pytest.fixture
def torch_settings(monkeypatch: pytest.MonkeyPatch) -> RecordedTorchSettings:
    for name in cublas.WORKSPACE_VARIABLES:
        monkeypatch.setenv(name, "")  # so that the old value is restored after the test
    settings = RecordedTorchSettings()
    monkeypatch.setattr(torch.backends.cuda, "matmul", settings)
    monkeypatch.setattr(torch.backends.cuda, "preferred_blas_library", lambda name: setattr(settings, "library", name))
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    return settings


def test_exact_mode_disables_split_sums_on_a_gpu(torch_settings: RecordedTorchSettings) -> None:
    model_loading.set_up_device(torch.device("cuda", 0), ShardConfig(exact=True))
    assert vars(torch_settings) == {"library": "cublaslt", "allow_bf16_reduced_precision_reduction": (False, False),
                                    "allow_fp16_reduced_precision_reduction": (False, False)}
    assert {name: os.environ[name] for name in cublas.WORKSPACE_VARIABLES} == cublas.WORKSPACE_VARIABLES


def test_torch_settings_are_unchanged_without_exact_mode(torch_settings: RecordedTorchSettings) -> None:
    model_loading.set_up_device(torch.device("cuda", 0), ShardConfig())
    assert vars(torch_settings) == {}


def test_torch_accepts_two_values_for_reduced_precision_reduction() -> None:
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_bf16_reduced_precision_reduction, matmul.allow_bf16_reduced_precision_reduction_split_k
    try:
        matmul.allow_bf16_reduced_precision_reduction = (False, False)
        assert not matmul.allow_bf16_reduced_precision_reduction_split_k
    finally:
        matmul.allow_bf16_reduced_precision_reduction = before
