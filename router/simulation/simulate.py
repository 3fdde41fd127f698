"""Simulation of a trace under other settings.

`python -P -m router.simulation.simulate JSON`, an object with `trace`, a file; `like`, a recording whose shards and
settings are assumed (by default the trace itself, if it is a recording); `settings`, the settings to try; and `seed`.
"""

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from router.config import RouterConfig
from router.recording.file import BadRecording, Recording
from router.scheduler.plan import ModelFacts
from router.scheduler.settings import Policy
from router.simulation.report import Figures, table
from router.simulation.simulation import Simulation
from router.simulation.timing import Pace
from router.simulation.trace import Trace, read_trace


@dataclass(frozen=True, slots=True)
class Case:
    """Trace of requests, and the server that is simulated for it."""

    trace: Trace
    pace: Pace
    config: RouterConfig
    facts: ModelFacts
    seed: int = 0

    @classmethod
    def read(cls, trace: Path, like: Path | None, seed: int) -> "Case":
        wanted = read_trace(trace)
        if like is None and wanted.pace is None:
            raise BadRecording(f"{trace} does not tell how fast shards are; name a recording that does: --like FILE")
        model = Recording(like or trace)
        pace = wanted.pace if like is None else read_trace(like).pace
        assert pace is not None
        return cls(wanted, pace, model.config, model.facts, seed)

    def under(self, settings: Mapping[str, Any]) -> Figures:
        """Simulate the trace with these settings changed. Raises ValueError for invalid settings."""
        config = RouterConfig(**asdict(self.config) | dict(settings))
        facts = self.facts
        if settings.get("max_batch_total_tokens"):
            facts = replace(facts, num_blocks=max(1, settings["max_batch_total_tokens"] // facts.block_size))
        return Simulation(Policy.of(config, facts), facts, self.trace, self.pace, self.seed).run()


def flags(settings: Mapping[str, Any]) -> str:
    return " ".join(flag(name.replace("_", "-"), value) for name, value in settings.items())


def flag(name: str, value: Any) -> str:
    """Return a setting as a flag of the command line."""
    return f"--{'' if value else 'no-'}{name}" if isinstance(value, bool) else f"--{name} {value}"


def report(case: Case, settings: Mapping[str, Any]) -> str:
    started = time.monotonic()
    columns: dict[str, Figures] = {}
    if case.trace.figures is not None:
        columns["recorded"] = case.trace.figures
    columns["simulated"] = case.under({})
    if settings:
        columns[flags(settings)] = case.under(settings)
    requests = columns["simulated"].num_requests
    return (f"{requests:,} requests, simulated in {time.monotonic() - started:.1f} s\n"
            + table(columns))


def case_of(told: Mapping[str, Any]) -> Case:
    like = told.get("like")
    return Case.read(Path(told["trace"]), Path(like) if like else None, int(told.get("seed", 0)))


def main() -> None:
    told = json.loads(sys.argv[1])
    try:
        sys.stdout.write(report(case_of(told), told.get("settings", {})) + "\n")
    except ValueError as error:
        sys.stderr.write(f"weft: {error}\n")
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
