from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from shard.hardware.device import choose_device, choose_num_threads, count_ranks_on_gpu, use_one_thread


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
    with use_one_thread():
        return torch.get_num_threads()
