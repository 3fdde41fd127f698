"""Streaming client for OpenAI's `/v1/chat/completions`."""

import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import aiohttp

from router.config import API_KEY_ENV

# On a stream, weft sends at least a comment every 15 seconds.
CLIENT_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=60)
MIN_TIMED_SECONDS = 0.02  # shortest time between the first and the last part from which a speed is computed
MAX_ERROR_CHARACTERS = 500  # characters of an error


class ChatRequestFailed(Exception):
    """Error: there is no answer, or only a part of it."""


@dataclass(frozen=True, slots=True)
class ChatSettings:
    """Server and parameters of a chat. None or empty fields are not sent, so that the server's defaults apply."""

    url: str
    model: str = ""
    system: str = ""
    max_tokens: int | None = None
    temperature: float | None = None
    seed: int | None = None

    def route_url(self, route: str) -> str:
        """Return the URL of a route below /v1. `url` may end with /v1, as the base URL of other clients does."""
        return f"{self.url.rstrip('/').removesuffix('/v1')}/v1/{route}"

    def request_body(self, messages: list[dict[str, str]]) -> dict[str, Any]:
        parameters = {"model": self.model or None, "max_tokens": self.max_tokens, "temperature": self.temperature,
                      "seed": self.seed}
        set_parameters = {name: value for name, value in parameters.items() if value is not None}
        return {"messages": messages, **set_parameters, "stream": True, "stream_options": {"include_usage": True}}


@dataclass(slots=True)
class StreamedAnswer:
    """The answer received so far, with timestamps."""

    asked_at: float
    clock: Callable[[], float] = monotonic
    parts: list[str] = field(default_factory=list)
    first_part_at: float = 0.0  # time of the first part
    last_part_at: float = 0.0
    num_tokens: int = 0  # the server's count, or the number of parts until the server sends one

    @property
    def text(self) -> str:
        return "".join(self.parts)

    def add_part(self, part: str) -> None:
        self.last_part_at = self.clock()
        if not self.parts:
            self.first_part_at = self.last_part_at
        self.parts.append(part)
        self.num_tokens += 1

    def format_speed(self) -> str:
        """Return the speed as text. The time to first token is separate, because it includes the prefill."""
        if not self.parts:
            return "no answer"
        count = f"{self.num_tokens} token{'s' if self.num_tokens > 1 else ''}"
        seconds = self.last_part_at - self.first_part_at
        # parts that come together, as a short answer's may, tell nothing about the speed
        speed = (f"{(self.num_tokens - 1) / seconds:.0f} tokens/s · "
                 if self.num_tokens > 1 and seconds >= MIN_TIMED_SECONDS else "")
        return f"first token {self.first_part_at - self.asked_at:.2f} s · {speed}{count}"


class ChatConversation:
    """A chat with a server, and its messages so far."""

    def __init__(self, settings: ChatSettings, api_key: str = "") -> None:
        self._settings = settings
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self.system_prompt = settings.system
        self.messages: list[dict[str, str]] = []

    async def ask_question(self, question: str, show_part: Callable[[str], None]) -> StreamedAnswer:
        """Send a question and show the answer as it arrives. A stopped answer stays in the chat.

        Raises ChatRequestFailed.
        """
        answer = StreamedAnswer(monotonic())
        self.messages.append({"role": "user", "content": question})
        try:
            async for part in self._stream_parts(answer):
                answer.add_part(part)
                show_part(part)
        finally:
            self._append_answer(answer.text)
        return answer

    async def find_model_name(self) -> str:
        """Return the name of the model that answers, or an empty string if the server lists none. Raises
        ChatRequestFailed if the server cannot be reached or refuses the key."""
        with translate_connection_errors(self._settings.url):
            async with (aiohttp.ClientSession(timeout=CLIENT_TIMEOUT, headers=self._headers) as session,
                        session.get(self._settings.route_url("models")) as response):
                if response.status in {401, 403}:
                    await check_status(response)
                with suppress(ValueError, LookupError, TypeError):
                    return self._settings.model or str(json.loads(await response.read())["data"][0]["id"])
        return self._settings.model

    def clear_messages(self) -> None:
        self.messages.clear()

    def _append_answer(self, text: str) -> None:
        """Append the answer; if it is empty drop the question, or two user messages would follow each other."""
        if text:
            self.messages.append({"role": "assistant", "content": text})
        else:
            self.messages.pop()

    async def _stream_parts(self, answer: StreamedAnswer) -> AsyncIterator[str]:
        system_messages = [{"role": "system", "content": self.system_prompt}] if self.system_prompt else []
        body = self._settings.request_body(system_messages + self.messages)
        with translate_connection_errors(self._settings.url):
            async with (aiohttp.ClientSession(timeout=CLIENT_TIMEOUT, headers=self._headers) as session,
                        session.post(self._settings.route_url("chat/completions"), json=body) as response):
                await check_status(response)
                async for chunk in read_chunks(response):
                    answer.num_tokens = (chunk.get("usage") or {}).get("completion_tokens", answer.num_tokens)
                    if part := chunk_text(chunk):
                        yield part


@contextmanager
def translate_connection_errors(url: str) -> Iterator[None]:
    """Turn errors of the connection, and answers that are not JSON, into ChatRequestFailed, with a readable message."""
    try:
        yield
    except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError) as error:
        raise ChatRequestFailed(f"{url} is no address of a server, such as http://127.0.0.1:3000") from error
    except aiohttp.ClientConnectorError as error:
        raise ChatRequestFailed(
            f"cannot reach {url}: {error.os_error.strerror or error}; does the server run? Another port is named by "
            "--port, another server by --url") from error
    except (aiohttp.ClientPayloadError, aiohttp.ServerDisconnectedError, ConnectionError) as error:
        raise ChatRequestFailed(f"{url} ended the connection before the answer was complete; does the server still "
                                "run?") from error
    except (aiohttp.ClientError, TimeoutError, ValueError, OSError) as error:
        raise ChatRequestFailed(f"the connection to {url} broke off: {str(error) or 'it is silent'}") from error


async def check_status(response: aiohttp.ClientResponse) -> None:
    if response.status != 200:
        hint = f"; give the key by --api-key or the variable {API_KEY_ENV}" if response.status == 401 else ""
        raise ChatRequestFailed(
            f"the server answered {response.status}: {extract_error_message(await response.text())}{hint}")


async def read_chunks(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    """Yield the chunks up to `[DONE]`. Raises ChatRequestFailed if the stream ends without it or sends an error."""
    async for line in response.content:
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            return
        chunk = json.loads(data)
        if not isinstance(chunk, dict) or chunk.get("error") is not None:
            raise ChatRequestFailed(f"the answer ends early: {extract_error_message(data.decode(errors='replace'))}")
        yield chunk
    raise ChatRequestFailed("the answer ends early: the connection was closed")


def chunk_text(chunk: dict[str, Any]) -> str:
    """Return the text of a chunk; the chunk with the usage has none."""
    return "".join(choice.get("delta", {}).get("content") or "" for choice in chunk.get("choices", ()))


def extract_error_message(response_text: str) -> str:
    """Return the message of an error response in any known format, or else the beginning of the response."""
    sentence: Any = None
    with suppress(ValueError, AttributeError):
        error = json.loads(response_text).get("error")
        sentence = error.get("message") if isinstance(error, dict) else error
    return " ".join(str(sentence or response_text).split())[:MAX_ERROR_CHARACTERS]
