"""Checks of `weft doctor` that need no torch: packages, folders, environment variables, the port."""

import os
import platform
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.metadata import PackageNotFoundError, files, requires, version
from pathlib import Path

from launcher.doctor.findings import Finding, fine, gib, unless
from launcher.environment import hub_cache, offline_by, token_from
from launcher.supervisor.supervisor import Failed, bind

REQUIREMENT = re.compile(r"([\w.-]+)\s*([^;]*)(;.*)?")
LEAST_DISK = 20 * 2**30  # bytes; models of a few billion parameters take as much
LEAST_SHARED = 512 * 2**20  # bytes; containers have 64 MiB by default
# Packages with an optional C extension: its file, and the variable with the value that disables it.
FAST_PARTS = {
    "protobuf": ("google/_upb/_message", "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION", "python"),
    "aiohttp": ("aiohttp/_http_parser", "AIOHTTP_NO_EXTENSIONS", "1"),
}
DRIVER = Path("/proc/driver/nvidia/version")


def release(text: str) -> tuple[int, ...]:
    """Return the numbers of a version: 2.13.0+cpu is (2, 13, 0), text without a leading number is ()."""
    found = re.match(r"\d+(\.\d+)*", text)
    return tuple(map(int, found[0].split("."))) if found else ()


def satisfies(installed: str, wanted: str) -> bool:
    """Whether a version satisfies `wanted`, such as `>=3.14,<4`. Operators other than these two are ignored."""
    have = release(installed)
    parts = [part.strip() for part in wanted.split(",")]
    return (all(have >= release(part[2:].strip()) for part in parts if part.startswith(">="))
            and all(have < release(part[1:].strip()) for part in parts if re.match(r"<\s*\d", part)))


def packages(wanted: list[str] | None = None, installed: Callable[[str], str] = version) -> Iterator[Finding]:
    """Report each required package that is missing or has an unsupported version, and all others in one line."""
    good = []
    for line in (requires("weft") or []) if wanted is None else wanted:
        name, bounds, marker = REQUIREMENT.fullmatch(line).groups()  # type: ignore[union-attr]  # it always matches
        if marker:
            continue
        try:
            have = installed(name)
        except PackageNotFoundError:
            have = ""
        if have and satisfies(have, bounds):
            good.append(f"{name} {have}")
        else:
            yield Finding(name, "problem", f"{have or 'nothing'} is installed, weft needs {bounds}",
                          f"pip install '{name}{bounds.replace(' ', '')}'")
    if good:
        yield fine("packages", ", ".join(good))


def python() -> Finding:
    return fine("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")


def fast_parts(environment: Mapping[str, str]) -> Iterator[Finding]:
    for package, (stem, variable, value) in FAST_PARTS.items():
        if environment.get(variable) == value:
            yield Finding(package, "warning", f"is told by {variable} to do without its part in C", f"unset {variable}")
            continue
        names = {f"{stem}{suffix}" for suffix in EXTENSION_SUFFIXES}
        there = any(str(file) in names for file in installed_files(package))
        yield unless(there, package, "its part in C is there" if there else "has no part in C for this Python",
                     f"pip install --force-reinstall --only-binary=:all: {package}")


def installed_files(package: str) -> Iterator[str]:
    try:
        yield from map(str, files(package) or [])
    except PackageNotFoundError:
        return


def driver(path: Path = DRIVER) -> str:
    """Return the version of NVIDIA's driver, or "" if there is none."""
    try:
        found = re.search(r"\d+\.\d+[.\d]*", path.read_text().splitlines()[0])
    except (OSError, IndexError):
        return ""
    return found[0] if found else ""


def shared_memory(num_shards: int, folder: Path = Path("/dev/shm")) -> Finding:  # noqa: S108 - it is only checked
    if not folder.is_dir():
        return unless(num_shards == 1, "shared memory", f"there is no {folder}", f"mount a tmpfs at {folder}")
    size = shutil.disk_usage(folder).total
    return unless(num_shards == 1 or size >= LEAST_SHARED, "shared memory", gib(size),
                  "several shards on GPUs need more: docker run --shm-size 1g")


def hub(environment: Mapping[str, str]) -> Iterator[Finding]:
    """Check the model cache, and report how the variables configure access to the Hub."""
    cache = hub_cache(environment)
    place = next(folder for folder in (cache, *cache.parents) if folder.exists())
    free = shutil.disk_usage(place).free
    cure = "set HF_HOME to a folder on another disk"
    if not place.is_dir() or not os.access(place, os.W_OK):
        yield Finding("model cache", "warning", f"{cache} cannot be written, so nothing can be downloaded", cure)
    else:
        yield unless(free >= LEAST_DISK, "model cache", f"{cache}, {gib(free)} free", cure)
    if variable := offline_by(environment):
        yield fine("hub", f"is not asked, by {variable}")
    else:
        source = token_from(environment)
        yield fine("hub", f"may be asked, with the token of {source}" if source else
                   "may be asked, without a token (HF_TOKEN): models that need a permission are out of reach")


def port(hostname: str, number: int) -> Finding:
    try:
        with bind(hostname, number):
            return fine("port", f"{hostname}:{number} is free")
    except Failed as error:
        text, _, cure = str(error).partition("; ")
        return Finding("port", "problem", text, cure)
