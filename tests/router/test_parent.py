"""Communication between a router and its parent process, and the end of either."""

import asyncio
import os
import signal

import pytest

from router.parent import asked_to_stop, end_with_parent, tell


def test_what_is_told_is_one_line() -> None:
    read, write = os.pipe()
    tell(write, "failed for\nmany reasons")
    os.close(write)
    with open(read) as lines:
        assert lines.read() == "failed for many reasons\n"


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
