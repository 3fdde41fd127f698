"""Runs of the study, their turns, and the requests of each.

A turn is one server with one policy, and the runs that it serves one after the other. Policies take turns within a
seed, so that other activity on the machine affects all of them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from benchmarks.bench.load.record import Ask
from benchmarks.study import workloads
from benchmarks.study.arithmetic import interpolated
from benchmarks.study.policies import (
    CACHED,
    DYNAMIC,
    FIXED,
    HANDLERS,
    NOBATCH,
    STUDIED,
    VARIANTS,
    WINDOWS,
    House,
    cached,
    compat,
    windows,
)
from benchmarks.study.shapes import MEAN_SERVICE, TOGETHER_THERE, Shape

SOLO, COMPAT, WORKLOAD, SWEEP, SWEET, USERS = "solo", "compat", "workload", "sweep", "sweet", "users"
TOGETHER = "together"  # workload that measures the throughput with all handlers busy
PARTS = COMPAT, WORKLOAD, SWEEP, SWEET, USERS  # each needs the latency of single requests, from SOLO
FEWEST = 24  # requests of a run, however low the rate
EACH = 6  # requests of a user

Points = tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Scope:
    """Extent of the study."""

    seeds: int = 5
    presets: tuple[str, ...] = workloads.PRESETS
    policies: tuple[str, ...] = CACHED
    windows: tuple[float, ...] = WINDOWS
    levels: tuple[float, ...] = (0.5, 0.8, 1.2, 2.0, 3.0, 4.5, 7.0, 10.0, 15.0, 20.0)
    variants: tuple[str, ...] = VARIANTS
    users: tuple[int, ...] = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96)
    requests: int = 100
    repeat: int = 3
    prompt: int = 32
    span: float = 40.0
    max_batch_size: int = 64
    speed: float = 0.0


@dataclass(frozen=True, slots=True)
class Run:
    part: str
    shape: str
    workload: str
    policy: str
    seed: int = 0
    level: float = 0.0  # arrival rate relative to what `none` can serve, or number of users

    @property
    def is_compat(self) -> bool:
        return self.part == COMPAT or self.policy in {NOBATCH, DYNAMIC}

    @property
    def name(self) -> str:
        level = [f"at{self.level:g}"] if self.level else []
        return "-".join([self.shape, self.workload, self.policy, *level, f"seed{self.seed}"])

    @property
    def concurrency(self) -> int | None:
        """Number of clients in a closed loop; None: an open loop."""
        if self.workload == TOGETHER:
            return HANDLERS
        return {SOLO: 1, USERS: int(self.level)}.get(self.part)


@dataclass(frozen=True, slots=True)
class Turn:
    policy: str
    runs: tuple[Run, ...]


@dataclass(frozen=True, slots=True)
class Pace:
    """Latency of single requests by tokens: without a KV cache, with one, and with one and a longer prompt.

    `together` is the throughput of the study's dynamic batching with all handlers busy."""

    compat: Points = ()
    short: Points = ()
    long: Points = ()
    together: float = 0.0  # tokens a second

    def seconds(self, run: Run, tokens: float) -> float:
        return interpolated(self.points(run), tokens)

    def points(self, run: Run) -> Points:
        if run.is_compat:
            return self.compat
        return self.short if run.workload in workloads.PRESETS else self.long

    def speed(self, run: Run) -> float:
        """Return how many times faster the server is than the study's, to scale the load.

        In the study's mode this compares the throughput with all handlers busy, otherwise the latency of single
        requests of the workload `figure`."""
        if run.is_compat:
            return self.together / TOGETHER_THERE
        return MEAN_SERVICE / fmean(self.seconds(run, length) for length in workloads.FIGURE_LENGTHS)

    def is_known(self, part: str) -> bool:
        """Return whether runs of a part can be evaluated: not if the runs that measure the pace were interrupted."""
        return bool(self.short and self.long and (self.compat or part != COMPAT))

    @property
    def mean_seconds(self) -> float:
        """Mean latency of a single request outside the study's workloads."""
        return fmean(interpolated(self.long, length) for length in workloads.LENGTHS)


@dataclass(frozen=True, slots=True)
class Plan:
    shape: Shape
    scope: Scope
    pace: Pace = field(default_factory=Pace)

    def turns(self, part: str) -> Iterator[Turn]:
        if part == SOLO:
            yield Turn(NOBATCH, (Run(SOLO, self.shape.name, "short", NOBATCH),))
            yield Turn(FIXED, tuple(Run(SOLO, self.shape.name, kind, FIXED) for kind in ("short", "long")))
            yield Turn(DYNAMIC, (Run(SOLO, self.shape.name, TOGETHER, DYNAMIC),))
            return
        for seed in range(self.scope.seeds):
            yield from self.of_seed(part, seed)

    def of_seed(self, part: str, seed: int) -> Iterator[Turn]:
        for workload, names, levels in self.groups(part):
            for policy in names:
                yield Turn(policy, tuple(Run(part, self.shape.name, workload, policy, seed, level)
                                         for level in levels))

    def groups(self, part: str) -> list[tuple[str, Sequence[str], Sequence[float]]]:
        """Return the workload, policies and levels of each group of turns."""
        scope, everybody = self.scope, with_windows(self.scope)
        match part:
            case "compat":
                return [("figure", STUDIED, (0.0,))]
            case "workload":
                return [(preset, everybody, (0.0,)) for preset in scope.presets]
            case "sweep":
                return [("poisson", everybody, scope.levels)]
            case "sweet":
                return [("poisson", scope.variants, scope.levels[1::2] or scope.levels)]
            case _:
                return [("closed", scope.policies, sorted({1, *scope.users}))]

    def asks(self, run: Run) -> list[Ask]:
        scope = self.scope
        if run.workload == TOGETHER:
            return workloads.alike(2 * HANDLERS)
        if run.part == SOLO:
            return workloads.alone(run.workload, scope.repeat, scope.prompt)
        if run.part == USERS:
            return workloads.closed(run.seed, max(FEWEST, EACH * int(run.level)), scope.prompt)
        if run.workload == "poisson":
            rate = run.level / self.pace.mean_seconds
            return workloads.poisson(run.seed, max(FEWEST, round(scope.span * run.level)), rate, scope.prompt)
        return workloads.preset(run.workload, run.seed, scope.requests, scope.speed or self.pace.speed(run))

    def router(self, run: Run) -> dict[str, Any]:
        """Return the router's settings for a run."""
        mean_seconds = self.pace.mean_seconds if self.pace.long else 1.0
        house = House(self.scope.max_batch_size, mean_seconds)
        own = compat(run.policy) if run.is_compat else cached(run.policy, house)
        return {**self.shape.router, **own}

    def told(self, run: Run) -> Mapping[str, Any]:
        """Return what the records of a run depend on, to check later whether stored ones are of the same run."""
        asks = self.asks(run)
        return {"router": self.router(run), "shard": dict(self.shape.shard), "requests": len(asks),
                "tokens": sum(ask.output_tokens for ask in asks), "seconds": asks[-1].at or 0.0}


def with_windows(scope: Scope) -> tuple[str, ...]:
    """Return the policies; the static one is followed by those with a window."""
    return tuple(name for policy in scope.policies
                 for name in (policy, *(windows(scope.windows) if policy == "static" else ())))
