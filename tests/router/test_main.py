"""The router as a process: what it tells of itself, and what ends it."""

import asyncio

from router.__main__ import came_first, served
from router.messages import ModelFacts


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
