import os
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from shard.config import ShardConfig
from shard.hardware.device_setup import (
    WORKSPACE_VARIABLES,
    choose_device,
    choose_num_threads,
    count_ranks_on_gpu,
    use_single_torch_thread,
)
from shard.workers import model_loading


@pytest.mark.parametrize(("requested", "num_gpus", "device"), [
    ("auto", 0, "cpu"), ("auto", 2, "cuda:1"), ("cpu", 2, "cpu"), ("cuda", 2, "cuda:1"), ("cuda", 1, "cuda:0")])
def test_gpus_are_used_if_there_are_any(requested: str, num_gpus: int, device: str) -> None:
    assert choose_device(requested, 3, num_gpus) == torch.device(device)


def test_cuda_without_a_gpu_is_rejected() -> None:
    with pytest.raises(ValueError, match="--device cuda needs a GPU that torch can use, there is none; use"):
        choose_device("cuda", 0, 0)


def test_ranks_sharing_a_gpu_are_counted() -> None:
    assert [count_ranks_on_gpu(rank, 3, 2) for rank in range(3)] == [2, 1, 2]
    assert count_ranks_on_gpu(1, 4, 8) == 1


@pytest.mark.parametrize(("cores", "shards", "threads"), [
    (2, 1, 2), (2, 2, 1), (2, 4, 1), (4, 1, 4), (4, 3, 1), (8, 1, 7), (8, 2, 3), (64, 4, 15)])
def test_shards_share_the_cores_and_leave_one_of_many_to_the_router(cores: int, shards: int, threads: int) -> None:
    assert choose_num_threads(0, cores, shards) == threads


def test_requested_number_of_threads_is_used() -> None:
    assert choose_num_threads(5, 2, 2) == 5


def test_background_work_uses_one_thread_and_leaves_those_of_steps() -> None:
    with ThreadPoolExecutor(1) as steps, ThreadPoolExecutor(1) as background:
        steps.submit(torch.set_num_threads, 3).result()
        before = background.submit(torch.get_num_threads).result()
        assert background.submit(count_threads_within_one_thread).result() == 1
        assert background.submit(torch.get_num_threads).result() == before
        assert steps.submit(torch.get_num_threads).result() == 3


def count_threads_within_one_thread() -> int:
    with use_single_torch_thread():
        return torch.get_num_threads()


# -- the cuBLAS settings are accepted by torch; only a test on a GPU can show whether they suffice


class RecordedTorchSettings:
    """Stand-in for torch's settings, some of which need a GPU."""


@pytest.fixture
def torch_settings(monkeypatch: pytest.MonkeyPatch) -> RecordedTorchSettings:
    for name in WORKSPACE_VARIABLES:
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
    assert {name: os.environ[name] for name in WORKSPACE_VARIABLES} == WORKSPACE_VARIABLES


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
