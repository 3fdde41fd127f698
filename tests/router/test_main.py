"""The router as a process: its report to the launcher, and its exit codes."""

import asyncio

import pytest

from router.__main__ import describe_model, exit_code, wait_for_either
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
