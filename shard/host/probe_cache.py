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

DRIVER = Path("/proc/driver/nvidia/version")
PROGRAMS = "triton", "nvidia-cublas", "nvidia-cublas-cu12", "nvidia-cublas-cu13"

log = logging.getLogger(__name__)


class Forgotten:
    """Cache that keeps nothing: everything is measured at every start."""

    def get(self, key: str) -> str | None:  # noqa: ARG002 - there is none
        return None

    def put(self, key: str, found: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Kept:
    """Cache in a file. If the file is missing or damaged, everything is measured again."""

    path: Path

    def get(self, key: str) -> str | None:
        known = self._all().get(key)
        return known if isinstance(known, str) else None

    def put(self, key: str, found: str) -> None:
        """Keep a result. An error of the file is only logged: the result is measured again at the next start."""
        unfinished = self.path.with_suffix(f".{os.getpid()}")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            unfinished.write_text(json.dumps(self._all() | {key: found}))
            unfinished.replace(self.path)
        except OSError as error:
            log.warning("cannot remember what was found out about this machine: %s", error)

    def _all(self) -> dict[str, object]:
        try:
            kept = json.loads(self.path.read_text())
        except (OSError, ValueError):
            return {}
        return kept if isinstance(kept, dict) else {}


def fingerprint(shape: Mapping[str, object]) -> str:
    """Return one key for machine, programs and shape."""
    machine = {"processor": processor(), "torch": torch.__version__, "threads": torch.get_num_threads(),
               "capability": torch.backends.cpu.get_cpu_capability(), "driver": driver(), "programs": programs()}
    return hashlib.sha256(json.dumps(machine | dict(shape), sort_keys=True, default=str).encode()).hexdigest()


def programs() -> dict[str, str]:
    """Return the versions of installed libraries that compute beside torch."""
    found: dict[str, str] = {}
    for name in PROGRAMS:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def driver() -> str:
    """Return the version text of the GPU driver, or an empty string."""
    try:
        return DRIVER.read_text()
    except OSError:
        return ""


def processor() -> str:
    """Return the lines that identify the processor's model, as far as the system has them."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    wanted = ("vendor_id", "cpu family", "model", "model name", "flags", "Features", "CPU part")
    return "\n".join(sorted({line for line in lines if line.split("\t")[0].strip() in wanted}))
