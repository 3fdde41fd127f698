"""File cache of results of checks and measurements at start, keyed by hardware, library versions and their subject."""

import hashlib
import json
import logging
import os
import platform
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

DRIVER_VERSION_FILE = Path("/proc/driver/nvidia/version")
LIBRARY_PACKAGES = "triton", "nvidia-cublas", "nvidia-cublas-cu12", "nvidia-cublas-cu13"

logger = logging.getLogger(__name__)


class NoProbeCache:
    """Cache that keeps nothing: everything is measured at every start."""

    def get(self, key: str) -> str | None:  # noqa: ARG002 - there is none
        return None

    def put(self, key: str, value: str) -> None: ...


@dataclass(frozen=True, slots=True)
class FileProbeCache:
    """Cache in a file. If the file is missing or damaged, everything is measured again."""

    path: Path

    def get(self, key: str) -> str | None:
        cached = self._read_entries().get(key)
        return cached if isinstance(cached, str) else None

    def put(self, key: str, value: str) -> None:
        """Keep a result. An error of the file is only logged: the result is measured again at the next start."""
        temporary_path = self.path.with_suffix(f".{os.getpid()}")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            temporary_path.write_text(json.dumps(self._read_entries() | {key: value}))
            temporary_path.replace(self.path)
        except OSError as error:
            logger.warning("cannot remember what was found out about this machine: %s", error)

    def _read_entries(self) -> dict[str, object]:
        try:
            entries = json.loads(self.path.read_text())
        except (OSError, ValueError):
            return {}
        return entries if isinstance(entries, dict) else {}


def make_probe_key(subject: Mapping[str, object]) -> str:
    """Return one key for machine, libraries and subject."""
    machine = {"processor": read_processor_model(), "torch": torch.__version__, "threads": torch.get_num_threads(),
               "capability": torch.backends.cpu.get_cpu_capability(), "driver": read_driver_version(),
               "programs": read_library_versions()}
    return hashlib.sha256(json.dumps(machine | dict(subject), sort_keys=True, default=str).encode()).hexdigest()


def read_library_versions() -> dict[str, str]:
    """Return the versions of installed libraries that compute beside torch."""
    versions: dict[str, str] = {}
    for name in LIBRARY_PACKAGES:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions


def read_driver_version() -> str:
    """Return the version text of the GPU driver, or an empty string."""
    try:
        return DRIVER_VERSION_FILE.read_text()
    except OSError:
        return ""


def read_processor_model() -> str:
    """Return the lines that identify the processor's model, as far as the system has them."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    line_names = ("vendor_id", "cpu family", "model", "model name", "flags", "Features", "CPU part")
    return "\n".join(sorted({line for line in lines if line.split("\t")[0].strip() in line_names}))
