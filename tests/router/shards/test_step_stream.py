"""Step stream to a scripted rank: order, overdue answers and closing."""

import asyncio

import grpc
import uvloop

from router.shards.step_stream import (
    DISCONNECTED_STATUS,
    EMPTY_OUTCOME,
    STREAM_CLOSED,
    UNEXPECTED_OUTCOME,
    RpcFailure,
    StepStreamClient,
)
from shard.pb import shard_pb2 as pb

DECODE_MESSAGE = pb.StepMessage(decode=pb.DecodeRequest(batch=1)).SerializeToString()
STEP_ANSWER = pb.StepAnswer(order=1)


class ScriptedRank(grpc.GenericRpcHandler):
    """Server that answers a message with the next of `outcomes`, or with a list of them, and ends the call at None."""

    def __init__(self):
        self.outcomes = asyncio.Queue()
        self.received_messages = asyncio.Queue()

    def service(self, details):
        return grpc.stream_stream_rpc_method_handler(
            self._serve, pb.StepMessage.FromString, pb.StepOutcome.SerializeToString)

    async def _serve(self, messages, context):
        async for message in messages:
            self.received_messages.put_nowait(message)
            outcome = await self.outcomes.get()
            if outcome is None:
                return
            if isinstance(outcome, grpc.StatusCode):
                await context.abort(outcome, "told so")
            for answer in outcome if isinstance(outcome, list) else [outcome]:
                await context.write(answer)


def run_scenario(scenario, folder):
    async def main():
        server, rank = grpc.aio.server(), ScriptedRank()
        server.add_generic_rpc_handlers([rank])
        server.add_insecure_port(f"unix:{folder}/rank")
        await server.start()
        try:
            async with grpc.aio.insecure_channel(f"unix:{folder}/rank") as channel:
                step_stream = StepStreamClient(channel)
                await scenario(step_stream, rank)
                await step_stream.close()
        finally:
            await server.stop(0.1)
        if others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others, timeout=2.0)  # lets tasks end that are about to
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def test_outcomes_are_matched_to_messages_in_order(tmp_path):
    async def scenario(step_stream, rank):
        first, second = step_stream.send(DECODE_MESSAGE, 5.0), step_stream.send(DECODE_MESSAGE, 5.0)
        rank.outcomes.put_nowait(pb.StepOutcome(step=STEP_ANSWER))
        assert await first == STEP_ANSWER
        rank.outcomes.put_nowait(pb.StepOutcome(acknowledgement=pb.Acknowledgement(order=2)))
        assert await second == pb.Acknowledgement(order=2)
    run_scenario(scenario, tmp_path)


def test_failure_carries_its_status(tmp_path):
    async def scenario(step_stream, rank):
        code = grpc.StatusCode.INTERNAL
        rank.outcomes.put_nowait(pb.StepOutcome(trouble=pb.Trouble(code=code.value[0], reason="why")))
        assert await step_stream.send(DECODE_MESSAGE, 5.0) == RpcFailure(code, "why")
    run_scenario(scenario, tmp_path)


def test_undefined_status_code_becomes_unknown(tmp_path):
    async def scenario(step_stream, rank):
        rank.outcomes.put_nowait(pb.StepOutcome(trouble=pb.Trouble(code=4711)))
        assert (await step_stream.send(DECODE_MESSAGE, 5.0)).code is grpc.StatusCode.UNKNOWN
    run_scenario(scenario, tmp_path)


def test_empty_outcome_is_a_defect(tmp_path):
    async def scenario(step_stream, rank):
        rank.outcomes.put_nowait(pb.StepOutcome())
        assert await step_stream.send(DECODE_MESSAGE, 5.0) == EMPTY_OUTCOME
        rank.outcomes.put_nowait(pb.StepOutcome(step=STEP_ANSWER))
        assert await step_stream.send(DECODE_MESSAGE, 5.0) == STEP_ANSWER
    run_scenario(scenario, tmp_path)


def test_stream_fails_after_an_unexpected_outcome(tmp_path):
    async def scenario(step_stream, rank):
        rank.outcomes.put_nowait([pb.StepOutcome(step=STEP_ANSWER)] * 2)
        assert await step_stream.send(DECODE_MESSAGE, 5.0) == STEP_ANSWER
        await asyncio.wait([step_stream._tasks[1]])  # the reading task
        assert await step_stream.send(DECODE_MESSAGE, 5.0) == UNEXPECTED_OUTCOME
    run_scenario(scenario, tmp_path)


def test_timed_out_outcome_keeps_later_ones_in_order(tmp_path):
    async def scenario(step_stream, rank):
        overdue, later = step_stream.send(DECODE_MESSAGE, 0.0), step_stream.send(DECODE_MESSAGE, 5.0)
        assert (await overdue).code is grpc.StatusCode.DEADLINE_EXCEEDED
        rank.outcomes.put_nowait(pb.StepOutcome(step=STEP_ANSWER))
        rank.outcomes.put_nowait(pb.StepOutcome(step=pb.StepAnswer(order=2)))
        assert (await later).order == 2
    run_scenario(scenario, tmp_path)


def test_end_of_the_call_fails_pending_and_later_messages(tmp_path):
    """gRPC's own status depends on whether a message was being written."""
    async def scenario(step_stream, rank):
        waiting = [step_stream.send(DECODE_MESSAGE, 5.0) for _ in range(3)]
        rank.outcomes.put_nowait(None)
        failures = [*await asyncio.gather(*waiting), await step_stream.send(DECODE_MESSAGE, 5.0)]
        assert [failure.code for failure in failures] == [DISCONNECTED_STATUS] * 4
    run_scenario(scenario, tmp_path)


def test_closing_the_stream_fails_pending_messages(tmp_path):
    async def scenario(step_stream, rank):
        waiting = step_stream.send(DECODE_MESSAGE, 5.0)
        await rank.received_messages.get()
        await step_stream.close()
        assert await waiting == STREAM_CLOSED
    run_scenario(scenario, tmp_path)


def test_broken_call_means_a_disconnected_shard_whatever_the_status(tmp_path):
    """gRPC may report a killed shard as an internal error, for which no step is to blame."""
    async def scenario(step_stream, rank):
        rank.outcomes.put_nowait(grpc.StatusCode.INTERNAL)
        assert (await step_stream.send(DECODE_MESSAGE, 5.0)
                == RpcFailure(grpc.StatusCode.UNAVAILABLE, "internal: told so"))
    run_scenario(scenario, tmp_path)
