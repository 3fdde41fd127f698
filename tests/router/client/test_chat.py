"""Chat client of OpenAI's API, against scripted servers."""

import asyncio
import socket

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from router.client.chat import Answer, Chat, Failed, Order, reason

URL = "http://127.0.0.1:3000"
HI = {"role": "user", "content": "hi"}
WEFT = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":"we"}}]}\n\n' \
       b'data: {"choices":[{"index":0,"delta":{"content":"ft"}}],"usage":null}\n\n'
USAGE = b'data: {"choices":[],"usage":{"completion_tokens":7}}\n\n'
DONE = b"data: [DONE]\n\n"


def asked(*answers, order=None, questions=("hi",), key=""):
    """Ask the questions; the server replies with `answers`, each a status and a body.

    Return the chat, the last answer, the parts shown, and the body and headers of each request.
    """
    heard, shown, scripts = [], [], list(answers)

    async def serve(request):
        heard.append((await request.json(), dict(request.headers)))
        status, body = scripts.pop(0)
        return web.Response(status=status, body=body, content_type="text/event-stream")

    async def main():
        app = web.Application()
        app.add_routes([web.post("/v1/chat/completions", serve)])
        async with TestServer(app) as server:
            chat = Chat(Order(str(server.make_url("")), **order or {}), key)
            told = [await chat.ask(question, shown.append) for question in questions]
            return chat, told[-1]
    return *asyncio.run(main()), shown, heard


def failure(*answers):
    with pytest.raises(Failed) as failed:
        asked(*answers)
    return str(failed.value)


def test_an_answer_is_shown_as_it_comes_and_kept():
    chat, answer, shown, [(body, headers)] = asked((200, WEFT + DONE))
    assert shown == ["we", "ft"]
    assert (answer.text, answer.num_tokens) == ("weft", 2)
    assert chat.messages == [HI, {"role": "assistant", "content": "weft"}]
    assert body == {"messages": [HI], "stream": True, "stream_options": {"include_usage": True}}
    assert "Authorization" not in headers


def test_the_server_counts_the_tokens_if_it_does():
    assert asked((200, WEFT + USAGE + DONE))[1].num_tokens == 7


def test_what_is_chosen_is_sent():
    chosen = {"model": "loom", "max_tokens": 5, "temperature": 0.0, "seed": 1}
    *_, [(body, headers)] = asked((200, WEFT + DONE), order=chosen | {"system": "Weave."}, key="sk-loom")
    assert body["messages"] == [{"role": "system", "content": "Weave."}, HI]
    assert chosen.items() <= body.items()
    assert headers["Authorization"] == "Bearer sk-loom"


def test_the_next_question_comes_with_the_chat_so_far():
    *_, heard = asked((200, WEFT + DONE), (200, WEFT + DONE), questions=("hi", "more"))
    assert [message["content"] for message in heard[1][0]["messages"]] == ["hi", "weft", "more"]


def test_an_empty_answer_leaves_nothing():
    chat, answer, *_ = asked((200, DONE))
    assert (chat.messages, answer.figures()) == ([], "no answer")


def test_comments_and_other_lines_are_passed_over():
    assert asked((200, b":\n\nevent: more\n" + WEFT + DONE))[1].text == "weft"


@pytest.mark.parametrize(("url", "address"), [
    (URL, URL), (f"{URL}/", URL), (f"{URL}/v1", URL), (f"{URL}/v1/", URL), ("http://a/b", "http://a/b")])
def test_the_address_may_be_that_of_the_server_or_of_the_api(url, address):
    assert Order(url).address == f"{address}/v1/chat/completions"


@pytest.mark.parametrize(("status", "body", "told"), [
    (422, b'{"error":"Template error: none","error_type":"template_error"}', "Template error: none"),
    (404, b'{"error":{"message":"no such model"}}', "no such model"),
    (502, b"<h1>Bad\n gateway</h1>", "<h1>Bad gateway</h1>"),
    (500, b"[]", "[]"), (500, b'{"more":1}', '{"more":1}'), (503, b"x" * 9999, "x" * 500)])
def test_a_refusal_is_told_in_one_sentence(status, body, told):
    assert failure((status, body)) == f"the server answered {status}: {told}"


@pytest.mark.parametrize(("body", "told"), [
    (b'data: {"error":{"message":"broken"}}\n\n' + DONE, "the answer ends early: broken"),
    (b"", "the answer ends early: the connection was closed"),
    (b"data: 5\n\n", "the answer ends early: 5")])
def test_an_answer_that_is_not_whole_is_a_failure_and_what_came_is_kept(body, told):
    async def serve(_):
        return web.Response(body=WEFT + body)

    async def main():
        app = web.Application()
        app.add_routes([web.post("/v1/chat/completions", serve)])
        async with TestServer(app) as server:
            chat = Chat(Order(str(server.make_url(""))))
            with pytest.raises(Failed, match=told):
                await chat.ask("hi", lambda _: None)
            assert chat.messages[1:] == [{"role": "assistant", "content": "weft"}]
    asyncio.run(main())


def test_what_is_no_stream_is_a_failure():
    assert "broke off" in failure((200, b"data: {\n\n"))


def test_a_server_that_is_not_there_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    chat = Chat(Order(url))
    with pytest.raises(Failed, match=f"cannot reach {url}: .*; does the server run?"):
        asyncio.run(chat.ask("hi", print))
    assert chat.messages == []


@pytest.mark.parametrize("url", ["nowhere", "ftp://a", "http://"])
def test_an_address_that_is_none_is_named(url):
    with pytest.raises(Failed, match=f"{url} is no address of a server"):
        asyncio.run(Chat(Order(url)).ask("hi", print))


def test_an_answer_that_is_stopped_is_kept_as_far_as_it_came():
    async def serve(request):
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(WEFT)
        await asyncio.Event().wait()

    async def main():
        app = web.Application()
        app.add_routes([web.post("/v1/chat/completions", serve)])
        async with TestServer(app, handler_cancellation=True) as server:
            chat, came = Chat(Order(str(server.make_url("")))), asyncio.Event()
            asking = asyncio.create_task(chat.ask("hi", lambda part: came.set() if part == "ft" else None))
            await came.wait()
            asking.cancel()
            await asyncio.wait([asking])
            assert asking.cancelled()
            assert chat.messages == [HI, {"role": "assistant", "content": "weft"}]
    asyncio.run(main())


def timed(*moments, asked=10.0, num_tokens=None):
    answer = Answer(asked, clock=iter(moments).__next__)
    for _ in moments:
        answer.add("x")
    answer.num_tokens = num_tokens or answer.num_tokens
    return answer.figures()


def test_figures_tell_the_first_token_apart_from_the_speed_of_the_others():
    assert timed(10.04, 10.14, 10.24) == "first token 0.04 s · 10 tokens/s · 3 tokens"
    assert timed(10.5, 11.5, num_tokens=101) == "first token 0.50 s · 100 tokens/s · 101 tokens"


@pytest.mark.parametrize(("moments", "told"), [((10.25,), "1 token"), ((10.25, 10.25), "2 tokens")])
def test_what_took_no_time_has_no_speed(moments, told):
    assert timed(*moments) == f"first token 0.25 s · {told}"


def test_an_error_is_a_sentence_in_whichever_shape_it_comes():
    assert reason('{"error": "a\\n b"}') == reason('{"error": {"message": "a b"}}') == reason("a b") == "a b"
