"""Chat client of OpenAI's API, against scripted servers."""

import asyncio
import socket

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from launcher.client.chat_client import (
    ChatConversation,
    ChatRequestFailed,
    ChatSettings,
    StreamedAnswer,
    extract_error_message,
)

SERVER_URL = "http://127.0.0.1:3000"
USER_MESSAGE = {"role": "user", "content": "hi"}
ANSWER_CHUNKS = (b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":"we"}}]}\n\n'
                 b'data: {"choices":[{"index":0,"delta":{"content":"ft"}}],"usage":null}\n\n')
USAGE_CHUNK = b'data: {"choices":[],"usage":{"completion_tokens":7}}\n\n'
DONE_EVENT = b"data: [DONE]\n\n"


def ask_questions(*responses, settings=None, questions=("hi",), api_key=""):
    """Ask the questions; the server replies with `responses`, each a status and a body.

    Return the chat, the last answer, the parts shown, and the body and headers of each request.
    """
    received_requests, shown, remaining_responses = [], [], list(responses)

    async def serve(request):
        received_requests.append((await request.json(), dict(request.headers)))
        status, body = remaining_responses.pop(0)
        return web.Response(status=status, body=body, content_type="text/event-stream")

    async def main():
        app = web.Application()
        app.add_routes([web.post("/v1/chat/completions", serve)])
        async with TestServer(app) as server:
            chat = ChatConversation(ChatSettings(str(server.make_url("")), **settings or {}), api_key)
            answers = [await chat.ask_question(question, shown.append) for question in questions]
            return chat, answers[-1]
    return *asyncio.run(main()), shown, received_requests


def get_failure_message(*responses):
    with pytest.raises(ChatRequestFailed) as failed:
        ask_questions(*responses)
    return str(failed.value)


def test_answer_is_streamed_and_kept_in_the_conversation():
    chat, answer, shown, [(body, headers)] = ask_questions((200, ANSWER_CHUNKS + DONE_EVENT))
    assert shown == ["we", "ft"]
    assert (answer.text, answer.num_tokens) == ("weft", 2)
    assert chat.messages == [USER_MESSAGE, {"role": "assistant", "content": "weft"}]
    assert body == {"messages": [USER_MESSAGE], "stream": True, "stream_options": {"include_usage": True}}
    assert "Authorization" not in headers


def test_reported_usage_overrides_the_token_count():
    assert ask_questions((200, ANSWER_CHUNKS + USAGE_CHUNK + DONE_EVENT))[1].num_tokens == 7


def test_chosen_settings_are_sent():
    chosen = {"model": "loom", "max_tokens": 5, "temperature": 0.0, "seed": 1}
    *_, [(body, headers)] = ask_questions((200, ANSWER_CHUNKS + DONE_EVENT), settings=chosen | {"system": "Weave."},
                                          api_key="sk-loom")
    assert body["messages"] == [{"role": "system", "content": "Weave."}, USER_MESSAGE]
    assert chosen.items() <= body.items()
    assert headers["Authorization"] == "Bearer sk-loom"


def test_next_question_includes_the_conversation_so_far():
    *_, received_requests = ask_questions((200, ANSWER_CHUNKS + DONE_EVENT), (200, ANSWER_CHUNKS + DONE_EVENT),
                                          questions=("hi", "more"))
    assert [message["content"] for message in received_requests[1][0]["messages"]] == ["hi", "weft", "more"]


def test_empty_answer_is_not_kept():
    chat, answer, *_ = ask_questions((200, DONE_EVENT))
    assert (chat.messages, answer.format_speed()) == ([], "no answer")


def test_comments_and_other_fields_of_the_stream_are_ignored():
    assert ask_questions((200, b":\n\nevent: more\n" + ANSWER_CHUNKS + DONE_EVENT))[1].text == "weft"


@pytest.mark.parametrize(("url", "address"),
                         [(SERVER_URL, SERVER_URL), (f"{SERVER_URL}/", SERVER_URL), (f"{SERVER_URL}/v1", SERVER_URL),
                          (f"{SERVER_URL}/v1/", SERVER_URL), ("http://a/b", "http://a/b")])
def test_server_url_is_accepted_with_or_without_the_api_path(url, address):
    assert ChatSettings(url).route_url("models") == f"{address}/v1/models"


@pytest.mark.parametrize(("status", "body", "message"), [
    (422, b'{"error":"Template error: none","error_type":"template_error"}', "Template error: none"),
    (404, b'{"error":{"message":"no such model"}}', "no such model"),
    (502, b"<h1>Bad\n gateway</h1>", "<h1>Bad gateway</h1>"),
    (500, b"[]", "[]"), (500, b'{"more":1}', '{"more":1}'), (503, b"x" * 9999, "x" * 500)])
def test_error_response_is_reported_in_one_sentence(status, body, message):
    assert get_failure_message((status, body)) == f"the server answered {status}: {message}"


@pytest.mark.parametrize(("body", "message"), [
    (b'data: {"error":{"message":"broken"}}\n\n' + DONE_EVENT, "the answer ends early: broken"),
    (b"", "the answer ends early: the connection was closed"),
    (b"data: 5\n\n", "the answer ends early: 5")])
def test_incomplete_answer_fails_but_its_text_is_kept(body, message):
    async def serve(_):
        return web.Response(body=ANSWER_CHUNKS + body)

    async def main():
        app = web.Application()
        app.add_routes([web.post("/v1/chat/completions", serve)])
        async with TestServer(app) as server:
            chat = ChatConversation(ChatSettings(str(server.make_url(""))))
            with pytest.raises(ChatRequestFailed, match=message):
                await chat.ask_question("hi", lambda _: None)
            assert chat.messages[1:] == [{"role": "assistant", "content": "weft"}]
    asyncio.run(main())


def test_malformed_stream_is_an_error():
    assert "broke off" in get_failure_message((200, b"data: {\n\n"))


def test_unreachable_server_is_named_in_the_error():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    chat = ChatConversation(ChatSettings(url))
    with pytest.raises(ChatRequestFailed, match=f"cannot reach {url}: .*; does the server run?"):
        asyncio.run(chat.ask_question("hi", print))
    assert chat.messages == []


@pytest.mark.parametrize("url", ["nowhere", "ftp://a", "http://"])
def test_invalid_url_is_named_in_the_error(url):
    with pytest.raises(ChatRequestFailed, match=f"{url} is no address of a server"):
        asyncio.run(ChatConversation(ChatSettings(url)).ask_question("hi", print))


def test_cancelled_answer_keeps_the_text_received_so_far():
    async def serve(request):
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(ANSWER_CHUNKS)
        await asyncio.Event().wait()

    async def main():
        app = web.Application()
        app.add_routes([web.post("/v1/chat/completions", serve)])
        async with TestServer(app, handler_cancellation=True) as server:
            chat, received = ChatConversation(ChatSettings(str(server.make_url("")))), asyncio.Event()
            task = asyncio.create_task(chat.ask_question("hi", lambda part: received.set() if part == "ft" else None))
            await received.wait()
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()
            assert chat.messages == [USER_MESSAGE, {"role": "assistant", "content": "weft"}]
    asyncio.run(main())


def format_speed_of_answer(*part_times, asked_at=10.0, num_tokens=None):
    answer = StreamedAnswer(asked_at, clock=iter(part_times).__next__)
    for _ in part_times:
        answer.add_part("x")
    answer.num_tokens = num_tokens or answer.num_tokens
    return answer.format_speed()


def test_speed_summary_separates_first_token_latency_from_throughput():
    assert format_speed_of_answer(10.04, 10.14, 10.24) == "first token 0.04 s · 10 tokens/s · 3 tokens"
    assert format_speed_of_answer(10.5, 11.5, num_tokens=101) == "first token 0.50 s · 100 tokens/s · 101 tokens"


@pytest.mark.parametrize(("moments", "token_count"), [((10.25,), "1 token"), ((10.25, 10.25), "2 tokens")])
def test_zero_duration_answer_has_no_speed(moments, token_count):
    assert format_speed_of_answer(*moments) == f"first token 0.25 s · {token_count}"


def test_error_message_is_extracted_from_every_format():
    assert extract_error_message('{"error": "a\\n b"}') == extract_error_message(
        '{"error": {"message": "a b"}}') == extract_error_message("a b") == "a b"


def find_model_name(response_text, status=200, model="", api_key=""):
    async def serve(request):
        assert request.headers.get("Authorization") == (f"Bearer {api_key}" if api_key else None)
        return web.Response(status=status, text=response_text)

    async def main():
        app = web.Application()
        app.add_routes([web.get("/v1/models", serve)])
        async with TestServer(app) as server:
            return await ChatConversation(ChatSettings(str(server.make_url("")), model), api_key).find_model_name()
    return asyncio.run(main())


def test_model_name_is_the_first_that_the_server_lists_unless_one_is_chosen():
    listed = '{"data": [{"id": "org/loom"}, {"id": "org/other"}]}'
    assert find_model_name(listed, api_key="sk-loom") == "org/loom"
    assert find_model_name(listed, model="org/mine") == "org/mine"


@pytest.mark.parametrize(("text", "status"), [("{}", 200), ("no", 200), ('{"data": []}', 200), ("[]", 200), ("", 404)])
def test_server_that_lists_no_models_is_no_failure(text, status):
    assert find_model_name(text, status) == ""


def test_refused_key_is_a_failure():
    with pytest.raises(ChatRequestFailed, match="the server answered 401: no key"):
        find_model_name('{"error": {"message": "no key"}}', 401)
