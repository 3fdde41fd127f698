"""Behaviour of the service beyond the protocol: threads, late answers, and a clean stop."""

import asyncio
import threading
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from support.shards.protocol_messages import SequenceRow, make_decode, make_filter, make_prefill
from support.shards.shard_client import ShardClient, await_status_code
from support.shards.shard_client import play_scenario as play_with

from shard.pb import shard_pb2 as pb
from shard.pending_result import PendingResult
from shard.simulator.worker import SimulatedWorker

FIRST_SEQUENCE = SequenceRow(7, [1, 2, 3], [0])


@pytest.fixture
def play_scenario(tmp_path: Path) -> Any:
    return partial(play_with, SimulatedWorker, tmp_path)


def test_calls_are_counted(play_scenario: Any) -> None:
    async def scenario(shard: ShardClient) -> None:
        await shard.send(make_prefill(1, FIRST_SEQUENCE))
        await shard.send(make_decode(1))
        await shard.get_status_code(make_decode(2))
        assert shard.service.num_calls == {"Warmup": 1, "Reset": 1, "Prefill": 1, "Decode": 2}
    play_scenario(scenario)


def test_all_steps_run_in_the_same_thread(play_scenario: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    thread_ids, original_run = [], SimulatedWorker._run_step

    def record_thread_and_run(*args: Any) -> Any:
        thread_ids.append(threading.get_ident())
        return original_run(*args)

    async def scenario(shard: ShardClient) -> None:
        await shard.send(make_prefill(1, FIRST_SEQUENCE))
        await shard.reset()
        await shard.send(make_prefill(1, FIRST_SEQUENCE))
        assert len(set(thread_ids)) == 1
        assert thread_ids[0] != threading.get_ident()
    monkeypatch.setattr(SimulatedWorker, "_run_step", record_thread_and_run)
    play_scenario(scenario)


def test_a_late_answer_does_not_delay_later_ones(play_scenario: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(shard: ShardClient) -> None:
        delay_over = asyncio.Event()
        monkeypatch.setattr(asyncio, "sleep", lambda _: delay_over.wait())
        late = asyncio.ensure_future(await_status_code(shard.send(make_prefill(1, FIRST_SEQUENCE))))
        assert (await shard.send(make_decode(1), order=2)).order == 2
        assert not late.done()
        delay_over.set()
        assert await late == grpc.StatusCode.OK
    play_scenario(scenario, faults="late@prefill")


def test_slow_step_does_not_count_as_a_missing_message(play_scenario: Any) -> None:
    async def scenario(shard: ShardClient) -> None:
        slow = await shard.send_and_wait_for_receipt(make_prefill(1, FIRST_SEQUENCE), order=1)
        assert await shard.get_status_code(make_decode(1), order=2) == grpc.StatusCode.OK
        assert await await_status_code(slow) == grpc.StatusCode.OK
    play_scenario(scenario, gap_timeout=0.0, faults="slow@prefill:1:0.05")


def test_gap_timer_starts_with_the_first_early_message(play_scenario: Any) -> None:
    async def scenario(shard: ShardClient) -> None:
        early_calls = [await shard.send_and_wait_for_receipt(make_decode(1), 3)]
        gap_timer = shard.service._sequencer.epoch.gap_timer
        early_calls.append(await shard.send_and_wait_for_receipt(make_decode(1), 4))
        assert shard.service._sequencer.epoch.gap_timer is gap_timer
        await shard.send(make_prefill(1, FIRST_SEQUENCE), order=1)
        assert shard.service._sequencer.epoch.gap_timer is not gap_timer
        await shard.send(make_decode(1), order=2)
        assert [(await call).order for call in early_calls] == [3, 4]
    play_scenario(scenario)


def test_info_and_load_are_answered_during_a_step(play_scenario: Any) -> None:
    async def scenario(shard: ShardClient) -> None:
        hanging = await shard.send_and_wait_for_receipt(make_prefill(1, FIRST_SEQUENCE), 1)
        assert (await shard.stub.Info(pb.InfoRequest())).epoch == 1
        await shard.stub.Load(pb.LoadRequest(epoch=1, kind=pb.KIND_ADAPTER, id=3))
        hanging.cancel()
    play_scenario(scenario, faults="hang@prefill")


def test_new_epoch_counts_from_its_reset_while_old_steps_still_run(play_scenario: Any) -> None:
    async def scenario(shard: ShardClient) -> None:
        hanging = await shard.send_and_wait_for_receipt(make_prefill(1, FIRST_SEQUENCE), 1)
        resetting = shard.stub.Reset(pb.ResetRequest(epoch=2))
        await shard.call_counts.wait_for_count("Reset", 2)
        assert (await shard.stub.Info(pb.InfoRequest())).epoch == 2
        resetting.cancel()
        hanging.cancel()
    play_scenario(scenario, faults="hang@prefill")


def test_stopping_ends_hanging_and_queued_calls(play_scenario: Any) -> None:
    calls = []

    async def scenario(shard: ShardClient) -> None:
        calls.extend([await shard.send_and_wait_for_receipt(make_prefill(1, FIRST_SEQUENCE), 1),
                      await shard.send_and_wait_for_receipt(make_decode(1), 2),
                      await shard.send_and_wait_for_receipt(make_decode(1), 4)])
    play_scenario(scenario, faults="hang@prefill")
    assert all(call.done() for call in calls)


def test_step_stream_outcomes_come_in_message_order(play_scenario: Any) -> None:
    async def scenario(shard: ShardClient) -> None:
        step_stream = shard.stub.Steps()
        await step_stream.write(pb.StepMessage(prefill=shard.set_epoch_and_order(make_prefill(1, FIRST_SEQUENCE))))
        await step_stream.write(pb.StepMessage(decode=shard.set_epoch_and_order(make_decode(1))))
        await step_stream.write(pb.StepMessage(filter=shard.set_epoch_and_order(make_filter(1, 7))))
        outcomes = [await step_stream.read() for _ in range(3)]
        assert [outcome.WhichOneof("outcome") for outcome in outcomes] == ["step", "step", "acknowledgement"]
        assert [getattr(outcome, outcome.WhichOneof("outcome")).order for outcome in outcomes] == [1, 2, 3]
    play_scenario(scenario)


def test_rejected_message_does_not_end_the_step_stream(play_scenario: Any) -> None:
    async def scenario(shard: ShardClient) -> None:
        step_stream = shard.stub.Steps()
        await step_stream.write(pb.StepMessage(decode=shard.set_epoch_and_order(make_decode(1))))
        await step_stream.write(pb.StepMessage())
        outcomes = [await step_stream.read() for _ in range(2)]
        codes = [grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT]
        assert [outcome.trouble.code for outcome in outcomes] == [code.value[0] for code in codes]
        await shard.reset()
        await step_stream.write(pb.StepMessage(prefill=shard.set_epoch_and_order(make_prefill(1, FIRST_SEQUENCE))))
        assert (await step_stream.read()).step.order == 1
    play_scenario(scenario)


def test_step_streams_end_when_the_shard_stops(play_scenario: Any) -> None:
    async def scenario(shard: ShardClient) -> None:
        step_stream = shard.stub.Steps()
        await step_stream.write(pb.StepMessage(prefill=shard.set_epoch_and_order(make_prefill(1, FIRST_SEQUENCE))))
        await step_stream.read()
        shard.service.stop()
        assert await step_stream.read() is grpc.aio.EOF
    play_scenario(scenario)


# ---------------------------------------------------------------------------------------------------------------------
# Deferred answers


class DeferringWorker(SimulatedWorker):
    """Worker whose decodes end when their event is set, and may be rejected or fail then. A prefill waits for them and
    then for an event of its own."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.finish_events = [threading.Event() for _ in range(4)]
        self.pending_results: list[PendingResult[pb.StepAnswer]] = []
        self.started_decodes = threading.Semaphore(0)
        self.should_fail = False

    def decode(self, request: pb.DecodeRequest) -> Any:
        def finish() -> Any:
            if self.should_fail:
                raise ValueError("it broke")
            return SimulatedWorker.decode(self, request)

        self.pending_results.append(PendingResult(self.finish_events[len(self.pending_results)].wait, finish))
        self.started_decodes.release()
        return self.pending_results[-1]

    def prefill(self, request: pb.PrefillRequest) -> pb.StepAnswer:
        for pending_result in self.pending_results:
            pending_result.finish()
        if self.pending_results:
            self.finish_events[3].wait()
        return super().prefill(request)

    async def wait_for_decodes(self, count: int) -> None:
        for _ in range(count):
            await asyncio.to_thread(self.started_decodes.acquire)

    def close(self) -> None:
        super().close()
        for finish_event in self.finish_events:
            finish_event.set()


@pytest.fixture
def play_deferred_scenario(tmp_path: Path) -> Any:
    return partial(play_with, DeferringWorker, tmp_path)


def test_step_starts_while_the_previous_one_is_in_flight(play_deferred_scenario: Any) -> None:
    async def scenario(shard: ShardClient) -> None:
        await shard.send(make_prefill(1, FIRST_SEQUENCE))
        calls = [await shard.send_and_wait_for_receipt(make_decode(1), order) for order in (2, 3)]
        await shard.worker.wait_for_decodes(2)
        shard.worker.finish_events[0].set()
        first = await calls[0]
        assert (first.order, len(first.tokens)) == (2, 1)
        assert not calls[1].done()
        shard.worker.finish_events[1].set()
        assert (await calls[1]).order == 3
        assert await shard.get_status_code(make_decode(1), order=3) == grpc.StatusCode.ALREADY_EXISTS
    play_deferred_scenario(scenario)


def test_answer_does_not_wait_for_the_message_that_finished_it(play_deferred_scenario: Any) -> None:
    async def scenario(shard: ShardClient) -> None:
        await shard.send(make_prefill(1, FIRST_SEQUENCE))
        decoding = await shard.send_and_wait_for_receipt(make_decode(1), 2)
        prefilling = await shard.send_and_wait_for_receipt(make_prefill(1, SequenceRow(8, [1, 2, 3], [1])), 3)
        assert (await decoding).order == 2
        assert not prefilling.done()
        shard.worker.finish_events[3].set()
        assert (await prefilling).order == 3
    play_deferred_scenario(scenario)


def test_deferred_failure_ends_the_epoch_for_steps_in_flight(play_deferred_scenario: Any) -> None:
    async def scenario(shard: ShardClient) -> None:
        await shard.send(make_prefill(1, FIRST_SEQUENCE))
        calls = [await shard.send_and_wait_for_receipt(make_decode(1), order) for order in (2, 3, 5)]
        await shard.worker.wait_for_decodes(2)
        shard.worker.should_fail = True
        for finish_event in shard.worker.finish_events:
            finish_event.set()
        codes = [await await_status_code(call) for call in calls]
        assert codes == [grpc.StatusCode.INTERNAL, grpc.StatusCode.FAILED_PRECONDITION,
                         grpc.StatusCode.FAILED_PRECONDITION]
        shard.worker.should_fail = False
        shard.worker.pending_results.clear()
        await shard.reset()
        assert await shard.get_status_code(make_prefill(1, FIRST_SEQUENCE)) == grpc.StatusCode.OK
    play_deferred_scenario(scenario)


def test_later_rejection_does_not_affect_a_step_in_flight(play_deferred_scenario: Any) -> None:
    async def scenario(shard: ShardClient) -> None:
        await shard.send(make_prefill(1, FIRST_SEQUENCE))
        decoding = await shard.send_and_wait_for_receipt(make_decode(1), 2)
        assert await shard.get_status_code(make_filter(5, 7), order=3) == grpc.StatusCode.FAILED_PRECONDITION
        shard.worker.finish_events[0].set()
        assert len((await decoding).tokens) == 1
        assert await shard.get_status_code(make_decode(1), order=4) == grpc.StatusCode.FAILED_PRECONDITION
    play_deferred_scenario(scenario)


def test_stopping_ends_steps_in_flight(play_deferred_scenario: Any) -> None:
    calls = []

    async def scenario(shard: ShardClient) -> None:
        await shard.send(make_prefill(1, FIRST_SEQUENCE))
        calls.extend([await shard.send_and_wait_for_receipt(make_decode(1), order) for order in (2, 3)])
        await shard.worker.wait_for_decodes(2)
    play_deferred_scenario(scenario)
    assert all(call.done() for call in calls)
