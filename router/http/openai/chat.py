"""OpenAI's `POST /v1/chat/completions`, and the base class of OpenAI's requests: the fields that chats and completions
share, and their validation with the adapter that `model` names.

rendering.py renders the events. Where OpenAI and text-generation-inference differ, responses have a form that clients
of both accept.
"""

import asyncio
from contextlib import closing
from dataclasses import replace
from time import monotonic as clock
from typing import Annotated, Any, Literal

from aiohttp import web
from pydantic import BeforeValidator, FailFast, Field
from pydantic_core import PydanticCustomError

from router.adapters.reference import AdapterReference, check_adapter_name
from router.errors import AdapterNotFound, InvalidRequest, InvalidTools
from router.grammars.parameters import Grammar, parse_grammar
from router.http.openai.rendering import (
    ChatOutputOptions,
    OpenAIChatStreamRenderer,
    ResponseMetadata,
    text_chat_completion_json,
)
from router.http.openai.tools import (
    NamedToolChoice,
    OpenAIToolChatStreamRenderer,
    Tool,
    ToolCall,
    get_tool_choice_name,
    required_call_grammar,
    select_template_tools,
    tool_chat_completion_json,
)
from router.http.transport.adapter_parameters import is_base_model
from router.http.transport.body import Int32, RequestBody, UInt32, UInt64, json_text_response, read_body
from router.http.transport.request_context import RequestContext, response_headers
from router.http.transport.services import Services, generate_all, timing_headers
from router.http.transport.sse import EventPump, open_response_stream
from router.telemetry.spans import CHAT_OPERATION
from router.text.chat_template import Conversation
from router.text.prompt_encoder import DialectParameterNames
from router.text.response_parser import (
    BARE_JSON_FORMAT,
    AnyResponseParser,
    RequiredCallParser,
    StreamingResponseParser,
    import_chat_parsing,
)
from router.validation.bounds import (
    AT_LEAST_ONE,
    CACHE_SALT,
    EXACTLY_ONE,
    FRACTION_OR_ONE,
    GRAMMAR,
    NOT_NEGATIVE,
    PENALTY,
    PRIORITY,
    STOP_STRINGS,
)
from router.validation.validator import GenerationInput, ValidatedRequest

PARAMETER_NAMES = DialectParameterNames(prompt="messages", max_new_tokens="max_tokens", truncate="",
                                        grammar="response_format", top_n_tokens="top_logprobs")
NUM_LAST_PROMPT_TOKENS = 64  # last tokens of the prompt, in which the template may have begun the answer
SERVED_MODEL_PLACEHOLDERS = frozenset({"", "tgi"})  # values of `model` that mean the served one


def as_list(value: object) -> object:
    return [value] if isinstance(value, str) else [] if value is None else value


StringList = Annotated[list[str], FailFast(), BeforeValidator(as_list, json_schema_input_type=str | list[str] | None)]


class StreamOptions(RequestBody):
    """The field `stream_options`: whether a stream ends with its usage."""

    include_usage: bool | None = None


class OpenAIBaseRequest(RequestBody):
    """Fields that chats and completions have in common. Null means that a field is not given."""

    model: str | None = None
    adapter_source: str | None = None
    api_token: str | None = Field(default=None, repr=False)
    max_tokens: Annotated[UInt32 | None, AT_LEAST_ONE] = None
    temperature: Annotated[float | None, NOT_NEGATIVE] = None
    top_p: Annotated[float | None, FRACTION_OR_ONE] = None
    frequency_penalty: Annotated[float | None, PENALTY] = None
    presence_penalty: Annotated[float | None, PENALTY] = None
    seed: UInt64 | None = None
    stop: Annotated[StringList, STOP_STRINGS] = Field(default_factory=list)
    n: Annotated[UInt32 | None, EXACTLY_ONE] = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    ignore_eos: bool | None = None
    cache_salt: Annotated[str | None, CACHE_SALT] = None
    priority: Annotated[Int32 | None, PRIORITY] = None

    @property
    def should_include_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def adapter_reference(self, services: Services, source_token: str) -> AdapterReference | None:
        """Return the adapter that `model` names, if adapters are served; if not, any name means the model itself.
        `source_token` is the client's, unless the body has another."""
        if (services.validator.adapter_registry is None or self.model is None
            or is_base_model(self.model, services.served_model.name)):
            return None
        check_adapter_name("model", self.model)
        return AdapterReference(self.model, self.adapter_source or None, self.api_token or source_token)

    def base_generation_input(self, prompt: str | Conversation, parameter_names: DialectParameterNames,
                              context: RequestContext) -> GenerationInput:
        greedy = self.temperature == 0
        return GenerationInput(
            prompt=prompt,
            parameter_names=parameter_names,
            greedy=greedy,
            do_sample=True,
            temperature=None if greedy else self.temperature,
            top_p=None if self.top_p == 1 else self.top_p,
            frequency_penalty=self.frequency_penalty,
            presence_penalty=self.presence_penalty,
            max_new_tokens=self.max_tokens,
            stop_strings=tuple(self.stop),
            seed=self.seed,
            ignore_eos=bool(self.ignore_eos),
            cache_salt=self.cache_salt,
            priority=self.priority or 0,
            tenant=context.tenant,
            request_id=context.request_id,
            deadline=context.deadline,
        )


async def validate_with_model_adapter(services: Services, openai_request: OpenAIBaseRequest,
                                      generation_input: GenerationInput,
                                      context: RequestContext) -> list[ValidatedRequest]:
    """Validate a request, with the adapter that its `model` names. Raises AdapterNotFound with the known names."""
    try:
        return await services.validator.validate(
            replace(generation_input, adapter=openai_request.adapter_reference(services, context.source_token)))
    except AdapterNotFound as error:
        adapter_names = services.validator.adapter_registry.aliases if services.validator.adapter_registry else ()
        model_names = ", ".join([services.served_model.name, *adapter_names])
        raise AdapterNotFound(f"{error}; `model` may be {model_names}", param="model") from error


def join_content_parts(content: object) -> str | None:
    """Return the content as one text; the texts of parts are joined as in text-generation-inference."""
    if content is None or isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(map(parse_text_part, content))
    raise PydanticCustomError("content", "must be a string or a list of parts of type `text`")


def parse_text_part(part: object) -> str:
    text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
    if not isinstance(text, str):
        raise PydanticCustomError(
            "content", "must be a string or a list of parts of type `text`; images and other parts are not served")
    return text


class TextPart(RequestBody):
    """Part of a message's content that is text, the only type of part that is served."""

    type: Literal["text"]
    text: str


class Message(RequestBody):
    """A message of the chat, as OpenAI's clients send it."""

    role: Annotated[str, Field(min_length=1)]
    content: Annotated[str | None,
                       BeforeValidator(join_content_parts, json_schema_input_type=str | list[TextPart] | None)] = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None

    def to_template_message(self) -> dict[str, Any]:
        """Return the message for the chat template, with `content` always a string. Raises InvalidRequest."""
        if self.content is None and not self.tool_calls:
            raise InvalidRequest(f"a message of the role `{self.role[:40]}` has neither `content` nor `tool_calls`",
                                 param="messages")
        return self.model_dump(exclude_none=True) | {"content": self.content or ""}


class ChatRequest(OpenAIBaseRequest):
    """Body of `/v1/chat/completions`."""

    messages: Annotated[list[Message], FailFast(), Field(min_length=1)]
    max_completion_tokens: Annotated[UInt32 | None, AT_LEAST_ONE] = None
    logprobs: bool | None = None
    top_logprobs: UInt32 | None = None
    response_format: Annotated[Any, GRAMMAR] = None
    tools: list[Tool] | None = None
    tool_choice: str | NamedToolChoice | None = None
    tool_prompt: str | None = None

    @property
    def output_options(self) -> ChatOutputOptions:
        return ChatOutputOptions(self.should_include_usage, includes_logprobs=bool(self.logprobs or self.top_logprobs))

    @property
    def conversation(self) -> Conversation:
        return Conversation(tuple(message.to_template_message() for message in self.messages),
                            (() if self.tools is None and self.tool_choice is None
                             else select_template_tools(self.tools, self.tool_choice)),
                            self.tool_prompt or "", self.needs_tool_call)

    @property
    def can_call_tools(self) -> bool:
        return bool(self.tools) and get_tool_choice_name(self.tool_choice) != "none"

    @property
    def needs_tool_call(self) -> bool:
        return self.tool_choice is not None and get_tool_choice_name(self.tool_choice) not in {"auto", "none"}

    def to_tgi_generation_input(self, context: RequestContext) -> GenerationInput:
        """Convert as text-generation-inference did: ignore `n`; `presence_penalty` + 2 is the repetition penalty."""
        plain_request = self.model_copy(update={"n": None, "presence_penalty": None})
        repetition_penalty = None if self.presence_penalty is None else self.presence_penalty + 2
        return replace(plain_request.to_generation_input(context), repetition_penalty=repetition_penalty)

    def to_generation_input(self, context: RequestContext) -> GenerationInput:
        conversation = self.conversation
        grammar = self._output_grammar()
        if self.n not in {None, 1}:
            raise InvalidRequest(f"`n` must be 1, got {self.n}; ask several times")
        parameter_names = replace(PARAMETER_NAMES, grammar="tool_choice") if self.needs_tool_call else PARAMETER_NAMES
        return replace(self.base_generation_input(conversation, parameter_names, context),
                       max_new_tokens=self.resolve_max_new_tokens(), top_n_tokens=self.top_logprobs, grammar=grammar)

    def _output_grammar(self) -> Grammar | None:
        grammar = None if self.response_format is None else parse_grammar(PARAMETER_NAMES.grammar, self.response_format)
        if grammar is not None and self.tools is not None:
            raise InvalidTools("Grammar and tools are mutually exclusive", param="response_format")
        return grammar or (required_call_grammar(self.tools, self.tool_choice) if self.needs_tool_call else None)

    def resolve_max_new_tokens(self) -> int | None:
        limits = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(limits) > 1:
            raise InvalidRequest("`max_tokens` and `max_completion_tokens` are given, with different values; give one")
        return limits.pop() if limits else None


class ChatRoutes:
    """Handler of `/v1/chat/completions`."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/v1/chat/completions", self.chat)]

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """Answer with a whole response or a stream. A stream opens only after its request is submitted, so that errors
        up to then have their HTTP status."""
        context = RequestContext.from_request(request, self._services.engine, CHAT_OPERATION)
        chat_request = await read_body(request, ChatRequest)
        generation_input = (chat_request.to_tgi_generation_input(context) if self._services.is_tgi
                            else chat_request.to_generation_input(context))
        [validated_request] = await validate_with_model_adapter(self._services, chat_request, generation_input, context)
        respond = self._respond_streaming if chat_request.stream else self._respond_in_full
        return await respond(request, chat_request, validated_request, context)

    async def _respond_in_full(self, request: web.Request, chat_request: ChatRequest,
                               validated_request: ValidatedRequest, context: RequestContext) -> web.StreamResponse:
        metadata, validated_at = self._create_metadata(request, chat_request), clock()
        parser = await create_response_parser(self._services, chat_request, validated_request)
        outputs = await generate_all(self._services, [validated_request], context)
        headers = (response_headers(request, self._services.engine.model_info, validated_request.num_prompt_characters,
                                    validated_request.adapter)
                   | timing_headers(outputs, validated_at - context.arrived_at, clock() - context.arrived_at))
        render_arguments = metadata, outputs[0], chat_request.output_options
        return json_text_response(tool_chat_completion_json(*render_arguments, parser) if parser
                                  else text_chat_completion_json(*render_arguments), headers)

    async def _respond_streaming(self, request: web.Request, chat_request: ChatRequest,
                                 validated_request: ValidatedRequest, context: RequestContext) -> web.StreamResponse:
        services = self._services
        headers = response_headers(request, services.engine.model_info, validated_request.num_prompt_characters,
                                   validated_request.adapter)
        metadata = self._create_metadata(request, chat_request)
        renderer_arguments = metadata, len(validated_request.request.prompt), chat_request.output_options
        parser = await create_response_parser(self._services, chat_request, validated_request)
        renderer = (OpenAIToolChatStreamRenderer(*renderer_arguments, parser) if parser
                    else OpenAIChatStreamRenderer(*renderer_arguments))
        with closing(services.submit(validated_request, context)) as stream:
            async with open_response_stream(request, headers, services.config.slow_client_timeout,
                                            metadata.render_error_chunk) as event_stream:
                await EventPump(stream, renderer, event_stream, services.pump_flusher).run()
            return event_stream.response

    def _create_metadata(self, request: web.Request, chat_request: ChatRequest) -> ResponseMetadata:
        model = chat_request.model
        if model is None or model in SERVED_MODEL_PLACEHOLDERS:
            model = self._services.served_model.name
        return ResponseMetadata.create(self._services, request.path, "chatcmpl", model)


async def create_response_parser(services: Services, chat_request: ChatRequest,
                                 validated_request: ValidatedRequest) -> AnyResponseParser | None:
    """Return the parser of the answer if it may hold tool calls, else None."""
    if chat_request.needs_tool_call:
        return RequiredCallParser()
    if not chat_request.can_call_tools:
        return None
    await asyncio.to_thread(import_chat_parsing)
    prompt_end = services.validator.tokenizer.decode(validated_request.request.prompt[-NUM_LAST_PROMPT_TOKENS:],
                                                     skip_special=False)
    return StreamingResponseParser(services.validator.output_format or BARE_JSON_FORMAT, prompt_end)
