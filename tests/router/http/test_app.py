"""Application as a whole: every error has the format of its dialect and does not affect other requests."""

import asyncio
import gc
import json
from contextlib import suppress

import pytest
from support.expected_streams import said

from router.engine.stream import FailedEvent
from router.errors import Cancelled, GenerationFailed, Overloaded


def told(text):
    answer = json.loads(text)
    assert set(answer) == {"error", "error_type"}
    return answer["error_type"]


def test_unknown_paths_and_wrong_methods_are_told(serve):
    async def scenario(client, engine):
        nowhere, wrong = await client.get("/nowhere"), await client.put("/generate")
        assert (nowhere.status, told(await nowhere.text())) == (404, "not_found")
        assert (wrong.status, told(await wrong.text()), wrong.headers["Allow"]) == (405, "method_not_allowed", "POST")
    serve(scenario)


@pytest.mark.parametrize("path", ["/generate", "/generate_stream"])
def test_a_defect_of_ours_is_logged_and_the_next_request_works(serve, caplog, path):
    async def scenario(client, engine):
        engine.refusals = [RuntimeError("/a/secret/path")]
        text = await (await client.post(path, json={"inputs": "x"})).text()
        assert told(text.removeprefix("data: ")) == "internal"
        assert "secret" not in text
        assert (await client.post(path, json={"inputs": "x"})).status == 200
    serve(scenario)
    assert "RuntimeError: /a/secret/path" in caplog.text


def test_a_request_that_was_cancelled_ends_its_connection_without_an_answer(serve, caplog):
    async def scenario(client, engine):
        engine.refusals = [Cancelled("gone")]
        reader, writer = await asyncio.open_connection(client.host, client.port)
        writer.write(b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                     b'Content-Length: 14\r\n\r\n{"inputs":"x"}')
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()
    serve(scenario)
    assert not caplog.records


TEXT, CHAT = {"inputs": "x"}, {"messages": [{"role": "user", "content": "x"}]}
TIMES = 20
KINDS = {
    "a text": ("/generate", TEXT, said("weft"), None),
    "a text, streamed": ("/generate_stream", TEXT, said("weft"), None),
    "a chat": ("/v1/chat/completions", CHAT, said("weft"), None),
    "a chat, streamed": ("/v1/chat/completions", CHAT | {"stream": True}, said("weft"), None),
    "a text that is refused": ("/generate", TEXT, [], Overloaded("full")),
    "a stream that is refused": ("/generate_stream", TEXT, [], Overloaded("full")),
    "a chat that is refused": ("/v1/chat/completions", CHAT | {"stream": True}, [], Overloaded("full")),
    "a text that makes no sense": ("/generate", {"inputs": 1}, [], None),
    "a text that fails": ("/generate", TEXT, [FailedEvent(GenerationFailed("broken"))], None),
    "a stream that fails": ("/generate_stream", TEXT, [FailedEvent(GenerationFailed("broken"))], None),
}


@pytest.mark.parametrize(("path", "body", "events", "refusal"), KINDS.values(), ids=KINDS)
def test_a_request_that_is_over_leaves_nothing_to_the_collector(serve, path, body, events, refusal):
    """Regression: thousands of rejected requests left cycles, whose collection blocked the event loop for 100 ms."""
    async def ask(client, engine):
        engine.scripts[:] = [[*events]] if events else []
        engine.refusals[:] = [type(refusal)(str(refusal))] if refusal is not None else []
        await (await client.post(path, json=body)).read()
        engine.streams.clear()

    async def scenario(client, engine):
        await ask(client, engine)
        gc.collect()
        gc.disable()
        try:
            for _ in range(TIMES):
                await ask(client, engine)
            assert gc.collect() < TIMES
        finally:
            gc.enable()
    serve(scenario)
