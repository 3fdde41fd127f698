import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shard.config import DIST_BACKENDS
from shard.parallel.group import (
    BACKENDS,
    TIMEOUT,
    Alone,
    Group,
    add_up,
    choose_backend,
    copied_share,
    join,
    padded_share,
    share,
)
from shard.parallel.group import __name__ as module
from shard.parallel.shared_memory import Exchange

SIZES = [2, 3, 4]
PEER = f"""
import os, sys, torch
from {module} import join
group = join(1, 2, "memory", sys.argv[1])
torch.manual_seed(1)
for _ in range(int(sys.argv[2])):
    group.sum(torch.randn(32, 896))
os._exit(9)
"""


def together(folder: Path, size: int, call: Callable[[Group], Any]) -> list[Any]:
    """Return what `call` returns or raises on each rank; every rank is a thread."""
    outcomes: list[Any] = [None] * size

    def live(rank: int) -> None:
        group = join(rank, size, "memory", str(folder / "meeting"))
        try:
            outcomes[rank] = call(group)
        except Exception as error:
            outcomes[rank] = error
        finally:
            group.close()

    threads = [threading.Thread(target=live, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


def part(rank: int, rows: int = 5, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(rows, 7, generator=torch.Generator().manual_seed(rank)).to(dtype)


@contextmanager
def peer(folder: Path, num_sums: int) -> Iterator[Group]:
    """Yield the group of rank 0; rank 1 is a process that joins in `num_sums` sums and dies."""
    meeting_point = str(folder / "meeting")
    with subprocess.Popen([sys.executable, "-P", "-c", PEER, meeting_point, str(num_sums)]) as process:
        with closing(join(0, 2, "memory", meeting_point)) as group:
            yield group
        assert process.wait() == 9


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("size", SIZES)
def test_a_sum_has_the_bits_of_adding_in_rank_order_on_every_rank(
        tmp_path: Path, size: int, dtype: torch.dtype) -> None:
    parts = [part(rank, dtype=dtype) for rank in range(size)]
    total = parts[0]
    for other in parts[1:]:
        total = total + other
    for found in together(tmp_path, size, lambda group: group.sum(parts[group.rank])):
        assert found.dtype == dtype
        assert torch.equal(found, total)


def test_a_sum_leaves_what_is_summed_as_it_was(tmp_path: Path) -> None:
    parts = [part(0), part(1)]
    together(tmp_path, 2, lambda group: group.sum(parts[group.rank]))
    assert torch.equal(parts[0], part(0))
    assert torch.equal(parts[1], part(1))


def test_columns_of_a_larger_tensor_can_be_summed(tmp_path: Path) -> None:
    parts = [part(0), part(1)]
    found = together(tmp_path, 2, lambda group: group.sum(parts[group.rank][:, 2:5]))
    assert torch.equal(found[0], (part(0) + part(1))[:, 2:5])


@pytest.mark.parametrize("rows", [0, 1, 300_000], ids=["nothing", "a row", "eight megabytes"])
def test_it_may_be_as_long_as_it_likes(tmp_path: Path, rows: int) -> None:
    parts = [part(rank, rows) for rank in range(3)]

    def call(group: Group) -> list[torch.Tensor | None]:
        mine = parts[group.rank]
        return [group.sum(mine), group.gather(mine), group.broadcast(mine.clone())]
    total, side_by_side, first = parts[0] + parts[1] + parts[2], torch.cat(parts, dim=-1), parts[0]
    for rank, found in enumerate(together(tmp_path, 3, call)):
        for ours, expected in zip(found, [total, None if rank else side_by_side, first], strict=True):
            assert ours is expected is None or torch.equal(ours, expected)


@pytest.mark.parametrize("size", SIZES)
def test_rank_0_gathers_the_parts_side_by_side(tmp_path: Path, size: int) -> None:
    first, *others = together(tmp_path, size, lambda group: group.gather(part(group.rank)))
    assert torch.equal(first, torch.cat([part(rank) for rank in range(size)], dim=-1))
    assert others == [None] * (size - 1)


@pytest.mark.parametrize("size", SIZES)
def test_everybody_gets_what_rank_0_has(tmp_path: Path, size: int) -> None:
    def call(group: Group) -> tuple[bool, torch.Tensor]:
        ids = torch.arange(10) * (group.rank + 1)
        every_other = ids[::2]
        return group.broadcast(every_other) is every_other, ids
    found = together(tmp_path, size, call)
    assert all(same for same, _ in found)
    for rank, (_, ids) in enumerate(found):
        assert ids[::2].tolist() == [0, 2, 4, 6, 8]
        assert ids[1::2].tolist() == [i * (rank + 1) for i in (1, 3, 5, 7, 9)]


def test_everybody_gets_the_least_number(tmp_path: Path) -> None:
    assert together(tmp_path, 3, lambda group: group.minimum(10 ** 12 - group.rank)) == [10 ** 12 - 2] * 3


def test_calls_of_all_kinds_follow_each_other(tmp_path: Path) -> None:
    def call(group: Group) -> list[float]:
        found = []
        for i in range(20):
            x = group.sum(part(group.rank + i))
            group.gather(x)
            found += [group.broadcast(x).sum().item(), group.minimum(i + group.rank)]
        return found
    first, *others = together(tmp_path, 3, call)
    assert others == [first, first]


def test_whoever_waits_for_a_rank_that_left_gets_an_error(tmp_path: Path) -> None:
    def call(group: Group) -> Any:
        group.sum(part(group.rank))  # so that all have met
        return "left" if group.rank == 1 else group.sum(part(group.rank))
    outcomes = together(tmp_path, 3, call)
    assert outcomes.pop(1) == "left"
    assert all(isinstance(outcome, RuntimeError) for outcome in outcomes)


@pytest.mark.slow
def test_two_processes_add_up_until_one_dies_and_the_other_hears_of_it(tmp_path: Path) -> None:
    theirs = torch.Generator().manual_seed(1)
    mine = torch.randn(32, 896)
    with peer(tmp_path, 3) as group:
        for _ in range(3):
            assert torch.equal(group.sum(mine), mine + torch.randn(32, 896, generator=theirs))
        for _ in range(2):
            with pytest.raises(RuntimeError, match="peer"):
                group.sum(mine)


@pytest.mark.parametrize("rank", [0, 1])
def test_whoever_waits_in_vain_for_a_rank_to_come_gets_an_error(tmp_path: Path, rank: int) -> None:
    with pytest.raises(RuntimeError, match=f"a peer of rank {rank} did not come within 0.05 seconds"):
        Exchange(rank, 2, str(tmp_path / "meeting"), 0.05)
    assert [*tmp_path.iterdir()] == []


@contextmanager
def two(folder: Path) -> Iterator[list[Exchange]]:
    """Yield two exchanges that wait for each other for at most a second."""
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda rank: Exchange(rank, 2, str(folder / "meeting"), 1.0), range(2)))
    yield found
    for each in found:
        each.close()


def test_whoever_waits_too_long_for_a_rank_that_came_gets_an_error(tmp_path: Path) -> None:
    with two(tmp_path) as (one, _), pytest.raises(RuntimeError, match="a peer of rank 0 is gone, or hangs"):
        next(one.parts(part(0)))


def test_ranks_that_are_not_in_step_get_an_error(tmp_path: Path) -> None:
    with two(tmp_path) as ranks, ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(next, rank.parts(x)) for rank, x in zip(ranks, (part(0), part(0)[1:]), strict=True)]
        assert all("not in step" in str(call.exception()) for call in calls)


def test_where_memory_without_a_name_is_forbidden_a_file_will_do(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> int:
        raise PermissionError
    monkeypatch.setattr(os, "memfd_create", refuse)
    assert torch.equal(together(tmp_path, 2, lambda group: group.sum(part(group.rank)))[0], part(0) + part(1))


def test_ranks_wait_longer_than_the_router_that_judges_them() -> None:
    assert TIMEOUT.total_seconds() > 300


def test_one_rank_is_a_group_without_a_meeting_point() -> None:
    group = join(0, 1, "memory", "")
    x = part(0)
    assert isinstance(group, Alone)
    assert all(call(x) is x for call in (group.sum, group.gather, group.broadcast))
    assert group.minimum(7) == 7
    group.close()


@pytest.mark.parametrize(("asked", "device", "size", "num_gpus", "chosen"), [
    ("auto", "cpu", 2, 8, "memory"),
    ("auto", "cuda", 2, 2, "nccl"),
    ("auto", "cuda", 2, 1, "memory"),
    ("memory", "cuda", 2, 2, "memory"),
    ("nccl", "cuda", 2, 2, "nccl"),
])
def test_ranks_talk_over_nccl_when_each_has_a_gpu(
        asked: str, device: str, size: int, num_gpus: int, chosen: str) -> None:
    assert choose_backend(asked, device, size, num_gpus) == chosen


def test_every_backend_can_be_asked_for() -> None:
    assert ("auto", *BACKENDS) == DIST_BACKENDS


@pytest.mark.parametrize(("device", "num_gpus"), [("cpu", 0), ("cuda", 1)])
def test_nccl_without_a_gpu_for_everybody_is_refused(device: str, num_gpus: int) -> None:
    with pytest.raises(ValueError, match=f"there are {num_gpus} for 2 shards on --device {device}; use --dist-backend"):
        choose_backend("nccl", device, 2, num_gpus)


def parts_of(shared: Callable[[int, int, int], range], count: int, size: int) -> list[range]:
    return [shared(count, rank, size) for rank in range(size)]


@given(st.integers(1, 50), st.integers(1, 9))
def test_shares_are_even_and_follow_each_other(each: int, size: int) -> None:
    parts = parts_of(share, each * size, size)
    assert [i for part in parts for i in part] == list(range(each * size))
    assert {len(part) for part in parts} == {each}


@given(st.integers(1, 100), st.integers(1, 9))
def test_padded_shares_are_of_one_length_and_cover_everything(count: int, size: int) -> None:
    parts = parts_of(padded_share, count, size)
    assert len({len(part) for part in parts}) == 1
    assert [i for part in parts for i in part][:count] == list(range(count))
    assert parts[-1].stop - count < size


def test_few_heads_are_copied_to_neighbouring_ranks() -> None:
    assert parts_of(copied_share, 2, 4) == [range(1), range(1), range(1, 2), range(1, 2)]
    assert parts_of(copied_share, 4, 2) == [range(2), range(2, 4)]


@pytest.mark.parametrize(("shared", "count"), [(share, 6), (copied_share, 6), (copied_share, 3)])
def test_what_cannot_be_shared_evenly_is_refused(shared: Callable[[int, int, int], range], count: int) -> None:
    with pytest.raises(ValueError, match=f"{count} cannot be .* evenly .* 4 shards; choose a --num-shard"):
        shared(count, 0, 4)


def test_parts_are_added_from_the_first_to_the_last() -> None:
    parts = [torch.tensor([value]) for value in (1.0, 1e8, -1e8)]
    assert add_up(parts).item() == 0.0
    assert parts[0].item() == 1.0
