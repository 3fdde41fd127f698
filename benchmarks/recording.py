"""What recording costs the router: the same steps by a core that is recorded and by one that is not, in turns.

No shard, no network: plan and answer follow each other at once, and the processor's time is taken. `python -P -m
benchmarks.recording --help` tells the settings. The last line is JSON.
"""

import gc
import json
import platform
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from statistics import median
from typing import Annotated

import cyclopts
from cyclopts import Parameter
from cyclopts.validators import Number

from benchmarks.saved import hardware, tell, today
from router.messages import Answer, AnswerRow, ModelFacts
from router.policy import Policy
from router.recorder import Recorder
from router.request import Request
from router.scheduler import Scheduler
from router.snapshot import take

ROUTER_US_PER_TOKEN = 40.0  # of the whole router, benchmarks/README.md
PROMPT, OUTPUT, BLOCK = 64, 512, 16
LONG_PROMPT, NUM_BLOCKS = 1000, 16_384
TOKEN = AnswerRow((7,), (0.0,))


@Parameter(name="*", negative="")
@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    streams: Annotated[int, Parameter(validator=Number(gte=1))] = 64
    "How many sequences decode at once."
    steps: Annotated[int, Parameter(validator=Number(gte=1))] = 100
    "Steps of each turn; short ones, so that both cores meet the same noise."
    turns: Annotated[int, Parameter(validator=Number(gte=1))] = 400
    "Turns of each core; the figures are medians, that of the cost one of differences within a pair of turns."
    waiting: Annotated[int, Parameter(validator=Number(gte=0))] = 1000
    "Requests that wait while a snapshot is taken."
    save: bool = False
    "Keep what is printed under benchmarks/results."


@dataclass(frozen=True, slots=True)
class Result:
    streams: int
    plain_us_per_step: float
    recorded_us_per_step: float
    recording_us_per_step: float
    recording_us_per_token: float
    share_of_router: float  # of what the whole router costs per token
    snapshot_ms: float
    snapshot_waiting: int


class Core:
    """A core that is kept busy: who ends is followed by another."""

    def __init__(self, core: Scheduler, facts: ModelFacts, streams: int) -> None:
        self._core = core
        self._now = 0.0
        self._streams = streams
        self._number = 0
        core.shards_ready(facts, 1, self._now)

    def microseconds(self, steps: int) -> float:
        """Processor time for a step. Plans are asked for as the engine asks: until there is none, and once more."""
        began = time.process_time()
        for _ in range(steps):
            self._step()
        return (time.process_time() - began) / steps * 1e6

    def _step(self) -> None:
        core = self._core
        while core.num_unfinished < self._streams:
            self._number += 1
            # Ends are spread: every sequence wants a little more than the one before, and begins anew.
            output = OUTPUT + self._number % OUTPUT
            core.submit(Request(f"{self._number}", (7,) * PROMPT, output), self._now)
        self._now += 0.01
        plan = core.plan(self._now)
        assert plan is not None
        core.plan(self._now + 0.001)
        core.plan(self._now + 0.002)
        rows = dict.fromkeys(plan.expects, TOKEN)
        core.complete(plan.order, Answer(1, 0.01, rows, {}), {}, self._now + 0.01)


def model(num_blocks: int) -> ModelFacts:
    return ModelFacts("none", "cpu", "none", 512, 2**20, BLOCK, num_blocks)


def pairs(settings: Settings) -> Iterator[tuple[float, float]]:
    """Microseconds for a step, plain and recorded, taken in turns."""
    policy, facts = Policy(look_ahead=1), model(NUM_BLOCKS)
    plain = Core(Scheduler(policy, facts), facts, settings.streams)
    recorded = Core(Recorder(policy, facts, 300.0, 0.0), facts, settings.streams)
    for core in (plain, recorded):
        core.microseconds(10 * settings.steps)
    for _ in range(settings.turns):
        yield plain.microseconds(settings.steps), recorded.microseconds(settings.steps)


def snapshot_ms(settings: Settings) -> float:
    """A busy core, with many who wait."""
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
    times = list(pairs(settings))
    cost = median(recorded - plain for plain, recorded in times)
    per_token = cost / settings.streams
    return Result(
        settings.streams, round(median(plain for plain, _ in times), 1), round(median(r for _, r in times), 1),
        round(cost, 2), round(per_token, 4), round(per_token / ROUTER_US_PER_TOKEN, 5), round(snapshot_ms(settings), 2),
        settings.waiting)


def run(settings: Settings = Settings()) -> None:
    """Measure what recording costs."""
    result = measure(settings)
    date = today()
    text = (f"{date}, {hardware()}, Python {platform.python_version()}\n"
            f"{result.streams} streams: a step of the core takes {result.plain_us_per_step} us, recorded "
            f"{result.recorded_us_per_step} us\nrecording costs {result.recording_us_per_step} us a step, "
            f"{result.recording_us_per_token} us a token: {result.share_of_router:.2%} of the router's "
            f"{ROUTER_US_PER_TOKEN:.0f} us\na snapshot with {result.snapshot_waiting} waiting takes "
            f"{result.snapshot_ms} ms\n{json.dumps(asdict(result))}")
    tell(date, "recording", text, keep=settings.save)


if __name__ == "__main__":
    cyclopts.run(run)
