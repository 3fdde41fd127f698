"""The server of a replica: `weft serve` as a child process at a free port of the loopback address."""

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping, Sequence
from contextlib import suppress

from launcher.command_line.run_command import URL_MARK
from launcher.environment_variables import python_module_command

SERVER_ENDED = "weft serve ended with exit code"
MAX_TAIL_BYTES = 2_000
READ_BYTES = 65_536


class ServerStartError(RuntimeError):
    """The server ended before it was ready. The text is what it said last."""


class ServerProcess:
    """A running server. It ends with the thread that started it, however that ends."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.url = ""
        self._log_tail = b""
        self._log_task = asyncio.create_task(self._forward_log())
        self._output_task: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, arguments: Sequence[str], variables: Mapping[str, str]) -> "ServerProcess":
        """Run Python with these arguments and wait until its server is ready. Raises ServerStartError."""
        command = [*python_module_command("launcher.ray_serve.exec_with_parent_death_signal"), str(os.getpid()),
                   sys.executable, *arguments]
        server = cls(await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, stdout=PIPE, stderr=PIPE, env={**os.environ, **variables},
            start_new_session=True))
        await server._wait_until_ready()
        return server

    async def _wait_until_ready(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            text = line.decode(errors="replace")
            if URL_MARK in text:
                self.url = f"http{text.rpartition(URL_MARK)[2].strip()}"
                self._output_task = asyncio.create_task(self._discard_output())
                return
        code = await self.process.wait()
        await self._log_task
        raise ServerStartError(f"{SERVER_ENDED} {code}: {self._log_tail.decode(errors='replace').strip()}")

    async def _forward_log(self) -> None:
        """Pass the server's log on to this process's, and keep its end."""
        assert self.process.stderr is not None
        while content := await self.process.stderr.read(READ_BYTES):
            self._log_tail = (self._log_tail + content)[-MAX_TAIL_BYTES:]
            sys.stderr.write(content.decode(errors="replace"))
            sys.stderr.flush()

    async def _discard_output(self) -> None:
        assert self.process.stdout is not None
        while await self.process.stdout.read(READ_BYTES):
            pass

    async def stop(self, timeout: float) -> int:
        """Ask the server to end, kill it after `timeout` seconds, and return its exit code."""
        with suppress(ProcessLookupError):
            self.process.terminate()
        try:
            async with asyncio.timeout(timeout):
                await self.process.wait()
        except TimeoutError:
            with suppress(ProcessLookupError):
                self.process.kill()
        code = await self.process.wait()
        await asyncio.gather(self._log_task, *filter(None, [self._output_task]))
        return code
