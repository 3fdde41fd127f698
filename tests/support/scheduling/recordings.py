"""Recordings for tests: recorders that keep everything, and recording files of simulated runs."""

import json
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.scheduling.scheduler_simulation import SchedulerSimulation, TrueCosts
from support.scheduling.simulated_world import add_block_hashes

from router.config import RouterConfig
from router.model_info import ModelInfo
from router.recording.recording_file import Recording, make_header, write_recording
from router.recording.recording_scheduler import RecordingScheduler, SnapshotWithCalls
from router.request import Request
from router.scheduler.settings import SchedulerSettings

SMALL_MODEL_INFO = ModelInfo("none", "cpu", "none", 512, 4096, 16, 64)


class UnboundedRecorder(RecordingScheduler):
    """Recorder that never drops a segment."""

    def __init__(self, settings: SchedulerSettings, model_info: ModelInfo) -> None:
        super().__init__(settings, model_info, 1e9, 0.0)
        self._segments = deque(self._segments)


class ShortSegmentRecorder(UnboundedRecorder):
    """Recorder that begins a segment every half second."""

    def plan(self, now: float) -> Any:
        last_segment = self._segments[-1]
        if now >= last_segment.started_at + 0.5:
            self._next_segment_at = now
        return super().plan(now)


def write_recording_file(segments: list[SnapshotWithCalls], path: Path, model_info: ModelInfo = SMALL_MODEL_INFO,
                         config: RouterConfig | None = None) -> Recording:
    with path.open("w") as lines:
        write_recording(lines, make_header(config or RouterConfig(), model_info, "a test"), segments)
    return Recording(path)


def make_busy_simulation(num_requests: int, seed: int = 0,
                         recorder_class: type[UnboundedRecorder] = ShortSegmentRecorder,
                         **config: Any) -> tuple[SchedulerSimulation, RouterConfig]:
    """Return a simulation and its settings: a small machine with about as many requests as it can serve."""
    settings = RouterConfig(**config)
    true_costs = TrueCosts(0.02, 0.0005, 0.0004, 2e-7)
    simulation = SchedulerSimulation(SchedulerSettings.from_config(settings, true_costs.make_model_info(2000)),
                                     true_costs, 2000, seed=seed, latency=0.001, make_scheduler=recorder_class,
                                     draw_noise=lambda chance: (chance.lognormvariate(0, 0.1), False))
    arrives_at = 0.0
    for number in range(num_requests):
        arrives_at += simulation.random.expovariate(4.0)
        prompt, output = simulation.random.randint(20, 600), simulation.random.randint(10, 120)
        simulation.add_arrival(add_block_hashes(Request(f"{number}", (number,) * prompt, output), 16), arrives_at)
    return simulation, settings


def record_busy_simulation(path: Path, num_requests: int, seed: int = 0, **config: Any) -> Recording:
    simulation, settings = make_busy_simulation(num_requests, seed, **config)
    recorder = simulation.run().scheduler
    assert isinstance(recorder, RecordingScheduler)
    return write_recording_file(recorder.copy_segments(), path, simulation.true_costs.make_model_info(2000), settings)


def copy_recording_with_change(recording: Recording, path: Path,
                               change_lines: Callable[[list[dict[str, Any]]], None]) -> Recording:
    """Write a copy of a recording with `change_lines` applied to its lines; return the copy."""
    lines = [json.loads(line) for line in recording.path.read_text().splitlines()]
    change_lines(lines)
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return Recording(path)
