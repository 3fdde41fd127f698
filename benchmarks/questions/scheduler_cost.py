"""CPU cost of recording, and of a prefix cache without hits, in the scheduler.

Three schedulers run the same steps in turns: a plain one, a recorded one, and one whose requests carry block hashes.
There is no shard and no network: every plan is answered at once, and the CPU time of this process is measured.
`python -P -m benchmarks.questions.scheduler_cost --help` lists the settings. The last line is JSON.
"""

import gc
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from statistics import median
from typing import Annotated

import cyclopts
from cyclopts import Parameter
from cyclopts.validators import Number

from benchmarks.harness.results import tell
from router.block_hash import block_hashes, namespace
from router.recording.recorder import Recorder
from router.recording.snapshot import take
from router.request import Request
from router.scheduler.plan import Answer, AnswerRow, ModelFacts
from router.scheduler.scheduler import Scheduler
from router.scheduler.settings import Policy

ROUTER_US_PER_TOKEN = 40.0  # CPU time of the whole router, see benchmarks/README.md
PROMPT, OUTPUT, BLOCK = 64, 512, 16
SPACE = namespace("benchmark")
LONG_PROMPT, NUM_BLOCKS = 1000, 16_384
TOKEN = AnswerRow((7,), (0.0,))


@Parameter(name="*", negative="")
@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    streams: Annotated[int, Parameter(validator=Number(gte=1))] = 64
    "How many sequences decode at once."
    steps: Annotated[int, Parameter(validator=Number(gte=1))] = 100
    "Steps of each turn; short ones, so that all cores meet the same noise."
    turns: Annotated[int, Parameter(validator=Number(gte=1))] = 400
    "Turns of each core; the figures are medians, and a cost is one of differences within a round of turns."
    waiting: Annotated[int, Parameter(validator=Number(gte=0))] = 1000
    "Requests that wait while a snapshot is taken."
    save: bool = False
    "Keep what is printed under benchmarks/results."


@dataclass(frozen=True, slots=True)
class Result:
    streams: int
    plain_us_per_step: float
    recording_us_per_token: float
    recording_share: float  # of ROUTER_US_PER_TOKEN
    caching_us_per_token: float
    caching_share: float
    snapshot_ms: float
    snapshot_waiting: int


class Core:
    """A scheduler kept busy: each finished request is replaced by one with a prompt of its own."""

    def __init__(self, core: Scheduler, facts: ModelFacts, streams: int, *, shares: bool = False) -> None:
        self._core = core
        self._shares = shares
        self._now = 0.0
        self._streams = streams
        self._number = 0
        core.shards_ready(facts, 1, self._now)

    def microseconds(self, steps: int) -> float:
        """Return CPU microseconds per step. As in the engine, `plan` is called until it returns None, and once more."""
        began = time.process_time()
        for _ in range(steps):
            self._step()
        return (time.process_time() - began) / steps * 1e6

    def _step(self) -> None:
        core = self._core
        while core.num_unfinished < self._streams:
            self._number += 1
            # Each request asks for one token more than the one before, modulo OUTPUT, so that they end at different
            # steps.
            core.submit(self._request(OUTPUT + self._number % OUTPUT), self._now)
        self._now += 0.01
        plan = core.plan(self._now)
        assert plan is not None
        core.plan(self._now + 0.001)
        core.plan(self._now + 0.002)
        rows = dict.fromkeys(plan.expects, TOKEN)
        core.complete(plan.order, Answer(1, 0.01, rows, {}), {}, self._now + 0.01)

    def _request(self, output: int) -> Request:
        name, prompt = f"{self._number}", (self._number,) * PROMPT
        if not self._shares:
            return Request(name, prompt, output)
        return Request(name, prompt, output, namespace=SPACE, block_hashes=block_hashes(SPACE, prompt, BLOCK))


def model(num_blocks: int) -> ModelFacts:
    return ModelFacts("none", "cpu", "none", 512, 2**20, BLOCK, num_blocks)


def rounds(settings: Settings) -> Iterator[tuple[float, float, float]]:
    """Yield microseconds per step of the plain, the recorded and the caching scheduler, measured in turns."""
    policy, facts = Policy(look_ahead=1), model(NUM_BLOCKS)
    cores = (Core(Scheduler(policy, facts), facts, settings.streams),
             Core(Recorder(policy, facts, 300.0, 0.0), facts, settings.streams),
             Core(Scheduler(policy, facts), facts, settings.streams, shares=True))
    for core in cores:
        core.microseconds(10 * settings.steps)
    for _ in range(settings.turns):
        plain, recorded, cached = (core.microseconds(settings.steps) for core in cores)
        yield plain, recorded, cached


def snapshot_ms(settings: Settings) -> float:
    """Return the milliseconds of a snapshot of a busy scheduler with many waiting requests."""
    policy = Policy(max_batch_size=settings.streams, max_concurrent_requests=settings.streams + settings.waiting)
    core = Scheduler(policy, facts := model(NUM_BLOCKS))
    core.shards_ready(facts, 1, 0.0)
    names = tuple(bytes(16) for _ in range(LONG_PROMPT // BLOCK))
    for number in range(settings.streams + settings.waiting):
        core.submit(Request(f"{number}", (7,) * LONG_PROMPT, OUTPUT, block_hashes=names), 0.0)
    for step in range(100):
        if (plan := core.plan(0.01 * step)) is not None:
            rows = dict.fromkeys(plan.expects, TOKEN)
            core.complete(plan.order, Answer(1, 0.01, rows, {}), {}, 0.01 * step)
    return median(milliseconds(core) for _ in range(15))


def milliseconds(core: Scheduler) -> float:
    began = time.perf_counter()
    take(core)
    return (time.perf_counter() - began) * 1e3


def measure(settings: Settings) -> Result:
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)  # as in the router
    times = list(rounds(settings))
    recording = median(recorded - plain for plain, recorded, _ in times) / settings.streams
    caching = median(cached - plain for plain, _, cached in times) / settings.streams
    return Result(
        settings.streams, round(median(plain for plain, _, _ in times), 1),
        round(recording, 4), round(recording / ROUTER_US_PER_TOKEN, 5),
        round(caching, 4), round(caching / ROUTER_US_PER_TOKEN, 5), round(snapshot_ms(settings), 2), settings.waiting)


def run(settings: Settings = Settings()) -> None:
    """Measure what recording and the prefix cache cost."""
    result = measure(settings)
    text = (f"{result.streams} streams: a step of the core takes {result.plain_us_per_step} us\n"
            f"recording costs {result.recording_us_per_token} us a token: {result.recording_share:.2%} of the router's "
            f"{ROUTER_US_PER_TOKEN:.0f} us\n"
            f"a prefix cache that finds nothing costs {result.caching_us_per_token} us a token: "
            f"{result.caching_share:.2%}\n"
            f"a snapshot with {result.snapshot_waiting} waiting takes {result.snapshot_ms} ms")
    tell("core", text, asdict(result), keep=settings.save)


if __name__ == "__main__":
    cyclopts.run(run)
