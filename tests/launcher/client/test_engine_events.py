"""Events of a server's engine, from a scripted server, and the view that follows from them."""

import asyncio
import json
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from launcher.client.chat_client import ChatRequestFailed
from launcher.client.engine_events import EngineView, open_engine_events


def make_entry(number: int, **fields: Any) -> dict[str, Any]:
    return {"id": number, "own": True, "request_id": f"request-{number}", "tenant": "", "tenant_ordinal": 1,
            "adapter": None, "adapter_ordinal": 0, "submitted_at": 100.0, "prompt_tokens": 20, "max_new_tokens": 9,
            **fields}


def make_state(*running: dict[str, Any], waiting: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    return {
        "t": 101.0, "step": 4, "server": {
            "model": "loom", "version": "1.0", "device": "cpu", "dtype": "float32", "num_shard": 1, "ready": True,
            "not_ready_reason": None, "max_batch_size": 8},
        "running": [*running], "queue": {"length": len(waiting), "tokens": 20 * len(waiting), "waiting": [*waiting]},
        "blocks": {"total": 100, "used": 30, "cached": 20, "free": 50, "shared": 4, "map": [[0, 100]]},
        "rates": {"window_seconds": 1.0, "tokens_per_second": 812.4, "prompt_tokens_per_second": 30.0,
                  "requests_per_second": 3.0, "first_token_ms": {"p50": 21.3, "p99": 80.2},
                  "gap_ms": {"p50": 8.4, "p99": None}, "batch_size": 7.5, "step_ms": 7.9}}


def make_step(number: int, *rows: list[Any], **changes: Any) -> dict[str, Any]:
    return {"step": number, "rows": [*rows], "admitted": [], "finished": [], "preempted": [], "cancelled": [],
            **changes}


def make_frame(*steps: dict[str, Any], sequences: tuple[dict[str, Any], ...] = (), **parts: Any) -> dict[str, Any]:
    return {"t": 102.0, "step": steps[-1]["step"] if steps else 4, "steps": [*steps], "sequences": [*sequences],
            **parts}


RUNNING = make_entry(1, lane=0, state="decode", prefilled_tokens=20, generated_tokens=3)


def receive_events(lines: str, *, content_type: str = "text/event-stream", status: int = 200,
                   api_key: str = "sk-one") -> tuple[list[Any], list[tuple[str, str]]]:
    """Return the client's events, and path and key of the requests that the server received."""
    received: list[tuple[str, str]] = []

    async def serve(request: web.Request) -> web.Response:
        received.append((request.path, request.headers.get("Authorization", "")))
        return web.Response(body=lines.encode(), content_type=content_type, status=status)

    async def main() -> list[Any]:
        app = web.Application()
        app.add_routes([web.get("/{path:.*}", serve)])
        async with TestServer(app) as server, open_engine_events(str(server.make_url("/v1")), api_key) as events:
            return [event async for event in events]
    return asyncio.run(main()), received


def test_server_that_dies_is_reported_without_details_of_the_protocol() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        event = render_events(("state", make_state())).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
                     + b"%x\r\n%b\r\n" % (len(event), event))
        await writer.drain()
        writer.close()

    async def main() -> str:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server:
            with pytest.raises(ChatRequestFailed) as failure:
                await collect_events(url)
        return str(failure.value).removeprefix(url)

    assert asyncio.run(main()) == " ended the connection before the answer was complete; does the server still run?"


async def collect_events(url: str) -> list[Any]:
    async with open_engine_events(url, "") as events:
        return [event async for event in events]


def render_events(*events: tuple[str, Any]) -> str:
    return "".join(f"event: {name}\nid: 1\ndata: {json.dumps(data)}\n\n" for name, data in events)


def test_events_are_read_by_name_and_the_key_is_sent() -> None:
    sent = [("state", make_state()), ("frame", make_frame())]
    events, received = receive_events(": comment\n\n" + render_events(*sent))
    assert events == sent
    assert received == [("/v1/engine/events", "Bearer sk-one")]


@pytest.mark.parametrize(("lines", "options", "reason"), [
    ('{"error": "16 viewers watch already"}', {"status": 429}, "the server answered 429: 16 viewers watch already"),
    ("<html>", {"content_type": "text/html"}, "has no events of an engine; is it weft"),
    ("event: state\ndata: {\n\n", {}, "the connection to .* broke off"),
    (render_events(("error", {"error": "fault"})), {}, "the server reports: .*fault")])
def test_failure_is_an_error_with_the_reason(lines: str, options: Any, reason: str) -> None:
    with pytest.raises(ChatRequestFailed, match=reason):
        receive_events(lines, **options)


def make_view(*events: tuple[str, Any]) -> EngineView:
    view = EngineView()
    for event in events:
        view.apply(event)
    return view


def test_rows_advance_sequences() -> None:
    frame = make_frame(make_step(5, [0, 1, 1, "d"], [1, 2, 16, "p"], admitted=[[1, 2]]),
                       make_step(6, [0, 1, 2, "d"], [1, 2, 4, "f"]), make_step(7, [0, 1, 0, "d"], [1, 2, 1, "d"]),
                       sequences=(make_entry(2, cached_tokens=0),))
    view = make_view(("state", make_state(RUNNING)), ("frame", frame))
    first, second = view.running[1], view.running[2]
    assert (first.lane, first.state, first.num_prefilled, first.num_generated) == (0, "decode", 20, 6)
    assert (second.lane, second.state, second.num_prefilled, second.num_generated) == (1, "decode", 20, 2)
    assert second.facts["request_id"] == "request-2"


@pytest.mark.parametrize("change", [{"preempted": [[0, 1]]}, {"cancelled": [[0, 1]]}, {"finished": [[0, 1, "length"]]}])
def test_sequence_that_leaves_is_gone(change: dict[str, Any]) -> None:
    view = make_view(("state", make_state(RUNNING)), ("frame", make_frame(make_step(5, **change))))
    assert view.running == {}


def test_frames_replace_the_parts_that_they_have() -> None:
    view = make_view(("state", make_state()), ("frame", make_frame(
        queue={"length": 1, "tokens": 20, "waiting": [make_entry(5)]}, blocks={"used": 31})))
    assert (view.state["t"], view.state["queue"]["length"]) == (102.0, 1)
    assert view.state["blocks"] == {**make_state()["blocks"], "used": 31}
    assert view.state["rates"] == make_state()["rates"]


def test_admission_of_a_sequence_that_waited_keeps_its_facts() -> None:
    view = make_view(("state", make_state(waiting=(make_entry(5, cause="batch"),))),
                     ("frame", make_frame(make_step(5, [0, 5, 20, "f"], admitted=[[0, 5]]))))
    assert view.running[5].facts["prompt_tokens"] == 20


def test_readiness_in_a_frame_changes_the_server() -> None:
    readiness = {"ready": False, "not_ready_reason": "the shards are lost", "has_shards": False}
    view = make_view(("state", make_state()), ("frame", make_frame(server=readiness)), ("frame", make_frame()))
    assert view.state["server"] == {**make_state()["server"], **readiness}


def test_new_state_replaces_everything() -> None:
    view = make_view(("state", make_state(RUNNING)), ("state", make_state()))
    assert view.running == {}
