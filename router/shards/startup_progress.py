"""Startup progress of the shards, from a small JSON file per shard: a shard has no socket while it loads its model.
shard/telemetry/startup_progress.py writes the files."""

import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STARTUP_PHASES = ("load", "check", "warm-up", "ready")  # in their order


@dataclass(frozen=True, slots=True)
class ShardStartupProgress:
    """Startup progress of one shard: `done` of `total` units of the phase, in `seconds`."""

    phase: str = STARTUP_PHASES[0]
    done: int = 0
    total: int = 0  # 0: unknown
    seconds: float = 0.0


def load_shard_progress(path: Path) -> ShardStartupProgress:
    """Load the progress of a shard; without a valid file it is at the beginning."""
    with suppress(OSError, ValueError, TypeError):
        progress = ShardStartupProgress(**json.loads(path.read_bytes()))
        if progress.phase in STARTUP_PHASES:
            return progress
    return ShardStartupProgress()


class ProgressByPhase:
    """Startup progress of all shards together, from the progress file of each."""

    def __init__(self, progress_files: Iterable[str] = ()) -> None:
        self._progress_files = tuple(Path(file) for file in progress_files)

    def is_warm(self) -> bool:
        """Whether the shards were ready for an earlier router."""
        return bool(self._progress_files) and all(load_shard_progress(file).phase == STARTUP_PHASES[-1]
                                                  for file in self._progress_files)

    def to_json(self) -> dict[str, Any]:
        """Return the progress of the slowest shard's phase, for probes: never `ready`, since the router is not.
        Bytes are sums over all shards in that phase. The time left is given if the rate of all of them is known."""
        shard_progress = [load_shard_progress(file) for file in self._progress_files] or [ShardStartupProgress()]
        phase_index = min(STARTUP_PHASES.index(shard.phase) for shard in shard_progress)
        slowest = [shard for shard in shard_progress if shard.phase == STARTUP_PHASES[phase_index]]
        result: dict[str, Any] = {"phase": STARTUP_PHASES[min(phase_index, 2)]}
        if phase_index == 0 and (total := sum(shard.total for shard in slowest)):
            result |= {"bytes": sum(shard.done for shard in slowest), "total": total}
        if all(0 < shard.done <= shard.total for shard in slowest):
            result["eta_seconds"] = round(max(shard.seconds * (shard.total - shard.done) / shard.done
                                              for shard in slowest), 1)
        return result
