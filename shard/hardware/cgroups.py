"""Resources that the system grants this process: control groups with their limits, and cores. They are read from files
below a root folder, which a test may choose."""

import os
from collections.abc import Collection, Iterator
from pathlib import Path

ROOT_FOLDER = Path("/")
CGROUP_FOLDER = Path("sys/fs/cgroup")


def iter_cgroup_folders(controller: str, root: Path = ROOT_FOLDER) -> Iterator[Path]:
    """Yield the folders of this process's control group and of each of its parents, for version 2 and for this
    controller of version 1. A container may see its own group as the root although the group's name has a longer path:
    folders that do not exist are skipped."""
    table = root / "proc/self/cgroup"
    top_folders = {"": root / CGROUP_FOLDER, controller: root / CGROUP_FOLDER / controller}
    for line in table.read_text().splitlines() if table.exists() else ():
        _, controllers, group = line.split(":", 2)
        for top in (top_folders[name] for name in top_folders.keys() & set(controllers.split(","))):
            group_folder = top / group.strip("/")
            yield from (folder for folder in (group_folder, *group_folder.parents) if folder.is_relative_to(top)
                        and folder.exists())


def read_named_numbers(path: Path) -> dict[str, int]:
    """Read lines such as `VmRSS:  1234 kB` or `active_file 1234`."""
    words = [line.replace(":", " ").split() for line in path.read_text().splitlines()]
    return {name: int(value) for name, value, *_ in (line for line in words if len(line) > 1) if value.isdecimal()}


def count_usable_cores(root: Path = ROOT_FOLDER, allowed_cpus: Collection[int] | None = None) -> int:
    """Return how many cores this process may keep busy: physical cores that it may run on, whatever their number of
    hardware threads, but no more than the CPU quotas of its control groups allow."""
    numbers = os.sched_getaffinity(0) if allowed_cpus is None else allowed_cpus
    cores = set()  # for each a text that all its hardware threads have in common
    for number in numbers:
        path = root / f"sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list"
        cores.add(path.read_text().strip() if path.exists() else str(number))
    return max(1, min([len(cores), *(int(quota) for quota in read_cpu_quotas(root))]))


def read_cpu_quotas(root: Path) -> Iterator[float]:
    """Yield the CPU quotas of the control groups that have one, in cores."""
    for folder in iter_cgroup_folders("cpu", root):
        if (v2_file := folder / "cpu.max").exists():
            quota, period = v2_file.read_text().split()
        elif (v1_file := folder / "cpu.cfs_quota_us").exists():
            quota, period = v1_file.read_text(), (folder / "cpu.cfs_period_us").read_text()
        else:
            continue
        if quota != "max" and int(quota) > 0:
            yield int(quota) / int(period)
