"""OpenAI's routes as LoRAX has them (--compat lorax): `/v1/chat/completions` and `/v1/completions`.

Requests are converted to LoRAX's own parameters and run as orders of routes.py. Responses have OpenAI's fields, with
some values of LoRAX's own.
"""

import time
from json.encoder import encode_basestring_ascii as quoted
from typing import Any, Literal

from aiohttp import web
from pydantic import Field

from router.errors import ToolsFailed
from router.grammars.schema import OBJECT, Grammar, json_schema
from router.http.lorax.parameters import LoraxParameters
from router.http.lorax.rendering import ChatChunks, TextChunks, chat_json, completion_json
from router.http.lorax.routes import Order, Orders
from router.http.openai.chat import ChatRequest, reader_of
from router.http.openai.fields import FINGERPRINT, Asked
from router.http.openai.tool_rendering import raw_pieces
from router.http.openai.tools import dictated
from router.http.transport.body import Foreign, Integer32, Unsigned32, read_body
from router.http.transport.collect import Answer
from router.http.transport.generate import House
from router.http.transport.headers import Caller
from router.telemetry.spans import CHAT
from router.text.response_parser import Call, read_whole

SHARED = ("adapter_source", "api_token", "repetition_penalty", "frequency_penalty", "presence_penalty", "top_k",
          "top_p", "stop", "seed", "cache_salt", "priority")


class NamedSchema(Foreign):
    name: str
    wanted: Any = Field(default=None, alias="schema")


class ChatFormat(Foreign):
    """Format of the answer: free text, or JSON that matches the schema; without a schema it is any JSON object."""

    type: Literal["text", "json_object", "json_schema", "Text", "JsonObject", "JsonSchema"]
    wanted: Any = Field(default=None, alias="schema")
    named: NamedSchema | None = Field(default=None, alias="json_schema")

    def grammar(self) -> Grammar | None:
        if self.type in {"text", "Text"}:
            return None
        if self.type in {"json_object", "JsonObject"}:
            return json_schema("response_format.schema", OBJECT if self.wanted is None else self.wanted)
        wanted = None if self.named is None else self.named.wanted
        return json_schema("response_format.json_schema.schema", OBJECT if wanted is None else wanted)


class LoraxChat(ChatRequest):
    repetition_penalty: float | None = None
    top_k: Integer32 | None = None
    ignore_eos_token: bool | None = None
    response_format: ChatFormat | None = None

    def order(self, house: House) -> Order:
        """Return the chat as an order. Raises ToolsFailed and InvalidRequest."""
        if self.tools is not None and self.response_format is not None:
            raise ToolsFailed("Response format and tools are mutually exclusive")
        parameters = as_parameters(
            self, house, best_of=self.n, max_new_tokens=self.most_tokens(), do_sample=True,
            temperature=self.temperature)
        return Order(self.conversation, parameters, self._grammar)

    def _grammar(self) -> Grammar | None:
        wanted = None if self.response_format is None else self.response_format.grammar()
        return wanted or dictated(self.tools, self.tool_choice)


class LoraxCompletion(Asked):
    """A prompt to complete. `n` only switches sampling on; `logprobs` are not returned."""

    prompt: str
    repetition_penalty: float | None = None
    top_k: Integer32 | None = None
    ignore_eos_token: bool | None = None
    best_of: Unsigned32 | None = None
    echo: bool | None = None
    logprobs: Integer32 | None = None

    def order(self, house: House) -> Order:
        parameters = as_parameters(
            self, house, best_of=self.best_of, max_new_tokens=self.max_tokens, do_sample=self.n is not None,
            temperature=self.temperature, return_full_text=self.echo,
            decoder_input_details=self.logprobs is not None)
        return Order(self.prompt, parameters, lambda: None)


def as_parameters(asked: LoraxChat | LoraxCompletion, house: House, **more: Any) -> LoraxParameters:
    """Convert the fields to the parameters of LoRAX's own routes."""
    adapter = asked.adapter(house, "")
    return LoraxParameters.model_construct(
        adapter_id=None if adapter is None else adapter.name,
        ignore_eos_token=bool(asked.ignore_eos_token or asked.ignore_eos),
        details=True, **{name: getattr(asked, name) for name in SHARED}, **more)


class LoraxV1:
    def __init__(self, house: House) -> None:
        self._house = house
        self._orders = Orders(house)

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/v1/chat/completions", self.chat), web.post("/v1/completions", self.complete)]

    async def chat(self, request: web.Request) -> web.StreamResponse:
        caller = Caller.of(request, self._house.engine, CHAT)
        asked = await read_body(request, LoraxChat)
        order = asked.order(self._house)
        if asked.stream:
            return await self._orders.streamed(
                request, order, caller, lambda choice: ChatChunks(len(choice.request.prompt)))
        found = await self._orders.whole(request, order, caller)
        message = await self._message(asked, found.best)
        return found.response(chat_json(found.best, message, self._house.about.name, int(time.time()), FINGERPRINT))

    async def complete(self, request: web.Request) -> web.StreamResponse:
        caller = Caller.of(request, self._house.engine)
        asked = await read_body(request, LoraxCompletion)
        order = asked.order(self._house)
        if asked.stream:
            return await self._orders.streamed(
                request, order, caller, lambda choice: TextChunks(len(choice.request.prompt)))
        found = await self._orders.whole(request, order, caller)
        return found.response(completion_json(found.best, order.prefix))

    async def _message(self, asked: LoraxChat, answer: Answer) -> str:
        """Render the message, with either text or tool calls."""
        reader = await reader_of(self._house, asked, answer.choice)
        parts = [] if reader is None else read_whole(reader, raw_pieces(answer, reader))
        calls = ",".join(call_json(part) for part in parts if isinstance(part, Call))
        told = f'"tool_calls":[{calls}]' if calls else f'"content":{quoted(answer.end.text)}'
        return f'{{"role":"assistant",{told}}}'


def call_json(call: Call) -> str:
    return (f'{{"id":"0","type":"function","function":{{"description":null,"name":{quoted(call.name)},'
            f'"arguments":{quoted(call.arguments)}}}}}')
