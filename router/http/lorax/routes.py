"""LoRAX's API (--compat lorax): its own routes (those that generate, `/tokenize` and `/info`) and OpenAI's. All
requests are converted to LoRAX's parameters, whose checks are in parameters.py; rendering.py has the format of
responses, which on OpenAI's routes has OpenAI's fields with some values of LoRAX's own."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import version
from json.encoder import encode_basestring_ascii as quoted
from time import monotonic as clock
from typing import Annotated, Any, Literal

from aiohttp import web
from pydantic import Field

from router.adapters.reference import AdapterReference, ResolvedAdapter
from router.errors import InvalidRequest, InvalidTools
from router.grammars.parameters import ANY_OBJECT_SCHEMA, Grammar, make_json_schema_grammar
from router.http.lorax.parameters import LoraxParameters, check_streamable, find_faults
from router.http.lorax.rendering import (
    LORAX_CHAT_TEMPLATE,
    LORAX_COMPLETION_TEMPLATE,
    LORAX_DIALECT,
    LoraxOpenAiStreamRenderer,
    chat_response_json,
    completion_response_json,
    lorax_error_event,
    lorax_timing_headers,
)
from router.http.openai.answer_parts import raw_token_texts
from router.http.openai.parser_selection import create_response_parser
from router.http.openai.rendering import SYSTEM_FINGERPRINT
from router.http.openai.request_tools import required_call_grammar
from router.http.openai.requests import ChatRequest, OpenAIBaseRequest
from router.http.openai.tool_call_rendering import tool_call_json
from router.http.routes.tokenize import PARAMETER_NAMES, json_list_pieces, respond_with_tokens
from router.http.tgi.rendering import GenerateStreamRenderer
from router.http.tgi.routes import render_outputs
from router.http.transport.body import (
    Int32,
    LenientBodyModel,
    ListJson,
    UInt32,
    adapter_for_stream_headers,
    json_list_response,
    json_response,
    json_text_response,
    read_body,
    report_ignored_fields,
)
from router.http.transport.request_context_and_middleware import RequestContext, adapter_headers, ignored_fields_headers
from router.http.transport.services import (
    COMPUTE_TYPE,
    GenerationOutput,
    ServiceRoutes,
    Services,
    generate_and_sort_by_logprob,
    reject_resume_token_ids,
    run_in_thread_if_long,
)
from router.http.transport.sse import EventPump, EventRenderer, open_response_stream
from router.telemetry.spans import CHAT_OPERATION
from router.text.chat_template import Conversation
from router.text.prompt_encoder import TokenizedText
from router.text.response_parser import ParsedToolCall, parse_complete_response
from router.validation.bounds import AT_LEAST_ONE, NON_EMPTY_TEXT, POSITIVE
from router.validation.validator import ValidatedRequest

COPIED_FIELDS = ("adapter_source", "api_token", "repetition_penalty", "frequency_penalty", "presence_penalty", "top_k",
                 "top_p", "stop", "seed", "cache_salt")


# Fields of OpenAI's routes that LoRAX ignored, unless they have these values: its texts keep stop strings.
IGNORED_COMPLETION_FIELDS: Mapping[str, Sequence[object]] = {"include_stop_str_in_output": (None, True),
                                                             "return_token_ids": (None, False),
                                                             "stream_options": (None,)}
IGNORED_CHAT_FIELDS: Mapping[str, Sequence[object]] = {**IGNORED_COMPLETION_FIELDS, "logprobs": (None, False),
                                                       "top_logprobs": (None, 0)}


@dataclass(frozen=True, slots=True)
class NormalizedLoraxRequest:
    """A generation request of any LoRAX route."""

    prompt: str | Conversation
    parameters: LoraxParameters
    find_grammar: Callable[[], tuple[str, Grammar] | None]  # which finds the parameter that holds one, and the grammar
    # fields of GenerationInput that LoRAX lacks
    extra_sampling_parameters: Mapping[str, Any] = field(default_factory=dict)

    @property
    def num_characters(self) -> int | None:
        return len(self.prompt) if isinstance(self.prompt, str) else None

    @property
    def returned_prompt(self) -> str:
        return self.prompt if self.parameters.return_full_text and isinstance(self.prompt, str) else ""


class LoraxGenerateRequest(LenientBodyModel):
    """Body of LoRAX's `/generate` and `/generate_stream`."""

    inputs: Annotated[str, NON_EMPTY_TEXT]
    parameters: LoraxParameters = Field(default_factory=LoraxParameters)

    @property
    def normalized_request(self) -> NormalizedLoraxRequest:
        return NormalizedLoraxRequest(self.inputs, self.parameters, self.parameters.find_grammar)


class LoraxCompatGenerateRequest(LoraxGenerateRequest):
    """The body of `/`: that of `/generate` with the field `stream`."""

    stream: bool = False


class LoraxTokenizeRequest(LenientBodyModel):
    """Body of LoRAX's `/tokenize`."""

    inputs: str
    add_special_tokens: bool | None = None


class NamedSchema(LenientBodyModel):
    """Value of `json_schema` in a `response_format`: a JSON schema with a name."""

    name: str
    response_schema: Any = Field(default=None, alias="schema")


class ChatResponseFormat(LenientBodyModel):
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

    n: UInt32 | None = None  # unlike OpenAI's, of any number
    repetition_penalty: Annotated[float | None, POSITIVE] = None
    top_k: Annotated[Int32 | None, AT_LEAST_ONE] = None
    ignore_eos_token: bool | None = None
    response_format: ChatResponseFormat | None = None

    def to_normalized_request(self, services: Services) -> NormalizedLoraxRequest:
        """Convert to a request of LoRAX's own routes. Raises InvalidTools and InvalidRequest."""
        if self.tools is not None and self.response_format is not None:
            raise InvalidTools("Response format and tools are mutually exclusive")
        parameters = to_lorax_parameters(
            self, services, best_of=self.n, max_new_tokens=self.resolve_max_new_tokens(), do_sample=True,
            temperature=self.temperature)
        conversation = replace(self.conversation, may_reason=False)
        return NormalizedLoraxRequest(conversation, parameters, self._find_grammar, self.extra_sampling_parameters)

    def _find_grammar(self) -> tuple[str, Grammar] | None:
        response_format = self.response_format
        found = self.find_grammar(None if response_format is None else lambda _: response_format.to_grammar())
        if found is not None and self.tools is not None:
            raise InvalidTools("Grammar and tools are mutually exclusive", param=found[0])
        call_grammar = required_call_grammar(self.tools, self.tool_choice)
        return found if call_grammar is None else ("tool_choice", call_grammar)


class LoraxCompletionRequest(OpenAIBaseRequest):
    """A prompt to complete. `n` only switches sampling on; `logprobs` are not returned."""

    prompt: Annotated[str, NON_EMPTY_TEXT]
    n: UInt32 | None = None  # unlike OpenAI's, of any number
    repetition_penalty: Annotated[float | None, POSITIVE] = None
    top_k: Annotated[Int32 | None, AT_LEAST_ONE] = None
    ignore_eos_token: bool | None = None
    best_of: UInt32 | None = None
    echo: bool | None = None
    logprobs: Int32 | None = None

    def to_normalized_request(self, services: Services) -> NormalizedLoraxRequest:
        parameters = to_lorax_parameters(
            self, services, best_of=self.best_of, max_new_tokens=self.max_tokens, do_sample=self.n is not None,
            temperature=self.temperature, return_full_text=self.echo,
            decoder_input_details=self.logprobs is not None)
        return NormalizedLoraxRequest(self.prompt, parameters, lambda: self.find_grammar(None),
                                      self.extra_sampling_parameters)


def to_lorax_parameters(openai_request: LoraxChatRequest | LoraxCompletionRequest, services: Services,
                        **other_parameters: Any) -> LoraxParameters:
    """Convert the fields to the parameters of LoRAX's own routes."""
    if openai_request.resume_token_ids:
        raise InvalidRequest("`resume_token_ids` is given, but streams of this route name no tokens with which they "
                             "could go on; use /generate_stream, or leave it out")
    adapter = openai_request.adapter_reference(services, "")
    return LoraxParameters.model_construct(
        adapter_id=None if adapter is None else adapter.name,
        ignore_eos_token=bool(openai_request.ignore_eos_token or openai_request.ignore_eos),
        priority=openai_request.priority or 0, details=True,
        **{name: getattr(openai_request, name) for name in COPIED_FIELDS}, **other_parameters)


class LoraxRoutes(ServiceRoutes):
    """Handlers of LoRAX's own routes, and of OpenAI's as LoRAX has them."""

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/", self.compat_generate),
            web.post("/generate", self.generate),
            web.post("/generate_stream", self.generate_stream),
            web.post("/tokenize", self.tokenize),
            web.get("/info", self.info),
            web.post("/v1/chat/completions", self.chat),
            web.post("/v1/completions", self.complete),
        ]

    async def generate(self, request: web.Request) -> web.StreamResponse:
        context = RequestContext.from_request(request, self._services.engine)
        return await self._respond_in_full(request, await read_body(request, LoraxGenerateRequest), context)

    async def compat_generate(self, request: web.Request) -> web.StreamResponse:
        context = RequestContext.from_request(request, self._services.engine)
        generate_body = await read_body(request, LoraxCompatGenerateRequest)
        if generate_body.stream:
            return await self._stream_tokens(request, generate_body, context)
        return await self._respond_in_full(request, generate_body, context, brackets="[]")

    async def generate_stream(self, request: web.Request) -> web.StreamResponse:
        context = RequestContext.from_request(request, self._services.engine)
        return await self._stream_tokens(request, await read_body(request, LoraxGenerateRequest), context)

    async def _stream_tokens(self, request: web.Request, generate_body: LoraxGenerateRequest,
                             context: RequestContext) -> web.StreamResponse:
        generation_request = generate_body.normalized_request
        return await self._respond_streaming(
            request, generation_request, context,
            lambda choice: GenerateStreamRenderer(choice, generation_request.parameters.details,
                                                  generation_request.returned_prompt, LORAX_DIALECT))

    async def _respond_in_full(self, request: web.Request, generate_body: LoraxGenerateRequest,
                               context: RequestContext, brackets: str = "") -> web.StreamResponse:
        generation_request, parameters = generate_body.normalized_request, generate_body.parameters
        outputs, headers = await self._generate_in_full(request, generation_request, context)
        rendered = await render_outputs(
            outputs, self._services.validator.tokenizer, generation_request.returned_prompt,
            has_details=parameters.details or parameters.decoder_input_details, dialect=LORAX_DIALECT)
        answer = ListJson(brackets[:1], [rendered], brackets[1:])
        return await json_list_response(request, answer, headers, self._services.config.slow_client_timeout)

    async def tokenize(self, request: web.Request) -> web.StreamResponse:
        """Return the tokens as the vocabulary spells them, with offsets in characters."""
        tokenize_body = await read_body(request, LoraxTokenizeRequest)
        get_vocabulary_piece = self._services.validator.tokenizer.id_to_token

        def render_pieces(encoded: TokenizedText) -> list[bytes]:
            return [*json_list_pieces({"id": token, "text": get_vocabulary_piece(token), "start": start, "stop": stop}
                                      for token, (start, stop) in zip(encoded.token_ids, encoded.offsets, strict=True))]
        return await respond_with_tokens(self._services, request, tokenize_body.inputs, PARAMETER_NAMES, render_pieces,
                                         add_special_tokens=tokenize_body.add_special_tokens is not False)

    async def info(self, _: web.Request) -> web.Response:
        model_info, config, limits = (self._services.engine.model_info, self._services.config,
                                      self._services.validator.limits)
        return json_response({
            "model_id": self._services.served_model.name,
            "model_sha": None,
            "model_dtype": f"torch.{model_info.dtype}",
            "model_device_type": model_info.device,
            "model_pipeline_tag": None,
            "max_concurrent_requests": config.max_concurrent_requests,
            "max_best_of": config.max_best_of,
            "max_stop_sequences": config.max_stop_sequences,
            "max_input_length": limits.max_input_tokens,
            "max_total_tokens": limits.max_total_tokens,
            "waiting_served_ratio": config.waiting_served_ratio,
            "max_batch_total_tokens": model_info.num_blocks * model_info.block_size,
            "max_waiting_tokens": config.max_waiting_tokens,
            "validation_workers": config.validation_workers,
            "eager_prefill": True,
            "version": version("weft"),
            "sha": None,
            "docker_label": None,
            "request_logger_url": None,
        })

    async def chat(self, request: web.Request) -> web.StreamResponse:
        context = RequestContext.from_request(request, self._services.engine, CHAT_OPERATION)
        chat_request = await read_body(request, LoraxChatRequest)
        report_ignored_fields(request, chat_request, IGNORED_CHAT_FIELDS)
        generation_request = await context.run_in_thread_if_long(
            partial(chat_request.to_normalized_request, self._services))
        if chat_request.stream:
            return await self._respond_streaming(
                request, generation_request, context,
                lambda choice: LoraxOpenAiStreamRenderer(len(choice.request.prompt), LORAX_CHAT_TEMPLATE))
        [output, *_], headers = await self._generate_in_full(request, generation_request, context)
        parser = await create_response_parser(self._services, chat_request, output.validated_request, (),
                                              is_compat=True)
        parts = [] if parser is None else await run_in_thread_if_long(
            output, parse_complete_response, parser, raw_token_texts(output, parser))
        tool_calls = ",".join(tool_call_json(part.name, part.arguments, call_id="0")
                              for part in parts if isinstance(part, ParsedToolCall))
        content_field = f'"tool_calls":[{tool_calls}]' if tool_calls else f'"content":{quoted(output.final_event.text)}'
        message = f'{{"role":"assistant",{content_field}}}'
        return json_text_response(chat_response_json(output, message, self._services.served_model.name,
                                                     int(time.time()), SYSTEM_FINGERPRINT), headers)

    async def complete(self, request: web.Request) -> web.StreamResponse:
        context = RequestContext.from_request(request, self._services.engine)
        completion_request = await read_body(request, LoraxCompletionRequest)
        report_ignored_fields(request, completion_request, IGNORED_COMPLETION_FIELDS)
        generation_request = completion_request.to_normalized_request(self._services)
        if completion_request.stream:
            return await self._respond_streaming(
                request, generation_request, context,
                lambda choice: LoraxOpenAiStreamRenderer(len(choice.request.prompt), LORAX_COMPLETION_TEMPLATE))
        [output, *_], headers = await self._generate_in_full(request, generation_request, context)
        return json_text_response(completion_response_json(output, generation_request.returned_prompt), headers)

    async def _generate_in_full(self, request: web.Request, generation_request: NormalizedLoraxRequest,
                                context: RequestContext) -> tuple[list[GenerationOutput], dict[str, str]]:
        """Return the outputs of all choices, the best first, and the response headers."""
        reject_resume_token_ids(generation_request.parameters.resume_token_ids)
        validated_requests = await self._validate(generation_request, context)
        validated_at = clock()
        outputs = await generate_and_sort_by_logprob(self._services, validated_requests, context)
        best_output = outputs[0]
        headers = (self._headers(request, generation_request.num_characters
                                 or best_output.validated_request.num_prompt_characters,
                                 best_output.validated_request.adapter)
                   | lorax_timing_headers(best_output, validated_at - context.arrived_at, clock() - context.arrived_at))
        return outputs, headers

    async def _respond_streaming(self, request: web.Request, generation_request: NormalizedLoraxRequest,
                                 context: RequestContext,
                                 make_renderer: Callable[[ValidatedRequest], EventRenderer]) -> web.StreamResponse:
        """Answer with a stream. It opens before the request is validated, so errors are sent as events."""
        services, parameters = self._services, generation_request.parameters
        adapter = adapter_for_stream_headers(services.validator.adapter_registry,
                                             parameters.adapter_reference(context.source_token))
        async with open_response_stream(request, self._headers(request, generation_request.num_characters, adapter),
                                        services.config.slow_client_timeout, lorax_error_event) as event_stream:
            check_streamable(parameters)
            [validated_request] = await self._validate(generation_request, context)
            with closing(services.submit(validated_request, context)) as stream:
                await EventPump(stream, make_renderer(validated_request), event_stream, services.pump_flusher).run()
        return event_stream.response

    async def _validate(self, generation_request: NormalizedLoraxRequest,
                        context: RequestContext) -> list[ValidatedRequest]:
        validator = self._services.validator
        for fault in find_faults(generation_request.parameters, generation_request.prompt, self._services.config,
                                 validator.limits):
            raise InvalidRequest(fault)  # LoRAX reports the first
        grammar = await context.run_in_thread_if_long(generation_request.find_grammar)
        return await validator.validate(replace(
            generation_request.parameters.to_generation_input(generation_request.prompt, context, grammar),
            **generation_request.extra_sampling_parameters))

    def _headers(self, request: web.Request, num_characters: int | None,
                 adapter: AdapterReference | ResolvedAdapter | None) -> dict[str, str]:
        """Return the headers of every response. The length of a chat is unknown until its prompt is rendered."""
        length_header = {} if num_characters is None else {"x-compute-characters": str(num_characters)}
        return ({"x-compute-type": COMPUTE_TYPE, "x-model-id": self._services.served_model.name} | length_header
                | {"x-weft-exact": str(int(self._services.engine.model_info.exact))} | ignored_fields_headers(request)
                | ({} if adapter is None else adapter_headers(adapter)))
