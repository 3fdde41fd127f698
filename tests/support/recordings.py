"""Recordings for tests: recorders that keep everything, and recording files of simulated runs."""

import json
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.cost_model_clock import Clockwork, Model
from support.simulated_world import named

from router.config import RouterConfig
from router.recording.file import Recording, header, write
from router.recording.recorder import Recorder, Segment
from router.request import Request
from router.scheduler.plan import ModelFacts
from router.scheduler.settings import Policy

FACTS = ModelFacts("none", "cpu", "none", 512, 4096, 16, 64)


class Keeping(Recorder):
    """Recorder that never drops a segment."""

    def __init__(self, policy: Policy, facts: ModelFacts) -> None:
        super().__init__(policy, facts, 1e9, 0.0)
        self._tape.segments = deque(self._tape.segments)


class ShortSegments(Keeping):
    """Recorder that begins a segment every half second."""

    def plan(self, now: float) -> Any:
        last = self._tape.segments[-1]
        if now >= last.began + 0.5:
            self._tape.due = now
        return super().plan(now)


def file_of(segments: list[Segment], path: Path, facts: ModelFacts = FACTS,
            config: RouterConfig | None = None) -> Recording:
    with path.open("w") as lines:
        write(lines, header(config or RouterConfig(), facts, "a test"), segments)
    return Recording(path)


def busy_clockwork(requests: int, seed: int = 0, core: type[Keeping] = ShortSegments,
                   **config: Any) -> tuple[Clockwork, RouterConfig]:
    """Return a simulation and its settings: a small machine with about as many requests as it can serve."""
    settings = RouterConfig(**config)
    model = Model(0.02, 0.0005, 0.0004, 2e-7)
    work = Clockwork(Policy.of(settings, model.facts(2000)), model, 2000, seed=seed, latency=0.001, core=core,
                     luck=lambda chance: (chance.lognormvariate(0, 0.1), False))
    now = 0.0
    for number in range(requests):
        now += work.random.expovariate(4.0)
        prompt, output = work.random.randint(20, 600), work.random.randint(10, 120)
        work.arrive(named(Request(f"{number}", (number,) * prompt, output), 16), now)
    return work, settings


def clockwork_recording(path: Path, requests: int, seed: int = 0, **config: Any) -> Recording:
    work, settings = busy_clockwork(requests, seed, **config)
    core = work.run().core
    assert isinstance(core, Recorder)
    return file_of(core.segments(), path, work.model.facts(2000), settings)


def changed(recording: Recording, path: Path, change: Callable[[list[dict[str, Any]]], None]) -> Recording:
    """Write a copy of a recording with `change` applied to its lines; return the copy."""
    lines = [json.loads(line) for line in recording.path.read_text().splitlines()]
    change(lines)
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return Recording(path)
