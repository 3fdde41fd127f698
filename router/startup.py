"""How far the start has come, as the shards write it down: a small JSON file each, which is read when somebody asks.

A shard that loads has no socket yet; shard/progress.py writes the files. Knows nothing of what a phase consists of.
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
    """Where one shard stands: of what the phase consists of, so much is done after so many seconds."""

    phase: str = PHASES[0]
    done: int = 0
    total: int = 0  # 0: nobody knows
    seconds: float = 0.0

    @property
    def eta(self) -> float | None:
        """Seconds until the phase is over, if it goes on at this pace."""
        return self.seconds * (self.total - self.done) / self.done if 0 < self.done <= self.total else None


def read_stage(path: Path) -> Stage:
    """A shard that has not written yet is at the beginning."""
    with suppress(OSError, ValueError, TypeError):
        stage = Stage(**json.loads(path.read_bytes()))
        if stage.phase in PHASES:
            return stage
    return Stage()


class Startup:
    def __init__(self, files: Iterable[str] = ()) -> None:
        """One file for each shard."""
        self._files = tuple(Path(file) for file in files)

    def is_warm(self) -> bool:
        """Whether the shards were ready for an earlier router."""
        return bool(self._files) and all(read_stage(file).phase == PHASES[-1] for file in self._files)

    def told(self) -> dict[str, Any]:
        """All shards are as far as the one that is furthest behind. Bytes are those of all that are there too; shards
        that are ready wait for the router, which is the last to be."""
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
