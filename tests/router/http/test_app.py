"""Application as a whole: every error has the format of its dialect and does not affect other requests."""

import asyncio
import gc
import json
from contextlib import suppress

import pytest
from support.servers.expected_streams import make_text_events

from router.engine.stream import FailedEvent
from router.errors import Cancelled, GenerationFailed, Overloaded


def get_error_type(text):
    answer = json.loads(text)
    assert set(answer) == {"error", "error_type"}
    return answer["error_type"]


def test_unknown_paths_and_wrong_methods_return_errors(serve):
    async def scenario(client, engine):
        nowhere, wrong = await client.get("/nowhere"), await client.put("/generate")
        assert (nowhere.status, get_error_type(await nowhere.text())) == (404, "not_found")
        assert (wrong.status, get_error_type(await wrong.text()),
                wrong.headers["Allow"]) == (405, "method_not_allowed", "POST")
    serve(scenario)


@pytest.mark.parametrize("path", ["/generate", "/generate_stream"])
def test_internal_error_is_logged_and_the_next_request_works(serve, caplog, path):
    async def scenario(client, engine):
        engine.submit_errors = [RuntimeError("/a/secret/path")]
        text = await (await client.post(path, json={"inputs": "x"})).text()
        assert get_error_type(text.removeprefix("data: ")) == "internal"
        assert "secret" not in text
        assert (await client.post(path, json={"inputs": "x"})).status == 200
    serve(scenario)
    assert "RuntimeError: /a/secret/path" in caplog.text


def test_cancelled_request_closes_its_connection_without_a_response(serve, caplog):
    async def scenario(client, engine):
        engine.submit_errors = [Cancelled("gone")]
        reader, writer = await asyncio.open_connection(client.host, client.port)
        writer.write(b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                     b'Content-Length: 14\r\n\r\n{"inputs":"x"}')
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()
    serve(scenario)
    assert not caplog.records


TEXT_BODY, CHAT_BODY = {"inputs": "x"}, {"messages": [{"role": "user", "content": "x"}]}
NUM_REPETITIONS = 20
REQUEST_CASES = {
    "a text": ("/generate", TEXT_BODY, make_text_events("weft"), None),
    "a text, streamed": ("/generate_stream", TEXT_BODY, make_text_events("weft"), None),
    "a chat": ("/v1/chat/completions", CHAT_BODY, make_text_events("weft"), None),
    "a chat, streamed": ("/v1/chat/completions", CHAT_BODY | {"stream": True}, make_text_events("weft"), None),
    "a text that is refused": ("/generate", TEXT_BODY, [], Overloaded("full")),
    "a stream that is refused": ("/generate_stream", TEXT_BODY, [], Overloaded("full")),
    "a chat that is refused": ("/v1/chat/completions", CHAT_BODY | {"stream": True}, [], Overloaded("full")),
    "a text that makes no sense": ("/generate", {"inputs": 1}, [], None),
    "a text that fails": ("/generate", TEXT_BODY, [FailedEvent(GenerationFailed("broken"))], None),
    "a stream that fails": ("/generate_stream", TEXT_BODY, [FailedEvent(GenerationFailed("broken"))], None),
}


@pytest.mark.parametrize(("path", "body", "events", "refusal"), REQUEST_CASES.values(), ids=REQUEST_CASES)
def test_finished_request_leaves_no_garbage_cycles(serve, path, body, events, refusal):
    """Regression: thousands of rejected requests left cycles, whose collection blocked the event loop for 100 ms."""
    async def send_request(client, engine):
        engine.scripts[:] = [[*events]] if events else []
        engine.submit_errors[:] = [type(refusal)(str(refusal))] if refusal is not None else []
        await (await client.post(path, json=body)).read()
        engine.streams.clear()

    async def scenario(client, engine):
        await send_request(client, engine)
        gc.collect()
        gc.disable()
        try:
            for _ in range(NUM_REPETITIONS):
                await send_request(client, engine)
            assert gc.collect() < NUM_REPETITIONS
        finally:
            gc.enable()
    serve(scenario)
