"""OpenAI's `POST /v1/completions`, with one or several prompts in a request.

Parses bodies into `GenerationInput`; rendering.py renders the events. The number of prompts is checked here, all other
limits by the validator.
"""

from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from time import monotonic as clock
from typing import Annotated

from aiohttp import web
from pydantic import BeforeValidator, FailFast, Field

from router.errors import InvalidRequest
from router.http.openai.chat import OpenAIBaseRequest, as_list, validate_with_model_adapter
from router.http.openai.rendering import (
    DONE_EVENT,
    OpenAICompletionStreamRenderer,
    ResponseMetadata,
    completion_json,
    completions_usage_chunk,
)
from router.http.transport.body import UInt32, json_text_response, read_body
from router.http.transport.request_context import RequestContext, response_headers
from router.http.transport.services import Services, gather_or_cancel, generate_all, timing_headers
from router.http.transport.sse import EventPump, open_response_stream
from router.text.prompt_encoder import DialectParameterNames
from router.validation.bounds import AT_MOST_ZERO, EMPTY_TEXT, EXACTLY_ONE, FALSE, NON_EMPTY_TEXT_OR_TEXTS, POSITIVE
from router.validation.validator import GenerationInput, ValidatedRequest

PARAMETER_NAMES = DialectParameterNames(prompt="prompt", max_new_tokens="max_tokens", truncate="")
PromptList = Annotated[list[str], FailFast(), Field(min_length=1),
                       BeforeValidator(as_list, json_schema_input_type=str | list[str])]


class CompletionRequest(OpenAIBaseRequest):
    """Body of `/v1/completions`."""

    prompt: Annotated[PromptList, NON_EMPTY_TEXT_OR_TEXTS]
    repetition_penalty: Annotated[float | None, POSITIVE] = None
    suffix: Annotated[str | None, EMPTY_TEXT] = None
    best_of: Annotated[UInt32 | None, EXACTLY_ONE] = None
    echo: Annotated[bool | None, FALSE] = None
    logprobs: Annotated[UInt32 | None, AT_MOST_ZERO] = None

    def check_suffix_and_batch_size(self, max_prompts: int) -> None:
        """Reject what text-generation-inference rejects, too. Raises InvalidRequest."""
        if self.suffix:
            raise InvalidRequest("`suffix` is given, but text is only generated at the end of a prompt; leave it out",
                                 "suffix not supported")
        if len(self.prompt) > max_prompts:
            raise InvalidRequest(f"`prompt` must hold at most {max_prompts} texts (--max-client-batch-size), "
                                 f"got {len(self.prompt)}", "batch size exceeded")

    def check_supported(self) -> None:
        """Reject fields that are not implemented, instead of ignoring them as `--compat tgi` does."""
        for name in ("n", "best_of"):
            if getattr(self, name) not in {None, 1}:
                raise InvalidRequest(f"`{name}` must be 1, got {getattr(self, name)}; ask several times")
        for name in ("echo", "logprobs"):
            if getattr(self, name):
                raise InvalidRequest(f"`{name}` is given, but completions are served without it yet; leave it out")

    def to_generation_input(self, prompt: str, context: RequestContext) -> GenerationInput:
        return replace(self.base_generation_input(prompt, PARAMETER_NAMES, context),
                       repetition_penalty=self.repetition_penalty)


class CompletionRoutes:
    """Handler of `/v1/completions`."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/v1/completions", self.complete)]

    async def complete(self, request: web.Request) -> web.StreamResponse:
        """Answer with a whole response or a stream. A stream opens only after its requests are submitted, so that
        errors up to then have their HTTP status."""
        context = RequestContext.from_request(request, self._services.engine)
        completion_request = await read_body(request, CompletionRequest)
        completion_request.check_suffix_and_batch_size(self._services.config.max_client_batch_size)
        if not self._services.is_tgi:
            completion_request.check_supported()
        validated_requests: list[ValidatedRequest] = []
        for index, prompt in enumerate(completion_request.prompt):
            generation_input = completion_request.to_generation_input(prompt, context.for_prompt(index))
            validated_requests += await validate_with_model_adapter(self._services, completion_request,
                                                                    generation_input, context)
        if completion_request.stream:
            return await self._respond_streaming(request, completion_request, validated_requests, context)
        return await self._respond_in_full(request, validated_requests, context)

    async def _respond_in_full(self, request: web.Request, validated_requests: Sequence[ValidatedRequest],
                               context: RequestContext) -> web.StreamResponse:
        metadata, validated_at = self._create_metadata(request), clock()
        outputs = await generate_all(self._services, validated_requests, context)
        headers = (self._response_headers(request, validated_requests)
                   | timing_headers(outputs, validated_at - context.arrived_at, clock() - context.arrived_at))
        return json_text_response(completion_json(metadata, outputs), headers)

    async def _respond_streaming(self, request: web.Request, completion_request: CompletionRequest,
                                 validated_requests: Sequence[ValidatedRequest],
                                 context: RequestContext) -> web.StreamResponse:
        services, metadata = self._services, self._create_metadata(request)
        with ExitStack() as exit_stack:
            streams = [exit_stack.enter_context(closing(services.submit(choice, context)))
                       for choice in validated_requests]
            slow_client_timeout = services.config.slow_client_timeout
            async with open_response_stream(request, self._response_headers(request, validated_requests),
                                            slow_client_timeout, metadata.render_error_chunk) as event_stream:
                renderers = [OpenAICompletionStreamRenderer(metadata, index, len(choice.request.prompt))
                             for index, choice in enumerate(validated_requests)]
                await gather_or_cancel(
                    pump_completion(EventPump(stream, text, event_stream, services.pump_flusher), text)
                    for stream, text in zip(streams, renderers, strict=True))
                usage = completions_usage_chunk(metadata, renderers) if completion_request.should_include_usage else ""
                event_stream.write(f"{usage}{DONE_EVENT}".encode())
            return event_stream.response

    def _response_headers(self, request: web.Request, validated_requests: Sequence[ValidatedRequest]) -> dict[str, str]:
        num_characters = sum(choice.num_prompt_characters for choice in validated_requests)
        return response_headers(request, self._services.engine.model_info, num_characters,
                                validated_requests[0].adapter)

    def _create_metadata(self, request: web.Request) -> ResponseMetadata:
        return ResponseMetadata.create(self._services, request.path, "cmpl", self._services.served_model.name)


async def pump_completion(pump: EventPump, renderer: OpenAICompletionStreamRenderer) -> None:
    """Run the pump, then raise the completion's error if it failed: the text before the error is already written."""
    await pump.run()
    if renderer.error is not None:
        raise renderer.error
