"""Checks of `weft doctor` that need no torch: packages, folders, environment variables, the port."""

import errno
import os
import platform
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.metadata import PackageNotFoundError, files, requires, version
from pathlib import Path

from launcher.doctor.findings import Finding, format_gib, make_finding_unless, make_ok_finding
from launcher.environment_variables import find_offline_variable, find_token_source, hub_cache_folder
from launcher.supervisor.supervisor import LaunchError, bind_listener

REQUIREMENT_PATTERN = re.compile(r"([\w.-]+)\s*([^;]*)(;.*)?")
MIN_FREE_DISK_BYTES = 20 * 2**30  # bytes; models of a few billion parameters take as much
MIN_SHARED_MEMORY_BYTES = 512 * 2**20  # bytes; containers have 64 MiB by default
# Packages with an optional C extension: its file, and the variable with the value that disables it.
C_EXTENSIONS = {
    "protobuf": ("google/_upb/_message", "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION", "python"),
    "aiohttp": ("aiohttp/_http_parser", "AIOHTTP_NO_EXTENSIONS", "1"),
}
NVIDIA_DRIVER_FILE = Path("/proc/driver/nvidia/version")


def parse_version(version_text: str) -> tuple[int, ...]:
    """Return the numbers of a version: 2.13.0+cpu is (2, 13, 0), text without a leading number is ()."""
    match = re.match(r"\d+(\.\d+)*", version_text)
    return tuple(map(int, match[0].split("."))) if match else ()


def is_version_supported(installed: str, bounds: str) -> bool:
    """Whether a version satisfies `bounds`, such as `>=3.14,<4`. Operators other than these two are ignored."""
    installed_version = parse_version(installed)
    parts = [part.strip() for part in bounds.split(",")]
    return (all(installed_version >= parse_version(part[2:].strip()) for part in parts if part.startswith(">="))
            and all(installed_version < parse_version(part[1:].strip()) for part in parts if re.match(r"<\s*\d", part)))


def check_packages(requirements: list[str] | None = None,
                   get_version: Callable[[str], str] = version) -> Iterator[Finding]:
    """Report each required package that is missing or has an unsupported version, and all others in one line."""
    satisfied = []
    for requirement in (requires("weft") or []) if requirements is None else requirements:
        name, bounds, marker = REQUIREMENT_PATTERN.fullmatch(requirement).groups()  # type: ignore[union-attr]  # it always matches
        if marker:
            continue
        try:
            installed_version = get_version(name)
        except PackageNotFoundError:
            installed_version = ""
        if installed_version and is_version_supported(installed_version, bounds):
            satisfied.append(f"{name} {installed_version}")
        else:
            yield Finding(name, "problem", f"{installed_version or 'nothing'} is installed, weft needs {bounds}",
                          f"pip install '{name}{bounds.replace(' ', '')}'")
    if satisfied:
        yield make_ok_finding("packages", ", ".join(satisfied))


def check_python() -> Finding:
    return make_ok_finding("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")


def check_c_extensions(environment: Mapping[str, str]) -> Iterator[Finding]:
    for package, (stem, variable, value) in C_EXTENSIONS.items():
        if environment.get(variable) == value:
            yield Finding(package, "warning", f"is told by {variable} to do without its part in C", f"unset {variable}")
            continue
        names = {f"{stem}{suffix}" for suffix in EXTENSION_SUFFIXES}
        has_extension = any(str(file) in names for file in list_installed_files(package))
        yield make_finding_unless(has_extension, package,
                                  "its part in C is there" if has_extension else "has no part in C for this Python",
                                  f"pip install --force-reinstall --only-binary=:all: {package}")


def list_installed_files(package: str) -> Iterator[str]:
    try:
        yield from map(str, files(package) or [])
    except PackageNotFoundError:
        return


def read_nvidia_driver_version(path: Path = NVIDIA_DRIVER_FILE) -> str:
    """Return the version of NVIDIA's driver, or "" if there is none."""
    try:
        match = re.search(r"\d+\.\d+[.\d]*", path.read_text().splitlines()[0])
    except (OSError, IndexError):
        return ""
    return match[0] if match else ""


def check_shared_memory(num_shards: int, folder: Path = Path("/dev/shm")) -> Finding:  # noqa: S108 - it is only checked
    if not folder.is_dir():
        return make_finding_unless(num_shards == 1, "shared memory", f"there is no {folder}",
                                   f"mount a tmpfs at {folder}")
    size = shutil.disk_usage(folder).total
    return make_finding_unless(num_shards == 1 or size >= MIN_SHARED_MEMORY_BYTES, "shared memory", format_gib(size),
                               "several shards on GPUs need more: docker run --shm-size 1g")


def check_hub_access(environment: Mapping[str, str]) -> Iterator[Finding]:
    """Check the model cache, and report how the variables configure access to the Hub."""
    cache = hub_cache_folder(environment)
    existing_folder = next(folder for folder in (cache, *cache.parents) if folder.exists())
    free = shutil.disk_usage(existing_folder).free
    advice = "set HF_HOME to a folder on another disk"
    if not existing_folder.is_dir() or not os.access(existing_folder, os.W_OK):
        yield Finding("model cache", "warning", f"{cache} cannot be written, so nothing can be downloaded", advice)
    else:
        yield make_finding_unless(free >= MIN_FREE_DISK_BYTES, "model cache",
                                  f"{cache}, {format_gib(free)} free", advice)
    if variable := find_offline_variable(environment):
        yield make_ok_finding("hub", f"not used, since {variable} is set")
    else:
        source = find_token_source(environment)
        yield make_ok_finding(
            "hub", f"used for what the cache lacks, with the token of {source}" if source
            else "used for what the cache lacks, without a token (HF_TOKEN): gated and private models cannot be read")


def check_port(hostname: str, port_number: int) -> Finding:
    try:
        with bind_listener(hostname, port_number):
            return make_ok_finding("port", f"{hostname}:{port_number} is free")
    except LaunchError as error:
        problem, _, cure = str(error).partition("; ")
        is_taken = isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EADDRINUSE
        if is_taken and (model_name := import_module("launcher.client.served_model").fetch_served_model_name(
                hostname, port_number)):
            return Finding("port", "warning", f"a server of {model_name} already answers at {hostname}:{port_number}",
                           "stop it, or choose another port with --port")
        return Finding("port", "problem", problem, cure)
