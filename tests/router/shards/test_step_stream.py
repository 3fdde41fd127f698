"""Step stream to a scripted rank: order, overdue answers and closing."""

import asyncio

import grpc
import uvloop

from router.shards.step_stream import BROKEN, EMPTY, GONE, UNASKED, Line, Trouble
from shard.pb import shard_pb2 as pb

MESSAGE = pb.StepMessage(decode=pb.DecodeRequest(batch=1)).SerializeToString()
STEP = pb.StepAnswer(order=1)


class Rank(grpc.GenericRpcHandler):
    """Server that answers a message with the next of `outcomes`, or with a list of them, and ends the call at None."""

    def __init__(self):
        self.outcomes = asyncio.Queue()
        self.come = asyncio.Queue()

    def service(self, details):
        return grpc.stream_stream_rpc_method_handler(
            self._serve, pb.StepMessage.FromString, pb.StepOutcome.SerializeToString)

    async def _serve(self, messages, context):
        async for message in messages:
            self.come.put_nowait(message)
            outcome = await self.outcomes.get()
            if outcome is None:
                return
            if isinstance(outcome, grpc.StatusCode):
                await context.abort(outcome, "told so")
            for one in outcome if isinstance(outcome, list) else [outcome]:
                await context.write(one)


def play(story, folder):
    async def told():
        server, rank = grpc.aio.server(), Rank()
        server.add_generic_rpc_handlers([rank])
        server.add_insecure_port(f"unix:{folder}/rank")
        await server.start()
        try:
            async with grpc.aio.insecure_channel(f"unix:{folder}/rank") as channel:
                line = Line(channel)
                await story(line, rank)
                await line.close()
        finally:
            await server.stop(0.1)
        if others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others, timeout=2.0)  # lets tasks end that are about to
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(told())


def test_outcomes_are_for_the_messages_in_their_order(tmp_path):
    async def story(line, rank):
        first, second = line.send(MESSAGE, 5.0), line.send(MESSAGE, 5.0)
        rank.outcomes.put_nowait(pb.StepOutcome(step=STEP))
        assert await first == STEP
        rank.outcomes.put_nowait(pb.StepOutcome(acknowledgement=pb.Acknowledgement(order=2)))
        assert await second == pb.Acknowledgement(order=2)
    play(story, tmp_path)


def test_trouble_carries_its_status(tmp_path):
    async def story(line, rank):
        code = grpc.StatusCode.INTERNAL
        rank.outcomes.put_nowait(pb.StepOutcome(trouble=pb.Trouble(code=code.value[0], reason="why")))
        assert await line.send(MESSAGE, 5.0) == Trouble(code, "why")
    play(story, tmp_path)


def test_a_status_that_does_not_exist_is_unknown(tmp_path):
    async def story(line, rank):
        rank.outcomes.put_nowait(pb.StepOutcome(trouble=pb.Trouble(code=4711)))
        assert (await line.send(MESSAGE, 5.0)).code is grpc.StatusCode.UNKNOWN
    play(story, tmp_path)


def test_an_outcome_that_says_nothing_is_a_defect(tmp_path):
    async def story(line, rank):
        rank.outcomes.put_nowait(pb.StepOutcome())
        assert await line.send(MESSAGE, 5.0) == EMPTY
        rank.outcomes.put_nowait(pb.StepOutcome(step=STEP))
        assert await line.send(MESSAGE, 5.0) == STEP
    play(story, tmp_path)


def test_behind_an_outcome_that_nobody_waits_for_nobody_is_believed(tmp_path):
    async def story(line, rank):
        rank.outcomes.put_nowait([pb.StepOutcome(step=STEP)] * 2)
        assert await line.send(MESSAGE, 5.0) == STEP
        await asyncio.wait([line._tasks[1]])  # the reading task
        assert await line.send(MESSAGE, 5.0) == UNASKED
    play(story, tmp_path)


def test_an_overdue_outcome_leaves_those_behind_it_in_order(tmp_path):
    async def story(line, rank):
        overdue, later = line.send(MESSAGE, 0.0), line.send(MESSAGE, 5.0)
        assert (await overdue).code is grpc.StatusCode.DEADLINE_EXCEEDED
        rank.outcomes.put_nowait(pb.StepOutcome(step=STEP))
        rank.outcomes.put_nowait(pb.StepOutcome(step=pb.StepAnswer(order=2)))
        assert (await later).order == 2
    play(story, tmp_path)


def test_when_the_call_ends_everybody_is_told_also_who_comes_later(tmp_path):
    """gRPC's own status depends on whether a message was being written."""
    async def story(line, rank):
        waiting = [line.send(MESSAGE, 5.0) for _ in range(3)]
        rank.outcomes.put_nowait(None)
        told = [*await asyncio.gather(*waiting), await line.send(MESSAGE, 5.0)]
        assert [trouble.code for trouble in told] == [GONE] * 4
    play(story, tmp_path)


def test_who_still_waits_when_the_line_is_closed_is_told(tmp_path):
    async def story(line, rank):
        waiting = line.send(MESSAGE, 5.0)
        await rank.come.get()
        await line.close()
        assert await waiting == BROKEN
    play(story, tmp_path)


def test_a_call_that_breaks_means_that_the_shard_is_gone_whatever_the_status(tmp_path):
    """gRPC may report a killed shard as an internal error, for which no step is to blame."""
    async def story(line, rank):
        rank.outcomes.put_nowait(grpc.StatusCode.INTERNAL)
        assert await line.send(MESSAGE, 5.0) == Trouble(grpc.StatusCode.UNAVAILABLE, "internal: told so")
    play(story, tmp_path)
