from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shard.errors import StartupOutOfMemory
from shard.hardware.cache_budget import (
    AvailableMemory,
    CacheBudget,
    check_any_block_fits,
    check_weights_fit,
    compute_gpu_cache_budget,
    compute_host_cache_budget,
    count_fitting_blocks,
    describe_cache_size,
    explain_num_blocks,
    read_host_memory,
)

GIB = 2**30
HOST_MEMORY = AvailableMemory(20 * GIB, "that the system has available")
BYTE_COUNTS = st.integers(0, 2**45)


def write_file(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def system_root(tmp_path: Path) -> Path:
    """A machine with 8 GiB of which 6 are available, without control groups."""
    write_file(tmp_path / "proc/meminfo",
               f"MemTotal: {8 * 2**20} kB\nMemAvailable: {6 * 2**20} kB\nHugePages_Total: 0\n")
    return tmp_path


def write_cgroup_v2_files(root: Path, cgroup: str, limit: str, usage: int,
                          page_cache_bytes: tuple[int, int] = (0, 0)) -> None:
    folder = root / f"sys/fs/cgroup{cgroup}"
    write_file(folder / "memory.max", f"{limit}\n")
    write_file(folder / "memory.current", f"{usage}\n")
    write_file(folder / "memory.stat",
               f"anon 1\nactive_file {page_cache_bytes[0]}\ninactive_file {page_cache_bytes[1]}\n")


def test_system_memory_is_available_without_cgroups(system_root: Path) -> None:
    assert read_host_memory(system_root) == AvailableMemory(6 * GIB, "that the system has available")


def test_cgroup_limit_reduces_available_memory(system_root: Path) -> None:
    write_file(system_root / "proc/self/cgroup", "0::/app\n")
    write_cgroup_v2_files(system_root, "/app", str(4 * GIB), GIB)
    assert read_host_memory(system_root) == AvailableMemory(3 * GIB,
                                                            "that the control group of this process may still use")


def test_page_cache_does_not_count_as_used(system_root: Path) -> None:
    write_file(system_root / "proc/self/cgroup", "0::/app\n")
    write_cgroup_v2_files(system_root, "/app", str(4 * GIB), 3 * GIB, (GIB, GIB))
    assert read_host_memory(system_root).bytes == 3 * GIB


def test_limit_of_a_parent_cgroup_applies(system_root: Path) -> None:
    write_file(system_root / "proc/self/cgroup", "0::/pod/app\n")
    write_cgroup_v2_files(system_root, "/pod/app", "max", GIB)
    write_cgroup_v2_files(system_root, "/pod", str(2 * GIB), GIB)
    assert read_host_memory(system_root).bytes == GIB


def test_limit_of_a_container_is_read_at_the_cgroup_root(system_root: Path) -> None:
    write_file(system_root / "proc/self/cgroup", "0::/docker/0123\n")
    write_cgroup_v2_files(system_root, "", str(2 * GIB), GIB)
    assert read_host_memory(system_root).bytes == GIB


def test_cgroup_without_a_limit_is_ignored(system_root: Path) -> None:
    write_file(system_root / "proc/self/cgroup", "0::/app\n")
    write_cgroup_v2_files(system_root, "/app", "max", GIB)
    assert read_host_memory(system_root).bytes == 6 * GIB


def test_cgroup_over_its_limit_has_no_memory_left(system_root: Path) -> None:
    write_file(system_root / "proc/self/cgroup", "0::/app\n")
    write_cgroup_v2_files(system_root, "/app", str(GIB), 2 * GIB)
    assert read_host_memory(system_root).bytes == 0


@pytest.mark.parametrize(("limit", "left"), [(2 * GIB, 1.5 * GIB), (2**63 - 4096, 6 * GIB)])
def test_cgroup_v1_limit_is_read(system_root: Path, limit: int, left: int) -> None:
    write_file(system_root / "proc/self/cgroup", "9:name=systemd:/app\n4:cpu,memory:/app\n1:cpu:/\n0::/app\n")
    folder = system_root / "sys/fs/cgroup/memory/app"
    write_file(folder / "memory.limit_in_bytes", f"{limit}\n")
    write_file(folder / "memory.usage_in_bytes", f"{GIB}\n")
    write_file(folder / "memory.stat", f"active_file 7\ntotal_active_file {GIB // 4}\ntotal_inactive_file {GIB // 4}\n")
    assert read_host_memory(system_root).bytes == left


def test_memory_of_this_system_can_be_read() -> None:
    assert read_host_memory().bytes > 0


def test_cpu_shards_share_half_of_the_available_memory() -> None:
    budget = compute_host_cache_budget(HOST_MEMORY, None, 2)
    assert budget.bytes == 5 * GIB
    assert budget.reason == "50% of the 20.00 GiB that the system has available, shared by 2 shards"


def test_single_shard_gets_the_whole_budget() -> None:
    assert (compute_host_cache_budget(HOST_MEMORY, 0.8, 1)
            == CacheBudget(16 * GIB, "80% of the 20.00 GiB that the system has available"))


def test_a_tenth_of_gpu_memory_stays_free() -> None:
    budget = compute_gpu_cache_budget(120 * GIB, 140 * GIB, None, 1)
    assert budget.bytes == pytest.approx(106 * GIB)
    assert budget.reason == (
        "the 120.00 GiB of 140.00 GiB that the GPU has left beside weights and the work of a step, "
        "less 14.00 GiB that stay free")


def test_shards_on_one_gpu_share_its_free_memory() -> None:
    budget = compute_gpu_cache_budget(120 * GIB, 140 * GIB, 1.0, 2)
    assert budget.bytes == 60 * GIB
    assert budget.reason.endswith("that stay free, shared by 2 shards")


@given(BYTE_COUNTS, st.floats(0.01, 1.0), st.integers(1, 64), BYTE_COUNTS)
def test_budgets_of_all_shards_fit_in_the_available_memory(size: int, fraction: float, num_shards: int,
                                                           used: int) -> None:
    assert 0 <= compute_host_cache_budget(AvailableMemory(size, ""), fraction, num_shards).bytes * num_shards <= size
    assert 0 <= compute_gpu_cache_budget(size, size + used, fraction, num_shards).bytes * num_shards <= size


@given(st.integers(3, 2**45), st.integers(1, 2**20), st.integers(0, 2))
def test_blocks_and_reserved_blocks_fill_the_budget(size: int, block_bytes: int, num_reserved: int) -> None:
    if size < (num_reserved + 1) * block_bytes:
        return
    used_bytes = (count_fitting_blocks(CacheBudget(size, ""), block_bytes, num_reserved) + num_reserved) * block_bytes
    assert size - block_bytes < used_bytes <= size


def test_budget_below_one_block_is_an_error_with_advice() -> None:
    with pytest.raises(StartupOutOfMemory, match=r"3 blocks of 1000 bytes are the least, .* \(why\); raise --memory-f"):
        check_any_block_fits(count_fitting_blocks(CacheBudget(2999, "why"), 1000, 2), CacheBudget(2999, "why"),
                             1000, 2)


def test_weights_that_do_not_fit_are_rejected_before_loading() -> None:
    check_weights_fit(20 * GIB, HOST_MEMORY, 1)
    with pytest.raises(StartupOutOfMemory,
                       match=r"those of 2 shards take 21.00 GiB, and there are 20.00 GiB that the system"):
        check_weights_fit(21 * GIB, HOST_MEMORY, 2)


def test_cache_size_is_described() -> None:
    assert describe_cache_size(4096, 16, 2**18, 4096, "because of this") == (
        "the cache has 4096 blocks of 16 places (65536 tokens, 1.00 GiB): because of this")
    assert describe_cache_size(2048, 16, 2**18, 4096, "because of that") == (
        "the cache has 2048 blocks of 16 places (32768 tokens, 0.50 GiB): because of that; here 4096 blocks would fit")


@pytest.mark.parametrize(("num_blocks", "expected"), [
    (4096, "because of the memory"),
    (3000, "enough for as many sequences as may run at once (--max-batch-size)"),
    (2000, "the value of --max-batch-total-tokens"),
])
def test_number_of_cache_blocks_is_explained(num_blocks: int, expected: str) -> None:
    budget = CacheBudget(GIB, "because of the memory")
    assert explain_num_blocks(num_blocks, 4096, 3000, budget, is_alone=True) == expected
    assert explain_num_blocks(num_blocks, 4096, 3000, budget, is_alone=False).startswith(expected)
