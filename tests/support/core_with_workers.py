"""The real scheduler with real workers in one process, without gRPC, for tests that no request's output depends on the
other requests.

    with Loom(model, ranks=2) as loom:
            heard = loom.weave([Thread(request), Thread(other, arrival=3)], prefill_policy="pause", look_ahead=1)
        assert heard[0] == loom.alone(request)

Time is counted in steps. The cost model gets its own predictions as measured times, so that a schedule is repeatable.
"""

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from support.shared_probe_cache import memory

from router.config import RouterConfig
from router.request import Request
from router.scheduler.events import Entered, Failed, Finished, Produced
from router.scheduler.fault_isolation import Loss
from router.scheduler.plan import Answer, Measurement, Plan, Prefill
from router.scheduler.scheduler import Scheduler
from router.scheduler.settings import Policy
from router.shards import encode
from shard.config import ShardConfig
from shard.deferred import Later
from shard.pb import shard_pb2 as pb
from shard.workers.decoder import ModelWorker

METHODS = {pb.PrefillRequest: "prefill", pb.DecodeRequest: "decode", pb.FilterRequest: "filter",
           pb.ConcatRequest: "concat"}
# Step times for the cost model, so long that some prompts are split into chunks to keep the stall promise.
SECONDS = (Measurement(1, 0, 1, 0.02), Measurement(8, 0, 8, 0.021), Measurement(1, 64, 64, 0.06),
           Measurement(1, 0, 512, 0.022))
MOST_STEPS = 5000


@dataclass(frozen=True)
class Thread:
    """A request, the step at which it arrives, and the step at which its client leaves, if any."""

    request: Request
    arrival: int = 0
    leaves: int | None = None


@dataclass
class Heard:
    """Output that a client received, compared to the bit."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top: list[list[tuple[int, float]]] = field(default_factory=list)
    prompt_logprobs: dict[int, float] = field(default_factory=dict)  # by index in the prompt
    end: str = ""
    # Costs, which may differ: tokens found in the prefix cache at entry, and tokens computed in chunks.
    cached: int = field(default=0, compare=False)
    computed: int = field(default=0, compare=False)


class Loom:
    """Workers of all ranks, each in a thread of its own, since ranks wait for each other."""

    def __init__(self, model: Path, ranks: int = 1, *, max_batch_size: int = 16, max_prefill_tokens: int = 256,
                 max_total_tokens: int = 256, num_places: int = 4096, **settings: Any) -> None:
        """Load and warm up the workers; `settings` are fields of ShardConfig."""
        self._meeting = TemporaryDirectory()
        self._threads = [ThreadPoolExecutor(1) for _ in range(ranks)]
        self._epoch = 0
        self._max_prefill_tokens = max_prefill_tokens
        self._alone: dict[Request, Heard] = {}
        config = ShardConfig(**{"model": str(model), "world_size": ranks, "threads": 1,
                                "meeting_point": f"{self._meeting.name}/point"} | settings)
        configs = [replace(config, rank=rank, memory=memory(rank)) for rank in range(ranks)]
        loading = [thread.submit(ModelWorker, config) for thread, config in zip(self._threads, configs, strict=True)]
        self.workers = [worker.result() for worker in loading]
        self.everywhere("warmup", pb.WarmupRequest(
            block_size=16, max_prefill_tokens=max_prefill_tokens, max_batch_size=max_batch_size,
            max_total_tokens=max_total_tokens, max_cache_tokens=num_places))
        self.infos = self.everywhere("info")

    def __enter__(self) -> "Loom":
        return self

    def __exit__(self, *_: object) -> None:
        self.everywhere("close")
        self.workers.clear()
        for thread in self._threads:
            thread.shutdown()
        self._meeting.cleanup()

    def everywhere(self, method: str, *arguments: Any) -> list[Any]:
        calls = [thread.submit(getattr(worker, method), *arguments)
                 for thread, worker in zip(self._threads, self.workers, strict=True)]
        return [call.result() for call in calls]

    def say(self, message: Any, order: int) -> Any:
        """Send one message of the contract to all ranks; return the answer of rank 0."""
        message.epoch, message.order = self._epoch, order
        return self.ended(self.everywhere(METHODS[type(message)], message)[0])

    def ended(self, answer: Any) -> Any:
        """Return the answer of a step; wait for it if the step is still in flight."""
        return self._threads[0].submit(answer.finish).result() if isinstance(answer, Later) else answer

    def load_adapter(self, number: int, folder: Path) -> None:
        self.everywhere("load", pb.LoadRequest(epoch=self._epoch, kind=pb.KIND_ADAPTER, id=number, source=str(folder)))

    def unload_adapter(self, number: int) -> None:
        self.everywhere("unload", pb.UnloadRequest(epoch=self._epoch, kind=pb.KIND_ADAPTER, id=number))

    def set_threads(self, count: int) -> None:
        for thread in self._threads:
            thread.submit(torch.set_num_threads, count).result()
        self._alone.clear()

    def alone(self, request: Request) -> Heard:
        """Return the output of a request that runs alone and without the prefix cache."""
        request = replace(request, namespace=b"", block_hashes=())
        if request not in self._alone:
            self._alone[request] = self.weave([Thread(request)], look_ahead=1)[0]
        return self._alone[request]

    def compare(self, threads: list[Thread], *, losses: tuple[int, ...] = (), **settings: Any) -> list[Heard]:
        """Run `weave` and assert that each request gets its output when alone, or a prefix if its client left."""
        woven = self.weave(threads, losses=losses, **settings)
        for thread, heard in zip(threads, woven, strict=True):
            alone = self.alone(thread.request)
            if heard.end == "left":
                assert heard.tokens == alone.tokens[:len(heard.tokens)]
                assert heard.logprobs == alone.logprobs[:len(heard.logprobs)]
            else:
                assert heard == alone
        return woven

    def weave(self, threads: list[Thread], *, losses: tuple[int, ...] = (), **settings: Any) -> list[Heard]:
        """Run all requests and return their outputs; at the steps in `losses` the shards lose their state."""
        config = RouterConfig(**{"max_batch_prefill_tokens": self._max_prefill_tokens} | settings)
        return Weave(self, config, threads, losses).run()

    def next_epoch(self) -> int:
        self._epoch += 1
        self.everywhere("reset", pb.ResetRequest(epoch=self._epoch))
        return self._epoch


class Weave:
    """One schedule: runs all requests of a test to their end."""

    def __init__(self, loom: Loom, config: RouterConfig, threads: list[Thread], losses: tuple[int, ...]) -> None:
        self._loom = loom
        self._threads = threads
        self._losses = losses
        self._facts = encode.facts(loom.infos)
        self._core = Scheduler(Policy.of(config, self._facts), self._facts)
        self._core.costs = type(self._core.costs).measured(SECONDS)
        self._core.shards_ready(self._facts, loom.next_epoch(), 0.0)
        for need in {need for thread in threads for need in thread.request.needs}:
            self._core.available(need, 0.0)
        self._heard = [Heard() for _ in threads]
        self._numbers: dict[int, int] = {}
        self._under_way: deque[tuple[Plan, Any]] = deque()
        self.num_lost = 0

    def run(self) -> list[Heard]:
        last = max(thread.arrival for thread in self._threads)
        for step in range(MOST_STEPS):
            self._come_and_go(step)
            if step in self._losses:
                self._lose()
            self._send_plans()
            if self._under_way:
                self._take(*self._under_way.popleft())
            elif step > last and not self._core.num_unfinished:
                return self._heard
        raise AssertionError("the weave has no end")

    def _come_and_go(self, step: int) -> None:
        for place, thread in enumerate(self._threads):
            if thread.arrival == step:
                self._submit(place, thread.request)
            if thread.leaves == step and not self._heard[place].end:
                self._heard[place].end = "left"
                self._core.cancel(next(n for n, at in self._numbers.items() if at == place), 0.0)

    def _submit(self, place: int, request: Request) -> None:
        events = self._core.submit(request, float(place))
        assert isinstance(events[0], Entered), events
        self._numbers[events[0].sequence] = place
        assert len(events) == 1, events

    def _send_plans(self) -> None:
        while (plan := self._core.plan(float(len(self._threads)))) is not None:  # later than every arrival
            self._count(plan)
            for message in encode.encode(plan):
                answer = self._loom.everywhere(METHODS[type(message)], message)[0]
            self._under_way.append((plan, answer))

    def _count(self, plan: Plan) -> None:
        for prefill in (message for message in plan.messages if isinstance(message, Prefill)):
            for newcomer in prefill.newcomers:
                self._of(newcomer.sequence).cached += newcomer.num_cached
            for chunk in prefill.chunks:
                self._of(chunk.sequence).computed += chunk.length

    def _take(self, plan: Plan, told: Any) -> None:
        message = self._loom.ended(told)
        if not isinstance(message, pb.StepAnswer):
            self._core.complete(plan.order, Answer(plan.epoch, 0.0, {}, {}), {}, 0.0)
            return
        message.forward_seconds = plan.seconds
        answer = encode.decode(message, plan, self._facts)
        for part in answer.prompt_logprobs:
            known = self._of(part.sequence).prompt_logprobs
            known |= dict(enumerate(part.logprobs, part.start))
        for event in self._core.complete(plan.order, answer, {}, 0.0):
            self._hear(event, answer)

    def _hear(self, event: Any, answer: Answer) -> None:
        match event:
            case Produced():
                for number, count in event.counts.items():
                    heard, row = self._of(number), answer.rows[number]
                    heard.tokens += row.tokens[:count]
                    heard.logprobs += row.logprobs[:count]
                    heard.top += [list(top) for top in row.top[:count] if top]  # empty if not requested
            case Finished():
                self._of(event.sequence).end = event.reason
            case Failed():
                self._of(event.sequence).end = event.reason

    def _lose(self) -> None:
        """Lose the state of the shards; steps in flight get no answer."""
        self._under_way.clear()
        self._core.shards_lost(0.0, Loss.DEFECT)
        self._core.shards_ready(self._facts, self._loom.next_epoch(), 0.0)

    def _of(self, number: int) -> Heard:
        return self._heard[self._numbers[number]]
