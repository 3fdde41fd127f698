"""Connection between the launchers of two hosts: a JSON object per line over TLS, and a heartbeat each way."""

import asyncio
import json
from contextlib import suppress
from typing import Any

HELLO_TIMEOUT_SECONDS = 10.0  # for the first message of either end
HEARTBEAT_SECONDS = 1.0
MAX_SILENT_SECONDS = 8.0  # without a line from the other end
MAX_LINE_BYTES = 2**20
HEARTBEAT_LINE = b"{}\n"

Message = dict[str, Any]


class HostConnectionLost(Exception):
    """The connection has ended, or nothing came for too long."""


class HostConnection:
    """One end of a connection that both ends have accepted."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._heartbeat_task = asyncio.create_task(self._send_heartbeats())

    @property
    def local_host(self) -> str:
        """Address of this host, as the other one reaches it."""
        return str(self._writer.get_extra_info("sockname")[0])

    @property
    def remote_host(self) -> str:
        return str(self._writer.get_extra_info("peername")[0])

    def send(self, message: Message) -> None:
        self._writer.write(encode_message(message))

    async def receive(self) -> Message:
        """Return the next message that is no heartbeat. Raises HostConnectionLost."""
        while not (message := await self._receive_line()):
            pass
        return message

    async def _receive_line(self) -> Message:
        """Return the next message or heartbeat. Time in which this process itself stood still does not count."""
        line, silent_seconds = asyncio.ensure_future(read_message(self._reader)), 0.0
        try:
            while silent_seconds < MAX_SILENT_SECONDS:
                started_at = asyncio.get_running_loop().time()
                if (await asyncio.wait([line], timeout=HEARTBEAT_SECONDS))[0]:
                    return line.result()
                silent_seconds += min(asyncio.get_running_loop().time() - started_at, 2 * HEARTBEAT_SECONDS)
            raise HostConnectionLost(f"no sign of life for {MAX_SILENT_SECONDS:g} seconds")
        finally:
            line.cancel()
            await asyncio.wait([line])

    async def _send_heartbeats(self) -> None:
        while not self._writer.is_closing():
            self._writer.write(HEARTBEAT_LINE)
            await asyncio.sleep(HEARTBEAT_SECONDS)

    async def close(self) -> None:
        """Close the connection; data that the other end does not take is dropped."""
        self._heartbeat_task.cancel()
        await asyncio.wait([self._heartbeat_task])
        await close_writer(self._writer)


async def close_writer(writer: asyncio.StreamWriter) -> None:
    """Send what is written, for at most a moment, and close."""
    writer.close()
    with suppress(OSError, TimeoutError):
        await asyncio.wait_for(writer.wait_closed(), HEARTBEAT_SECONDS)
    writer.transport.abort()


def encode_message(message: Message) -> bytes:
    return json.dumps(message).encode() + b"\n"


async def read_message(reader: asyncio.StreamReader) -> Message:
    """Return the next object, an empty one for a heartbeat. Raises HostConnectionLost at the end, or for a line that is
    none."""
    try:
        line = await reader.readline()
        message = json.loads(line) if line else None
    except (OSError, ValueError, RecursionError) as error:  # also a line that is too long, or JSON that is too deep
        raise HostConnectionLost(f"the connection broke: {error}") from None
    if not isinstance(message, dict):
        raise HostConnectionLost("the connection was closed" if message is None else "a line that is no message")
    return message
