import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.questions.router_load import BadAnswer, Client, Load

HEAD = b"HTTP/1.1 200 OK\r\nServer: x/3.0\r\n\r\n"
EVENT = b'f\r\ndata: {"a": 1}\n\n\r\n'
END = b"0\r\n\r\n"


class Wire:
    """A transport that keeps what was written to it."""

    def __init__(self) -> None:
        self.questions: list[Any] = []
        self.aborted = False

    def write(self, data: bytes) -> None:
        self.questions.append(json.loads(data.partition(b"\r\n\r\n")[2]))

    def abort(self) -> None:
        self.aborted = True


def with_client(story: Callable[[Load, Client, Wire], None]) -> None:
    async def told() -> None:
        load, wire = Load("host:1", seed=0), Wire()
        client = Client(load)
        client.connection_made(wire)  # type: ignore[arg-type]
        story(load, client, wire)
        try:
            await load.last(0.0)
        finally:
            load.end()
        assert wire.aborted
    asyncio.run(told())


def answer(wire: Wire) -> bytes:
    return HEAD + EVENT * wire.questions[-1]["parameters"]["max_new_tokens"] + END


def test_a_stream_that_got_its_answer_asks_again() -> None:
    def story(load: Load, client: Client, wire: Wire) -> None:
        client.data_received(answer(wire))
        client.data_received(answer(wire))
        assert len(wire.questions) == 3
        assert load.num_tokens == sum(asked["parameters"]["max_new_tokens"] for asked in wire.questions[:2])
    with_client(story)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 11])
def test_events_are_counted_however_they_are_cut(size: int) -> None:
    def story(load: Load, client: Client, wire: Wire) -> None:
        data = answer(wire)
        client.data_received(data[:20])
        for start in range(20, len(data), size):
            client.data_received(data[start:start + size])
        assert load.num_tokens == wire.questions[0]["parameters"]["max_new_tokens"]
        assert len(wire.questions) == 2
    with_client(story)


def test_the_time_to_the_first_token_is_no_gap_and_tokens_that_come_together_have_none_between_them() -> None:
    def story(load: Load, client: Client, wire: Wire) -> None:
        client.data_received(HEAD + EVENT * 3)
        assert list(load.gaps) == [0.0, 0.0]
        client.data_received(EVENT)
        assert len(load.gaps) == 3
        assert load.gaps[2] > 0.0
    with_client(story)


def test_a_short_answer_ends_the_run() -> None:
    with pytest.raises(BadAnswer, match=r"(?s)got 1 events, the last: .*data: \{\"a\": 1\}"):
        with_client(lambda load, client, wire: client.data_received(HEAD + EVENT + END))


def test_an_error_ends_the_run() -> None:
    with pytest.raises(BadAnswer, match=r"answered HTTP/1\.1 429 Too Many Requests"):
        with_client(lambda load, client, wire: client.data_received(b"HTTP/1.1 429 Too Many Requests\r\n\r\nfull"))


def test_a_connection_that_the_server_closes_ends_the_run() -> None:
    with pytest.raises(BadAnswer, match="closed a connection"):
        with_client(lambda load, client, wire: client.connection_lost(None))
