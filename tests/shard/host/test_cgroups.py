import os
from pathlib import Path

import pytest

from shard.host.cgroups import count_cores, group_folders


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


@pytest.fixture
def system(tmp_path: Path) -> Path:
    """A machine with four cores of two hardware threads each: 0 and 4, 1 and 5, ..."""
    for number in range(8):
        core = number % 4
        write(tmp_path / f"sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list", f"{core},{core + 4}")
    return tmp_path


@pytest.mark.parametrize(("allowed", "count"), [(range(8), 4), (range(4), 4), ([0, 4], 1), ([0, 1, 5], 2)], ids=str)
def test_a_core_counts_once(system: Path, allowed: list[int], count: int) -> None:
    assert count_cores(system, allowed) == count


def test_without_a_topology_every_number_is_a_core(tmp_path: Path) -> None:
    assert count_cores(tmp_path, range(6)) == 6


@pytest.mark.parametrize(("quota", "count"), [("max 100000", 4), ("200000 100000", 2), ("50000 100000", 1)])
def test_a_group_may_allow_less_than_its_cores(system: Path, quota: str, count: int) -> None:
    write(system / "proc/self/cgroup", "0::/app")
    write(system / "sys/fs/cgroup/app/cpu.max", quota)
    assert count_cores(system, range(8)) == count


@pytest.mark.parametrize(("quota", "count"), [("-1", 4), ("350000", 3)])
def test_the_older_control_groups_are_read_too(system: Path, quota: str, count: int) -> None:
    write(system / "proc/self/cgroup", "4:cpu,cpuacct:/app\n0::/app")
    write(system / "sys/fs/cgroup/cpu/app/cpu.cfs_quota_us", quota)
    write(system / "sys/fs/cgroup/cpu/app/cpu.cfs_period_us", "100000")
    assert count_cores(system, range(8)) == count


def test_groups_are_looked_at_from_ours_outwards(system: Path) -> None:
    write(system / "proc/self/cgroup", "4:cpu:/other\n0::/pod/app")
    groups = system / "sys/fs/cgroup"
    for folder in ("pod/app", "cpu"):
        (groups / folder).mkdir(parents=True)
    assert list(group_folders("cpu", system)) == [groups / "cpu", groups / "pod/app", groups / "pod", groups]


def test_this_system_has_no_more_cores_than_this_process_may_run_on() -> None:
    assert 1 <= count_cores() <= len(os.sched_getaffinity(0))
