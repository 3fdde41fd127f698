"""OpenAI's `POST /v1/chat/completions`: requests.py converts bodies to `GenerationInput`; rendering.py renders the
events. Where OpenAI and text-generation-inference differ, responses have a form that clients of both accept. The chats
of other dialects go through `validate_chat`, too."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from time import monotonic as clock

from aiohttp import web

from router.config import RouterConfig
from router.engine.output_stream import RequestStream
from router.http.openai.parser_selection import create_response_parser
from router.http.openai.rendering import (
    CHAT_CHUNK_TYPE,
    DONE_EVENT,
    ChatOutputOptions,
    ChoiceStreamRenderer,
    OpenAIChatStreamRenderer,
    ResponseMetadata,
    TokenChunkDetails,
    TokenChunkRenderer,
    chat_completion_json,
    text_chat_choice_json,
    usage_chunk,
)
from router.http.openai.requests import (
    CHAT_PARAMETER_NAMES,
    ChatRequest,
    get_echoed_model,
    validate_with_model_adapter,
)
from router.http.openai.tool_call_rendering import OpenAIToolChatStreamRenderer, tool_chat_choice_json
from router.http.openai.whole_answer_grammar import constrain_answer
from router.http.transport.body import add_ignored_fields, json_list_response, read_body, report_ignored_fields
from router.http.transport.request_context_and_middleware import RequestContext, response_headers
from router.http.transport.services import (
    RequestGroupThrottle,
    ServiceRoutes,
    Services,
    gather_or_cancel,
    generate_all,
    run_in_thread_if_long,
    timing_headers,
)
from router.http.transport.sse import EventPump, EventRenderer, open_response_stream
from router.telemetry.spans import CHAT_OPERATION
from router.text.chat_template import Conversation
from router.text.prompt_encoder import DialectParameterNames
from router.text.response_parser import ResponseParserProtocol
from router.validation.validator import GenerationInput, ValidatedRequest

TGI_IGNORED_FIELDS: Mapping[str, Sequence[object]] = {"n": (None, 1)}  # with --compat tgi, unless of these values


@dataclass(frozen=True, slots=True)
class StreamedChoices:
    """Choices that a response streams, with a renderer for each."""

    metadata: ResponseMetadata
    validated_requests: Sequence[ValidatedRequest]
    renderers: Sequence[ChoiceStreamRenderer]
    num_per_prompt: int
    usage_object_type: str  # of the chunk with their usage; empty: there is none
    has_continuous_usage: bool = False  # whether the other chunks have the usage so far
    returns_token_ids: bool = False

    def make_chunk_renderer(self, index: int) -> EventRenderer:
        """Return the renderer of a choice's chunks, with what was asked for of each token."""
        renderer = self.renderers[index]
        if not self.has_continuous_usage and not self.returns_token_ids:
            return renderer
        prompt_ids = self.validated_requests[index].request.prompt if self.returns_token_ids else None
        return TokenChunkRenderer(renderer, TokenChunkDetails(self.has_continuous_usage, prompt_ids))


@dataclass(frozen=True, slots=True)
class ValidatedChat:
    """The choices of a chat, with the parser of each one's answer: None where it can only be text."""

    choices: Sequence[ValidatedRequest]
    parsers: Sequence[ResponseParserProtocol | None]


async def validate_chat(services: Services, chat_request: ChatRequest, context: RequestContext,
                        parameter_names: DialectParameterNames = CHAT_PARAMETER_NAMES) -> ValidatedChat:
    """Encode and validate a chat of any dialect, whose names of parameters are those in errors. Raises InvalidRequest,
    InvalidTools and AdapterNotFound."""
    generation_input = await context.run_in_thread_if_long(
        partial(make_chat_input, services, chat_request, context, parameter_names))
    choices = await validate_with_model_adapter(services, chat_request, generation_input, context)
    if services.validator.reasoning_format is None and not chat_request.may_call_tool:
        return ValidatedChat(choices, [None] * len(choices))
    is_compat = services.is_tgi and parameter_names is CHAT_PARAMETER_NAMES
    assert isinstance(generation_input.prompt, Conversation)
    tools = generation_input.prompt.tools
    return ValidatedChat(choices, [
        await create_response_parser(services, chat_request, choice, tools, is_compat=is_compat) for choice in choices])


def make_chat_input(services: Services, chat_request: ChatRequest, context: RequestContext,
                    parameter_names: DialectParameterNames = CHAT_PARAMETER_NAMES) -> GenerationInput:
    """Convert a chat of any dialect. A grammar becomes that of the model's whole output. Raises InvalidRequest and
    InvalidTools."""
    if services.is_tgi and parameter_names is CHAT_PARAMETER_NAMES:  # its quirks are those of OpenAI's route
        return chat_request.to_tgi_generation_input(context)
    chat_request.check_roles(services.validator.chat_template)
    generation_input = chat_request.to_generation_input(context, parameter_names)
    return generation_input if generation_input.grammar is None else constrain_answer(
        services.validator.chat_template, chat_request, generation_input)


class ChatRoutes(ServiceRoutes):
    """Handler of `/v1/chat/completions`. It answers with a whole response or a stream. A stream opens only after its
    requests are submitted, so that errors up to then have their HTTP status."""

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/v1/chat/completions", self.chat)]

    async def chat(self, request: web.Request) -> web.StreamResponse:
        services = self._services
        context = RequestContext.from_request(request, services.engine, CHAT_OPERATION)
        chat_request = (await read_body(request, ChatRequest)).without_empty_tools(is_tgi=services.is_tgi)
        if services.is_tgi:
            report_ignored_fields(request, chat_request, TGI_IGNORED_FIELDS)
        chat = await validate_chat(services, chat_request, context)
        if chat_request.tool_choice is not None:
            add_ignored_fields(request, chat_request.list_unused_formats())
        validated_at, choices = clock(), chat.choices
        metadata = ResponseMetadata.create(services, request, "chatcmpl-", get_echoed_model(services, chat_request))
        output_options = ChatOutputOptions(
            chat_request.should_include_usage,
            includes_logprobs=bool(chat_request.logprobs or chat_request.top_logprobs),
            tokenizer=None if services.is_tgi else services.validator.tokenizer,
            stop_strings_to_remove=chat_request.stop_strings_to_remove(is_tgi=services.is_tgi),
            counts_reasoning=services.validator.reasoning_format is not None,
            returns_token_ids=bool(chat_request.return_token_ids))
        headers = response_headers(request, services.engine.model_info, choices[0].num_prompt_characters,
                                   choices[0].adapter)
        if not chat_request.stream:
            outputs = await generate_all(services, choices, context)
            headers |= timing_headers(outputs, validated_at - context.arrived_at, clock() - context.arrived_at,
                                      num_choices=len(outputs))
            rendered = [
                await run_in_thread_if_long(output, text_chat_choice_json, metadata, index, output, output_options)
                if parser is None else await run_in_thread_if_long(output, tool_chat_choice_json, metadata, index,
                                                                   output, output_options, parser)
                for index, (output, parser) in enumerate(zip(outputs, chat.parsers, strict=True))]
            make_answer = partial(chat_completion_json, metadata, outputs, rendered,
                                  returns_token_ids=output_options.returns_token_ids)
            answer = await asyncio.to_thread(make_answer) if output_options.returns_token_ids else make_answer()
            return await json_list_response(request, answer, headers, services.config.slow_client_timeout)

        num_prompt_tokens = len(choices[0].request.prompt)
        renderers = [
            OpenAIChatStreamRenderer(metadata, index, num_prompt_tokens, output_options) if parser is None
            else OpenAIToolChatStreamRenderer(metadata, index, num_prompt_tokens, output_options, parser)
            for index, parser in enumerate(chat.parsers)]
        return await stream_choices(services, request, context, headers, StreamedChoices(
            metadata, choices, renderers, len(choices), CHAT_CHUNK_TYPE if output_options.includes_usage else "",
            chat_request.has_continuous_usage, output_options.returns_token_ids))


async def stream_choices(services: Services, request: web.Request, context: RequestContext, headers: Mapping[str, str],
                         choices: StreamedChoices) -> web.StreamResponse:
    """Stream the choices of all prompts, those of a prompt at once, and at the end their usage together, if it was
    asked for."""
    metadata, renderers, num_per_prompt = choices.metadata, choices.renderers, choices.num_per_prompt
    groups = [choices.validated_requests[start:start + num_per_prompt]
              for start in range(0, len(renderers), num_per_prompt)]
    with closing(RequestGroupThrottle(services, context, groups,
                                      compute_max_concurrent_prompts(services.config, num_per_prompt))) as throttle:
        throttle.submit()
        async with open_response_stream(request, headers, services.config.slow_client_timeout,
                                        metadata.render_error_chunk) as event_stream:
            async def stream_prompt_choices(index: int, streams: Sequence[RequestStream]) -> None:
                start = index * num_per_prompt
                await gather_or_cancel(
                    stream_choice_or_raise(
                        stream, EventPump(stream, choices.make_chunk_renderer(start + place), event_stream,
                                          services.pump_flusher), renderers[start + place])
                    for place, stream in enumerate(streams))

            await throttle.run(stream_prompt_choices)
            usage = (usage_chunk(metadata, choices.usage_object_type, renderers, num_per_prompt)
                     if choices.usage_object_type else "")
            event_stream.write(f"{usage}{DONE_EVENT}".encode())
        return event_stream.response


def compute_max_concurrent_prompts(config: RouterConfig, num_choices: int) -> int:
    """Return how many prompts of one request, each with `num_choices`, may run at once: as many as have half of
    --max-concurrent-requests, or --max-client-batch-size if that is more, but at least one."""
    return max(1, max(config.max_client_batch_size, config.max_concurrent_requests // 2) // num_choices)


async def stream_choice_or_raise(stream: RequestStream, pump: EventPump, renderer: ChoiceStreamRenderer) -> None:
    """Run the pump, then raise the choice's error if it failed: the text before the error is already written."""
    await renderer.render_prompt(stream)
    await pump.run()
    if renderer.error is not None:
        raise renderer.error
