"""The router as a process: what it is told, and what it tells."""

import asyncio
import json
import os
import signal
from dataclasses import asdict

import pytest

from router.__main__ import Order, asked_to_stop, came_first, end_with_parent, served, tell
from router.config import RouterConfig
from router.messages import ModelFacts
from shard.logs import Logs
from shard.traces import Traces


def test_an_order_needs_no_descriptors() -> None:
    text = json.dumps({"config": {"look_ahead": 1}, "shards": ["unix:/a", "unix:/b"]})
    assert Order.from_json(text) == Order(RouterConfig(look_ahead=1), ("unix:/a", "unix:/b"), "", "", "", -1, -1, -1)


def test_an_order_names_the_files_in_which_shards_write_how_far_they_are() -> None:
    text = json.dumps({"config": {}, "shards": [], "progress": ["/a", "/b"]})
    assert Order.from_json(text).progress == ("/a", "/b")


def test_an_order_is_read_as_the_launcher_wrote_it() -> None:
    config = RouterConfig(cors_allow_origin=("https://a", "https://b"))
    order = Order(config, ("unix:/a",), logs=Logs("debug", as_json=True), traces=Traces("http://a:4317", "loom"))
    assert Order.from_json(json.dumps(asdict(order))) == order


def test_the_key_of_clients_comes_beside_the_order() -> None:
    text = json.dumps({"config": {}, "shards": []})
    assert Order.from_json(text, "sk-loom").config.api_key == "sk-loom"
    assert "sk-loom" not in repr(Order.from_json(text, "sk-loom"))


def test_what_is_told_is_one_line() -> None:
    read, write = os.pipe()
    tell(write, "failed for\nmany reasons")
    os.close(write)
    with open(read) as lines:
        assert lines.read() == "failed for many reasons\n"


def test_with_the_port_it_tells_what_is_served() -> None:
    facts = ModelFacts("m", "cuda", "bfloat16", 512, 4096, 16, 100, cache_bytes=2**20, why="that is what fits")
    assert served(facts) == {"device": "cuda", "dtype": "bfloat16", "tokens": 1600, "bytes": 2**20,
                             "why": "that is what fits"}


def test_without_a_pipe_nothing_is_told() -> None:
    tell(-1, "ready 3000")


def test_the_first_signal_asks_and_the_next_one_is_not_ours() -> None:
    async def story() -> None:
        asked = asyncio.create_task(asked_to_stop())
        await asyncio.sleep(0)
        os.kill(os.getpid(), signal.SIGTERM)
        await asked
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    asyncio.run(story())


def test_the_end_of_the_parent_is_the_end() -> None:
    async def story(parent_fd: int, held_open: int) -> None:
        end_with_parent(parent_fd)
        os.close(held_open)
        await asyncio.Event().wait()
    parent_fd, held_open = os.pipe()
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(story(parent_fd, held_open))
    os.close(parent_fd)


def test_whoever_is_over_first_ends_the_wait_and_the_other_is_given_up():
    async def scenario():
        never = asyncio.Event()
        assert await came_first(asyncio.sleep(0), never.wait())
        assert not await came_first(never.wait(), asyncio.sleep(0))
    asyncio.run(scenario())


def test_of_a_model_that_generates_nothing_it_tells_what_it_does_instead() -> None:
    facts = ModelFacts("m", "cpu", "float32", 512, 160, 16, 100, generation=False, classification=True)
    assert served(facts)["instead_of_text"] == "labels"
