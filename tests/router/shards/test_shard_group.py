"""All ranks as one object, against scripted servers that record every message."""

import asyncio
import socket
from contextlib import AsyncExitStack
from functools import partial
from types import SimpleNamespace
from typing import get_args

import grpc
import pytest
import uvloop

from router.scheduler.fault_isolation import ShardLossReason
from router.shards import shard_group as module
from router.shards.failures import ShardsLost
from router.shards.message_conversion import ShardRequest
from router.shards.shard_group import VERBS, ShardGroup, is_hung
from shard.pb import shard_pb2 as pb
from shard.rpc.server import GRPC_OPTIONS
from shard.rpc.service import StepStreamServer

Code = grpc.StatusCode
ANSWER_TYPES = dict(VERBS.values())
OUTCOME_FIELDS = {pb.StepAnswer: "step", pb.Acknowledgement: "acknowledgement", pb.EmbedAnswer: "embed"}
STEP_ANSWER = pb.StepAnswer(epoch=1, order=1, sequences=[7], tokens=[8], logprobs=[-1.0])


class AsyncBarrier:
    """Barrier that opens when `size` callers wait."""

    def __init__(self, size):
        self._missing = size
        self._complete = asyncio.Event()

    async def wait(self):
        self._missing -= 1
        if not self._missing:
            self._complete.set()
        await self._complete.wait()


class ScriptedRank(grpc.GenericRpcHandler):
    """Scripted server of one rank. `answers` has for each method a message, a status, or an Event or AsyncBarrier to
    wait for before the default, or a later entry for the method, is sent."""

    def __init__(self, address):
        self.address = address
        self.answers = {}
        self.received_calls = []
        self.num_watchers = 0
        self.was_called = asyncio.Event()
        self.watch_started = asyncio.Event()
        self.watch_ended = asyncio.Event()
        self.is_silent = asyncio.Event()  # set: Watch sends no first message

    def service(self, details):
        method = details.method.rsplit("/", 1)[1]
        if method == "Watch":
            return grpc.unary_stream_rpc_method_handler(self._watch)
        if method == "Steps":
            return grpc.stream_stream_rpc_method_handler(
                self._serve_steps, pb.StepMessage.FromString, pb.StepOutcome.SerializeToString)
        return grpc.unary_unary_rpc_method_handler(partial(self._answer, method))

    async def _answer(self, method, message, context):
        answer = await self._next_answer(method, message)
        if isinstance(answer, Code):
            await context.abort(answer, "told so")
        return answer.SerializeToString()

    async def _serve_steps(self, messages, context):
        line = StepStreamServer(lambda message: asyncio.create_task(self._answer_step(message)),
                                lambda outcome: outcome)
        await line.serve(messages, context)

    async def _answer_step(self, message):
        verb = message.WhichOneof("verb")
        answer = await self._next_answer(verb.capitalize(), getattr(message, verb).SerializeToString())
        if isinstance(answer, Code):
            return pb.StepOutcome(trouble=pb.Trouble(code=answer.value[0], reason="told so"))
        return pb.StepOutcome(**{OUTCOME_FIELDS[type(answer)]: answer})

    async def _next_answer(self, method, message):
        self.received_calls.append((method, message))
        self.was_called.set()
        answer = self.answers.get(method, ANSWER_TYPES[method]())
        if isinstance(answer, asyncio.Event | AsyncBarrier):
            await answer.wait()
            now = self.answers.get(method)
            return ANSWER_TYPES[method]() if now is answer else now
        return answer

    async def _watch(self, message, context):
        self.num_watchers += 1
        self.watch_started.set()
        try:
            if not self.is_silent.is_set():
                await context.write(b"")
            await asyncio.Event().wait()
        finally:
            self.num_watchers -= 1
            self.watch_ended.set()

    async def listen(self):
        self.server = grpc.aio.server(options=GRPC_OPTIONS)
        self.server.add_generic_rpc_handlers([self])
        self.server.add_insecure_port(self.address)
        await self.server.start()
        return self

    async def stop(self):
        await self.server.stop(0.1)  # lets calls end that were just closed by the client
        del self.server


@pytest.fixture(params=["stream", "unary"])
def transport(request):
    return request.param


def run_scenario(scenario, folder, num_ranks=1, transport="stream"):
    """Run a scenario with connected shards and the servers of their ranks."""
    async def main():
        async with AsyncExitStack() as stack:
            servers = [await ScriptedRank(f"unix:{folder}/{rank}").listen() for rank in range(num_ranks)]
            for server in servers:
                stack.push_async_callback(server.stop)
            shards = ShardGroup([server.address for server in servers], transport)
            stack.push_async_callback(shards.close)
            await shards.connect()
            await scenario(shards, *servers)
        if others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others, timeout=2.0)  # lets tasks end that are about to
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def test_every_rank_gets_the_same_bytes(tmp_path, transport):
    async def scenario(shards, *ranks):
        messages = [pb.FilterRequest(epoch=3, order=8, batch=1), pb.DecodeRequest(epoch=3, order=9, batch=1)]
        await shards.send(messages, 5.0)
        sealed = [("Filter", messages[0].SerializeToString()), ("Decode", messages[1].SerializeToString())]
        assert [sorted(rank.received_calls) for rank in ranks] == [sorted(sealed)] * 3
    run_scenario(scenario, tmp_path, transport=transport, num_ranks=3)


def test_answer_comes_from_rank_0_for_the_last_message(tmp_path, transport):
    async def scenario(shards, first, second):
        first.answers["Decode"] = STEP_ANSWER
        second.answers["Decode"] = pb.StepAnswer(epoch=1, order=1)
        assert await shards.send([pb.FilterRequest(), pb.DecodeRequest()], 5.0) == STEP_ANSWER
    run_scenario(scenario, tmp_path, transport=transport, num_ranks=2)


def test_messages_do_not_wait_for_earlier_answers(tmp_path, transport):
    async def scenario(shards, rank):
        rank.answers["Decode"] = rank.answers["Filter"] = AsyncBarrier(2)
        await shards.send([pb.FilterRequest(), pb.DecodeRequest()], 5.0)
    run_scenario(scenario, tmp_path, transport=transport)


def test_send_waits_for_the_answers_of_all_ranks(tmp_path, transport):
    async def scenario(shards, first, second):
        first.answers["Decode"], second.answers["Decode"] = STEP_ANSWER, asyncio.Event()
        answer = asyncio.ensure_future(shards.send([pb.DecodeRequest()], 5.0))
        await second.was_called.wait()
        assert not answer.done()
        second.answers["Decode"].set()
        assert await answer == STEP_ANSWER
    run_scenario(scenario, tmp_path, transport=transport, num_ranks=2)


@pytest.mark.parametrize(("code", "loss"), [
    (Code.INTERNAL, ShardLossReason.STEP_ERROR),
    (Code.RESOURCE_EXHAUSTED, ShardLossReason.MEMORY),
    (Code.FAILED_PRECONDITION, ShardLossReason.DEFECT),
    (Code.INVALID_ARGUMENT, ShardLossReason.DEFECT),
    (Code.ALREADY_EXISTS, ShardLossReason.DEFECT),
    (Code.UNAVAILABLE, ShardLossReason.DEATH),
    (Code.UNKNOWN, ShardLossReason.DEATH),
])
def test_rpc_status_determines_the_kind_of_loss(tmp_path, transport, code, loss):
    async def scenario(shards, rank):
        rank.answers["Decode"] = code
        with pytest.raises(ShardsLost, match=f"{code.name.lower()}: told so") as lost:
            await shards.send([pb.DecodeRequest()], 5.0)
        assert (lost.value.loss_reason, lost.value.needs_restart) == (loss, False)
    run_scenario(scenario, tmp_path, transport=transport)


@pytest.mark.parametrize("wrong", [pb.Acknowledgement(), pb.EmbedAnswer()])
def test_answer_of_the_wrong_type_is_a_defect_on_any_rank(tmp_path, wrong):
    async def scenario(shards, _, second):
        second.answers["Decode"] = wrong
        with pytest.raises(ShardsLost, match=f"{type(wrong).__name__} came as an answer to DecodeRequest") as lost:
            await shards.send([pb.FilterRequest(), pb.DecodeRequest()], 5.0)
        assert (lost.value.loss_reason, lost.value.needs_restart) == (ShardLossReason.DEFECT, False)
    run_scenario(scenario, tmp_path, num_ranks=2)


@pytest.mark.parametrize("code", [Code.INTERNAL, Code.RESOURCE_EXHAUSTED])
def test_rank_that_failed_in_a_step_forces_a_restart_of_all_ranks(tmp_path, transport, code):
    """Other ranks may wait for the failed rank for ever. The failure is reported, not the first rank's rejection."""
    async def scenario(shards, first, second):
        first.answers["Decode"], second.answers["Decode"] = Code.FAILED_PRECONDITION, code
        with pytest.raises(ShardsLost) as lost:
            await shards.send([pb.DecodeRequest()], 5.0)
        assert (lost.value.loss_reason, lost.value.needs_restart) == (ShardLossReason.DEATH, True)
    run_scenario(scenario, tmp_path, transport=transport, num_ranks=2)


def test_shard_that_accepts_but_does_not_respond_needs_a_restart(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "HANG_PROBE_TIMEOUT_SECONDS", 0.05)

    async def scenario():
        shards = ShardGroup([f"unix:{tmp_path}/shard", f"unix:{tmp_path}/nobody"])
        with pytest.raises(ShardsLost, match="does not speak") as lost:
            await shards.connect()
        assert lost.value.needs_restart
        await shards.close()

    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(f"{tmp_path}/shard")
        mute.listen()
        asyncio.run(scenario())


def test_cancellation_while_connecting_fails_is_not_swallowed():
    """A server that is asked to stop while it connects must not go on connecting."""
    async def scenario():
        shards = ShardGroup(["unix:/first", "unix:/second"])
        has_failed, has_ended = asyncio.Event(), asyncio.Event()

        async def fail():
            has_failed.set()
            raise ShardsLost(ShardLossReason.DEATH, "it has gone")

        async def end_slowly():
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0.01)
                has_ended.set()

        async def stop_streams():
            pass

        shards._ranks = [SimpleNamespace(wait_until_ready=wait, stop_streams=stop_streams)
                         for wait in (fail, end_slowly)]
        connecting = asyncio.create_task(shards.connect())
        await has_failed.wait()
        await asyncio.sleep(0.001)
        connecting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await connecting
        await has_ended.wait()

    asyncio.run(scenario())


def test_responsive_absent_or_closing_server_is_not_unresponsive(tmp_path):
    async def scenario():
        async def answer(_, writer):
            writer.close()

        address = f"{tmp_path}/shard"
        assert not await is_hung(f"unix:{address}")
        assert not await is_hung("127.0.0.1:1")
        async with await asyncio.start_unix_server(answer, address):
            assert not await is_hung(f"unix:{address}")
    asyncio.run(scenario())


@pytest.mark.parametrize("before", [pb.FilterRequest(), pb.ConcatRequest()])
def test_failure_before_a_step_is_not_blamed_on_its_sequences(tmp_path, transport, before):
    async def scenario(shards, rank):
        rank.answers |= {VERBS[type(before)][0]: Code.INTERNAL, "Decode": Code.FAILED_PRECONDITION}
        with pytest.raises(ShardsLost, match="told so") as lost:
            await shards.send([before, pb.DecodeRequest()], 5.0)
        assert lost.value.loss_reason is ShardLossReason.DEFECT
    run_scenario(scenario, tmp_path, transport=transport)


def test_loss_is_raised_after_every_rank_has_answered(tmp_path, transport):
    async def scenario(shards, first, second):
        first.answers["Decode"], second.answers["Decode"] = Code.FAILED_PRECONDITION, asyncio.Event()
        answer = asyncio.ensure_future(shards.send([pb.DecodeRequest()], 5.0))
        await second.was_called.wait()
        assert not answer.done()
        second.answers["Decode"].set()
        with pytest.raises(ShardsLost):
            await answer
    run_scenario(scenario, tmp_path, transport=transport, num_ranks=2)


def test_overdue_answer_means_that_a_shard_hangs(tmp_path, transport):
    async def scenario(shards, first, second):
        second.answers["Decode"] = asyncio.Event()
        with pytest.raises(ShardsLost) as lost:
            await shards.send([pb.DecodeRequest()], 0.05)
        assert (lost.value.loss_reason, lost.value.needs_restart) == (ShardLossReason.DEATH, True)
    run_scenario(scenario, tmp_path, transport=transport, num_ranks=2)


def test_restarted_shard_is_found_at_the_same_path(tmp_path):
    async def scenario(shards, rank):
        await rank.stop()
        with pytest.raises(ShardsLost) as lost:
            await shards.call(pb.InfoRequest(), 5.0)
        assert lost.value.loss_reason is ShardLossReason.DEATH
        await rank.listen()
        await shards.connect()
        assert await shards.call(pb.InfoRequest(), 5.0) == [pb.InfoAnswer()]
    run_scenario(scenario, tmp_path)


def test_connecting_waits_until_every_rank_listens(tmp_path):
    async def scenario(shards, first, second):
        await second.stop()
        late = ShardGroup([first.address, second.address])
        connected = asyncio.ensure_future(late.connect())
        await first.watch_started.wait()
        assert not connected.done()
        await second.listen()
        await connected
        await late.close()
    run_scenario(scenario, tmp_path, num_ranks=2)


def test_every_rank_is_monitored_until_the_router_closes(tmp_path):
    async def scenario(shards, *ranks):
        for rank in ranks:
            await rank.watch_started.wait()
            rank.watch_started.clear()
        await shards.connect()
        for rank in ranks:
            await rank.watch_started.wait()
            await rank.watch_ended.wait()
            rank.watch_ended.clear()
        assert [rank.num_watchers for rank in ranks] == [1, 1]
        await shards.close()
        for rank in ranks:
            await rank.watch_ended.wait()
    run_scenario(scenario, tmp_path, num_ranks=2)


def test_restarted_rank_is_monitored_too(tmp_path):
    async def scenario(shards, rank):
        await rank.watch_started.wait()
        rank.watch_started.clear()
        await rank.stop()
        with pytest.raises(ShardsLost):
            await shards.call(pb.InfoRequest(), 5.0)
        await rank.listen()
        await shards.connect()
        await rank.watch_started.wait()
    run_scenario(scenario, tmp_path)


@pytest.mark.parametrize("request_type", [pb.InfoRequest, pb.WarmupRequest, pb.ResetRequest, pb.LoadRequest,
                                          pb.UnloadRequest])
def test_calls_outside_steps_go_to_all_ranks(tmp_path, request_type):
    async def scenario(shards, *ranks):
        if request_type in {pb.LoadRequest, pb.UnloadRequest}:
            await shards.load_or_unload(request_type())
        else:
            await shards.call(request_type(), 5.0)
        assert [rank.received_calls[0][0] for rank in ranks] == [VERBS[request_type][0]] * 2
    run_scenario(scenario, tmp_path, num_ranks=2)


@pytest.mark.parametrize("name", ["load", "unload"])
@pytest.mark.parametrize("code", [Code.FAILED_PRECONDITION, Code.INVALID_ARGUMENT, Code.INTERNAL])
def test_failed_load_or_unload_on_one_rank_returns_a_reason(tmp_path, name, code):
    async def scenario(shards, *ranks):
        ranks[1].answers[name.capitalize()] = code
        request = {"load": pb.LoadRequest(), "unload": pb.UnloadRequest()}[name]
        assert await shards.load_or_unload(request) == "told so"
        del ranks[1].answers[name.capitalize()]
        assert await shards.load_or_unload(request) == ""
        assert not shards.is_disconnected
    run_scenario(scenario, tmp_path, num_ranks=2)


def test_shard_lost_during_a_load_is_marked_as_disconnected(tmp_path):
    async def scenario(shards, rank):
        gone = asyncio.Event()
        shards.on_disconnect = gone.set
        rank.answers["Load"] = Code.UNAVAILABLE
        with pytest.raises(ShardsLost) as lost:
            await shards.load_or_unload(pb.LoadRequest())
        assert lost.value.loss_reason is ShardLossReason.DEATH
        assert shards.is_disconnected
        await gone.wait()
    run_scenario(scenario, tmp_path)


def test_late_load_failure_does_not_affect_reconnected_shards(tmp_path):
    async def scenario(shards, rank):
        rank.answers["Load"] = loses = asyncio.Event()
        loading = asyncio.create_task(shards.load_or_unload(pb.LoadRequest()))
        await rank.was_called.wait()
        await shards.connect()
        rank.answers["Load"] = Code.UNAVAILABLE
        loses.set()
        with pytest.raises(ShardsLost):
            await loading
        assert not shards.is_disconnected
    run_scenario(scenario, tmp_path)


def test_rank_that_does_not_respond_fails_all_that_waits_for_any_rank(tmp_path, transport):
    async def scenario(shards, *ranks):
        for rank in ranks:
            rank.answers["Load"] = rank.answers["Decode"] = asyncio.Event()
        step, load = shards.send([pb.DecodeRequest(order=1)], 60.0), asyncio.create_task(
            shards.load_or_unload(pb.LoadRequest()))
        await ranks[1].was_called.wait()
        shards._fail_all_ranks(1)
        for waiting in (step, load):
            with pytest.raises(ShardsLost) as lost:
                await waiting
            assert lost.value.loss_reason is ShardLossReason.DEATH
        assert shards.is_disconnected
        loss = shards.make_disconnect_loss()
        assert loss.needs_restart
        assert "shard 1 does not respond for 5 seconds (--shard-response-timeout)" in str(loss)
        await shards.connect()
        assert not shards.is_disconnected
        assert not shards.hang_reason
        for rank in ranks:
            rank.answers["Load"].set()  # so that no answer of the lost connection is left waiting
    run_scenario(scenario, tmp_path, num_ranks=2, transport=transport)


def test_large_messages_pass_in_both_directions(tmp_path):
    async def scenario(shards, rank):
        large = "x" * 5 * 2**20  # beyond gRPC's default limit of 4 MiB
        rank.answers["Info"] = pb.InfoAnswer(model=large)
        await shards.load_or_unload(pb.LoadRequest(source=large))
        assert await shards.call(pb.InfoRequest(), 30.0) == [pb.InfoAnswer(model=large)]
    run_scenario(scenario, tmp_path)


def test_closing_twice_is_harmless(tmp_path):
    async def scenario(shards, rank):
        await shards.close()
        await shards.close()
    run_scenario(scenario, tmp_path)


def test_late_first_health_message_does_not_end_monitoring(tmp_path, monkeypatch):
    monkeypatch.setattr("router.shards.shard_group.FIRST_HEALTH_TIMEOUT_SECONDS", 0.01)

    async def scenario(shards, rank):
        rank.is_silent.set()
        gone = asyncio.Event()
        shards.on_disconnect = gone.set
        await shards.connect()
        rank.is_silent.clear()
        assert not shards.is_disconnected
        await rank.stop()
        await gone.wait()
        await rank.listen()
    run_scenario(scenario, tmp_path)


# -- verbs, compared with the gRPC contract


def test_every_rpc_of_the_contract_is_known():
    """`Steps` is left out: it only carries the messages of five other methods."""
    assert {request.DESCRIPTOR.full_name: (verb, answer.DESCRIPTOR.full_name)
            for request, (verb, answer) in VERBS.items()} == {
        method.input_type.full_name: (method.name, method.output_type.full_name)
        for method in pb.DESCRIPTOR.services_by_name["Shard"].methods if method.name != "Steps"}


def test_every_field_of_a_step_message_carries_the_request_of_its_verb():
    """`ShardGroup.send` puts a request into the field that is named by its verb."""
    requests = {verb.lower(): request.DESCRIPTOR.full_name for request, (verb, _) in VERBS.items()}
    assert all(requests[field.name] == field.message_type.full_name for field in pb.StepMessage.DESCRIPTOR.fields)
    assert {field.name for field in pb.StepMessage.DESCRIPTOR.fields} == {
        VERBS[request][0].lower() for request in get_args(ShardRequest)}
