import os
from pathlib import Path

import pytest

from shard.hardware.cgroups import count_usable_cores, iter_cgroup_folders


def write_line(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


@pytest.fixture
def system_root(tmp_path: Path) -> Path:
    """A machine with four cores of two hardware threads each: 0 and 4, 1 and 5, ..."""
    for number in range(8):
        core = number % 4
        write_line(tmp_path / f"sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list", f"{core},{core + 4}")
    return tmp_path


@pytest.mark.parametrize(("allowed", "count"), [(range(8), 4), (range(4), 4), ([0, 4], 1), ([0, 1, 5], 2)], ids=str)
def test_hardware_threads_of_one_core_count_once(system_root: Path, allowed: list[int], count: int) -> None:
    assert count_usable_cores(system_root, allowed) == count


def test_every_cpu_is_a_core_without_topology_files(tmp_path: Path) -> None:
    assert count_usable_cores(tmp_path, range(6)) == 6


@pytest.mark.parametrize(("quota", "count"), [("max 100000", 4), ("200000 100000", 2), ("50000 100000", 1)])
def test_cgroup_quota_limits_the_number_of_cores(system_root: Path, quota: str, count: int) -> None:
    write_line(system_root / "proc/self/cgroup", "0::/app")
    write_line(system_root / "sys/fs/cgroup/app/cpu.max", quota)
    assert count_usable_cores(system_root, range(8)) == count


@pytest.mark.parametrize(("quota", "count"), [("-1", 4), ("350000", 3)])
def test_cgroup_v1_quota_is_read(system_root: Path, quota: str, count: int) -> None:
    write_line(system_root / "proc/self/cgroup", "4:cpu,cpuacct:/app\n0::/app")
    write_line(system_root / "sys/fs/cgroup/cpu/app/cpu.cfs_quota_us", quota)
    write_line(system_root / "sys/fs/cgroup/cpu/app/cpu.cfs_period_us", "100000")
    assert count_usable_cores(system_root, range(8)) == count


def test_cgroup_folders_are_listed_from_the_innermost_outwards(system_root: Path) -> None:
    write_line(system_root / "proc/self/cgroup", "4:cpu:/other\n0::/pod/app")
    groups = system_root / "sys/fs/cgroup"
    for folder in ("pod/app", "cpu"):
        (groups / folder).mkdir(parents=True)
    assert list(iter_cgroup_folders("cpu", system_root)) == [groups / "cpu", groups / "pod/app", groups / "pod", groups]


def test_core_count_does_not_exceed_the_cpu_affinity() -> None:
    assert 1 <= count_usable_cores() <= len(os.sched_getaffinity(0))
