"""OpenAI's `POST /v1/chat/completions`.

Parses bodies into `Wanted`; rendering.py renders the events. Where OpenAI and text-generation-inference differ,
responses have a form that clients of both accept.
"""

import asyncio
from contextlib import closing
from dataclasses import replace
from time import monotonic as clock
from typing import Annotated, Any, Literal

from aiohttp import web
from pydantic import BeforeValidator, FailFast, Field
from pydantic_core import PydanticCustomError

from router.errors import InvalidRequest, ToolsFailed
from router.grammars.schema import Grammar, read_grammar
from router.http.openai.fields import Asked, choices_of, labelled
from router.http.openai.rendering import Chunks, Extras, Label, completion_json
from router.http.openai.tool_rendering import SpokenChunks, spoken_json
from router.http.openai.tools import NamedTool, Tool, ToolCall, called_name, dictated, offered
from router.http.transport.body import Foreign, Unsigned32, read_body
from router.http.transport.generate import House, collected, open_stream
from router.http.transport.headers import Caller, compute, going_by, identity, timings
from router.http.transport.sse import Pump
from router.telemetry.spans import CHAT
from router.text.chat_template import Conversation
from router.text.prompts import Names
from router.text.response_parser import BARE, AnyReader, CallReader, Reader, parsing
from router.validation.validator import Choice, Wanted

NAMES = Names(prompt="messages", max_new_tokens="max_tokens", truncate="", grammar="response_format",
              top_n_tokens="top_logprobs")
END_OF_PROMPT = 64  # last tokens of the prompt, in which the template may have begun the answer
ANY_MODEL = frozenset({None, "", "tgi"})  # values of `model` that mean the served one


def text_of(content: object) -> str | None:
    """Return the content as one text; the texts of parts are joined as in text-generation-inference."""
    if content is None or isinstance(content, str):
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


class TextPart(Foreign):
    type: Literal["text"]
    text: str


class Message(Foreign):
    role: Annotated[str, Field(min_length=1)]
    content: Annotated[str | None, BeforeValidator(text_of, json_schema_input_type=str | list[TextPart] | None)] = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None

    def given(self) -> dict[str, Any]:
        """Return the message for the chat template, with `content` always a string. Raises InvalidRequest."""
        if self.content is None and not self.tool_calls:
            raise InvalidRequest(f"a message of the role `{self.role[:40]}` has neither `content` nor `tool_calls`",
                                 param="messages")
        return self.model_dump(exclude_none=True) | {"content": self.content or ""}


class ChatRequest(Asked):
    messages: Annotated[list[Message], FailFast(), Field(min_length=1)]
    max_completion_tokens: Unsigned32 | None = None
    logprobs: bool | None = None
    top_logprobs: Unsigned32 | None = None
    response_format: Any = None
    tools: list[Tool] | None = None
    tool_choice: str | NamedTool | None = None
    tool_prompt: str | None = None

    @property
    def extras(self) -> Extras:
        return Extras(self.wants_usage, logprobs=bool(self.logprobs or self.top_logprobs))

    @property
    def conversation(self) -> Conversation:
        return Conversation(tuple(message.given() for message in self.messages),
                            offered(self.tools, self.tool_choice), self.tool_prompt or "", self.must_call)

    @property
    def may_call(self) -> bool:
        return bool(self.tools) and called_name(self.tool_choice) != "none"

    @property
    def must_call(self) -> bool:
        return called_name(self.tool_choice) not in {"auto", "none"}

    def as_tgi(self, caller: Caller) -> Wanted:
        """Convert as text-generation-inference did: ignore `n`; `presence_penalty` + 2 is the repetition penalty."""
        mine = self.model_copy(update={"n": None, "presence_penalty": None})
        penalty = None if self.presence_penalty is None else self.presence_penalty + 2
        return replace(mine.wanted(caller), repetition_penalty=penalty)

    def wanted(self, caller: Caller) -> Wanted:
        conversation = self.conversation
        grammar = self._grammar()
        self._check_served()
        names = replace(NAMES, grammar="tool_choice") if self.must_call else NAMES
        return replace(self.as_wanted(conversation, names, caller), max_new_tokens=self.most_tokens(),
                       top_n_tokens=self.top_logprobs, grammar=grammar)

    def _grammar(self) -> Grammar | None:
        grammar = None if self.response_format is None else read_grammar(NAMES.grammar, self.response_format)
        if grammar is not None and self.tools is not None:
            raise ToolsFailed("Grammar and tools are mutually exclusive", param="response_format")
        return grammar or dictated(self.tools, self.tool_choice)

    def _check_served(self) -> None:
        if self.n not in {None, 1}:
            raise InvalidRequest(f"`n` must be 1, got {self.n}; ask several times")

    def most_tokens(self) -> int | None:
        given = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(given) > 1:
            raise InvalidRequest("`max_tokens` and `max_completion_tokens` are given, with different values; give one")
        return given.pop() if given else None


class OpenAi:
    def __init__(self, house: House) -> None:
        self._house = house

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/v1/chat/completions", self.chat)]

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """Answer with a whole response or a stream. A stream opens only after its request is submitted, so that errors
        up to then have their HTTP status."""
        caller = Caller.of(request, self._house.engine, CHAT)
        asked = await read_body(request, ChatRequest)
        wanted = asked.as_tgi(caller) if self._house.is_tgi else asked.wanted(caller)
        [choice] = await choices_of(self._house, asked, wanted, caller)
        answer = self._streamed if asked.stream else self._whole
        return await answer(request, asked, choice, caller)

    async def _whole(self, request: web.Request, asked: ChatRequest, choice: Choice,
                     caller: Caller) -> web.StreamResponse:
        label, validated = self._label(request, asked), clock()
        reader = await reader_of(self._house, asked, choice)
        answers = await collected(self._house, [choice], caller)
        headers = (compute(self._house.engine.facts, choice.num_characters) | identity(request)
                   | going_by(choice.adapter) | timings(answers, validated - caller.came, clock() - caller.came))
        given = label, answers[0], asked.extras
        body = spoken_json(*given, reader) if reader else completion_json(*given)
        return web.Response(body=body.encode(), headers=headers, content_type="application/json")

    async def _streamed(self, request: web.Request, asked: ChatRequest, choice: Choice,
                        caller: Caller) -> web.StreamResponse:
        house = self._house
        headers = compute(house.engine.facts, choice.num_characters) | identity(request) | going_by(choice.adapter)
        label = self._label(request, asked)
        given = label, len(choice.request.prompt), asked.extras
        reader = await reader_of(self._house, asked, choice)
        rendering = SpokenChunks(*given, reader) if reader else Chunks(*given)
        with closing(house.submit(choice, caller)) as stream:
            async with open_stream(request, headers, house.config.slow_client_timeout, label.error_chunk) as out:
                stream.cut = out.cut
                await Pump(stream, rendering, out, house.outbox).run()
            return out.response

    def _label(self, request: web.Request, asked: ChatRequest) -> Label:
        """Return the response's metadata. Its id is generated: the client's may be long, and every chunk has it."""
        model = self._house.about.name if asked.model in ANY_MODEL else asked.model
        assert model is not None
        return labelled(self._house, request.path, "chatcmpl", model)


async def reader_of(house: House, asked: ChatRequest, choice: Choice) -> AnyReader | None:
    """Return the reader of the answer if it may hold tool calls, else None."""
    if asked.must_call:
        return CallReader()
    if not asked.may_call:
        return None
    await asyncio.to_thread(parsing)
    end = house.validator.tokenizer.decode(choice.request.prompt[-END_OF_PROMPT:], skip_special=False)
    return Reader(house.validator.shape or BARE, end)
