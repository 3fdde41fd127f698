"""All ranks as one object, against scripted servers that record every message."""

import asyncio
import socket
from contextlib import AsyncExitStack
from functools import partial

import grpc
import pytest
import uvloop

from router.scheduler.fault_isolation import Loss
from router.shards import shard_group as module
from router.shards.failures import ShardsLost
from router.shards.rpc import ANSWERS, METHODS
from router.shards.shard_group import Shards, is_mute
from shard.pb import shard_pb2 as pb
from shard.rpc.server import OPTIONS
from shard.rpc.step_stream import Line

Code = grpc.StatusCode
OUTCOMES = {pb.StepAnswer: "step", pb.Acknowledgement: "acknowledgement", pb.EmbedAnswer: "embed"}
ANSWER = pb.StepAnswer(epoch=1, order=1, sequences=[7], tokens=[8], logprobs=[-1.0])


class Meeting:
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
    """Scripted server of one rank. `answers` has for each method a message, a status, or an Event or Meeting to wait
    for before the default, or a later entry for the method, is sent."""

    def __init__(self, address):
        self.address = address
        self.answers = {}
        self.arrived = []
        self.num_watching = 0
        self.called = asyncio.Event()
        self.watched = asyncio.Event()
        self.left = asyncio.Event()
        self.silent = asyncio.Event()  # set: Watch sends no first message

    def service(self, details):
        method = details.method.rsplit("/", 1)[1]
        if method == "Watch":
            return grpc.unary_stream_rpc_method_handler(self._watch)
        if method == "Steps":
            return grpc.stream_stream_rpc_method_handler(
                self._line, pb.StepMessage.FromString, pb.StepOutcome.SerializeToString)
        return grpc.unary_unary_rpc_method_handler(partial(self._answer, method))

    async def _answer(self, method, message, context):
        answer = await self._outcome(method, message)
        if isinstance(answer, Code):
            await context.abort(answer, "told so")
        return answer.SerializeToString()

    async def _line(self, messages, context):
        line = Line(lambda message: asyncio.create_task(self._on_line(message)), lambda outcome: outcome)
        await line.serve(messages, context)

    async def _on_line(self, message):
        verb = message.WhichOneof("verb")
        answer = await self._outcome(verb.capitalize(), getattr(message, verb).SerializeToString())
        if isinstance(answer, Code):
            return pb.StepOutcome(trouble=pb.Trouble(code=answer.value[0], reason="told so"))
        return pb.StepOutcome(**{OUTCOMES[type(answer)]: answer})

    async def _outcome(self, method, message):
        self.arrived.append((method, message))
        self.called.set()
        answer = self.answers.get(method, ANSWERS[method]())
        if isinstance(answer, asyncio.Event | Meeting):
            await answer.wait()
            now = self.answers.get(method)
            return ANSWERS[method]() if now is answer else now
        return answer

    async def _watch(self, message, context):
        self.num_watching += 1
        self.watched.set()
        try:
            if not self.silent.is_set():
                await context.write(b"")
            await asyncio.Event().wait()
        finally:
            self.num_watching -= 1
            self.left.set()

    async def listen(self):
        self.server = grpc.aio.server(options=OPTIONS)
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


def play(story, folder, ranks=1, transport="stream"):
    """Run a story with connected shards and the servers of their ranks."""
    async def told():
        async with AsyncExitStack() as stack:
            servers = [await ScriptedRank(f"unix:{folder}/{rank}").listen() for rank in range(ranks)]
            for server in servers:
                stack.push_async_callback(server.stop)
            shards = Shards([server.address for server in servers], transport)
            stack.push_async_callback(shards.close)
            await shards.connect()
            await story(shards, *servers)
        if others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others, timeout=2.0)  # lets tasks end that are about to
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(told())


def test_every_rank_gets_the_same_bytes(tmp_path, transport):
    async def story(shards, *ranks):
        messages = [pb.FilterRequest(epoch=3, order=8, batch=1), pb.DecodeRequest(epoch=3, order=9, batch=1)]
        await shards.send(messages, 5.0)
        sealed = [("Filter", messages[0].SerializeToString()), ("Decode", messages[1].SerializeToString())]
        assert [sorted(rank.arrived) for rank in ranks] == [sorted(sealed)] * 3
    play(story, tmp_path, transport=transport, ranks=3)


def test_the_answer_is_that_of_rank_0_to_the_last_message(tmp_path, transport):
    async def story(shards, first, second):
        first.answers["Decode"] = ANSWER
        second.answers["Decode"] = pb.StepAnswer(epoch=1, order=1)
        assert await shards.send([pb.FilterRequest(), pb.DecodeRequest()], 5.0) == ANSWER
    play(story, tmp_path, transport=transport, ranks=2)


def test_no_message_waits_for_the_answer_to_the_one_before(tmp_path, transport):
    async def story(shards, rank):
        rank.answers["Decode"] = rank.answers["Filter"] = Meeting(2)
        await shards.send([pb.FilterRequest(), pb.DecodeRequest()], 5.0)
    play(story, tmp_path, transport=transport)


def test_an_answer_waits_for_all_ranks(tmp_path, transport):
    async def story(shards, first, second):
        first.answers["Decode"], second.answers["Decode"] = ANSWER, asyncio.Event()
        answer = asyncio.ensure_future(shards.send([pb.DecodeRequest()], 5.0))
        await second.called.wait()
        assert not answer.done()
        second.answers["Decode"].set()
        assert await answer == ANSWER
    play(story, tmp_path, transport=transport, ranks=2)


@pytest.mark.parametrize(("code", "loss"), [
    (Code.INTERNAL, Loss.STEP_ERROR),
    (Code.RESOURCE_EXHAUSTED, Loss.MEMORY),
    (Code.FAILED_PRECONDITION, Loss.DEFECT),
    (Code.INVALID_ARGUMENT, Loss.DEFECT),
    (Code.ALREADY_EXISTS, Loss.DEFECT),
    (Code.UNAVAILABLE, Loss.DEATH),
    (Code.UNKNOWN, Loss.DEATH),
])
def test_what_goes_wrong_says_what_kind_of_loss_it_is(tmp_path, transport, code, loss):
    async def story(shards, rank):
        rank.answers["Decode"] = code
        with pytest.raises(ShardsLost, match=f"{code.name.lower()}: told so") as lost:
            await shards.send([pb.DecodeRequest()], 5.0)
        assert (lost.value.loss, lost.value.broken) == (loss, False)
    play(story, tmp_path, transport=transport)


@pytest.mark.parametrize("wrong", [pb.Acknowledgement(), pb.EmbedAnswer()])
def test_an_answer_of_another_kind_is_a_defect_whichever_rank_gives_it(tmp_path, wrong):
    async def story(shards, _, second):
        second.answers["Decode"] = wrong
        with pytest.raises(ShardsLost, match=f"{type(wrong).__name__} came as an answer to DecodeRequest") as lost:
            await shards.send([pb.FilterRequest(), pb.DecodeRequest()], 5.0)
        assert (lost.value.loss, lost.value.broken) == (Loss.DEFECT, False)
    play(story, tmp_path, ranks=2)


@pytest.mark.parametrize("code", [Code.INTERNAL, Code.RESOURCE_EXHAUSTED])
def test_of_several_ranks_one_that_failed_in_a_step_breaks_all(tmp_path, transport, code):
    """Other ranks may wait for the failed one for ever. The rejection by the first rank says less than the failure."""
    async def story(shards, first, second):
        first.answers["Decode"], second.answers["Decode"] = Code.FAILED_PRECONDITION, code
        with pytest.raises(ShardsLost) as lost:
            await shards.send([pb.DecodeRequest()], 5.0)
        assert (lost.value.loss, lost.value.broken) == (Loss.DEATH, True)
    play(story, tmp_path, transport=transport, ranks=2)


def test_a_shard_that_has_its_socket_open_and_does_not_speak_is_broken(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MUTE_AFTER", 0.05)

    async def story():
        shards = Shards([f"unix:{tmp_path}/shard", f"unix:{tmp_path}/nobody"])
        with pytest.raises(ShardsLost, match="does not speak") as lost:
            await shards.connect()
        assert lost.value.broken
        await shards.close()

    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(f"{tmp_path}/shard")
        mute.listen()
        asyncio.run(story())


def test_who_speaks_or_is_not_there_or_leaves_is_not_mute(tmp_path):
    async def story():
        async def answer(_, writer):
            writer.close()

        address = f"{tmp_path}/shard"
        assert not await is_mute(f"unix:{address}")
        assert not await is_mute("127.0.0.1:1")
        async with await asyncio.start_unix_server(answer, address):
            assert not await is_mute(f"unix:{address}")
    asyncio.run(story())


@pytest.mark.parametrize("before", [pb.FilterRequest(), pb.ConcatRequest()])
def test_what_fails_before_a_step_is_not_the_fault_of_who_is_in_the_step(tmp_path, transport, before):
    async def story(shards, rank):
        rank.answers |= {METHODS[type(before)]: Code.INTERNAL, "Decode": Code.FAILED_PRECONDITION}
        with pytest.raises(ShardsLost, match="told so") as lost:
            await shards.send([before, pb.DecodeRequest()], 5.0)
        assert lost.value.loss is Loss.DEFECT
    play(story, tmp_path, transport=transport)


def test_a_loss_is_told_when_every_rank_has_answered(tmp_path, transport):
    async def story(shards, first, second):
        first.answers["Decode"], second.answers["Decode"] = Code.FAILED_PRECONDITION, asyncio.Event()
        answer = asyncio.ensure_future(shards.send([pb.DecodeRequest()], 5.0))
        await second.called.wait()
        assert not answer.done()
        second.answers["Decode"].set()
        with pytest.raises(ShardsLost):
            await answer
    play(story, tmp_path, transport=transport, ranks=2)


def test_an_answer_that_is_overdue_means_that_a_shard_hangs(tmp_path, transport):
    async def story(shards, first, second):
        second.answers["Decode"] = asyncio.Event()
        with pytest.raises(ShardsLost) as lost:
            await shards.send([pb.DecodeRequest()], 0.05)
        assert (lost.value.loss, lost.value.broken) == (Loss.DEATH, True)
    play(story, tmp_path, transport=transport, ranks=2)


def test_shards_that_died_are_found_again_at_the_same_path(tmp_path):
    async def story(shards, rank):
        await rank.stop()
        with pytest.raises(ShardsLost) as lost:
            await shards.info(5.0)
        assert lost.value.loss is Loss.DEATH
        await rank.listen()
        await shards.connect()
        assert await shards.info(5.0) == [pb.InfoAnswer()]
    play(story, tmp_path)


def test_connecting_waits_until_every_rank_listens(tmp_path):
    async def story(shards, first, second):
        await second.stop()
        late = Shards([first.address, second.address])
        connected = asyncio.ensure_future(late.connect())
        await first.watched.wait()
        assert not connected.done()
        await second.listen()
        await connected
        await late.close()
    play(story, tmp_path, ranks=2)


def test_every_rank_is_watched_as_long_as_there_is_a_router(tmp_path):
    async def story(shards, *ranks):
        for rank in ranks:
            await rank.watched.wait()
            rank.watched.clear()
        await shards.connect()
        for rank in ranks:
            await rank.watched.wait()
            await rank.left.wait()
            rank.left.clear()
        assert [rank.num_watching for rank in ranks] == [1, 1]
        await shards.close()
        for rank in ranks:
            await rank.left.wait()
    play(story, tmp_path, ranks=2)


def test_a_successor_is_watched_too(tmp_path):
    async def story(shards, rank):
        await rank.watched.wait()
        rank.watched.clear()
        await rank.stop()
        with pytest.raises(ShardsLost):
            await shards.info(5.0)
        await rank.listen()
        await shards.connect()
        await rank.watched.wait()
    play(story, tmp_path)


@pytest.mark.parametrize("name", ["info", "warmup", "reset", "load", "unload"])
def test_what_takes_no_step_goes_to_all_ranks_too(tmp_path, name):
    arguments = {"info": [5.0], "warmup": [pb.WarmupRequest(), 5.0], "reset": [2, 5.0], "load": [pb.LoadRequest()],
                 "unload": [pb.UnloadRequest()]}

    async def story(shards, *ranks):
        await getattr(shards, name)(*arguments[name])
        assert [rank.arrived[0][0] for rank in ranks] == [name.capitalize()] * 2
    play(story, tmp_path, ranks=2)


@pytest.mark.parametrize("name", ["load", "unload"])
@pytest.mark.parametrize("code", [Code.FAILED_PRECONDITION, Code.INVALID_ARGUMENT, Code.INTERNAL])
def test_what_one_rank_does_not_load_or_unload_is_a_reason_and_no_loss(tmp_path, name, code):
    async def story(shards, *ranks):
        ranks[1].answers[name.capitalize()] = code
        request = {"load": pb.LoadRequest(), "unload": pb.UnloadRequest()}[name]
        assert await getattr(shards, name)(request) == "told so"
        del ranks[1].answers[name.capitalize()]
        assert await getattr(shards, name)(request) == ""
        assert not shards.is_gone
    play(story, tmp_path, ranks=2)


def test_a_shard_that_went_away_with_a_load_is_known_to_be_gone(tmp_path):
    async def story(shards, rank):
        gone = asyncio.Event()
        shards.on_gone = gone.set
        rank.answers["Load"] = Code.UNAVAILABLE
        with pytest.raises(ShardsLost) as lost:
            await shards.load(pb.LoadRequest())
        assert lost.value.loss is Loss.DEATH
        assert shards.is_gone
        await gone.wait()
    play(story, tmp_path)


def test_a_load_that_hears_late_of_a_loss_does_not_lose_those_who_came_since(tmp_path):
    async def story(shards, rank):
        rank.answers["Load"] = loses = asyncio.Event()
        loading = asyncio.create_task(shards.load(pb.LoadRequest()))
        await rank.called.wait()
        await shards.connect()
        rank.answers["Load"] = Code.UNAVAILABLE
        loses.set()
        with pytest.raises(ShardsLost):
            await loading
        assert not shards.is_gone
    play(story, tmp_path)


def test_large_messages_pass_in_both_directions(tmp_path):
    async def story(shards, rank):
        large = "x" * 5 * 2**20  # beyond gRPC's default limit of 4 MiB
        rank.answers["Info"] = pb.InfoAnswer(model=large)
        await shards.load(pb.LoadRequest(source=large))
        assert await shards.info(30.0) == [pb.InfoAnswer(model=large)]
    play(story, tmp_path)


def test_closing_twice_does_no_harm(tmp_path):
    async def story(shards, rank):
        await shards.close()
        await shards.close()
    play(story, tmp_path)


def test_a_first_word_that_is_late_does_not_end_the_watch(tmp_path, monkeypatch):
    monkeypatch.setattr("router.shards.shard_group.FIRST_WORD", 0.01)

    async def story(shards, rank):
        rank.silent.set()
        gone = asyncio.Event()
        shards.on_gone = gone.set
        await shards.connect()
        rank.silent.clear()
        assert not shards.is_gone
        await rank.stop()
        await gone.wait()
        await rank.listen()
    play(story, tmp_path)
