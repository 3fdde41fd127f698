"""API of text-generation-inference: the routes that generate, their parameters and headers. Parses bodies into
`GenerationInput`; rendering.py renders the events."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from operator import attrgetter
from time import monotonic as clock
from typing import Annotated, Any

from aiohttp import web
from pydantic import FailFast, Field

from router.errors import InvalidRequest
from router.grammars.parameters import parse_grammar
from router.http.tgi.rendering import (
    TGI_DIALECT,
    GenerateResponseDialect,
    GenerateStreamRenderer,
    generate_response_json,
    tgi_error_event,
)
from router.http.transport.body import (
    AdapterParameters,
    Int32,
    LenientBodyModel,
    ListJson,
    UInt32,
    UInt64,
    adapter_for_stream_headers,
    json_list_response,
    read_body,
)
from router.http.transport.request_context_and_middleware import RequestContext, response_headers
from router.http.transport.services import (
    GenerationOutput,
    ServiceRoutes,
    generate_and_sort_by_logprob,
    reject_resume_token_ids,
    run_in_thread_if_long,
    timing_headers,
)
from router.http.transport.sse import EventPump, open_response_stream
from router.text.chat_template import Conversation
from router.text.tokenizer import Tokenizer
from router.validation import bounds
from router.validation.validator import GenerationInput


class BaseGenerateParameters(AdapterParameters):
    """Generation parameters that TGI's and LoRAX's `parameters` have in common."""

    best_of: UInt64 | None = None
    temperature: Annotated[float | None, bounds.POSITIVE] = None
    repetition_penalty: Annotated[float | None, bounds.POSITIVE] = None
    frequency_penalty: Annotated[float | None, bounds.PENALTY] = None
    top_k: Annotated[Int32 | None, bounds.AT_LEAST_ONE] = None
    top_p: Annotated[float | None, bounds.FRACTION] = None
    typical_p: Annotated[float | None, bounds.FRACTION] = Field(
        default=None, description="keep the candidates whose information is near the mean, up to this probability")
    do_sample: bool = False
    max_new_tokens: Annotated[UInt32 | None, bounds.AT_LEAST_ONE] = None
    ignore_eos_token: bool = False
    return_full_text: bool | None = None
    stop: Annotated[list[str], FailFast(), bounds.STOP_STRINGS] = Field(default_factory=list)
    truncate: Annotated[UInt64 | None, bounds.AT_LEAST_ONE] = None
    watermark: bool = False
    details: bool = False
    decoder_input_details: bool = False
    seed: UInt64 | None = None
    resume_token_ids: Annotated[list[UInt32] | None, FailFast()] = None

    def base_generation_input(self, prompt: str | Conversation, context: RequestContext) -> GenerationInput:
        """Convert all parameters but the frequency penalty, which means different things in the two dialects."""
        return GenerationInput(
            prompt=prompt,
            best_of=self.best_of,
            temperature=self.temperature,
            repetition_penalty=self.repetition_penalty,
            top_k=self.top_k,
            top_p=self.top_p,
            typical_p=self.typical_p,
            do_sample=self.do_sample,
            max_new_tokens=self.max_new_tokens,
            ignore_eos=self.ignore_eos_token,
            stop_strings=tuple(self.stop),
            truncate=self.truncate,
            watermark=self.watermark,
            seed=self.seed,
            prompt_logprobs=self.decoder_input_details,
            resume_token_ids=tuple(self.resume_token_ids or ()),
            adapter=(None if self.adapter_id is None and self.merged_adapters is None
                     else self.adapter_reference(context.source_token)),
            tenant=context.tenant,
            request_id=context.request_id,
            deadline=context.deadline,
        )


class GenerateParameters(BaseGenerateParameters):
    """Parameters of a generation. Null means that a field is not given, where its type allows null."""

    top_n_tokens: UInt32 | None = None
    grammar: Annotated[Any, bounds.GRAMMAR] = None
    cache_salt: Annotated[str | None, bounds.CACHE_SALT] = None
    priority: Annotated[Int32, bounds.PRIORITY] = 0


class GenerateRequest(LenientBodyModel):
    """A text to continue. As in TGI, tokens are sampled without `parameters`; with them, even empty ones, only if they
    ask for sampling."""

    inputs: Annotated[str, bounds.NON_EMPTY_TEXT]
    parameters: GenerateParameters = Field(default_factory=lambda: GenerateParameters(do_sample=True))
    cache_salt: Annotated[str | None, bounds.CACHE_SALT] = None  # other servers take it here, not in `parameters`

    @property
    def returned_prompt(self) -> str:
        return self.inputs if self.parameters.return_full_text else ""

    def to_generation_input(self, context: RequestContext) -> GenerationInput:
        parameters = self.parameters
        if parameters.adapter_id and parameters.merged_adapters is not None:
            raise InvalidRequest("`adapter_id` and `merged_adapters` are given; give one of them")
        grammar = None if parameters.grammar is None else parse_grammar("grammar", parameters.grammar)
        salts = {self.cache_salt, parameters.cache_salt} - {None}
        if len(salts) > 1:
            raise InvalidRequest("`cache_salt` is given twice, with different values; give it once")
        return replace(parameters.base_generation_input(self.inputs, context),
                       relative_frequency_penalty=parameters.frequency_penalty, top_n_tokens=parameters.top_n_tokens,
                       grammar=grammar, cache_salt=next(iter(salts), None), priority=parameters.priority)

    def check_streamable(self) -> None:
        if self.parameters.best_of not in {None, 1}:
            raise InvalidRequest(f"`best_of` must be 1 on a stream, got {self.parameters.best_of}")
        if self.parameters.decoder_input_details:
            raise InvalidRequest("`decoder_input_details` must be false on a stream, got true")


class CompatGenerateRequest(GenerateRequest):
    """The body of `/`: that of `/generate` with the field `stream`. As in TGI's first versions, the answer repeats the
    prompt unless `return_full_text` is false."""

    stream: bool = False

    @property
    def returned_prompt(self) -> str:
        return "" if self.parameters.return_full_text is False else self.inputs


class TgiRoutes(ServiceRoutes):
    """Handlers of TGI's routes that generate."""

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/", self.compat_generate),
            web.post("/generate", self.generate),
            web.post("/generate_stream", self.generate_stream),
        ]

    async def generate(self, request: web.Request) -> web.StreamResponse:
        context = RequestContext.from_request(request, self._services.engine)
        return await self._generate_in_full(request, await read_body(request, GenerateRequest), context)

    async def compat_generate(self, request: web.Request) -> web.StreamResponse:
        context = RequestContext.from_request(request, self._services.engine)
        generate_request = await read_body(request, CompatGenerateRequest)
        if generate_request.stream:
            return await self._respond_streaming(request, generate_request, context)
        return await self._generate_in_full(request, generate_request, context, brackets="[]")

    async def generate_stream(self, request: web.Request) -> web.StreamResponse:
        context = RequestContext.from_request(request, self._services.engine)
        return await self._respond_streaming(request, await read_body(request, GenerateRequest), context)

    async def _generate_in_full(self, request: web.Request, generate_request: GenerateRequest,
                                context: RequestContext, brackets: str = "") -> web.StreamResponse:
        services = self._services
        reject_resume_token_ids(generate_request.parameters.resume_token_ids)
        validated_requests = await services.validator.validate(
            await context.run_in_thread_if_long(partial(generate_request.to_generation_input, context)))
        validated_at = clock()
        outputs = await generate_and_sort_by_logprob(services, validated_requests, context)
        best_output = outputs[0]
        headers = (response_headers(request, services.engine.model_info, len(generate_request.inputs),
                                    best_output.validated_request.adapter)
                   | timing_headers([best_output], validated_at - context.arrived_at, clock() - context.arrived_at))
        parameters = generate_request.parameters
        rendered = await render_outputs(outputs, services.validator.tokenizer, generate_request.returned_prompt,
                                        has_details=parameters.details or parameters.decoder_input_details)
        answer = ListJson(brackets[:1], [rendered], brackets[1:])
        return await json_list_response(request, answer, headers, services.config.slow_client_timeout)

    async def _respond_streaming(self, request: web.Request, generate_request: GenerateRequest,
                                 context: RequestContext) -> web.StreamResponse:
        """Answer with a stream. It opens before the request is validated, so errors are sent as events, as in TGI."""
        services = self._services
        adapter = adapter_for_stream_headers(services.validator.adapter_registry,
                                             generate_request.parameters.adapter_reference(context.source_token))
        headers = response_headers(request, services.engine.model_info, len(generate_request.inputs), adapter)
        async with open_response_stream(request, headers, services.config.slow_client_timeout,
                                        tgi_error_event) as event_stream:
            generate_request.check_streamable()
            [validated_request] = await services.validator.validate(
                await context.run_in_thread_if_long(partial(generate_request.to_generation_input, context)))
            renderer = GenerateStreamRenderer(validated_request, generate_request.parameters.details,
                                              generate_request.returned_prompt)
            with closing(services.submit(validated_request, context)) as stream:
                await EventPump(stream, renderer, event_stream, services.pump_flusher).run()
        return event_stream.response


async def render_outputs(outputs: Sequence[GenerationOutput], tokenizer: Tokenizer, text_prefix: str, *,
                         has_details: bool, dialect: GenerateResponseDialect = TGI_DIALECT) -> str:
    """Render a whole response with the best output, which is the first; in a thread if its details are long."""
    render = partial(generate_response_json, outputs[0], tokenizer, outputs[1:], text_prefix, has_details=has_details,
                     dialect=dialect)
    longest = max(outputs, key=attrgetter("num_rendered_tokens"))
    return await run_in_thread_if_long(longest, render) if has_details else render()
