"""What the parent of a router tells it and hears of it: by signals and by two pipes.

Into `ready_fd` goes `ready PORT JSON`, with what the banner tells of the shards, or `failed WHY`, and at any time
`broken WHY` when the shards should be replaced; the end of `parent_fd` says that the parent is gone. Knows nothing of
what the router does then.
"""

import asyncio
import os
import signal

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def end_with_parent(parent_fd: int) -> None:
    """Nobody would restart or stop us any more: cancel the running task when the parent is gone."""
    if parent_fd < 0:
        return
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None

    def gone() -> None:
        loop.remove_reader(parent_fd)
        task.cancel()

    loop.add_reader(parent_fd, gone)


async def asked_to_stop() -> None:
    """Wait for a signal. The next one is not ours any more: it ends the process at once."""
    loop, asked = asyncio.get_running_loop(), asyncio.Event()
    for number in SIGNALS:
        loop.add_signal_handler(number, asked.set)
    await asked.wait()
    for number in SIGNALS:
        loop.remove_signal_handler(number)


def tell(ready_fd: int, line: str) -> None:
    if ready_fd >= 0:
        os.write(ready_fd, f"{' '.join(line.split())}\n".encode())
