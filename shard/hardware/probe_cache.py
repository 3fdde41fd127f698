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
# of the libraries that compute beside torch
LIBRARY_PACKAGES = "triton", "nvidia-cublas", "nvidia-cublas-cu12", "nvidia-cublas-cu13"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ProbeCache:
    """Cache in a file. If the file is missing or damaged, or None, everything is measured again."""

    path: Path | None

    def get(self, key: str) -> str | None:
        cached = self._read_entries().get(key)
        return cached if isinstance(cached, str) else None

    def put(self, key: str, value: str) -> None:
        """Keep a result. An error of the file is only logged: the result is measured again at the next start."""
        if self.path is None:
            return
        temporary_path = self.path.with_suffix(f".{os.getpid()}")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            temporary_path.write_text(json.dumps(self._read_entries() | {key: value}))
            temporary_path.replace(self.path)
        except OSError as error:
            logger.warning("cannot remember what was found out about this machine: %s", error)

    def _read_entries(self) -> dict[str, object]:
        try:
            entries = json.loads(self.path.read_text()) if self.path is not None else {}
        except (OSError, ValueError):
            return {}
        return entries if isinstance(entries, dict) else {}


def make_probe_key(subject: Mapping[str, object]) -> str:
    """Return one key for machine, libraries and subject."""
    driver, library_versions = "", dict[str, str]()
    with suppress(OSError):
        driver = DRIVER_VERSION_FILE.read_text()
    for name in LIBRARY_PACKAGES:
        with suppress(PackageNotFoundError):
            library_versions[name] = version(name)
    machine = {"processor": read_processor_model(), "torch": torch.__version__, "threads": torch.get_num_threads(),
               "capability": torch.backends.cpu.get_cpu_capability(), "driver": driver, "programs": library_versions}
    return hashlib.sha256(json.dumps(machine | dict(subject), sort_keys=True, default=str).encode()).hexdigest()


def read_processor_model() -> str:
    """Return the lines that identify the processor's model, as far as the system has them."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    line_names = ("vendor_id", "cpu family", "model", "model name", "flags", "Features", "CPU part")
    return "\n".join(sorted({line for line in lines if line.split("\t")[0].strip() in line_names}))
