"""What `weft doctor` can see for itself: packages, folders, variables, the port. Loads none of what children need."""

import os
import platform
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.metadata import PackageNotFoundError, files, requires, version
from pathlib import Path

from launcher.environment import hub_cache, offline_by, token_from
from launcher.findings import Finding, fine, gib, unless
from launcher.processes import Failed, bind

REQUIREMENT = re.compile(r"([\w.-]+)\s*([^;]*)(;.*)?")
LEAST_DISK = 20 * 2**30  # bytes; models of a few billion parameters take as much
LEAST_SHARED = 512 * 2**20  # bytes; containers have 64 MiB unless told otherwise
# What is written in C and has a slow twin: the file, and the variable with the value that turns it off.
FAST_PARTS = {
    "protobuf": ("google/_upb/_message", "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION", "python"),
    "aiohttp": ("aiohttp/_http_parser", "AIOHTTP_NO_EXTENSIONS", "1"),
}
DRIVER = Path("/proc/driver/nvidia/version")


def release(text: str) -> tuple[int, ...]:
    """2.13.0+cpu is (2, 13, 0); what no number begins is ()."""
    found = re.match(r"\d+(\.\d+)*", text)
    return tuple(map(int, found[0].split("."))) if found else ()


def satisfies(installed: str, wanted: str) -> bool:
    """`wanted` as in `>=3.14,<4`; only these two signs are known, others count as satisfied."""
    have = release(installed)
    parts = [part.strip() for part in wanted.split(",")]
    return (all(have >= release(part[2:].strip()) for part in parts if part.startswith(">="))
            and all(have < release(part[1:].strip()) for part in parts if re.match(r"<\s*\d", part)))


def packages(wanted: list[str] | None = None, installed: Callable[[str], str] = version) -> Iterator[Finding]:
    """Those that weft needs, in versions that it was not made for; all others in one line."""
    good = []
    for line in (requires("weft") or []) if wanted is None else wanted:
        name, bounds, marker = REQUIREMENT.fullmatch(line).groups()  # type: ignore[union-attr]  # anything does
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
    """Of NVIDIA's GPUs, as the system tells it; nothing where there is none."""
    try:
        found = re.search(r"\d+\.\d+[.\d]*", path.read_text().splitlines()[0])
    except (OSError, IndexError):
        return ""
    return found[0] if found else ""


def shared_memory(num_shards: int, folder: Path = Path("/dev/shm")) -> Finding:  # noqa: S108 - it is what is looked at
    if not folder.is_dir():
        return unless(num_shards == 1, "shared memory", f"there is no {folder}", f"mount a tmpfs at {folder}")
    size = shutil.disk_usage(folder).total
    return unless(num_shards == 1 or size >= LEAST_SHARED, "shared memory", gib(size),
                  "several shards on GPUs need more: docker run --shm-size 1g")


def hub(environment: Mapping[str, str]) -> Iterator[Finding]:
    """The cache of models, and what the variables say of the Hub."""
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
