"""OpenAI's routes as LoRAX has them (--compat lorax): `/v1/chat/completions` and `/v1/completions`.

Requests are converted to LoRAX's own parameters and run as those of routes.py. Responses have OpenAI's fields, with
some values of LoRAX's own.
"""

import time
from json.encoder import encode_basestring_ascii as quoted
from typing import Annotated, Any, Literal

from aiohttp import web
from pydantic import Field

from router.errors import InvalidTools
from router.grammars.parameters import ANY_OBJECT_SCHEMA, Grammar, make_json_schema_grammar
from router.http.lorax.parameters import LoraxParameters
from router.http.lorax.rendering import (
    LORAX_CHAT_WORDS,
    LORAX_COMPLETION_WORDS,
    LoraxChunkStreamRenderer,
    chat_response_json,
    completion_response_json,
)
from router.http.lorax.routes import LoraxGenerationInput, LoraxGenerator
from router.http.openai.base_request import OpenAIBaseRequest
from router.http.openai.chat import ChatRequest, create_response_parser
from router.http.openai.rendering import SYSTEM_FINGERPRINT
from router.http.openai.tool_rendering import raw_token_texts, tool_call_json
from router.http.openai.tools import required_call_grammar
from router.http.transport.body import Int32, RequestBody, UInt32, json_text_response, read_body
from router.http.transport.request_context import RequestContext
from router.http.transport.services import GenerationOutput, Services
from router.telemetry.spans import CHAT_OPERATION
from router.text.response_parser import ParsedToolCall, parse_complete_response
from router.validation.bounds import AT_LEAST_ONE, NON_EMPTY_TEXT, POSITIVE

COPIED_FIELDS = ("adapter_source", "api_token", "repetition_penalty", "frequency_penalty", "presence_penalty", "top_k",
                 "top_p", "stop", "seed", "cache_salt")


class NamedSchema(RequestBody):
    """Value of `json_schema` in a `response_format`: a JSON schema with a name."""

    name: str
    response_schema: Any = Field(default=None, alias="schema")


class ChatResponseFormat(RequestBody):
    """Format of the answer: free text, or JSON that matches the schema; without a schema it is any JSON object."""

    type: Literal["text", "json_object", "json_schema", "Text", "JsonObject", "JsonSchema"]
    response_schema: Any = Field(default=None, alias="schema")
    named_schema: NamedSchema | None = Field(default=None, alias="json_schema")

    def to_grammar(self) -> Grammar | None:
        if self.type in {"text", "Text"}:
            return None
        if self.type in {"json_object", "JsonObject"}:
            return make_json_schema_grammar("response_format.schema",
                                            ANY_OBJECT_SCHEMA if self.response_schema is None else self.response_schema)
        schema = None if self.named_schema is None else self.named_schema.response_schema
        return make_json_schema_grammar("response_format.json_schema.schema",
                                        ANY_OBJECT_SCHEMA if schema is None else schema)


class LoraxChatRequest(ChatRequest):
    """Body of LoRAX's `/v1/chat/completions`: OpenAI's fields and some of LoRAX's parameters."""

    n: UInt32 | None = None
    repetition_penalty: Annotated[float | None, POSITIVE] = None
    top_k: Annotated[Int32 | None, AT_LEAST_ONE] = None
    ignore_eos_token: bool | None = None
    response_format: ChatResponseFormat | None = None

    def to_lorax_generation_input(self, services: Services) -> LoraxGenerationInput:
        """Convert to a request of LoRAX's own routes. Raises InvalidTools and InvalidRequest."""
        if self.tools is not None and self.response_format is not None:
            raise InvalidTools("Response format and tools are mutually exclusive")
        parameters = to_lorax_parameters(
            self, services, best_of=self.n, max_new_tokens=self.resolve_max_new_tokens(), do_sample=True,
            temperature=self.temperature)
        return LoraxGenerationInput(self.conversation, parameters, self._output_grammar)

    def _output_grammar(self) -> Grammar | None:
        grammar = None if self.response_format is None else self.response_format.to_grammar()
        return grammar or required_call_grammar(self.tools, self.tool_choice)


class LoraxCompletionRequest(OpenAIBaseRequest):
    """A prompt to complete. `n` only switches sampling on; `logprobs` are not returned."""

    prompt: Annotated[str, NON_EMPTY_TEXT]
    n: UInt32 | None = None
    repetition_penalty: Annotated[float | None, POSITIVE] = None
    top_k: Annotated[Int32 | None, AT_LEAST_ONE] = None
    ignore_eos_token: bool | None = None
    best_of: UInt32 | None = None
    echo: bool | None = None
    logprobs: Int32 | None = None

    def to_lorax_generation_input(self, services: Services) -> LoraxGenerationInput:
        parameters = to_lorax_parameters(
            self, services, best_of=self.best_of, max_new_tokens=self.max_tokens, do_sample=self.n is not None,
            temperature=self.temperature, return_full_text=self.echo,
            decoder_input_details=self.logprobs is not None)
        return LoraxGenerationInput(self.prompt, parameters, lambda: None)


def to_lorax_parameters(openai_request: LoraxChatRequest | LoraxCompletionRequest, services: Services,
                        **other_parameters: Any) -> LoraxParameters:
    """Convert the fields to the parameters of LoRAX's own routes."""
    adapter = openai_request.adapter_reference(services, "")
    return LoraxParameters.model_construct(
        adapter_id=None if adapter is None else adapter.name,
        ignore_eos_token=bool(openai_request.ignore_eos_token or openai_request.ignore_eos),
        priority=openai_request.priority or 0, details=True,
        **{name: getattr(openai_request, name) for name in COPIED_FIELDS}, **other_parameters)


class LoraxOpenAIRoutes:
    """Handlers of `/v1/chat/completions` and `/v1/completions` with --compat lorax."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._generator = LoraxGenerator(services)

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/v1/chat/completions", self.chat), web.post("/v1/completions", self.complete)]

    async def chat(self, request: web.Request) -> web.StreamResponse:
        context = RequestContext.from_request(request, self._services.engine, CHAT_OPERATION)
        chat_request = await read_body(request, LoraxChatRequest)
        generation_request = chat_request.to_lorax_generation_input(self._services)
        if chat_request.stream:
            return await self._generator.respond_streaming(
                request, generation_request, context,
                lambda choice: LoraxChunkStreamRenderer(len(choice.request.prompt), LORAX_CHAT_WORDS))
        [output, *_], headers = await self._generator.generate_in_full(request, generation_request, context)
        message = await self._message_json(chat_request, output)
        return json_text_response(chat_response_json(output, message, self._services.served_model.name,
                                                     int(time.time()), SYSTEM_FINGERPRINT), headers)

    async def complete(self, request: web.Request) -> web.StreamResponse:
        context = RequestContext.from_request(request, self._services.engine)
        completion_request = await read_body(request, LoraxCompletionRequest)
        generation_request = completion_request.to_lorax_generation_input(self._services)
        if completion_request.stream:
            return await self._generator.respond_streaming(
                request, generation_request, context,
                lambda choice: LoraxChunkStreamRenderer(len(choice.request.prompt), LORAX_COMPLETION_WORDS))
        [output, *_], headers = await self._generator.generate_in_full(request, generation_request, context)
        return json_text_response(completion_response_json(output, generation_request.returned_prompt), headers)

    async def _message_json(self, chat_request: LoraxChatRequest, output: GenerationOutput) -> str:
        """Render the message, with either text or tool calls."""
        parser = await create_response_parser(self._services, chat_request, output.validated_request)
        parts = [] if parser is None else parse_complete_response(parser, raw_token_texts(output, parser))
        tool_calls = ",".join(tool_call_json(part, call_id="0") for part in parts if isinstance(part, ParsedToolCall))
        content_field = f'"tool_calls":[{tool_calls}]' if tool_calls else f'"content":{quoted(output.final_event.text)}'
        return f'{{"role":"assistant",{content_field}}}'
