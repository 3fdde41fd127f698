"""Behaviour of the service beyond the protocol: threads, late answers, and a clean stop."""

import asyncio
import threading
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

from shard.deferred import Later
from shard.pb import shard_pb2 as pb
from shard.simulator.worker import SimulatedWorker
from tests.shard.messages import Row, decode, filtered, prefill
from tests.shard.peer import Peer, code_of
from tests.shard.peer import play as play_with

FIRST = Row(7, [1, 2, 3], [0])


@pytest.fixture
def play(tmp_path: Path) -> Any:
    return partial(play_with, SimulatedWorker, tmp_path)


def test_calls_are_counted(play: Any) -> None:
    async def story(shard: Peer) -> None:
        await shard.send(prefill(1, FIRST))
        await shard.send(decode(1))
        await shard.code(decode(2))
        assert shard.service.calls == {"Warmup": 1, "Reset": 1, "Prefill": 1, "Decode": 2}
    play(story)


def test_all_steps_run_in_one_thread_that_stays(play: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    threads, run = [], SimulatedWorker._run

    def noted(*args: Any) -> Any:
        threads.append(threading.get_ident())
        return run(*args)

    async def story(shard: Peer) -> None:
        await shard.send(prefill(1, FIRST))
        await shard.reset()
        await shard.send(prefill(1, FIRST))
        assert len(set(threads)) == 1
        assert threads[0] != threading.get_ident()
    monkeypatch.setattr(SimulatedWorker, "_run", noted)
    play(story)


def test_a_late_answer_does_not_delay_later_ones(play: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(shard: Peer) -> None:
        over = asyncio.Event()
        monkeypatch.setattr(asyncio, "sleep", lambda _: over.wait())
        late = asyncio.ensure_future(code_of(shard.send(prefill(1, FIRST))))
        assert (await shard.send(decode(1), order=2)).order == 2
        assert not late.done()
        over.set()
        assert await late == grpc.StatusCode.OK
    play(story, faults="late@prefill")


def test_a_slow_step_is_no_missing_message(play: Any) -> None:
    async def story(shard: Peer) -> None:
        slow = await shard.early(prefill(1, FIRST), order=1)
        assert await shard.code(decode(1), order=2) == grpc.StatusCode.OK
        assert await code_of(slow) == grpc.StatusCode.OK
    play(story, gap_timeout=0.0, faults="slow@prefill:1:0.05")


def test_the_time_of_a_missing_message_runs_from_the_first_later_one(play: Any) -> None:
    async def story(shard: Peer) -> None:
        early = [await shard.early(decode(1), 3)]
        gap = shard.service._orders.epoch.gap
        early.append(await shard.early(decode(1), 4))
        assert shard.service._orders.epoch.gap is gap
        await shard.send(prefill(1, FIRST), order=1)
        assert shard.service._orders.epoch.gap is not gap
        await shard.send(decode(1), order=2)
        assert [(await call).order for call in early] == [3, 4]
    play(story)


def test_info_and_load_are_answered_beside_a_step(play: Any) -> None:
    async def story(shard: Peer) -> None:
        hanging = await shard.early(prefill(1, FIRST), 1)
        assert (await shard.stub.Info(pb.InfoRequest())).epoch == 1
        await shard.stub.Load(pb.LoadRequest(epoch=1, kind=pb.KIND_ADAPTER, id=3))
        hanging.cancel()
    play(story, faults="hang@prefill")


def test_an_epoch_counts_from_its_reset_on_though_steps_are_still_before_it(play: Any) -> None:
    async def story(shard: Peer) -> None:
        hanging = await shard.early(prefill(1, FIRST), 1)
        resetting = shard.stub.Reset(pb.ResetRequest(epoch=2))
        await shard.calls.reach("Reset", 2)
        assert (await shard.stub.Info(pb.InfoRequest())).epoch == 2
        resetting.cancel()
        hanging.cancel()
    play(story, faults="hang@prefill")


def test_the_end_wakes_up_what_hangs_and_gives_up_what_is_queued(play: Any) -> None:
    calls = []

    async def story(shard: Peer) -> None:
        calls.extend([await shard.early(prefill(1, FIRST), 1), await shard.early(decode(1), 2),
                      await shard.early(decode(1), 4)])
    play(story, faults="hang@prefill")
    assert all(call.done() for call in calls)


def test_on_a_line_outcomes_come_in_the_order_of_the_messages(play: Any) -> None:
    async def story(shard: Peer) -> None:
        line = shard.stub.Steps()
        await line.write(pb.StepMessage(prefill=shard.numbered(prefill(1, FIRST))))
        await line.write(pb.StepMessage(decode=shard.numbered(decode(1))))
        await line.write(pb.StepMessage(filter=shard.numbered(filtered(1, 7))))
        outcomes = [await line.read() for _ in range(3)]
        assert [outcome.WhichOneof("outcome") for outcome in outcomes] == ["step", "step", "acknowledgement"]
        assert [getattr(outcome, outcome.WhichOneof("outcome")).order for outcome in outcomes] == [1, 2, 3]
    play(story)


def test_a_refusal_does_not_end_a_line(play: Any) -> None:
    async def story(shard: Peer) -> None:
        line = shard.stub.Steps()
        await line.write(pb.StepMessage(decode=shard.numbered(decode(1))))
        await line.write(pb.StepMessage())
        outcomes = [await line.read() for _ in range(2)]
        codes = [grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT]
        assert [outcome.trouble.code for outcome in outcomes] == [code.value[0] for code in codes]
        await shard.reset()
        await line.write(pb.StepMessage(prefill=shard.numbered(prefill(1, FIRST))))
        assert (await line.read()).step.order == 1
    play(story)


def test_lines_end_when_the_shard_stops(play: Any) -> None:
    async def story(shard: Peer) -> None:
        line = shard.stub.Steps()
        await line.write(pb.StepMessage(prefill=shard.numbered(prefill(1, FIRST))))
        await line.read()
        shard.service.stop()
        assert await line.read() is grpc.aio.EOF
    play(story)


# ---------------------------------------------------------------------------------------------------------------------
# Deferred answers


class Unhurried(SimulatedWorker):
    """Worker whose decodes end when their event is set, and may be rejected or fail then. A prefill waits for them and
    then for an event of its own."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.over = [threading.Event() for _ in range(4)]
        self.under_way: list[Later[pb.StepAnswer]] = []
        self.begun = threading.Semaphore(0)
        self.fails = False

    def decode(self, request: pb.DecodeRequest) -> Any:
        def finish() -> Any:
            if self.fails:
                raise ValueError("it broke")
            return SimulatedWorker.decode(self, request)

        self.under_way.append(Later(self.over[len(self.under_way)].wait, finish))
        self.begun.release()
        return self.under_way[-1]

    def prefill(self, request: pb.PrefillRequest) -> pb.StepAnswer:
        for later in self.under_way:
            later.finish()
        if self.under_way:
            self.over[3].wait()
        return super().prefill(request)

    async def reach(self, count: int) -> None:
        for _ in range(count):
            await asyncio.to_thread(self.begun.acquire)

    def close(self) -> None:
        super().close()
        for over in self.over:
            over.set()


@pytest.fixture
def play_unhurried(tmp_path: Path) -> Any:
    return partial(play_with, Unhurried, tmp_path)


def test_a_step_begins_while_the_last_is_under_way(play_unhurried: Any) -> None:
    async def story(shard: Peer) -> None:
        await shard.send(prefill(1, FIRST))
        calls = [await shard.early(decode(1), order) for order in (2, 3)]
        await shard.worker.reach(2)
        shard.worker.over[0].set()
        first = await calls[0]
        assert (first.order, len(first.tokens)) == (2, 1)
        assert not calls[1].done()
        shard.worker.over[1].set()
        assert (await calls[1]).order == 3
        assert await shard.code(decode(1), order=3) == grpc.StatusCode.ALREADY_EXISTS
    play_unhurried(story)


def test_an_answer_does_not_wait_for_the_message_that_ended_it(play_unhurried: Any) -> None:
    async def story(shard: Peer) -> None:
        await shard.send(prefill(1, FIRST))
        decoding = await shard.early(decode(1), 2)
        prefilling = await shard.early(prefill(1, Row(8, [1, 2, 3], [1])), 3)
        assert (await decoding).order == 2
        assert not prefilling.done()
        shard.worker.over[3].set()
        assert (await prefilling).order == 3
    play_unhurried(story)


def test_a_step_that_fails_late_ends_the_epoch_for_what_is_under_way_too(play_unhurried: Any) -> None:
    async def story(shard: Peer) -> None:
        await shard.send(prefill(1, FIRST))
        calls = [await shard.early(decode(1), order) for order in (2, 3, 5)]
        await shard.worker.reach(2)
        shard.worker.fails = True
        for over in shard.worker.over:
            over.set()
        codes = [await code_of(call) for call in calls]
        assert codes == [grpc.StatusCode.INTERNAL, grpc.StatusCode.FAILED_PRECONDITION,
                         grpc.StatusCode.FAILED_PRECONDITION]
        shard.worker.fails = False
        shard.worker.under_way.clear()
        await shard.reset()
        assert await shard.code(prefill(1, FIRST)) == grpc.StatusCode.OK
    play_unhurried(story)


def test_a_refusal_behind_it_does_not_matter_to_a_step_under_way(play_unhurried: Any) -> None:
    async def story(shard: Peer) -> None:
        await shard.send(prefill(1, FIRST))
        decoding = await shard.early(decode(1), 2)
        assert await shard.code(filtered(5, 7), order=3) == grpc.StatusCode.FAILED_PRECONDITION
        shard.worker.over[0].set()
        assert len((await decoding).tokens) == 1
        assert await shard.code(decode(1), order=4) == grpc.StatusCode.FAILED_PRECONDITION
    play_unhurried(story)


def test_the_end_comes_though_steps_are_under_way(play_unhurried: Any) -> None:
    calls = []

    async def story(shard: Peer) -> None:
        await shard.send(prefill(1, FIRST))
        calls.extend([await shard.early(decode(1), order) for order in (2, 3)])
        await shard.worker.reach(2)
    play_unhurried(story)
    assert all(call.done() for call in calls)
