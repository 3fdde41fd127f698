"""Streaming client for OpenAI's `/v1/chat/completions`."""

import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import aiohttp

# On a stream, weft sends at least a comment every 15 seconds.
PATIENCE = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=60)
MOST_TOLD = 500  # characters of an error


class Failed(Exception):
    """Error: there is no answer, or only a part of it."""


@dataclass(frozen=True, slots=True)
class Order:
    """Server and parameters of a chat. None or empty fields are not sent, so that the server's defaults apply."""

    url: str
    model: str = ""
    system: str = ""
    max_tokens: int | None = None
    temperature: float | None = None
    seed: int | None = None

    @property
    def address(self) -> str:
        """URL of the route. `url` may end with /v1, as the base URL of other clients does."""
        return f"{self.url.rstrip('/').removesuffix('/v1')}/v1/chat/completions"

    def body(self, messages: list[dict[str, str]]) -> dict[str, Any]:
        chosen = {"model": self.model or None, "max_tokens": self.max_tokens, "temperature": self.temperature,
                  "seed": self.seed}
        given = {name: value for name, value in chosen.items() if value is not None}
        return {"messages": messages, **given, "stream": True, "stream_options": {"include_usage": True}}


@dataclass(slots=True)
class Answer:
    """The answer received so far, with timestamps."""

    asked: float
    clock: Callable[[], float] = monotonic
    parts: list[str] = field(default_factory=list)
    first: float = 0.0  # time of the first part
    last: float = 0.0
    num_tokens: int = 0  # the server's count, or the number of parts until the server sends one

    @property
    def text(self) -> str:
        return "".join(self.parts)

    def add(self, part: str) -> None:
        self.last = self.clock()
        if not self.parts:
            self.first = self.last
        self.parts.append(part)
        self.num_tokens += 1

    def figures(self) -> str:
        """Return the speed as text. The time to first token is separate, because it includes the prefill."""
        if not self.parts:
            return "no answer"
        count = f"{self.num_tokens} token{'s' if self.num_tokens > 1 else ''}"
        took = self.last - self.first
        speed = f"{(self.num_tokens - 1) / took:.0f} tokens/s · " if self.num_tokens > 1 and took > 0 else ""
        return f"first token {self.first - self.asked:.2f} s · {speed}{count}"


class Chat:
    """A chat with a server, and its messages so far."""

    def __init__(self, order: Order, key: str = "") -> None:
        self._order = order
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.system = order.system
        self.messages: list[dict[str, str]] = []

    async def ask(self, question: str, show: Callable[[str], None]) -> Answer:
        """Send a question and show the answer as it arrives. A stopped answer stays in the chat. Raises Failed."""
        answer = Answer(monotonic())
        self.messages.append({"role": "user", "content": question})
        try:
            async for part in self._parts(answer):
                answer.add(part)
                show(part)
        finally:
            self._keep(answer.text)
        return answer

    def forget(self) -> None:
        self.messages.clear()

    def _keep(self, text: str) -> None:
        """Append the answer; if it is empty drop the question, or two user messages would follow each other."""
        if text:
            self.messages.append({"role": "assistant", "content": text})
        else:
            self.messages.pop()

    async def _parts(self, answer: Answer) -> AsyncIterator[str]:
        told = [{"role": "system", "content": self.system}] if self.system else []
        body = self._order.body(told + self.messages)
        with on_the_way_to(self._order.url):
            async with (aiohttp.ClientSession(timeout=PATIENCE, headers=self._headers) as session,
                        session.post(self._order.address, json=body) as response):
                await check_status(response)
                async for chunk in chunks(response):
                    answer.num_tokens = (chunk.get("usage") or {}).get("completion_tokens", answer.num_tokens)
                    if part := content(chunk):
                        yield part


@contextmanager
def on_the_way_to(url: str) -> Iterator[None]:
    """Turn errors of the connection, and answers that are not JSON, into Failed with a readable message."""
    try:
        yield
    except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError) as error:
        raise Failed(f"{url} is no address of a server, such as http://127.0.0.1:3000") from error
    except aiohttp.ClientConnectorError as error:
        raise Failed(f"cannot reach {url}: {error.os_error.strerror or error}; does the server run?") from error
    except (aiohttp.ClientError, TimeoutError, ValueError, OSError) as error:
        raise Failed(f"the connection to {url} broke off: {str(error) or 'it is silent'}") from error


async def check_status(response: aiohttp.ClientResponse) -> None:
    if response.status != 200:
        raise Failed(f"the server answered {response.status}: {reason(await response.text())}")


async def chunks(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    """Yield the chunks up to `[DONE]`. Raises Failed if the stream ends without it or sends an error."""
    async for line in response.content:
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            return
        chunk = json.loads(data)
        if not isinstance(chunk, dict) or chunk.get("error") is not None:
            raise Failed(f"the answer ends early: {reason(data.decode(errors='replace'))}")
        yield chunk
    raise Failed("the answer ends early: the connection was closed")


def content(chunk: dict[str, Any]) -> str:
    """Return the text of a chunk; the chunk with the usage has none."""
    return "".join(choice.get("delta", {}).get("content") or "" for choice in chunk.get("choices", ()))


def reason(told: str) -> str:
    """Return the message of an error response in any known format, or else the beginning of the response."""
    sentence: Any = None
    with suppress(ValueError, AttributeError):
        error = json.loads(told).get("error")
        sentence = error.get("message") if isinstance(error, dict) else error
    return " ".join(str(sentence or told).split())[:MOST_TOLD]
