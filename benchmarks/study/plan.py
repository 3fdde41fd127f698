"""Runs of the study, grouped by the server that serves them, and the requests of each.

A server has one policy, and serves its runs one after the other. Policies take turns within a seed, so that other
activity on the machine affects all of them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Annotated, Any, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from benchmarks.bench.load.request_records import PlannedRequest
from benchmarks.harness.experiment import NonNegativeFloat, PositiveFloat, PositiveInt, PositiveInts
from benchmarks.study import workloads
from benchmarks.study.compared_policies import (
    CACHE_POLICIES,
    COMPAT_POLICIES,
    DEFAULT_WINDOWS,
    DYNAMIC_POLICY,
    MIXED_VARIANTS,
    NOBATCH_POLICY,
    NONE_POLICY,
    NUM_HANDLERS,
    SharedPolicySettings,
    make_policy_settings,
    make_reproduction_policy_settings,
    make_window_policies,
)
from benchmarks.study.model_settings import STUDY_MEAN_REQUEST_SECONDS, STUDY_TOKENS_PER_SECOND, StudyModel
from benchmarks.study.statistics import interpolate

SOLO_PART, COMPAT_PART, WORKLOAD_PART, SWEEP_PART, SWEET_SPOT_PART, USERS_PART = ("solo", "compat", "workload", "sweep",
                                                                                  "sweet", "users")
ALL_HANDLERS = "together"  # workload that measures the throughput with all handlers busy
# each needs the latency of single requests, from SOLO_PART
STUDY_PARTS = COMPAT_PART, WORKLOAD_PART, SWEEP_PART, SWEET_SPOT_PART, USERS_PART
MIN_REQUESTS = 24  # requests of a run, however low the rate
REQUESTS_PER_USER = 6  # requests of a user
POSITIVE = Number(gt=0)

LatencyPoints = tuple[tuple[float, float], ...]


@Parameter(name="*", negative="")
@dataclass(frozen=True, slots=True, kw_only=True)
class StudyScope:
    """How much the study measures: policies, workloads, rates, numbers of users, seeds and requests."""

    seeds: PositiveInt = 5
    "Number of measurements, each with different requests."
    requests: Annotated[int, Parameter(validator=Number(gte=2))] = 100
    "Requests of a run with one of the study's workloads."
    repeat: PositiveInt = 3
    "Single requests of each length, which measure its latency without other load."
    presets: Annotated[tuple[Literal[workloads.STUDY_WORKLOADS], ...], Parameter(consume_multiple=True)] = (  # type: ignore[valid-type]
        workloads.STUDY_WORKLOADS)
    "The study's workloads to run, for --parts workload."
    policies: Annotated[tuple[Literal[CACHE_POLICIES], ...], Parameter(consume_multiple=True)] = CACHE_POLICIES  # type: ignore[valid-type]
    "Policies to compare, outside --parts compat."
    windows: Annotated[tuple[float, ...], Parameter(consume_multiple=True, validator=POSITIVE)] = DEFAULT_WINDOWS
    "Times for which static groups wait for further requests, in mean latencies of a single request; one policy for \
each, and one that does not wait."
    levels: Annotated[tuple[float, ...], Parameter(consume_multiple=True, validator=POSITIVE)] = (
        0.5, 0.8, 1.2, 2.0, 3.0, 4.5, 7.0, 10.0, 15.0, 20.0)
    "Request rates of --parts sweep, relative to what a server can handle that serves one request at a time; sweet \
uses every second one."
    variants: Annotated[tuple[Literal[MIXED_VARIANTS], ...], Parameter(consume_multiple=True)] = (  # type: ignore[valid-type]
        MIXED_VARIANTS)
    "Variants of the settings, for --parts sweet."
    prompt: Annotated[int, Parameter(validator=Number(gte=8))] = 32
    "Characters of a prompt outside the study's workloads. For models with random weights each is a token."
    span: PositiveFloat = 40.0
    "Duration of each rate, in mean latencies of a single request."
    users: PositiveInts = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96)
    "Numbers of concurrent users, for --parts users, besides one."
    max_batch_size: Annotated[int, Parameter(validator=Number(gte=2))] = 64
    "Maximum number of sequences that run at once, outside --parts compat."
    speed: NonNegativeFloat = 0.0
    "Factor by which the study's workloads are sent faster. 0: as much faster as the server is than the study's, \
measured with eight concurrent requests for --parts compat and with one for --parts workload."


@dataclass(frozen=True, slots=True)
class StudyRun:
    """One run of the study: one policy on one workload, with one seed and one arrival rate or number of users."""

    part: str
    shape: str
    workload: str
    policy: str
    seed: int = 0
    level: float = 0.0  # arrival rate relative to what `none` can serve, or number of users

    @property
    def reproduces_study(self) -> bool:
        return self.part == COMPAT_PART or self.policy in {NOBATCH_POLICY, DYNAMIC_POLICY}

    @property
    def name(self) -> str:
        level = [f"at{self.level:g}"] if self.level else []
        return "-".join([self.shape, self.workload, self.policy, *level, f"seed{self.seed}"])

    @property
    def concurrency(self) -> int | None:
        """Number of clients in a closed loop; None: an open loop."""
        if self.workload == ALL_HANDLERS:
            return NUM_HANDLERS
        return {SOLO_PART: 1, USERS_PART: int(self.level)}.get(self.part)


@dataclass(frozen=True, slots=True)
class PolicyRuns:
    """Runs that one server with one policy serves, one after the other."""

    policy: str
    runs: tuple[StudyRun, ...]


@dataclass(frozen=True, slots=True)
class SoloCalibration:
    """Latency of single requests by tokens: without a KV cache, with one, and with one and a longer prompt.

    `busy_tokens_per_second` is the throughput of the study's dynamic batching with all handlers busy."""

    compat_latencies: LatencyPoints = ()
    short_prompt_latencies: LatencyPoints = ()
    long_prompt_latencies: LatencyPoints = ()
    busy_tokens_per_second: float = 0.0  # tokens a second

    def interpolate_latency(self, run: StudyRun, num_tokens: float) -> float:
        return interpolate(self.select_latencies(run), num_tokens)

    def select_latencies(self, run: StudyRun) -> LatencyPoints:
        if run.reproduces_study:
            return self.compat_latencies
        return self.short_prompt_latencies if run.workload in workloads.STUDY_WORKLOADS else self.long_prompt_latencies

    def compute_speedup_over_study(self, run: StudyRun) -> float:
        """Return how many times faster the server is than the study's, to scale the load.

        In the study's mode this compares the throughput with all handlers busy, otherwise the latency of single
        requests of the workload `figure`."""
        if run.reproduces_study:
            return self.busy_tokens_per_second / STUDY_TOKENS_PER_SECOND
        return STUDY_MEAN_REQUEST_SECONDS / fmean(self.interpolate_latency(run, length)
                                                  for length in workloads.FIGURE_OUTPUT_LENGTHS)

    def is_known_for(self, part: str) -> bool:
        """Return whether runs of a part can be evaluated: not if the runs of SOLO_PART were interrupted."""
        return bool(self.short_prompt_latencies and self.long_prompt_latencies
                    and (self.compat_latencies or part != COMPAT_PART))

    @property
    def mean_request_seconds(self) -> float:
        """Mean latency of a single request outside the study's workloads."""
        return fmean(interpolate(self.long_prompt_latencies, length) for length in workloads.LOAD_OUTPUT_LENGTHS)


@dataclass(frozen=True, slots=True)
class StudyPlan:
    """Runs of the study for one model, with the requests and router settings of each."""

    shape: StudyModel
    scope: StudyScope
    server_speed: SoloCalibration = field(default_factory=SoloCalibration)

    def iter_policy_runs(self, part: str) -> Iterator[PolicyRuns]:
        if part == SOLO_PART:
            yield PolicyRuns(NOBATCH_POLICY, (StudyRun(SOLO_PART, self.shape.name, "short", NOBATCH_POLICY),))
            yield PolicyRuns(NONE_POLICY, tuple(StudyRun(SOLO_PART, self.shape.name, kind, NONE_POLICY)
                                                for kind in ("short", "long")))
            yield PolicyRuns(DYNAMIC_POLICY, (StudyRun(SOLO_PART, self.shape.name, ALL_HANDLERS, DYNAMIC_POLICY),))
            return
        for seed in range(self.scope.seeds):
            yield from self.iter_policy_runs_with_seed(part, seed)

    def iter_policy_runs_with_seed(self, part: str, seed: int) -> Iterator[PolicyRuns]:
        for workload, policies, levels in self.list_policy_groups(part):
            for policy in policies:
                yield PolicyRuns(policy, tuple(StudyRun(part, self.shape.name, workload, policy, seed, level)
                                               for level in levels))

    def list_policy_groups(self, part: str) -> list[tuple[str, Sequence[str], Sequence[float]]]:
        """Return the workload, policies and levels of each group of runs."""
        scope, policies = self.scope, list_policies_with_windows(self.scope)
        match part:
            case "compat":
                return [("figure", COMPAT_POLICIES, (0.0,))]
            case "workload":
                return [(preset, policies, (0.0,)) for preset in scope.presets]
            case "sweep":
                return [("poisson", policies, scope.levels)]
            case "sweet":
                return [("poisson", scope.variants, scope.levels[1::2] or scope.levels)]
            case _:
                return [("closed", scope.policies, sorted({1, *scope.users}))]

    def make_requests(self, run: StudyRun) -> list[PlannedRequest]:
        scope = self.scope
        if run.workload == ALL_HANDLERS:
            return workloads.make_equal_length_requests(2 * NUM_HANDLERS)
        if run.part == SOLO_PART:
            return workloads.make_solo_requests(run.workload, scope.repeat, scope.prompt)
        if run.part == USERS_PART:
            return workloads.make_closed_loop_requests(run.seed, max(MIN_REQUESTS, REQUESTS_PER_USER * int(run.level)),
                                                       scope.prompt)
        if run.workload == "poisson":
            rate = run.level / self.server_speed.mean_request_seconds
            return workloads.make_poisson_requests(run.seed, max(MIN_REQUESTS, round(scope.span * run.level)), rate,
                                                   scope.prompt)
        return workloads.make_study_requests(run.workload, run.seed, scope.requests,
                                             scope.speed or self.server_speed.compute_speedup_over_study(run))

    def make_router_settings(self, run: StudyRun) -> dict[str, Any]:
        """Return the router's settings for a run."""
        mean_request_seconds = (self.server_speed.mean_request_seconds if self.server_speed.long_prompt_latencies
                                else 1.0)
        shared_settings = SharedPolicySettings(self.scope.max_batch_size, mean_request_seconds)
        policy_settings = (make_reproduction_policy_settings(run.policy) if run.reproduces_study
                           else make_policy_settings(run.policy, shared_settings))
        return {**self.shape.router_settings, **policy_settings}

    def make_record_fingerprint(self, run: StudyRun) -> Mapping[str, Any]:
        """Return what the records of a run depend on, to check later whether stored ones are of the same run."""
        requests = self.make_requests(run)
        return {"router": self.make_router_settings(run), "shard": dict(self.shape.shard_settings),
                "requests": len(requests), "tokens": sum(request.output_tokens for request in requests),
                "seconds": requests[-1].at or 0.0}


def list_policies_with_windows(scope: StudyScope) -> tuple[str, ...]:
    """Return the policies; the static one is followed by those with a window."""
    return tuple(name for policy in scope.policies
                 for name in (policy, *(make_window_policies(scope.windows) if policy == "static" else ())))
