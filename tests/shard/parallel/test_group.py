import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed import HashStore

from shard.config import DIST_BACKENDS
from shard.errors import PeerLost
from shard.parallel.group import (
    COLLECTIVE_TIMEOUT,
    GROUP_BACKENDS,
    NcclGroup,
    RankGroup,
    Rendezvous,
    SharedMemoryGroup,
    SingleRankGroup,
    check_same_backend,
    choose_dist_backend,
    even_rank_range,
    find_network_interface,
    join_group,
    padded_rank_range,
    replicated_rank_range,
    sum_in_rank_order,
)
from shard.parallel.group import __name__ as module
from shard.parallel.shared_memory import SharedMemoryAllGather

GROUP_SIZES = [2, 3, 4]
PEER_PROGRAM = f"""
import os, sys, torch
from {module} import Rendezvous, join_group
group = join_group(1, 2, "memory", Rendezvous(sys.argv[1]))
torch.manual_seed(1)
for _ in range(int(sys.argv[2])):
    group.all_reduce_sum(torch.randn(32, 896))
os._exit(9)
"""


def close_group(group: RankGroup) -> None:
    """Close the connections, which a shard leaves to the end of its process. Gloo closes those of a group by itself."""
    if isinstance(group, SharedMemoryGroup):
        group._shared_memory.close()


def run_on_rank_threads(folder: Path, size: int, call: Callable[[RankGroup], Any],
                        backend: str = "memory") -> list[Any]:
    """Return what `call` returns or raises on each rank; every rank is a thread."""
    outcomes: list[Any] = [None] * size

    def run_rank(rank: int) -> None:
        group = join_group(rank, size, backend, Rendezvous(str(folder / "meeting")))
        try:
            outcomes[rank] = call(group)
        except Exception as error:
            outcomes[rank] = error
        finally:
            close_group(group)

    threads = [threading.Thread(target=run_rank, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


@pytest.fixture(params=["memory", "gloo"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def make_rank_tensor(rank: int, rows: int = 5, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(rows, 7, generator=torch.Generator().manual_seed(rank)).to(dtype)


@contextmanager
def join_with_peer_process(folder: Path, num_sums: int) -> Iterator[RankGroup]:
    """Yield the group of rank 0; rank 1 is a process that joins in `num_sums` sums and dies."""
    meeting_point = str(folder / "meeting")
    with subprocess.Popen([sys.executable, "-P", "-c", PEER_PROGRAM, meeting_point, str(num_sums)]) as process:
        group = join_group(0, 2, "memory", Rendezvous(meeting_point))
        try:
            yield group
        finally:
            close_group(group)
        assert process.wait() == 9


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("size", GROUP_SIZES)
def test_sum_adds_in_rank_order_on_every_rank(tmp_path: Path, backend: str, size: int, dtype: torch.dtype) -> None:
    parts = [make_rank_tensor(rank, dtype=dtype) for rank in range(size)]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    for output in run_on_rank_threads(tmp_path, size, lambda group: group.all_reduce_sum(parts[group.rank]), backend):
        assert output.dtype == dtype
        assert torch.equal(output, total)


def test_sum_does_not_change_its_inputs(tmp_path: Path, backend: str) -> None:
    parts = [make_rank_tensor(0), make_rank_tensor(1)]
    run_on_rank_threads(tmp_path, 2, lambda group: group.all_reduce_sum(parts[group.rank]), backend)
    assert torch.equal(parts[0], make_rank_tensor(0))
    assert torch.equal(parts[1], make_rank_tensor(1))


def test_columns_of_a_larger_tensor_can_be_summed(tmp_path: Path, backend: str) -> None:
    parts = [make_rank_tensor(0), make_rank_tensor(1)]
    sums = run_on_rank_threads(tmp_path, 2, lambda group: group.all_reduce_sum(parts[group.rank][:, 2:5]), backend)
    assert torch.equal(sums[0], (make_rank_tensor(0) + make_rank_tensor(1))[:, 2:5])


@pytest.mark.parametrize("rows", [0, 1, 300_000], ids=["nothing", "a row", "eight megabytes"])
def test_tensors_of_any_length_are_supported(tmp_path: Path, backend: str, rows: int) -> None:
    parts = [make_rank_tensor(rank, rows) for rank in range(3)]

    def run_all_collectives(group: RankGroup) -> list[torch.Tensor | None]:
        rank_tensor = parts[group.rank]
        return [group.all_reduce_sum(rank_tensor), group.gather(rank_tensor), group.broadcast(rank_tensor.clone())]
    total, concatenated, first = parts[0] + parts[1] + parts[2], torch.cat(parts, dim=-1), parts[0]
    for rank, outputs in enumerate(run_on_rank_threads(tmp_path, 3, run_all_collectives, backend)):
        for output, expected in zip(outputs, [total, None if rank else concatenated, first], strict=True):
            assert output is expected is None or torch.equal(output, expected)


@pytest.mark.parametrize("size", GROUP_SIZES)
def test_rank_0_gathers_concatenated_tensors(tmp_path: Path, backend: str, size: int) -> None:
    first, *others = run_on_rank_threads(tmp_path, size, lambda group: group.gather(make_rank_tensor(group.rank)),
                                        backend)
    assert torch.equal(first, torch.cat([make_rank_tensor(rank) for rank in range(size)], dim=-1))
    assert others == [None] * (size - 1)


@pytest.mark.parametrize("size", GROUP_SIZES)
def test_broadcast_copies_the_tensor_of_rank_0(tmp_path: Path, backend: str, size: int) -> None:
    def broadcast_every_other(group: RankGroup) -> tuple[bool, torch.Tensor]:
        ids = torch.arange(10) * (group.rank + 1)
        every_other = ids[::2]
        return group.broadcast(every_other) is every_other, ids
    results = run_on_rank_threads(tmp_path, size, broadcast_every_other, backend)
    assert all(same for same, _ in results)
    for rank, (_, ids) in enumerate(results):
        assert ids[::2].tolist() == [0, 2, 4, 6, 8]
        assert ids[1::2].tolist() == [i * (rank + 1) for i in (1, 3, 5, 7, 9)]


def test_every_rank_gets_the_minimum(tmp_path: Path, backend: str) -> None:
    assert run_on_rank_threads(tmp_path, 3, lambda group: group.all_reduce_min(10 ** 12 - group.rank),
                               backend) == [10 ** 12 - 2] * 3


def test_different_collectives_may_follow_each_other(tmp_path: Path, backend: str) -> None:
    def run_mixed_collectives(group: RankGroup) -> list[float]:
        values = []
        for i in range(20):
            x = group.all_reduce_sum(make_rank_tensor(group.rank + i))
            group.gather(x)
            values += [group.broadcast(x).sum().item(), group.all_reduce_min(i + group.rank)]
        return values
    first, *others = run_on_rank_threads(tmp_path, 3, run_mixed_collectives, backend)
    assert others == [first, first]


def test_waiting_for_a_rank_that_left_is_an_error(tmp_path: Path, backend: str) -> None:
    def sum_or_leave(group: RankGroup) -> Any:
        group.all_reduce_sum(make_rank_tensor(group.rank))  # so that all ranks have joined
        return "left" if group.rank == 1 else group.all_reduce_sum(make_rank_tensor(group.rank))
    outcomes = run_on_rank_threads(tmp_path, 3, sum_or_leave, backend)
    assert outcomes.pop(1) == "left"
    assert all(isinstance(outcome, PeerLost) for outcome in outcomes)


@pytest.mark.slow
def test_sums_of_two_processes_fail_once_one_has_died(tmp_path: Path) -> None:
    peer_generator = torch.Generator().manual_seed(1)
    own_tensor = torch.randn(32, 896)
    with join_with_peer_process(tmp_path, 3) as group:
        for _ in range(3):
            assert torch.equal(group.all_reduce_sum(own_tensor),
                               own_tensor + torch.randn(32, 896, generator=peer_generator))
        for _ in range(2):
            with pytest.raises(RuntimeError, match="peer"):
                group.all_reduce_sum(own_tensor)


@pytest.mark.parametrize("rank", [0, 1])
def test_rank_that_never_connects_is_an_error(tmp_path: Path, rank: int) -> None:
    with pytest.raises(RuntimeError, match=f"a peer of rank {rank} did not come within 0.05 seconds"):
        SharedMemoryAllGather(rank, 2, str(tmp_path / "meeting"), 0.05)
    assert [*tmp_path.iterdir()] == []


@contextmanager
def make_two_exchanges(folder: Path) -> Iterator[list[SharedMemoryAllGather]]:
    """Yield two exchanges that wait for each other for at most a second."""
    with ThreadPoolExecutor(2) as pool:
        exchanges = list(pool.map(lambda rank: SharedMemoryAllGather(rank, 2, str(folder / "meeting"), 1.0), range(2)))
    yield exchanges
    for exchange in exchanges:
        exchange.close()


def test_connected_rank_that_hangs_is_an_error(tmp_path: Path) -> None:
    with make_two_exchanges(tmp_path) as (exchange, _), pytest.raises(RuntimeError,
                                                                      match="a peer of rank 0 is gone, or hangs"):
        next(exchange.iter_gathered_pieces(make_rank_tensor(0)))


def test_ranks_with_mismatched_tensors_get_an_error(tmp_path: Path) -> None:
    with make_two_exchanges(tmp_path) as ranks, ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(next, rank.iter_gathered_pieces(x))
                 for rank, x in zip(ranks, (make_rank_tensor(0), make_rank_tensor(0)[1:]), strict=True)]
        assert all("not in step" in str(call.exception()) for call in calls)


def test_file_is_used_where_memfd_create_is_forbidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_permission_error(*_: Any) -> int:
        raise PermissionError
    monkeypatch.setattr(os, "memfd_create", raise_permission_error)
    assert torch.equal(run_on_rank_threads(tmp_path, 2,
                                           lambda group: group.all_reduce_sum(make_rank_tensor(group.rank)))[0],
                       make_rank_tensor(0) + make_rank_tensor(1))


def test_collective_timeout_is_longer_than_that_of_the_router() -> None:
    assert COLLECTIVE_TIMEOUT.total_seconds() > 300


def test_single_rank_needs_no_meeting_point() -> None:
    group = join_group(0, 1, "memory", Rendezvous(""))
    x = make_rank_tensor(0)
    assert isinstance(group, SingleRankGroup)
    assert all(call(x) is x for call in (group.all_reduce_sum, group.gather, group.broadcast))
    assert group.all_reduce_min(7) == 7


@pytest.mark.parametrize(("requested", "device", "num_gpus", "chosen"), [
    ("auto", "cpu", 0, "gloo"), ("auto", "cuda", 2, "nccl"), ("auto", "cuda", 1, "gloo"), ("gloo", "cuda", 2, "gloo")])
def test_hosts_exchange_data_over_the_network(requested: str, device: str, num_gpus: int, chosen: str) -> None:
    assert choose_dist_backend(requested, device, 2, num_gpus, spans_hosts=True) == chosen


def test_hosts_share_no_memory() -> None:
    with pytest.raises(ValueError, match="--dist-backend memory is for shards on one machine"):
        choose_dist_backend("memory", "cpu", 1, 0, spans_hosts=True)


def test_interface_is_found_by_its_address() -> None:
    assert find_network_interface("127.0.0.1") == "lo"
    for address in ("192.0.2.1", "fd00::1"):
        with pytest.raises(ValueError, match=f"no network interface has {address} .* set NCCL_SOCKET_IFNAME to the"):
            find_network_interface(address)


def test_nccl_meets_through_the_store_on_the_interface_of_the_hosts(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without GPUs the group is not joined: this is what NCCL is asked for."""
    requests: list[tuple[Any, ...]] = []
    monkeypatch.delenv("NCCL_SOCKET_IFNAME", raising=False)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda backend, **settings: requests.append(
        (backend, settings["rank"], settings["world_size"], str(settings["device_id"]), settings["store"].get("x"))))
    rendezvous = Rendezvous(str(tmp_path / "meeting"), "127.0.0.1")
    store = rendezvous.open_store(2)
    store.set("backend/0", "nccl")
    store.set("x", b"1")
    NcclGroup(1, 2, rendezvous)
    assert requests == [("nccl", 1, 2, "cuda:3", b"1")]
    assert os.environ["NCCL_SOCKET_IFNAME"] == "=lo"


def test_hosts_that_would_exchange_data_differently_are_an_error() -> None:
    store = HashStore()
    store.set("backend/1", "nccl")
    with pytest.raises(ValueError, match="rank 0 uses gloo and rank 1 nccl; give all hosts the same"):
        check_same_backend(store, 0, 2, "gloo")


@pytest.mark.parametrize(("requested", "device", "size", "num_gpus", "chosen"), [
    ("auto", "cpu", 2, 8, "memory"),
    ("auto", "cuda", 2, 2, "nccl"),
    ("auto", "cuda", 2, 1, "memory"),
    ("memory", "cuda", 2, 2, "memory"),
    ("nccl", "cuda", 2, 2, "nccl"),
])
def test_nccl_is_chosen_when_each_rank_has_a_gpu(
        requested: str, device: str, size: int, num_gpus: int, chosen: str) -> None:
    assert choose_dist_backend(requested, device, size, num_gpus) == chosen


def test_every_backend_is_a_config_choice() -> None:
    assert ("auto", *GROUP_BACKENDS) == DIST_BACKENDS


@pytest.mark.parametrize(("device", "num_gpus"), [("cpu", 0), ("cuda", 1)])
def test_nccl_without_a_gpu_per_rank_is_rejected(device: str, num_gpus: int) -> None:
    with pytest.raises(ValueError, match=f"there are {num_gpus} for 2 shards on --device {device}; use --dist-backend"):
        choose_dist_backend("nccl", device, 2, num_gpus)


def list_shares(share_function: Callable[[int, int, int], range], count: int, size: int) -> list[range]:
    return [share_function(count, rank, size) for rank in range(size)]


@given(st.integers(1, 50), st.integers(1, 9))
def test_even_shares_are_equal_and_consecutive(each: int, size: int) -> None:
    parts = list_shares(even_rank_range, each * size, size)
    assert [i for part in parts for i in part] == list(range(each * size))
    assert {len(part) for part in parts} == {each}


@given(st.integers(1, 100), st.integers(1, 9))
def test_padded_shares_have_one_length_and_cover_everything(count: int, size: int) -> None:
    parts = list_shares(padded_rank_range, count, size)
    assert len({len(part) for part in parts}) == 1
    assert [i for part in parts for i in part][:count] == list(range(count))
    assert parts[-1].stop - count < size


def test_few_heads_are_replicated_on_neighbouring_ranks() -> None:
    assert list_shares(replicated_rank_range, 2, 4) == [range(1), range(1), range(1, 2), range(1, 2)]
    assert list_shares(replicated_rank_range, 4, 2) == [range(2), range(2, 4)]


@pytest.mark.parametrize(("shared", "count"),
                         [(even_rank_range, 6), (replicated_rank_range, 6), (replicated_rank_range, 3)])
def test_uneven_shares_are_rejected(shared: Callable[[int, int, int], range], count: int) -> None:
    with pytest.raises(ValueError, match=f"{count} cannot be .* evenly .* 4 shards; choose a --num-shard"):
        shared(count, 0, 4)


def test_tensors_are_added_from_the_first_rank_to_the_last() -> None:
    parts = [torch.tensor([value]) for value in (1.0, 1e8, -1e8)]
    assert sum_in_rank_order(parts).item() == 0.0
    assert parts[0].item() == 1.0
