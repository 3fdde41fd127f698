from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shard.errors import Exhausted, NoRoom
from shard.host.memory import (
    Available,
    Room,
    check_fitting,
    check_weights,
    explain,
    gpu_room,
    host_room,
    num_fitting,
    read_host,
    reason,
    within_memory,
)

GIB = 2**30
HOST = Available(20 * GIB, "that the system has available")
SIZES = st.integers(0, 2**45)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def system(tmp_path: Path) -> Path:
    """A machine with 8 GiB of which 6 are available, without control groups."""
    write(tmp_path / "proc/meminfo", f"MemTotal: {8 * 2**20} kB\nMemAvailable: {6 * 2**20} kB\nHugePages_Total: 0\n")
    return tmp_path


def unified(root: Path, group: str, limit: str, usage: int, files: tuple[int, int] = (0, 0)) -> None:
    folder = root / f"sys/fs/cgroup{group}"
    write(folder / "memory.max", f"{limit}\n")
    write(folder / "memory.current", f"{usage}\n")
    write(folder / "memory.stat", f"anon 1\nactive_file {files[0]}\ninactive_file {files[1]}\n")


def test_without_a_control_group_it_is_what_the_system_has_available(system: Path) -> None:
    assert read_host(system) == Available(6 * GIB, "that the system has available")


def test_a_control_group_may_leave_less(system: Path) -> None:
    write(system / "proc/self/cgroup", "0::/app\n")
    unified(system, "/app", str(4 * GIB), GIB)
    assert read_host(system) == Available(3 * GIB, "that the control group of this process may still use")


def test_pages_of_files_do_not_count_as_used(system: Path) -> None:
    write(system / "proc/self/cgroup", "0::/app\n")
    unified(system, "/app", str(4 * GIB), 3 * GIB, (GIB, GIB))
    assert read_host(system).bytes == 3 * GIB


def test_a_group_around_ours_may_be_the_tighter_one(system: Path) -> None:
    write(system / "proc/self/cgroup", "0::/pod/app\n")
    unified(system, "/pod/app", "max", GIB)
    unified(system, "/pod", str(2 * GIB), GIB)
    assert read_host(system).bytes == GIB


def test_a_container_sees_itself_at_the_top(system: Path) -> None:
    write(system / "proc/self/cgroup", "0::/docker/0123\n")
    unified(system, "", str(2 * GIB), GIB)
    assert read_host(system).bytes == GIB


def test_a_group_without_a_limit_leaves_it_to_the_system(system: Path) -> None:
    write(system / "proc/self/cgroup", "0::/app\n")
    unified(system, "/app", "max", GIB)
    assert read_host(system).bytes == 6 * GIB


def test_a_group_beyond_its_limit_has_nothing_left(system: Path) -> None:
    write(system / "proc/self/cgroup", "0::/app\n")
    unified(system, "/app", str(GIB), 2 * GIB)
    assert read_host(system).bytes == 0


@pytest.mark.parametrize(("limit", "left"), [(2 * GIB, 1.5 * GIB), (2**63 - 4096, 6 * GIB)])
def test_the_older_control_groups_are_read_too(system: Path, limit: int, left: int) -> None:
    write(system / "proc/self/cgroup", "9:name=systemd:/app\n4:cpu,memory:/app\n1:cpu:/\n0::/app\n")
    folder = system / "sys/fs/cgroup/memory/app"
    write(folder / "memory.limit_in_bytes", f"{limit}\n")
    write(folder / "memory.usage_in_bytes", f"{GIB}\n")
    write(folder / "memory.stat", f"active_file 7\ntotal_active_file {GIB // 4}\ntotal_inactive_file {GIB // 4}\n")
    assert read_host(system).bytes == left


def test_this_system_can_be_read() -> None:
    assert read_host().bytes > 0


def test_on_cpu_all_shards_take_half_of_what_is_available() -> None:
    room = host_room(HOST, None, 2)
    assert room.bytes == 5 * GIB
    assert room.why == "50% of the 20.00 GiB that the system has available, shared by 2 shards"


def test_one_shard_alone_shares_with_nobody() -> None:
    assert host_room(HOST, 0.8, 1) == Room(16 * GIB, "80% of the 20.00 GiB that the system has available")


def test_on_a_gpu_a_tenth_stays_free() -> None:
    room = gpu_room(120 * GIB, 140 * GIB, None, 1)
    assert room.bytes == pytest.approx(106 * GIB)
    assert room.why == ("the 120.00 GiB of 140.00 GiB that the GPU has left beside weights and the work of a step, "
                        "less 14.00 GiB that stay free")


def test_shards_on_one_gpu_share_what_it_has_left() -> None:
    room = gpu_room(120 * GIB, 140 * GIB, 1.0, 2)
    assert room.bytes == 60 * GIB
    assert room.why.endswith("that stay free, shared by 2 shards")


@given(SIZES, st.floats(0.01, 1.0), st.integers(1, 64), SIZES)
def test_rooms_together_never_exceed_what_there_is(size: int, fraction: float, num_shards: int, other: int) -> None:
    assert 0 <= host_room(Available(size, ""), fraction, num_shards).bytes * num_shards <= size
    assert 0 <= gpu_room(size, size + other, fraction, num_shards).bytes * num_shards <= size


@given(st.integers(3, 2**45), st.integers(1, 2**20), st.integers(0, 2))
def test_blocks_and_spare_ones_fill_the_room(size: int, block_bytes: int, num_spare: int) -> None:
    if size < (num_spare + 1) * block_bytes:
        return
    taken = (num_fitting(Room(size, ""), block_bytes, num_spare) + num_spare) * block_bytes
    assert size - block_bytes < taken <= size


def test_no_room_for_a_block_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(NoRoom, match=r"3 blocks of 1000 bytes are the least, .* \(why\); raise --memory-f"):
        check_fitting(num_fitting(Room(2999, "why"), 1000, 2), Room(2999, "why"), 1000, 2)


def test_weights_that_do_not_fit_are_refused_before_they_are_read() -> None:
    check_weights(20 * GIB, HOST, 1)
    with pytest.raises(NoRoom, match=r"those of 2 shards take 21.00 GiB, and there are 20.00 GiB that the system"):
        check_weights(21 * GIB, HOST, 2)


def test_the_size_of_the_cache_is_explained() -> None:
    assert explain(4096, 16, 2**18, 4096, "because of this") == (
        "the cache has 4096 blocks of 16 places (65536 tokens, 1.00 GiB): because of this")
    assert explain(2048, 16, 2**18, 4096, "because of that") == (
        "the cache has 2048 blocks of 16 places (32768 tokens, 0.50 GiB): because of that; here 4096 blocks would fit")


@pytest.mark.parametrize(("num_blocks", "why"), [
    (4096, "because of the memory"),
    (3000, "all that as many sequences as may run at once can use"),
    (2000, "no more was asked for, or fits on another shard"),
])
def test_a_cache_is_as_large_as_fits_or_is_of_use_or_was_asked_for(num_blocks: int, why: str) -> None:
    assert reason(num_blocks, 4096, 3000, Room(GIB, "because of the memory")) == why


@pytest.mark.parametrize(("error", "reason"), [
    (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nMore"),
     "CUDA out of memory. Tried to allocate 2.00 GiB."),
    (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 5 bytes."), "5 bytes"),
    (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), "ALLOC_FAILED"),
    (RuntimeError("Triton Error [CUDA]: out of memory"), "out of memory"),
    (MemoryError(), "there is no memory")])
def test_a_step_for_which_there_is_no_memory_says_so(error: Exception, reason: str) -> None:
    def fail() -> None:
        raise error
    with pytest.raises(Exhausted, match=reason):
        within_memory(torch.device("cpu"), fail)


def test_so_does_one_whose_error_came_on_top_of_that() -> None:
    """Capturing a CUDA graph raises such an error."""
    def fail() -> None:
        try:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        finally:
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")
    with pytest.raises(Exhausted, match="during capture"):
        within_memory(torch.device("cpu"), fail)


def test_a_step_that_asks_for_more_than_there_ever_is_says_so() -> None:
    with pytest.raises(Exhausted):
        within_memory(torch.device("cpu"), lambda: torch.empty(2**60))


def test_what_failed_for_another_reason_is_no_matter_of_memory() -> None:
    def fail() -> None:
        raise RuntimeError("no")
    with pytest.raises(RuntimeError, match="no"):
        within_memory(torch.device("cpu"), fail)
    assert within_memory(torch.device("cpu"), lambda: 7) == 7
