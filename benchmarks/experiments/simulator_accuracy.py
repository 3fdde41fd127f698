"""Accuracy of `weft simulate`: recorded time to first token against simulations with step times from another run.

A shard with a small random model, a router and this process, which is the load, communicate over real gRPC and HTTP.
Each run is played in parts with different requests; the runs take turns part by part, so that a machine that slows
down affects all of them. Each part's recording is then simulated with the step times of another run's part of the
same turn; a run's figures are over all of its parts. `python -P -m benchmarks.experiments.simulator_accuracy --help`
lists the settings. The last line is JSON.
"""

import os
import signal
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import ceil
from pathlib import Path
from random import Random
from statistics import median
from typing import Annotated, Any, Literal

import uvloop
from cyclopts import Parameter
from cyclopts.validators import Number

from benchmarks.bench.load.arrivals import iter_random_burst_times
from benchmarks.bench.load.dialects import DIALECTS
from benchmarks.bench.load.generator import Target, raise_first_failure, run_load
from benchmarks.bench.load.request_records import PlannedRequest
from benchmarks.harness.experiment import ExperimentSettings, PositiveFloat, PositiveInt, run_experiment
from benchmarks.harness.processes import HOST, run_router_and_shard
from benchmarks.harness.random_checkpoints import MODEL_CONFIGS, make_random_checkpoint
from benchmarks.harness.reporting import report_results
from router.simulation.run_stats import percentile
from router.simulation.simulate import SimulationCase

PERCENTILES = (50, 99)
NUM_SIMULATION_SEEDS = 8  # simulations of each part with different random seeds; their figures are pooled
OUTPUT_TOKENS_RANGE = (8, 48)
PROMPT_WORDS = ("loom", "weft", "warp", "shuttle", "reed", "heddle", "yarn", "twill", "silk", "wool")


@Parameter(name="*", negative="")
@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatorAccuracySettings(ExperimentSettings):
    shape: Literal[tuple(MODEL_CONFIGS)] = "tiny"  # type: ignore[valid-type]  # a computed Literal
    "Shape of the random model."
    runs: Annotated[int, Parameter(validator=Number(gte=2))] = 2
    "Number of runs. Each is simulated from the step times of the next one, the last from the first."
    turns: PositiveInt = 8
    "Number of parts of each run."
    requests: PositiveInt = 2000
    "Minimum number of requests in a run."
    bursts: PositiveFloat = 1.5
    "Bursts per second at random times."
    burst: PositiveInt = 8
    "Maximum number of requests in a burst."
    words: tuple[int, int] = (5, 30)
    "Minimum and maximum words of a prompt."


def draw_requests(settings: SimulatorAccuracySettings, seed: int) -> list[PlannedRequest]:
    """Return the requests of one part, with random prompts, which arrive in bursts at random times."""
    random = Random(seed)
    send_times = islice(iter_random_burst_times(settings.bursts, settings.burst, random),
                        ceil(settings.requests / settings.turns))
    return [PlannedRequest(number, make_random_prompt(random, settings.words), random.randint(*OUTPUT_TOKENS_RANGE),
                           at=at) for number, at in enumerate(send_times)]


def make_random_prompt(random: Random, words_range: tuple[int, int]) -> str:
    """Return a prompt that begins with a number of its own, so that no prefix cache holds it."""
    return " ".join([f"{random.random()}", *random.choices(PROMPT_WORDS, k=random.randint(*words_range))])


def record_part(settings: SimulatorAccuracySettings, model_folder: str, seed: int, folder: Path) -> Path:
    """Play one part on newly started processes, and return the path of its recording."""
    with run_router_and_shard(2, settings={"max_batch_size": 64}, model=model_folder,
                              record_folder=str(folder)) as server:
        target = Target(f"http://{HOST}:{server.port}", DIALECTS["tgi"])
        raise_first_failure(uvloop.run(run_load(target, draw_requests(settings, seed))))
        os.kill(server.router_pid, signal.SIGUSR1)
    (recording_path,) = folder.glob("weft-*.jsonl")  # a router exits only after writing its recording
    return recording_path


def record_runs(settings: SimulatorAccuracySettings, folder: Path) -> list[list[Path]]:
    """Record the parts of each run. Every other turn is in reverse order, so that no run is always the first."""
    model_folder = str(make_random_checkpoint(settings.shape, folder / "model"))
    runs: list[list[Path]] = [[] for _ in range(settings.runs)]
    for turn in range(settings.turns):
        for run in range(settings.runs)[::-1 if turn % 2 else 1]:
            seed = turn * settings.runs + run
            runs[run].append(record_part(settings, model_folder, seed, folder / f"{seed}"))
    return runs


@dataclass(frozen=True, slots=True)
class SimulationComparison:
    """Recorded and simulated seconds to first tokens, of a part or of a whole run."""

    recorded_seconds: list[float]
    simulated_seconds: list[float]

    @classmethod
    def from_recordings(cls, recording: Path, step_time_source: Path) -> "SimulationComparison":
        case = SimulationCase.from_files(recording, step_time_source, seed=0)
        assert case.trace.recorded_stats is not None
        simulated_seconds = [time for seed in range(NUM_SIMULATION_SEEDS)
                             for time in replace(case, seed=seed).simulate({}).latencies["ttft"]]
        return cls(case.trace.recorded_stats.latencies["ttft"], simulated_seconds)

    @classmethod
    def pool(cls, parts: Sequence["SimulationComparison"]) -> "SimulationComparison":
        return cls([time for part in parts for time in part.recorded_seconds],
                   [time for part in parts for time in part.simulated_seconds])

    def relative_error(self, percent: int) -> float:
        return percentile(self.simulated_seconds, percent) / percentile(self.recorded_seconds, percent) - 1.0

    def format_line(self) -> str:
        return ", ".join(f"p{share} {1e3 * percentile(self.recorded_seconds, share):.1f} ms, simulated "
                         f"{1e3 * percentile(self.simulated_seconds, share):.1f} ({self.relative_error(share):+.1%})"
                         for share in PERCENTILES)


def bench(settings: SimulatorAccuracySettings = SimulatorAccuracySettings()) -> None:
    """Compare real and simulated times to first token."""
    with tempfile.TemporaryDirectory(prefix="weft-") as folder:
        recordings_by_run = record_runs(settings, Path(folder))
        parts = [[SimulationComparison.from_recordings(part, like) for part, like in zip(run, teacher, strict=True)]
                 for run, teacher in zip(recordings_by_run, [*recordings_by_run[1:], recordings_by_run[0]],
                                         strict=True)]
    runs = [SimulationComparison.pool(run) for run in parts]
    figures: dict[str, Any] = {
        **{f"p{share}_error_of_runs": [round(run.relative_error(share), 4) for run in runs] for share in PERCENTILES},
        **{f"p{share}_error_of_parts": [[round(part.relative_error(share), 4) for part in run] for run in parts]
           for share in PERCENTILES},
        "requests": sum(len(run.recorded_seconds) for run in runs), "shape": settings.shape, "bursts": settings.bursts}
    median_errors = ", ".join(f"p{share} {median(abs(part.relative_error(share)) for run in parts for part in run):.1%}"
                              for share in PERCENTILES)
    text = "\n".join([*(f"run {number}: {run.format_line()}" for number, run in enumerate(runs, 1)),
                      f"the error of a part, median: {median_errors}"])
    report_results("foresight", text, figures, should_save=settings.save)


if __name__ == "__main__":
    run_experiment(bench)
