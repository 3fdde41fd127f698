"""Communication between a router and its parent process, and the end of either."""

import asyncio
import os
import signal

import pytest

from router.parent import cancel_on_parent_exit, send_to_parent, wait_for_stop_signal


def test_message_to_the_parent_is_one_line() -> None:
    read, write = os.pipe()
    send_to_parent(write, "failed for\nmany reasons")
    os.close(write)
    with open(read) as lines:
        assert lines.read() == "failed for many reasons\n"


def test_nothing_is_sent_without_a_pipe() -> None:
    send_to_parent(-1, "ready 3000")


def test_first_signal_requests_a_stop_and_the_next_one_has_its_default_effect() -> None:
    async def scenario() -> None:
        asked = asyncio.create_task(wait_for_stop_signal())
        await asyncio.sleep(0)
        os.kill(os.getpid(), signal.SIGTERM)
        await asked
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    asyncio.run(scenario())


def test_parent_exit_cancels_the_router() -> None:
    async def scenario(parent_fd: int, held_open: int) -> None:
        cancel_on_parent_exit(parent_fd)
        os.close(held_open)
        await asyncio.Event().wait()
    parent_fd, held_open = os.pipe()
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(scenario(parent_fd, held_open))
    os.close(parent_fd)
