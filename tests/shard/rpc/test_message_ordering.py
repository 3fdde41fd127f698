"""Tests of shard/rpc/message_ordering.py."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shard.errors import MalformedMessage, RejectedMessage, StartupOutOfMemory, StepOutOfMemory
from shard.pb import shard_pb2 as pb
from shard.pending_result import PendingResult
from shard.rpc.message_ordering import (
    SHARD_STOPPING,
    MessageSequencer,
    PendingCall,
    RpcStatus,
    call_or_status,
    make_pending_call,
    resolve_with_job,
)

StatusCode = grpc.StatusCode
Verb = Callable[[pb.DecodeRequest], Any]


def is_over(reason: str, epoch: int = 1) -> RpcStatus:
    """Return the outcome of a message that comes after the end of its epoch."""
    return RpcStatus(StatusCode.FAILED_PRECONDITION, f"epoch {epoch} is over: {reason}")


class SequencerSetup:
    """Sequencer in epoch 1, with the orders of the messages that were applied."""

    def __init__(self, compute_executor: ThreadPoolExecutor, waiting_executor: ThreadPoolExecutor,
                 gap_timeout: float) -> None:
        self.compute_executor, self.waiting_executor = compute_executor, waiting_executor
        self.sequencer = MessageSequencer(compute_executor, waiting_executor, gap_timeout)
        self.applied: list[object] = []
        self.has_started = threading.Event()
        self.may_continue = threading.Event()  # set at the end of a scenario

    def apply(self, request: pb.DecodeRequest) -> int:
        self.applied.append(request.order)
        return request.order

    def fail(self, request: pb.DecodeRequest) -> None:
        self.apply(request)
        raise RejectedMessage(f"no {request.order}")

    def apply_when_allowed(self, request: pb.DecodeRequest) -> int:
        self.has_started.set()
        self.may_continue.wait()
        return self.apply(request)

    def begin_epoch(self, number: int, reset: Callable[[], Any] | None = None) -> PendingCall[Any]:
        return self.sequencer.begin_epoch(number, reset or (lambda: self.applied.append("reset")))

    def receive(self, order: int, verb: Verb | None = None, epoch: int = 1) -> "asyncio.Future[Any]":
        """Receive a message, which `verb` applies, and return its outcome."""
        return self.sequencer.receive(pb.DecodeRequest(epoch=epoch, order=order), verb or self.apply).outcome


def run_scenario(scenario: Callable[[SequencerSetup], Awaitable[None]], gap_timeout: float = 60.0) -> None:
    async def main(setup: SequencerSetup) -> None:
        await setup.begin_epoch(1).outcome
        setup.applied.clear()
        try:
            await asyncio.wait_for(scenario(setup), 5.0)
        finally:
            setup.may_continue.set()

    with ThreadPoolExecutor(1, "compute") as compute_executor, ThreadPoolExecutor(1, "waiting") as waiting_executor:
        asyncio.run(main(SequencerSetup(compute_executor, waiting_executor, gap_timeout)))


async def wait_for_timers() -> None:
    """Wait until every timer that is due has fired."""
    fired = asyncio.Event()
    asyncio.get_running_loop().call_later(0.0, fired.set)
    await fired.wait()


# -- order


@settings(max_examples=30)
@given(st.permutations(range(1, 7)), st.sets(st.integers(1, 6), max_size=3))
def test_messages_take_effect_in_their_order_up_to_the_first_failure(arrival: list[int], failing: set[int]) -> None:
    async def scenario(setup: SequencerSetup) -> None:
        outcomes = {order: setup.receive(order, setup.fail if order in failing else None) for order in arrival}
        await asyncio.gather(*outcomes.values())
        last = min(failing, default=6)
        assert setup.applied == [*range(1, last + 1)]
        for order in range(1, 7):
            expected = (order if order < last or not failing else is_over(f"no {last}") if order > last
                        else RpcStatus(StatusCode.FAILED_PRECONDITION, f"no {last}"))
            assert outcomes[order].result() == expected
    run_scenario(scenario)


@settings(max_examples=30)
@given(st.lists(st.integers(1, 6), max_size=10))
def test_every_order_is_used_once_and_none_behind_a_gap(orders: list[int]) -> None:
    async def scenario(setup: SequencerSetup) -> None:
        outcomes = [setup.receive(order) for order in orders]
        setup.sequencer.end_epoch("the test ends")
        first_missing = next(order for order in range(1, 8) if order not in orders)
        for index, order in enumerate(orders):
            expected = (RpcStatus(StatusCode.ALREADY_EXISTS, f"message {order} was taken before")
                        if order in orders[:index] else order if order < first_missing else is_over("the test ends"))
            assert await outcomes[index] == expected
            assert (await setup.receive(order)).code is StatusCode.ALREADY_EXISTS
        assert setup.applied == [*range(1, first_missing)]
    run_scenario(scenario)


@pytest.mark.parametrize(("order", "epoch", "code", "reason"), [
    (2, 0, StatusCode.FAILED_PRECONDITION, "the message is of epoch 0, in force is 1"),
    (2, 2, StatusCode.FAILED_PRECONDITION, "the message is of epoch 2, in force is 1"),
    (0, 1, StatusCode.INVALID_ARGUMENT, "orders are counted from 1"),
    (1, 1, StatusCode.ALREADY_EXISTS, "message 1 was taken before"),
    (3, 1, StatusCode.ALREADY_EXISTS, "message 3 was taken before")])
def test_message_without_a_place_is_rejected_at_once_and_changes_nothing(order: int, epoch: int, code: Any,
                                                                         reason: str) -> None:
    async def scenario(setup: SequencerSetup) -> None:
        first, early = setup.receive(1, setup.apply_when_allowed), setup.receive(3)
        assert setup.receive(order, epoch=epoch).result() == RpcStatus(code, reason)
        setup.may_continue.set()
        assert [await outcome for outcome in (first, setup.receive(2), early)] == setup.applied == [1, 2, 3]
    run_scenario(scenario)


def test_message_is_applied_although_nobody_waits_for_it_any_more() -> None:
    async def scenario(setup: SequencerSetup) -> None:
        setup.receive(1, setup.apply_when_allowed).cancel()
        setup.may_continue.set()
        assert await setup.receive(2) == 2
        assert setup.applied == [1, 2]
    run_scenario(scenario)


# -- gaps


def test_missing_message_ends_the_epoch_and_is_named() -> None:
    async def scenario(setup: SequencerSetup) -> None:
        reason = "message 2 did not arrive within 0.0 seconds of a later one"
        outcomes = [setup.receive(order) for order in (1, 4, 3)]
        assert [await outcome for outcome in outcomes] == [1, is_over(reason), is_over(reason)]
        assert await setup.receive(2) == is_over(reason)
    run_scenario(scenario, gap_timeout=0.0)


@pytest.mark.parametrize("arrival", [[1], [1, 2], [2, 1], [3, 2, 1]], ids=str)
def test_no_timer_runs_while_no_message_is_missing(arrival: list[int]) -> None:
    async def scenario(setup: SequencerSetup) -> None:
        outcomes = [setup.receive(order) for order in arrival]
        await wait_for_timers()
        assert await setup.receive(len(arrival) + 1) == len(arrival) + 1
        assert [await outcome for outcome in outcomes] == arrival
    run_scenario(scenario, gap_timeout=0.0)


def test_time_for_a_message_begins_anew_when_the_one_before_has_arrived() -> None:
    async def scenario(setup: SequencerSetup) -> None:
        setup.receive(5)
        first_timer = setup.sequencer.epoch.gap_timer
        setup.receive(4)
        assert setup.sequencer.epoch.gap_timer is first_timer
        setup.receive(1)
        assert first_timer is not None
        assert first_timer.cancelled()
        assert setup.sequencer.epoch.missing_order == 2
        await setup.receive(2)
    run_scenario(scenario)


def test_gap_in_an_epoch_does_not_end_the_next_one() -> None:
    async def scenario(setup: SequencerSetup) -> None:
        early = setup.receive(2)
        setup.begin_epoch(2)
        await wait_for_timers()
        assert await early == is_over("another epoch was started")
        assert await setup.receive(1, epoch=2) == 1
    run_scenario(scenario, gap_timeout=0.0)


# -- epochs


def test_nothing_is_applied_before_the_first_reset() -> None:
    async def main() -> None:
        sequencer = MessageSequencer(compute_executor, compute_executor, 60.0)
        pending_call = sequencer.receive(pb.DecodeRequest(epoch=0, order=1), pytest.fail)
        assert await pending_call.outcome == is_over("there was no Reset yet", 0)

    with ThreadPoolExecutor(1) as compute_executor:
        asyncio.run(main())


def test_queued_messages_are_applied_although_their_epoch_ends() -> None:
    """The other ranks apply them too."""
    async def scenario(setup: SequencerSetup) -> None:
        outcomes = [setup.receive(1, setup.apply_when_allowed), setup.receive(2), setup.receive(4)]
        setup.sequencer.end_epoch("the test ends")
        assert outcomes[2].result() == is_over("the test ends")
        setup.may_continue.set()
        assert [await outcome for outcome in outcomes[:2]] == [1, 2]
    run_scenario(scenario)


def test_epoch_keeps_the_reason_for_which_it_ended_first() -> None:
    async def scenario(setup: SequencerSetup) -> None:
        for reason in ("first", "second"):
            setup.sequencer.end_epoch(reason)
        assert await setup.receive(1) == is_over("first")
    run_scenario(scenario)


def test_failure_is_the_reason_even_if_the_epoch_is_closed_as_well() -> None:
    async def scenario(setup: SequencerSetup) -> None:
        await setup.receive(1, setup.fail)
        setup.sequencer.end_epoch("the test ends")
        assert await setup.receive(2) == is_over("no 1")
    run_scenario(scenario)


def test_new_epoch_is_in_force_at_once_and_its_reset_runs_behind_earlier_messages() -> None:
    async def scenario(setup: SequencerSetup) -> None:
        old = setup.receive(1, setup.apply_when_allowed)
        reset = setup.begin_epoch(2, lambda: "done").outcome
        new = setup.receive(1, epoch=2)
        assert (setup.sequencer.epoch.number, reset.done(), new.done()) == (2, False, False)
        setup.may_continue.set()
        assert [await outcome for outcome in (old, reset, new)] == [1, "done", 1]
    run_scenario(scenario)


def test_failed_reset_ends_its_epoch() -> None:
    async def scenario(setup: SequencerSetup) -> None:
        def reject() -> None:
            raise RejectedMessage("no reset")

        reset = setup.begin_epoch(2, reject).outcome
        assert await setup.receive(1, epoch=2) == is_over("no reset", 2)
        assert await reset == RpcStatus(StatusCode.FAILED_PRECONDITION, "no reset")
        assert await setup.begin_epoch(3).outcome is None
        assert await setup.receive(1, epoch=3) == 1
    run_scenario(scenario)


def test_failure_in_an_earlier_epoch_does_not_end_the_current_one() -> None:
    async def scenario(setup: SequencerSetup) -> None:
        old = setup.receive(1, lambda request: setup.may_continue.wait() and setup.fail(request))
        setup.begin_epoch(2)
        new = setup.receive(1, epoch=2)
        setup.may_continue.set()
        assert (await old, await new) == (RpcStatus(StatusCode.FAILED_PRECONDITION, "no 1"), 1)
    run_scenario(scenario)


# -- pending results


def test_pending_result_is_waited_for_and_finished_once_each_in_its_thread() -> None:
    thread_names = []

    def finish() -> str:
        thread_names.append(threading.current_thread().name)
        return "done"

    def decode(_: pb.DecodeRequest) -> PendingResult[str]:
        return PendingResult(lambda: thread_names.append(threading.current_thread().name), finish)

    async def scenario(setup: SequencerSetup) -> None:
        assert await setup.receive(1, decode) == "done"
        assert [name.partition("_")[0] for name in thread_names] == ["waiting", "compute"]
    run_scenario(scenario)


def test_later_messages_are_applied_while_a_result_is_pending() -> None:
    async def scenario(setup: SequencerSetup) -> None:
        pending = setup.receive(1, lambda _: PendingResult(setup.may_continue.wait, lambda: "late"))
        assert await setup.receive(2) == 2
        assert not pending.done()
        setup.may_continue.set()
        assert await pending == "late"
    run_scenario(scenario)


def test_message_that_finishes_a_pending_result_has_it_answered_first() -> None:
    async def scenario(setup: SequencerSetup) -> None:
        pending_result = PendingResult(setup.may_continue.wait, lambda: "early")
        pending = setup.receive(1, lambda _: pending_result)
        behind = setup.receive(2, lambda request: (pending_result.finish(), setup.apply_when_allowed(request)))
        assert (await pending, behind.done()) == ("early", False)
        setup.may_continue.set()
        assert await behind == ("early", 2)
    run_scenario(scenario)


@pytest.mark.parametrize(("error", "code"), [
    (MalformedMessage("it is broken"), StatusCode.INVALID_ARGUMENT),
    (RejectedMessage("it is broken"), StatusCode.FAILED_PRECONDITION),
    (StepOutOfMemory("it is broken"), StatusCode.RESOURCE_EXHAUSTED)], ids=repr)
def test_failed_pending_result_discards_those_behind_it_and_ends_the_epoch(error: Exception, code: Any) -> None:
    def raise_error() -> None:
        raise error

    async def scenario(setup: SequencerSetup) -> None:
        outcomes = [setup.receive(1, lambda _: PendingResult(setup.may_continue.wait, raise_error)),
                    setup.receive(2, lambda _: PendingResult(setup.may_continue.wait, lambda: "discarded"))]
        assert await setup.receive(3) == 3
        early = setup.receive(5)
        setup.may_continue.set()
        assert [await outcome for outcome in outcomes] == [RpcStatus(code, "it is broken"), is_over("it is broken")]
        assert await early == is_over("it is broken")
        assert await setup.receive(4) == is_over("it is broken")
    run_scenario(scenario)


def test_pending_result_survives_the_failure_of_a_message_behind_it() -> None:
    async def scenario(setup: SequencerSetup) -> None:
        pending = setup.receive(1, lambda _: PendingResult(setup.may_continue.wait, lambda: "done"))
        assert (await setup.receive(2, setup.fail)).reason == "no 2"
        setup.may_continue.set()
        assert await pending == "done"
        assert await setup.receive(3) == is_over("no 2")
    run_scenario(scenario)


def test_failed_pending_result_of_an_earlier_epoch_does_not_end_the_current_one() -> None:
    async def scenario(setup: SequencerSetup) -> None:
        pending = setup.receive(1, lambda _: PendingResult(setup.may_continue.wait, lambda: setup.fail(
            pb.DecodeRequest(order=1))))
        await setup.begin_epoch(2).outcome
        setup.may_continue.set()
        assert await pending == RpcStatus(StatusCode.FAILED_PRECONDITION, "no 1")
        assert await setup.receive(1, epoch=2) == 1
    run_scenario(scenario)


def test_failure_to_wait_does_not_keep_a_result_from_being_finished() -> None:
    def fail_to_wait() -> None:
        raise RuntimeError("the device is gone")

    async def scenario(setup: SequencerSetup) -> None:
        assert await setup.receive(1, lambda _: PendingResult(fail_to_wait, lambda: "done")) == "done"
    run_scenario(scenario)


# -- the end of the shard


def test_queued_messages_of_a_stopping_shard_are_unavailable() -> None:
    async def scenario(setup: SequencerSetup) -> None:
        running, queued = setup.receive(1, setup.apply_when_allowed), setup.receive(2)
        await asyncio.to_thread(setup.has_started.wait)
        setup.compute_executor.shutdown(wait=False, cancel_futures=True)
        assert await queued == SHARD_STOPPING
        setup.may_continue.set()
        assert (await running, setup.applied) == (1, [1])
    run_scenario(scenario)


def test_pending_results_of_a_stopping_shard_are_unavailable() -> None:
    async def scenario(setup: SequencerSetup) -> None:
        pending = setup.receive(1, lambda _: PendingResult(setup.may_continue.wait, pytest.fail))
        await setup.receive(2)
        setup.compute_executor.shutdown(wait=False)
        setup.may_continue.set()
        assert await pending == SHARD_STOPPING
    run_scenario(scenario)


def test_pending_result_whose_finish_is_cancelled_is_unavailable() -> None:
    async def scenario(setup: SequencerSetup) -> None:
        pending = setup.receive(1, lambda _: PendingResult(lambda: None, pytest.fail))
        behind = setup.receive(2, setup.apply_when_allowed)
        await asyncio.to_thread(setup.has_started.wait)
        await asyncio.get_running_loop().run_in_executor(setup.waiting_executor, int)  # `pytest.fail` is queued by now
        setup.compute_executor.shutdown(wait=False, cancel_futures=True)
        assert await pending == SHARD_STOPPING
        setup.may_continue.set()
        assert await behind == 2
    run_scenario(scenario)


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_call_without_an_order_has_the_outcome_of_its_job(is_cancelled: bool) -> None:
    async def main() -> None:
        pending_call, job = make_pending_call(lambda: None), asyncio.get_running_loop().create_future()
        job.cancel() if is_cancelled else job.set_result("done")
        resolve_with_job(pending_call, job)
        assert await pending_call.outcome == (SHARD_STOPPING if is_cancelled else "done")
    asyncio.run(main())


# -- errors


@pytest.mark.parametrize(("error", "failure", "is_logged"), [
    (MalformedMessage("no"), RpcStatus(StatusCode.INVALID_ARGUMENT, "no"), False),
    (RejectedMessage("no"), RpcStatus(StatusCode.FAILED_PRECONDITION, "no"), False),
    (StartupOutOfMemory("no"), RpcStatus(StatusCode.RESOURCE_EXHAUSTED, "no"), False),
    (StepOutOfMemory("no"), RpcStatus(StatusCode.RESOURCE_EXHAUSTED, "no"), True),
    (ValueError("no"), RpcStatus(StatusCode.INTERNAL, "ValueError: no"), True)], ids=repr)
def test_error_has_its_status_and_is_logged_if_a_step_failed(error: Exception, failure: RpcStatus, is_logged: bool,
                                                             caplog: pytest.LogCaptureFixture) -> None:
    def raise_error() -> None:
        raise error

    assert call_or_status(raise_error) == failure
    assert bool(caplog.records) == is_logged
