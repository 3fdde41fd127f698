"""A router process and its parent: start parameters, messages, and the end of either."""

import asyncio
import json
import os
import signal
from dataclasses import asdict

import pytest

from router import launcher_protocol
from router.config import RouterConfig
from router.launcher_protocol import (
    RouterProcessArgs,
    StopSignals,
    cancel_on_parent_exit,
    send_heartbeats,
    send_to_parent,
)
from shard.telemetry.logs import LogSettings
from shard.telemetry.span_export_interface import TraceSettings


def test_arguments_need_no_descriptors() -> None:
    text = json.dumps({"config": {"look_ahead": 1}, "shards": ["unix:/a", "unix:/b"]})
    assert RouterProcessArgs.from_json(text) == RouterProcessArgs(RouterConfig(look_ahead=1), ("unix:/a", "unix:/b"),
                                                                  "", "", "", -1, -1, -1)


def test_arguments_name_the_progress_files_of_the_shards() -> None:
    text = json.dumps({"config": {}, "shards": [], "progress": ["/a", "/b"]})
    assert RouterProcessArgs.from_json(text).progress == ("/a", "/b")


def test_arguments_written_by_the_launcher_are_read_back() -> None:
    config = RouterConfig(cors_allow_origin=("https://a", "https://b"))
    order = RouterProcessArgs(config, ("unix:/a",), logs=LogSettings("debug", as_json=True),
                              traces=TraceSettings("http://a:4317", "loom"))
    assert RouterProcessArgs.from_json(json.dumps(asdict(order))) == order


def test_api_key_is_passed_separately_and_not_shown() -> None:
    text = json.dumps({"config": {}, "shards": []})
    assert RouterProcessArgs.from_json(text, "sk-loom").config.api_key == "sk-loom"
    assert "sk-loom" not in repr(RouterProcessArgs.from_json(text, "sk-loom"))


def test_message_to_the_parent_is_one_line() -> None:
    read, write = os.pipe()
    send_to_parent(write, "failed for\nmany reasons")
    os.close(write)
    with open(read) as lines:
        assert lines.read() == "failed for many reasons\n"


def test_nothing_is_sent_without_a_pipe() -> None:
    send_to_parent(-1, "ready 3000")


def test_heartbeats_are_sent_until_the_parent_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher_protocol, "HEARTBEAT_SECONDS", 0.0)

    async def scenario(write: int) -> None:
        task = asyncio.create_task(send_heartbeats(write))
        for _ in range(50_000):  # more than a pipe holds
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
    read, write = os.pipe()
    asyncio.run(scenario(write))
    os.close(write)
    with open(read) as lines:
        assert {*lines.read().splitlines()} == {"alive"}


def test_first_signal_requests_a_stop_the_second_the_end_of_requests_and_the_next_has_its_default_effect() -> None:
    async def scenario() -> None:
        signals = StopSignals()
        os.kill(os.getpid(), signal.SIGTERM)
        await signals.stop_requested.wait()
        assert not signals.end_requested.is_set()
        os.kill(os.getpid(), signal.SIGINT)
        await signals.end_requested.wait()
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
