"""Communication between a router and its parent process: signals and two pipes.

The router writes lines to `ready_fd`: `ready PORT JSON` (the JSON describes the model for the banner) or `failed WHY`,
and at any time `broken WHY` when the shards should be replaced. End of file on `parent_fd` means that the parent has
ended.
"""

import asyncio
import os
import signal

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def cancel_on_parent_exit(parent_fd: int) -> None:
    """Cancel the running task when the parent ends: no other process would restart or stop this one."""
    if parent_fd < 0:
        return
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None

    def on_parent_exit() -> None:
        loop.remove_reader(parent_fd)
        task.cancel()

    loop.add_reader(parent_fd, on_parent_exit)


async def wait_for_stop_signal() -> None:
    """Wait for SIGINT or SIGTERM, then restore the default action: a second signal ends the process at once."""
    loop, stop_requested = asyncio.get_running_loop(), asyncio.Event()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, stop_requested.set)
    await stop_requested.wait()
    for number in STOP_SIGNALS:
        loop.remove_signal_handler(number)


def send_to_parent(ready_fd: int, message: str) -> None:
    if ready_fd >= 0:
        os.write(ready_fd, f"{' '.join(message.split())}\n".encode())
