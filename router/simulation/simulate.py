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
from router.model_info import ModelInfo
from router.recording.file import BadRecording, Recording
from router.scheduler.settings import SchedulerSettings
from router.simulation.run_stats import RunStats, format_table
from router.simulation.simulation import Simulation
from router.simulation.timing_profile import TimingProfile
from router.simulation.trace import WorkloadTrace, read_trace


@dataclass(frozen=True, slots=True)
class SimulationCase:
    """Trace of requests, and the server that is simulated for it."""

    trace: WorkloadTrace
    timing_profile: TimingProfile
    config: RouterConfig
    model_info: ModelInfo
    seed: int = 0

    @classmethod
    def from_files(cls, trace_path: Path, like_path: Path | None, seed: int) -> "SimulationCase":
        parsed_trace = read_trace(trace_path)
        if like_path is None and parsed_trace.timing_profile is None:
            raise BadRecording(
                f"{trace_path} does not tell how fast shards are; name a recording that does: --like FILE")
        model_recording = Recording(like_path or trace_path)
        timing_profile = parsed_trace.timing_profile if like_path is None else read_trace(like_path).timing_profile
        assert timing_profile is not None
        return cls(parsed_trace, timing_profile, model_recording.config, model_recording.model_info, seed)

    def simulate(self, settings: Mapping[str, Any]) -> RunStats:
        """Simulate the trace with these settings changed. Raises ValueError for invalid settings."""
        config = RouterConfig(**asdict(self.config) | dict(settings))
        model_info = self.model_info
        if settings.get("max_batch_total_tokens"):
            model_info = replace(model_info,
                                 num_blocks=max(1, settings["max_batch_total_tokens"] // model_info.block_size))
        return Simulation(SchedulerSettings.from_config(config, model_info), model_info, self.trace,
                          self.timing_profile, self.seed).run()


def format_flags(settings: Mapping[str, Any]) -> str:
    return " ".join(format_flag(name.replace("_", "-"), value) for name, value in settings.items())


def format_flag(name: str, value: Any) -> str:
    """Return a setting as a flag of the command line."""
    return f"--{'' if value else 'no-'}{name}" if isinstance(value, bool) else f"--{name} {value}"


def simulate_and_report(case: SimulationCase, settings: Mapping[str, Any]) -> str:
    started = time.monotonic()
    stats_by_run: dict[str, RunStats] = {}
    if case.trace.recorded_stats is not None:
        stats_by_run["recorded"] = case.trace.recorded_stats
    stats_by_run["simulated"] = case.simulate({})
    if settings:
        stats_by_run[format_flags(settings)] = case.simulate(settings)
    num_requests = stats_by_run["simulated"].num_requests
    return (f"{num_requests:,} requests, simulated in {time.monotonic() - started:.1f} s\n"
            + format_table(stats_by_run))


def case_from_arguments(arguments: Mapping[str, Any]) -> SimulationCase:
    like = arguments.get("like")
    return SimulationCase.from_files(Path(arguments["trace"]), Path(like) if like else None,
                                     int(arguments.get("seed", 0)))


def main() -> None:
    arguments = json.loads(sys.argv[1])
    try:
        sys.stdout.write(simulate_and_report(case_from_arguments(arguments), arguments.get("settings", {})) + "\n")
    except ValueError as error:
        sys.stderr.write(f"weft: {error}\n")
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
