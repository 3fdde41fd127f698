"""The dialect of OpenAI, as far as it is about chats: `POST /v1/chat/completions`.

Turns foreign JSON into `Wanted`; chunks.py turns events into foreign JSON. Where OpenAI and text-generation-inference
differ, what clients of both accept is said. Knows nothing of limits, nor how messages become a prompt.
"""

import secrets
import time
from contextlib import closing
from importlib.metadata import version
from time import monotonic as clock
from typing import Annotated, Any, Literal

from aiohttp import web
from pydantic import BeforeValidator, FailFast, Field
from pydantic_core import PydanticCustomError

from router.chat import Conversation
from router.config import RouterConfig
from router.errors import InvalidRequest
from router.http.body import Foreign, Integer32, Unsigned, Unsigned32, read_body
from router.http.chunks import Chunks, Label, completion_json, error_chunk
from router.http.dialect import About, Engine, collected, open_stream
from router.http.headers import Caller, compute, identity, timings
from router.http.sse import Outbox, Pump
from router.prompts import Names
from router.validation import Choice, Validator, Wanted

NAMES = Names(prompt="messages", max_new_tokens="max_tokens", truncate="")
ANY_MODEL = frozenset({None, "", "tgi"})  # what clients say that want what is served
# Without these an answer would not be what was asked for, so they are not ignored as unknown fields are.
NOT_SERVED = ("logprobs", "response_format", "tools")


def text_of(content: object) -> str:
    """A text, or the texts of its parts, joined as text-generation-inference does."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(map(part_text, content))
    raise PydanticCustomError("content", "must be a string or a list of parts of type `text`")


def part_text(part: object) -> str:
    text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
    if not isinstance(text, str):
        raise PydanticCustomError(
            "content", "must be a string or a list of parts of type `text`; images and other parts are not served")
    return text


def listed(stop: object) -> object:
    return [stop] if isinstance(stop, str) else [] if stop is None else stop


class Message(Foreign):
    role: Literal["system", "user", "assistant", "tool"]
    content: Annotated[str, BeforeValidator(text_of)]
    name: str | None = None
    tool_call_id: str | None = None


class StreamOptions(Foreign):
    include_usage: bool = False


class ChatRequest(Foreign):
    """Null means not given."""

    messages: Annotated[list[Message], FailFast(), Field(min_length=1)]
    model: str | None = None
    max_tokens: Unsigned32 | None = None
    max_completion_tokens: Unsigned32 | None = None
    temperature: float | None = None
    top_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    seed: Unsigned | None = None
    stop: Annotated[list[str], FailFast(), BeforeValidator(listed)] = Field(default_factory=list)
    n: Unsigned32 | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    cache_salt: str | None = None
    priority: Integer32 = 0
    logprobs: Any = None
    response_format: Any = None
    tools: Any = None

    @property
    def wants_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    def wanted(self, caller: Caller) -> Wanted:
        self._check_served()
        greedy = self.temperature == 0
        return Wanted(
            prompt=Conversation(tuple(message.model_dump(exclude_none=True) for message in self.messages)),
            names=NAMES,
            greedy=greedy,
            do_sample=True,
            temperature=None if greedy else self.temperature,
            top_p=None if self.top_p == 1 else self.top_p,
            frequency_penalty=self.frequency_penalty,
            presence_penalty=self.presence_penalty,
            max_new_tokens=self._most_tokens(),
            stop_strings=tuple(self.stop),
            seed=self.seed,
            cache_salt=self.cache_salt,
            priority=self.priority,
            tenant=caller.tenant,
            request_id=caller.request_id,
            deadline=caller.deadline,
        )

    def _check_served(self) -> None:
        if self.n not in {None, 1}:
            raise InvalidRequest(f"`n` must be 1, got {self.n}; ask several times")
        for name in NOT_SERVED:
            if getattr(self, name):
                raise InvalidRequest(f"`{name}` is given, but chats are served without it yet; leave it out")

    def _most_tokens(self) -> int | None:
        given = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(given) > 1:
            raise InvalidRequest("`max_tokens` and `max_completion_tokens` are given, with different values; give one")
        return given.pop() if given else None


class OpenAi:
    def __init__(self, engine: Engine, validator: Validator, config: RouterConfig, about: About,
                 outbox: Outbox) -> None:
        self._engine = engine
        self._validator = validator
        self._config = config
        self._model = about.name
        self._fingerprint = f"{version('weft')}-native"
        self._outbox = outbox

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/v1/chat/completions", self.chat)]

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """What is wrong is told with its status on streams too: a stream begins when the request is under way."""
        caller = Caller.of(request, self._engine)
        asked = await read_body(request, ChatRequest)
        [choice] = await self._validator.choices(asked.wanted(caller))
        answer = self._streamed if asked.stream else self._whole
        return await answer(request, asked, choice, caller)

    async def _whole(self, request: web.Request, asked: ChatRequest, choice: Choice,
                     caller: Caller) -> web.StreamResponse:
        label, validated = self._label(asked), clock()
        [answer] = await collected(self._engine, [choice], caller)
        headers = (compute(self._engine.facts, choice.num_characters) | identity(request)
                   | timings(answer, validated - caller.came, clock() - caller.came))
        body = completion_json(label, answer).encode()
        return web.Response(body=body, headers=headers, content_type="application/json")

    async def _streamed(self, request: web.Request, asked: ChatRequest, choice: Choice,
                        caller: Caller) -> web.StreamResponse:
        headers = compute(self._engine.facts, choice.num_characters) | identity(request)
        rendering = Chunks(self._label(asked), len(choice.request.prompt), usage=asked.wants_usage)
        with closing(self._engine.submit(choice.request, caller.came)) as stream:
            async with open_stream(request, headers, self._config.slow_client_timeout, error_chunk) as out:
                stream.cut = out.cut
                await Pump(stream, rendering, out, self._outbox).run()
            return out.response

    def _label(self, asked: ChatRequest) -> Label:
        """A client's name for its request is not repeated in every chunk: it may be long."""
        model = self._model if asked.model in ANY_MODEL else asked.model
        assert model is not None
        return Label(f"chatcmpl-{secrets.token_hex(12)}", int(time.time()), model, self._fingerprint)
