import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest

from launcher.ray_serve.forwarding import AnswerHead, ForwardedRequest, NoAnswer
from launcher.ray_serve.ingress import IngressApp, Message

PROMPT = b'{"inputs": "Once upon a time"}'
HEAD = AnswerHead(200, ((b"x-note", b"1"),))
GONE = NoAnswer("gone")
Page = tuple[str, AnswerHead | NoAnswer, bytes]


class FakeReplicas:
    """Replicas that give these answers, one after the other. An exception among the parts is raised."""

    def __init__(self, *answers: Sequence[Any], pages: Sequence[Page] = ()) -> None:
        self.requests: list[ForwardedRequest] = []
        self._answers, self._pages = iter(answers), pages

    async def forward(self, request: ForwardedRequest) -> AsyncGenerator[AnswerHead | NoAnswer | bytes]:
        self.requests.append(request)
        for part in next(self._answers):
            if isinstance(part, Exception):
                raise part
            yield part

    async def fetch_answer_of_every_replica(self, request: ForwardedRequest) -> Sequence[Page]:
        self.requests.append(request)
        return self._pages


def run(replicas: FakeReplicas, *body: bytes, sent: list[Message] | None = None, limit: int = 100,
        **scope: Any) -> list[Message]:
    """Send a request through an ingress and return the messages of the answer."""
    sent = [] if sent is None else sent
    parts = iter([*body[:-1], (body or (b"",))[-1]])
    left = max(1, len(body))

    async def receive() -> Message:
        nonlocal left
        left -= 1
        return {"type": "http.request", "body": next(parts), "more_body": left > 0}

    async def send(message: Message) -> None:
        sent.append(message)

    request = {"type": "http", "method": "POST", "path": "/generate", "query_string": b"", "headers": [], **scope}
    asyncio.run(IngressApp(replicas, ("org/name",), limit).run(request, receive, send))
    return sent


def get_status(messages: list[Message]) -> int:
    return int(messages[0]["status"])


def get_body(messages: list[Message]) -> bytes:
    return b"".join(message["body"] for message in messages[1:])


def test_parts_pass_one_by_one() -> None:
    messages = run(FakeReplicas([HEAD, b"a", b"b"]), PROMPT)
    assert messages == [
        {"type": "http.response.start", "status": 200, "headers": [(b"x-note", b"1")]},
        {"type": "http.response.body", "body": b"a", "more_body": True},
        {"type": "http.response.body", "body": b"b", "more_body": True},
        {"type": "http.response.body", "body": b"", "more_body": False}]


def test_request_passes_with_path_query_headers_and_body_as_written() -> None:
    replicas = FakeReplicas([HEAD])
    run(replicas, b"a", b"bc", method="PUT", path="/a b", raw_path=b"/a%20b", query_string=b"q=%C3",
        headers=[(b"a", b"1")])
    [request] = replicas.requests
    assert (request.method, request.target, request.headers, request.body) == (
        "PUT", "/a%20b?q=%C3", ((b"a", b"1"),), b"abc")


def test_prefix_of_the_route_is_removed() -> None:
    replicas = FakeReplicas([HEAD], [HEAD])
    run(replicas, raw_path=b"/weft/info", path="/weft/info", root_path="/weft")
    run(replicas, raw_path=b"/weft", path="/weft", root_path="/weft")
    assert [request.target for request in replicas.requests] == ["/info", "/"]


def test_body_that_is_too_long_reaches_the_server_with_one_byte_too_many() -> None:
    replicas = FakeReplicas([HEAD])
    run(replicas, b"12345", b"67890", b"never read", limit=7)
    assert replicas.requests[0].body == b"12345678"


@pytest.mark.parametrize("scope", [{}, {"method": "GET"}])
def test_request_without_an_answer_gets_a_second_replica(scope: dict[str, str]) -> None:
    replicas = FakeReplicas([GONE], [HEAD, b"a"])
    assert get_body(run(replicas, PROMPT if not scope else b"", **scope)) == b"a"
    assert len(replicas.requests) == 2


def test_no_third_replica_is_tried() -> None:
    messages = run(FakeReplicas([GONE], [GONE]), PROMPT)
    assert (get_status(messages), json.loads(get_body(messages))["error_type"]) == (503, "overloaded")
    assert (b"retry-after", b"1") in messages[0]["headers"]


def test_request_that_changes_a_server_is_sent_once() -> None:
    replicas = FakeReplicas([GONE])
    messages = run(replicas, b'{"adapter_id": "x"}', path="/v1/load_lora_adapter")
    assert (get_status(messages), len(replicas.requests)) == (503, 1)
    assert json.loads(get_body(messages))["error"]["code"] == "overloaded"


def test_answer_that_breaks_off_has_no_end() -> None:
    sent = list[Message]()
    with pytest.raises(ConnectionResetError):
        run(FakeReplicas([HEAD, b"a", ConnectionResetError()], [HEAD, b"b"]), PROMPT, sent=sent)
    assert [message.get("more_body") for message in sent] == [None, True]


def test_metrics_are_those_of_all_replicas() -> None:
    head = AnswerHead(200, ((b"Content-Type", b"text/plain"), (b"Content-Length", b"3")))
    page = b"# TYPE a gauge\na 1\n"
    messages = run(FakeReplicas(pages=[("one", head, page), ("two", GONE, b""), ("three", head, page)]), method="GET",
                   path="/metrics")
    assert get_body(messages) == b'# TYPE a gauge\na{replica="one"} 1\na{replica="three"} 1\n'
    assert messages[0]["headers"] == [(b"Content-Type", b"text/plain"),
                                      (b"content-length", str(len(get_body(messages))).encode())]


def test_refusal_of_metrics_passes() -> None:
    refusal = ("one", AnswerHead(401, ()), b"no")
    messages = run(FakeReplicas(pages=[refusal]), method="GET", path="/metrics")
    assert (get_status(messages), get_body(messages)) == (401, b"no")


def test_metrics_without_a_replica_are_an_error() -> None:
    assert get_status(run(FakeReplicas(), method="GET", path="/metrics")) == 503


def test_client_that_leaves_while_it_sends_ends_the_request() -> None:
    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(_: Message) -> None:
        raise AssertionError

    replicas = FakeReplicas()
    with pytest.raises(ConnectionError):
        asyncio.run(IngressApp(replicas, ("",), 1).run({"type": "http"}, receive, send))
    assert replicas.requests == []


def test_lifespan_is_acknowledged() -> None:
    incoming = iter(["lifespan.startup", "lifespan.shutdown"])
    sent = list[str]()

    async def receive() -> Message:
        return {"type": next(incoming)}

    async def send(message: Message) -> None:
        sent.append(message["type"])

    asyncio.run(IngressApp(FakeReplicas(), ("",), 1).run({"type": "lifespan"}, receive, send))
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
