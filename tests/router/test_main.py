"""The router as a process: its report to the launcher, and its exit codes."""

import asyncio

import pytest

from router.__main__ import RouterProcess, describe_model, exit_code, wait_for_either
from router.errors import RetryableStartupError
from router.model_info import ModelInfo
from router.scheduler.fault_isolation import ShardLossReason
from router.shards.failures import ShardsLost


def test_ready_report_describes_the_served_model() -> None:
    facts = ModelInfo("m", "cuda", "bfloat16", 512, 4096, 16, 100, cache_bytes=2**20,
                      cache_size_note="that is what fits")
    assert describe_model(facts) == {"device": "cuda", "dtype": "bfloat16", "tokens": 1600, "bytes": 2**20,
                                     "why": "that is what fits"}


def test_first_finished_awaitable_ends_the_wait_and_the_other_is_cancelled():
    async def scenario():
        never = asyncio.Event()
        assert await wait_for_either(asyncio.sleep(0), never.wait())
        assert not await wait_for_either(never.wait(), asyncio.sleep(0))
    asyncio.run(scenario())


class FakePart:
    """Engine, HTTP server and stand-in of a router that has no requests; notes what becomes of it."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.crashed, self.health = asyncio.Event(), self

    def set_unready_permanently(self, _: str) -> None:
        self.calls.append("unready")

    async def wait_until_crashed(self) -> None:
        await self.crashed.wait()

    async def wait_until_drained(self) -> None:
        self.calls.append("drained")

    async def stop_accepting(self) -> None:
        self.calls.append("refuses")

    async def start_during_shutdown(self, _: object) -> None:
        pass


@pytest.mark.parametrize("reason", ["crash", "end"])
def test_shutdown_delay_ends_with_a_crash_of_the_engine_or_a_second_signal(reason: str) -> None:
    async def scenario() -> None:
        part, end_requested = FakePart(), asyncio.Event()
        process = RouterProcess(part, part, None, part, None, None)  # type: ignore[arg-type]
        drain = asyncio.create_task(process.drain(3600.0, 3600.0, end_requested))
        await asyncio.sleep(0.01)
        assert part.calls == ["unready"]
        (part.crashed if reason == "crash" else end_requested).set()
        await asyncio.wait_for(drain, 30)
        assert part.calls[:2] == ["unready", "refuses"]
    asyncio.run(scenario())


def test_ready_report_of_a_model_without_generation_names_what_it_does() -> None:
    facts = ModelInfo("m", "cpu", "float32", 512, 160, 16, 100, generation=False, classification=True)
    assert describe_model(facts)["instead_of_text"] == "labels"


@pytest.mark.parametrize(("error", "code"), [
    (ValueError("tokenizer.json is damaged"), 2), (PermissionError(13, "Permission denied"), 2),
    (ShardsLost(ShardLossReason.DEFECT, "--max-total-tokens must be at most 5", is_warmup_rejected=True), 2),
    (ShardsLost(ShardLossReason.DEFECT, "there is no room for a cache"), 1),
    (RetryableStartupError("the Hub does not answer"), 1),
    (OSError(98, "Address already in use"), 1)])
def test_exit_code_shows_whether_a_restart_makes_sense(error, code):
    assert exit_code(error) == code
