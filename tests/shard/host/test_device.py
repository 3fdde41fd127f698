from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shard.host import device
from shard.host.device import (
    UNDER_WAY,
    Bringing,
    Standing,
    choose_device,
    count_sharing,
    count_threads,
    one_thread,
    sent,
)


@pytest.mark.parametrize(("asked", "num_gpus", "device"), [
    ("auto", 0, "cpu"), ("auto", 2, "cuda:1"), ("cpu", 2, "cpu"), ("cuda", 2, "cuda:1"), ("cuda", 1, "cuda:0")])
def test_a_model_runs_on_gpus_if_there_are_any(asked: str, num_gpus: int, device: str) -> None:
    assert choose_device(asked, 3, num_gpus) == torch.device(device)


def test_a_gpu_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="--device cuda needs a GPU that torch can use, there is none; use"):
        choose_device("cuda", 0, 0)


def test_ranks_that_share_a_gpu_know_how_many_they_are() -> None:
    assert [count_sharing(rank, 3, 2) for rank in range(3)] == [2, 1, 2]
    assert count_sharing(1, 4, 8) == 1


@pytest.mark.parametrize(("cores", "shards", "threads"), [
    (2, 1, 2), (2, 2, 1), (2, 4, 1), (4, 1, 4), (4, 3, 1), (8, 1, 7), (8, 2, 3), (64, 4, 15)])
def test_shards_share_the_cores_and_leave_one_of_many_to_the_router(cores: int, shards: int, threads: int) -> None:
    assert count_threads(0, cores, shards) == threads


def test_threads_that_were_asked_for_are_taken() -> None:
    assert count_threads(5, 2, 2) == 5


def test_work_beside_the_steps_takes_none_of_their_threads() -> None:
    with ThreadPoolExecutor(1) as steps, ThreadPoolExecutor(1) as beside:
        steps.submit(torch.set_num_threads, 3).result()
        before = beside.submit(torch.get_num_threads).result()
        assert beside.submit(counted_beside).result() == 1
        assert beside.submit(torch.get_num_threads).result() == before
        assert steps.submit(torch.get_num_threads).result() == 3


def counted_beside() -> int:
    with one_thread():
        return torch.get_num_threads()


@given(st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=9), min_size=1, max_size=5))
def test_what_is_sent_begins_where_kernels_expect_it(lists: list[list[int]]) -> None:
    parts = sent(lists, torch.device("cpu"))
    assert [part.tolist() for part in parts] == lists
    assert not any(part.data_ptr() % 16 for part in parts if len(part))


def test_what_is_sent_next_waits_beside_what_was_sent_last() -> None:
    standing = Standing([3, 2], torch.float64, torch.device("cpu"))
    hosts = [next(standing._hosts) for _ in range(UNDER_WAY)]
    assert len({host.data_ptr() for host in hosts}) == UNDER_WAY
    for lists in ([[1.5, 2.0, 3.0], [4.0]], [[5.0], []]):
        standing.send(lists)
    first, second = standing.lists
    assert (first.tolist(), second.tolist()) == ([5.0, 2.0, 3.0], [4.0, 0.0])
    assert standing.holds([[1, 2, 3], [4, 5]])
    assert not standing.holds([[], [1, 2, 3]])


SENT = st.lists(st.integers(1, 99), max_size=7)


@given(st.lists(st.tuples(SENT, SENT, SENT), max_size=4), st.sampled_from([0, 3, 4096]))
def test_what_was_sent_last_stands_where_each_list_begins(sendings: list[tuple[list[int], ...]], near: int) -> None:
    """Entries past the end of a list are stale values sent before, however many lists are copied at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device, "NEAR", near)
        standing = Standing([7, 9, 7], torch.int32, torch.device("cpu"), [0, 100, 0])
        before = [[{0}] * 7, [{100}] * 9, [{0}] * 7]
        for lists in sendings:
            standing.send(lists)
            for some, there, known in zip(lists, standing.lists, before, strict=True):
                assert there[:len(some)].tolist() == some
                known[:len(some)] = [values | {new} for values, new in zip(known, some, strict=False)]
                assert all(value in values for value, values in zip(there.tolist(), known, strict=True))


def test_lists_that_lie_side_by_side_are_copied_at_once() -> None:
    places = [slice(0, 3), slice(8, 8), slice(8, 10), slice(10 + device.NEAR, 5000), slice(9999, 10_001)]
    assert device.runs_of(places) == [slice(0, 5000), slice(9999, 10_001)]
    assert device.runs_of([slice(4, 4)]) == []


def test_what_is_brought_is_what_was_there_then() -> None:
    source = torch.arange(6.0).view(3, 2)
    bringing = Bringing(source)
    first = bringing.begin(2)
    bringing.await_begun()
    source += 1.0
    second = bringing.begin(1)
    second.wait()
    assert (first.rows(), second.rows()) == ([[0.0, 1.0], [2.0, 3.0]], [[1.0, 2.0]])
