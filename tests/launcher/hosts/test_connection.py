"""A connection between two launchers: messages, heartbeats, and its loss."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from launcher.hosts import connection
from launcher.hosts.connection import MAX_LINE_BYTES, HostConnection, HostConnectionLost, read_message


@asynccontextmanager
async def connect_pair() -> AsyncIterator[tuple[HostConnection, asyncio.StreamReader, asyncio.StreamWriter]]:
    """Yield a connection, and the bare streams of its other end."""
    accepted: asyncio.Future[HostConnection] = asyncio.get_running_loop().create_future()
    server = await asyncio.start_server(lambda *streams: accepted.set_result(HostConnection(*streams)), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    one_end = await accepted
    try:
        yield one_end, reader, writer
    finally:
        await one_end.close()
        await connection.close_writer(writer)
        server.close()


def test_messages_arrive_in_order_and_heartbeats_do_not() -> None:
    async def scenario() -> None:
        async with connect_pair() as (end, reader, writer):
            writer.write(b'{}\n{"first": 1}\n{}\n{"second": 2}\n')
            assert [await end.receive(), await end.receive()] == [{"first": 1}, {"second": 2}]
            end.send({"third": 3})
            received = [await read_message(reader), await read_message(reader)]
            assert {"third": 3} in received
            assert {} in received
            assert end.remote_host == end.local_host == "127.0.0.1"
    asyncio.run(scenario())


@pytest.mark.parametrize(("line", "reason"), [
    (b"no JSON\n", "the connection broke"), (b"[" * 200_000 + b"\n", "the connection broke"),
    (b"[]\n", "a line that is no message"), (b"", "the connection was closed")])
def test_end_that_talks_nonsense_or_leaves_is_lost(line: bytes, reason: str) -> None:
    async def scenario() -> None:
        async with connect_pair() as (end, _, writer):
            end._reader._limit = MAX_LINE_BYTES  # as of both hosts
            writer.write(line)
            writer.write_eof()
            with pytest.raises(HostConnectionLost, match=reason):
                await end.receive()
    asyncio.run(scenario())


def test_silent_end_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEARTBEAT_SECONDS", 0.01)
    monkeypatch.setattr(connection, "MAX_SILENT_SECONDS", 0.05)

    async def scenario() -> None:
        async with connect_pair() as (end, _, __):
            with pytest.raises(HostConnectionLost, match=r"no sign of life for 0\.05 seconds"):
                await end.receive()
    asyncio.run(scenario())


def test_heartbeats_are_signs_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEARTBEAT_SECONDS", 0.01)
    monkeypatch.setattr(connection, "MAX_SILENT_SECONDS", 1.0)

    async def scenario() -> None:
        async with connect_pair() as (end, reader, writer):
            other = HostConnection(reader, writer)
            receiving = asyncio.create_task(end.receive())
            assert not (await asyncio.wait([receiving], timeout=1.5))[0]
            other.send({"at": "last"})
            assert await receiving == {"at": "last"}
            await other.close()
    asyncio.run(scenario())
