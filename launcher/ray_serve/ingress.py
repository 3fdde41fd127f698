"""The ASGI application before the replicas: reads requests, lets one replica answer each, and passes answers on.

What it asks of Ray Serve is a small interface, `Replicas`, so that nothing here knows Ray.
"""

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, MutableMapping, Sequence
from contextlib import aclosing
from typing import Any, Protocol

from launcher.ray_serve.affinity import make_affinity_key
from launcher.ray_serve.forwarding import AnswerHead, ForwardedRequest, NoAnswer, drop_headers, make_error_body
from launcher.ray_serve.metrics import merge_metrics

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
MAX_TRIES = 2  # of a request that no replica has answered
NO_REPLICA_TEXT = "the replica of this request has ended; send the request again"
NO_REPLICA_HEAD = AnswerHead(503, ((b"content-type", b"application/json"), (b"retry-after", b"1")))
logger = logging.getLogger("ray.serve")


class Replicas(Protocol):
    """The replicas, as the ingress uses them."""

    def forward(self, request: ForwardedRequest) -> AsyncGenerator[AnswerHead | NoAnswer | bytes]:
        """Yield one replica's answer: its head, or NoAnswer if that replica has ended, then the body's parts."""

    async def fetch_answer_of_every_replica(
            self, request: ForwardedRequest) -> Sequence[tuple[str, AnswerHead | NoAnswer, bytes]]:
        """Return the name, the head and the body of every replica."""


class IngressApp:
    """Serves ASGI connections. An error in mid-answer is raised, so that the body of that answer has no end."""

    def __init__(self, replicas: Replicas, model_names: tuple[str, ...], payload_limit: int) -> None:
        self._replicas = replicas
        self._model_names = model_names
        self._payload_limit = payload_limit

    async def run(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await answer_lifespan(receive, send)
        elif scope["type"] == "http":
            body = await read_body(receive, self._payload_limit)
            request = ForwardedRequest(scope["method"], get_request_target(scope), tuple(scope["headers"]), body,
                                       make_affinity_key(body, self._model_names))
            await (self._send_metrics if is_metrics_request(request) else self._forward)(request, send)

    async def _forward(self, request: ForwardedRequest, send: Send) -> None:
        for _ in range(MAX_TRIES if is_repeatable(request) else 1):
            async with aclosing(self._replicas.forward(request)) as parts:
                head = await anext(parts)
                if isinstance(head, AnswerHead):
                    await send_answer(send, head, parts)
                    return
            assert isinstance(head, NoAnswer)
            logger.warning("a replica gave no answer to %s %s: %s", request.method, request.target, head.reason)
        await send_body(send, NO_REPLICA_HEAD, make_error_body(request.target, NO_REPLICA_TEXT, "overloaded"))

    async def _send_metrics(self, request: ForwardedRequest, send: Send) -> None:
        """Answer with the metrics of all replicas, or as the first replica that refuses."""
        pages, head = dict[str, str](), NO_REPLICA_HEAD
        for name, answer, body in await self._replicas.fetch_answer_of_every_replica(request):
            if isinstance(answer, AnswerHead):
                head = AnswerHead(answer.status, drop_headers(answer.headers, frozenset({b"content-length"})))
                if answer.status != 200:
                    await send_body(send, head, body)
                    return
                pages[name] = body.decode()
        await send_body(send, head, merge_metrics(pages).encode())


def is_metrics_request(request: ForwardedRequest) -> bool:
    return request.method == "GET" and request.target.partition("?")[0] == "/metrics"


def is_repeatable(request: ForwardedRequest) -> bool:
    """Whether a request may be sent to a second replica when the first has given no answer."""
    return request.affinity.is_generation or request.method in {"GET", "HEAD", "OPTIONS"}


def get_request_target(scope: Message) -> str:
    """Return path and query as the client wrote them, without the prefix of the application's route."""
    path = bytes(scope.get("raw_path") or b"").decode("latin-1") or scope["path"]
    path = path.removeprefix(scope.get("root_path", "")) or "/"
    query = scope["query_string"].decode("latin-1")
    return f"{path}?{query}" if query else path


async def read_body(receive: Receive, limit: int) -> bytes:
    """Return the body of a request. One that is too long is cut one byte behind the limit: the server refuses it."""
    parts, size, has_more = list[bytes](), 0, True
    while has_more and size <= limit:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionError("the client has left")
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        has_more = message.get("more_body", False)
    return b"".join(parts)[:limit + 1]


async def send_answer(send: Send, head: AnswerHead, parts: AsyncIterator[AnswerHead | NoAnswer | bytes]) -> None:
    await send({"type": "http.response.start", "status": head.status, "headers": list(head.headers)})
    async for part in parts:
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def send_body(send: Send, head: AnswerHead, body: bytes) -> None:
    headers = [*head.headers, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": head.status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def answer_lifespan(receive: Receive, send: Send) -> None:
    while (message := await receive())["type"] != "lifespan.shutdown":
        await send({"type": f"{message['type']}.complete"})
    await send({"type": "lifespan.shutdown.complete"})
