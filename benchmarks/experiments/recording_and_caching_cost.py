"""CPU cost of recording, and of a prefix cache without hits, in the scheduler.

Three schedulers run the same steps in turns: a plain one, a recorded one, and one whose requests carry block hashes.
There is no shard and no network: every plan is answered at once, and the CPU time of this process is measured.
`python -P -m benchmarks.experiments.recording_and_caching_cost --help` lists the settings. The last line is JSON.
"""

import gc
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from statistics import median
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from benchmarks.harness.experiment import ExperimentSettings, PositiveInt, run_experiment
from benchmarks.harness.reporting import report_results
from router.model_info import ModelInfo
from router.recording.recording_scheduler import RecordingScheduler
from router.recording.scheduler_snapshot import take_snapshot
from router.request import Request, hash_blocks, hash_namespace
from router.scheduler.scheduler import Scheduler
from router.scheduler.settings import SchedulerSettings
from router.scheduler.shard_messages import StepResult, StepResultRow

ROUTER_US_PER_TOKEN = 40.0  # CPU time of the whole router, see benchmarks/README.md
PROMPT_TOKENS, MIN_OUTPUT_TOKENS, BLOCK_SIZE = 64, 512, 16
HASH_NAMESPACE = hash_namespace("benchmark")
LONG_PROMPT_TOKENS, NUM_BLOCKS = 1000, 16_384
ONE_TOKEN_ROW = StepResultRow((7,), (0.0,))


@Parameter(name="*", negative="")
@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingCostSettings(ExperimentSettings):
    streams: PositiveInt = 64
    "Number of running sequences."
    steps: PositiveInt = 100
    "Steps of each turn; few, so that noise affects all schedulers alike."
    turns: PositiveInt = 400
    "Turns of each scheduler; a cost is the median of the differences within a round."
    waiting: Annotated[int, Parameter(validator=Number(gte=0))] = 1000
    "Requests that wait while a snapshot is taken."


@dataclass(frozen=True, slots=True)
class SchedulerCosts:
    """CPU cost of the scheduler's steps, and what recording, block hashes and a snapshot add."""

    streams: int
    plain_us_per_step: float
    recording_us_per_token: float
    recording_share: float  # of ROUTER_US_PER_TOKEN
    caching_us_per_token: float
    caching_share: float
    snapshot_ms: float
    snapshot_waiting: int


class BusyScheduler:
    """A scheduler kept busy: each finished request is replaced by one with a prompt of its own."""

    def __init__(self, scheduler: Scheduler, model_info: ModelInfo, streams: int, *,
                 has_block_hashes: bool = False) -> None:
        self._scheduler = scheduler
        self._has_block_hashes = has_block_hashes
        self._now = 0.0
        self._streams = streams
        self._num_submitted = 0
        scheduler.on_shards_ready(model_info, 1, self._now)

    def measure_us_per_step(self, steps: int) -> float:
        """Return CPU microseconds per step. As in the engine, `plan` is called until it returns None, and once more."""
        started_at = time.process_time()
        for _ in range(steps):
            self._run_step()
        return (time.process_time() - started_at) / steps * 1e6

    def _run_step(self) -> None:
        scheduler = self._scheduler
        while scheduler.num_unfinished < self._streams:
            self._num_submitted += 1
            # Each request asks for one token more than the one before, modulo MIN_OUTPUT_TOKENS, so that they end at
            # different steps.
            scheduler.submit(self._make_request(MIN_OUTPUT_TOKENS + self._num_submitted % MIN_OUTPUT_TOKENS), self._now)
        self._now += 0.01
        plan = scheduler.plan(self._now)
        assert plan is not None
        scheduler.plan(self._now + 0.001)
        scheduler.plan(self._now + 0.002)
        rows = dict.fromkeys(plan.output_ids, ONE_TOKEN_ROW)
        scheduler.complete_step(plan.last_message_number, StepResult(1, 0.01, rows, {}), {}, self._now + 0.01)

    def _make_request(self, num_output_tokens: int) -> Request:
        request_id, prompt = f"{self._num_submitted}", (self._num_submitted,) * PROMPT_TOKENS
        if not self._has_block_hashes:
            return Request(request_id, prompt, num_output_tokens)
        return Request(request_id, prompt, num_output_tokens, cache_namespace=HASH_NAMESPACE,
                       block_hashes=hash_blocks(HASH_NAMESPACE, prompt, BLOCK_SIZE))


def make_model_info(num_blocks: int) -> ModelInfo:
    return ModelInfo("none", "cpu", "none", 512, 2**20, BLOCK_SIZE, num_blocks)


def measure_rounds(settings: RecordingCostSettings) -> Iterator[tuple[float, float, float]]:
    """Yield microseconds per step of the plain, the recorded and the caching scheduler, measured in turns."""
    scheduler_settings, model_info = SchedulerSettings(look_ahead=1), make_model_info(NUM_BLOCKS)
    busy_schedulers = (
        BusyScheduler(Scheduler(scheduler_settings, model_info), model_info, settings.streams),
        BusyScheduler(RecordingScheduler(scheduler_settings, model_info, 300.0, 0.0), model_info, settings.streams),
        BusyScheduler(Scheduler(scheduler_settings, model_info), model_info, settings.streams, has_block_hashes=True))
    for busy_scheduler in busy_schedulers:
        busy_scheduler.measure_us_per_step(10 * settings.steps)
    for _ in range(settings.turns):
        plain, recorded, cached = (core.measure_us_per_step(settings.steps) for core in busy_schedulers)
        yield plain, recorded, cached


def measure_snapshot_ms(settings: RecordingCostSettings) -> float:
    """Return the milliseconds of a snapshot of a busy scheduler with many waiting requests."""
    scheduler_settings = SchedulerSettings(max_batch_size=settings.streams,
                                           max_concurrent_requests=settings.streams + settings.waiting)
    scheduler = Scheduler(scheduler_settings, model_info := make_model_info(NUM_BLOCKS))
    scheduler.on_shards_ready(model_info, 1, 0.0)
    hashes = tuple(bytes(16) for _ in range(LONG_PROMPT_TOKENS // BLOCK_SIZE))
    for number in range(settings.streams + settings.waiting):
        scheduler.submit(Request(f"{number}", (7,) * LONG_PROMPT_TOKENS, MIN_OUTPUT_TOKENS, block_hashes=hashes), 0.0)
    for step in range(100):
        if (plan := scheduler.plan(0.01 * step)) is not None:
            rows = dict.fromkeys(plan.output_ids, ONE_TOKEN_ROW)
            scheduler.complete_step(plan.last_message_number, StepResult(1, 0.01, rows, {}), {}, 0.01 * step)
    return median(time_one_snapshot_ms(scheduler) for _ in range(15))


def time_one_snapshot_ms(scheduler: Scheduler) -> float:
    started_at = time.perf_counter()
    take_snapshot(scheduler)
    return (time.perf_counter() - started_at) * 1e3


def measure_recording_and_caching_costs(settings: RecordingCostSettings) -> SchedulerCosts:
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)  # as in the router
    times = list(measure_rounds(settings))
    recording = median(recorded - plain for plain, recorded, _ in times) / settings.streams
    caching = median(cached - plain for plain, _, cached in times) / settings.streams
    return SchedulerCosts(settings.streams, round(median(plain for plain, _, _ in times), 1), round(recording, 4),
                          round(recording / ROUTER_US_PER_TOKEN, 5), round(caching, 4),
                          round(caching / ROUTER_US_PER_TOKEN, 5), round(measure_snapshot_ms(settings), 2),
                          settings.waiting)


def bench(settings: RecordingCostSettings = RecordingCostSettings()) -> None:
    """Measure what recording and the prefix cache cost."""
    result = measure_recording_and_caching_costs(settings)
    text = (f"{result.streams} streams: a step of the core takes {result.plain_us_per_step} us\n"
            f"recording costs {result.recording_us_per_token} us a token: {result.recording_share:.2%} of the router's "
            f"{ROUTER_US_PER_TOKEN:.0f} us\n"
            f"a prefix cache that finds nothing costs {result.caching_us_per_token} us a token: "
            f"{result.caching_share:.2%}\n"
            f"a snapshot with {result.snapshot_waiting} waiting takes {result.snapshot_ms} ms")
    report_results("core", text, asdict(result), should_save=settings.save)


if __name__ == "__main__":
    run_experiment(bench)
