"""Store of one start of the shards, through which the ranks find each other (shard/parallel/rendezvous_client.py)."""

import asyncio
from base64 import b64decode, b64encode
from collections.abc import Sequence

from launcher.hosts.connection import HostConnectionLost, Message, encode_message, read_message

MAX_KEYS = 10_000
MAX_VALUE_BYTES = 2**16


class RendezvousStore:
    """Values by key. A read waits until there is one."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._values: dict[str, bytes] = {}
        self._changed = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one rank until it goes away, or the store is closed."""
        task = asyncio.create_task(self._answer_requests(reader, writer))
        self._tasks.add(task)
        await asyncio.wait([task])
        self._tasks.discard(task)

    def close(self) -> None:
        """Let go all ranks, those that wait with an error."""
        for task in self._tasks:
            task.cancel()

    async def _answer_requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                writer.write(encode_message({"result": await self._execute(await read_message(reader))}))
                await writer.drain()
        except (HostConnectionLost, OSError, TypeError, ValueError):
            return  # the rank is gone, or what it sends is no request

    async def _execute(self, request: Message) -> object:
        """Return the result of a request. Raises ValueError for one that is none."""
        result: object = None
        match request:
            case {"set": str(key), "value": str(value)}:
                await self._set(key, b64decode(value))
            case {"get": str(key)}:
                await self._wait_for([key])
                result = b64encode(self._values[key]).decode()
            case {"wait": list(keys)}:
                await self._wait_for(keys)
            case {"check": list(keys)}:
                result = all(key in self._values for key in keys)
            case {"add": str(key), "amount": int(amount)}:
                result = int(self._values.get(key, b"0")) + amount
                await self._set(key, str(result).encode())
            case {"delete": str(key)}:
                result = self._values.pop(key, None) is not None
            case {"count": True}:
                result = len(self._values)
            case _:
                raise ValueError("no request to a store")
        return result

    async def _set(self, key: str, value: bytes) -> None:
        if len(value) > MAX_VALUE_BYTES or len(self._values) >= MAX_KEYS:
            raise ValueError("too much for a store")
        async with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    async def _wait_for(self, keys: Sequence[str]) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: all(key in self._values for key in keys))
