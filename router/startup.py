"""Startup progress of the shards, read on demand from a small JSON file per shard.

Files are used since a shard has no socket while it loads its model; shard/telemetry/startup_progress.py writes them.
"""

import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PHASES = ("load", "check", "warm-up", "ready")  # in their order


@dataclass(frozen=True, slots=True)
class Stage:
    """Startup progress of one shard: `done` of `total` units of the phase, in `seconds`."""

    phase: str = PHASES[0]
    done: int = 0
    total: int = 0  # 0: unknown
    seconds: float = 0.0

    @property
    def eta(self) -> float | None:
        """Seconds until the end of the phase at the current rate; None if unknown."""
        return self.seconds * (self.total - self.done) / self.done if 0 < self.done <= self.total else None


def read_stage(path: Path) -> Stage:
    """Read the progress of a shard; without a valid file it is at the beginning."""
    with suppress(OSError, ValueError, TypeError):
        stage = Stage(**json.loads(path.read_bytes()))
        if stage.phase in PHASES:
            return stage
    return Stage()


class Startup:
    def __init__(self, files: Iterable[str] = ()) -> None:
        """`files` are the progress files, one for each shard."""
        self._files = tuple(Path(file) for file in files)

    def is_warm(self) -> bool:
        """Whether the shards were ready for an earlier router."""
        return bool(self._files) and all(read_stage(file).phase == PHASES[-1] for file in self._files)

    def told(self) -> dict[str, Any]:
        """Return the progress of the slowest shard's phase, as JSON data for probes.

        Bytes are sums over all shards in that phase. The phase is never `ready`, since the router is not ready yet.
        """
        stages = [read_stage(file) for file in self._files] or [Stage()]
        place = min(PHASES.index(stage.phase) for stage in stages)
        behind = [stage for stage in stages if stage.phase == PHASES[place]]
        told: dict[str, Any] = {"phase": PHASES[min(place, 2)]}
        total = sum(stage.total for stage in behind)
        if place == 0 and total:
            told |= {"bytes": sum(stage.done for stage in behind), "total": total}
        if all(stage.eta is not None for stage in behind):
            told["eta_seconds"] = round(max(stage.eta or 0.0 for stage in behind), 1)
        return told
