"""The router as a process: its report to the launcher, and its exit codes."""

import asyncio

import pytest

from router.__main__ import came_first, exit_code, served
from router.errors import CannotStartNow
from router.scheduler.fault_isolation import Loss
from router.scheduler.plan import ModelFacts
from router.shards.failures import ShardsLost


def test_with_the_port_it_tells_what_is_served() -> None:
    facts = ModelFacts("m", "cuda", "bfloat16", 512, 4096, 16, 100, cache_bytes=2**20, why="that is what fits")
    assert served(facts) == {"device": "cuda", "dtype": "bfloat16", "tokens": 1600, "bytes": 2**20,
                             "why": "that is what fits"}


def test_whoever_is_over_first_ends_the_wait_and_the_other_is_given_up():
    async def scenario():
        never = asyncio.Event()
        assert await came_first(asyncio.sleep(0), never.wait())
        assert not await came_first(never.wait(), asyncio.sleep(0))
    asyncio.run(scenario())


def test_of_a_model_that_generates_nothing_it_tells_what_it_does_instead() -> None:
    facts = ModelFacts("m", "cpu", "float32", 512, 160, 16, 100, generation=False, classification=True)
    assert served(facts)["instead_of_text"] == "labels"


@pytest.mark.parametrize(("error", "code"), [
    (ValueError("tokenizer.json is damaged"), 2), (PermissionError(13, "Permission denied"), 2),
    (ShardsLost(Loss.DEFECT, "--max-total-tokens must be at most 5", refused=True), 2),
    (ShardsLost(Loss.DEFECT, "there is no room for a cache"), 1), (CannotStartNow("the Hub does not answer"), 1),
    (OSError(98, "Address already in use"), 1)])
def test_the_exit_code_says_whether_to_start_again_makes_sense(error, code):
    assert exit_code(error) == code
