"""Hops of a request, for `make stats`: files, functions and calls of `router/` or `shard/` that it passes through.

Counted with `sys.setprofile` in the thread that does the work: the router in an in-process server with one simulated
rank, a decode step of two adapters in the worker of a small model on the CPU. A call is a Python call or the resumption
of a coroutine or generator; it crosses files if its caller is in another file of the same folder.
"""

import asyncio
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from support.checkpoints.peft_adapters import make_tiny_adapter
from support.checkpoints.small_checkpoints import make_tiny_checkpoint
from support.servers.in_process_server import make_generate_body, play_scenario
from support.shards.scheduler_with_workers import ScheduledRequest, SchedulerWithWorkers

from router.request import ADAPTER, LoadableResource, Request
from shard.pb import shard_pb2 as pb

REPOSITORY_ROOT = Path(__file__).parents[2]
NUM_FURTHER_TOKENS = 100
NUM_RUNS = 8  # of each request, of which the one with the fewest calls counts: caches warm up, and wake-ups vary
COUNTED_DECODE_STEP = 3  # the decode step that is counted: the ones before warm caches up


@dataclass
class HopCounter:
    """Counter of the calls that enter functions of one top-level folder."""

    folder: str
    num_calls: int = 0
    num_crossings: int = 0
    functions: set[CodeType] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._prefix = f"{REPOSITORY_ROOT / self.folder}/"

    @property
    def files(self) -> set[str]:
        return {function.co_filename for function in self.functions}

    @contextmanager
    def counting(self) -> Iterator[None]:
        sys.setprofile(self._on_event)
        try:
            yield
        finally:
            sys.setprofile(None)

    def _on_event(self, frame: FrameType, event: str, _argument: object) -> None:
        if event != "call" or not frame.f_code.co_filename.startswith(self._prefix):
            return
        self.num_calls += 1
        self.functions.add(frame.f_code)
        caller = frame.f_back.f_code.co_filename if frame.f_back is not None else ""
        self.num_crossings += caller.startswith(self._prefix) and caller != frame.f_code.co_filename


def count_router_hops(folder: Path) -> dict[str, HopCounter]:
    """Return the hops of a `/generate` of two tokens, of chat streams of 2 and of 2 + NUM_FURTHER_TOKENS tokens."""
    num_many = 2 + NUM_FURTHER_TOKENS
    requests = {"/generate, 2 tokens": ("/generate", make_generate_body("Hello there", 2, details=True)),
                "chat stream, 2 tokens": ("/v1/chat/completions", make_chat_body(2)),
                f"chat stream, {num_many} tokens": ("/v1/chat/completions", make_chat_body(num_many))}
    counters: dict[str, HopCounter] = {}

    async def scenario(weft: Any) -> None:
        for name, (path, body) in requests.items():
            counters[name] = min([await count_hops(weft, path, body) for _ in range(NUM_RUNS)],
                                 key=lambda counter: counter.num_calls)

    play_scenario(scenario, folder, http=True)
    return counters


async def count_hops(weft: Any, path: str, body: dict[str, Any]) -> HopCounter:
    counter = HopCounter("router")
    with counter.counting():
        async with weft.http_session.post(path, json=body) as response:
            assert response.status == 200, await response.text()
            await response.read()
        await asyncio.sleep(0.05)  # for the step that frees the sequence
    return counter


def make_chat_body(num_tokens: int) -> dict[str, Any]:
    return {"model": "", "messages": [{"role": "user", "content": "hi"}], "stream": True, "max_tokens": num_tokens}


class CountedWorkers(SchedulerWithWorkers):
    """Workers of which one decode step is counted."""

    def __init__(self, model: Path) -> None:
        self.counter = HopCounter("shard")
        self._num_decode_steps = 0
        super().__init__(model, adaptable=True, dtype="float32")

    def call_all_ranks(self, method: str, *arguments: Any) -> list[Any]:
        is_decode = bool(arguments) and isinstance(arguments[0], pb.DecodeRequest)
        self._num_decode_steps += is_decode
        if not is_decode or self._num_decode_steps != COUNTED_DECODE_STEP:
            return super().call_all_ranks(method, *arguments)
        [worker], [thread] = self.workers, self._rank_threads

        def run() -> Any:
            with self.counter.counting():
                return getattr(worker, method)(*arguments)

        return [thread.submit(run).result()]


def count_shard_hops(folder: Path) -> HopCounter:
    """Return the hops of a decode step of two sequences with different adapters."""
    model = make_tiny_checkpoint(folder, dtype="bfloat16")
    requests = [Request(str(number), tuple(range(5 + number, 25 + number)), 8,
                        adapter=LoadableResource(ADAPTER, number)) for number in (1, 2)]
    with CountedWorkers(model) as workers:
        workers.start_next_epoch()
        for number in (1, 2):
            workers.load_adapter(number, make_tiny_adapter(model, seed=number))
        workers.run_together([ScheduledRequest(request) for request in requests])
        return workers.counter


def iter_rows() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        counters = count_router_hops(Path(folder))
        counters["decode step of two adapters"] = count_shard_hops(Path(folder) / "model")
    yield f"{'hops':32}{'files':>10}{'functions':>11}{'calls':>9}{'crossings':>11}"
    for name, counter in counters.items():
        yield (f"{name:32}{len(counter.files):>10}{len(counter.functions):>11}{counter.num_calls:>9}"
               f"{counter.num_crossings:>11}")
    _, short, long, _ = counters.values()
    yield f"{'a further streamed token':52}{(long.num_calls - short.num_calls) / NUM_FURTHER_TOKENS:>10.0f}"


if __name__ == "__main__":
    print("\n".join(iter_rows()))
