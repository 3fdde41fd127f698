"""OpenAI's `POST /v1/completions`, with one or several prompts in a request."""

from dataclasses import replace
from time import monotonic as clock
from typing import Annotated

from aiohttp import web

from router.errors import InvalidRequest
from router.http.openai.chat import (
    OpenAIBaseRequest,
    StreamedChoices,
    get_echoed_model,
    stream_choices,
    validate_with_model_adapter,
)
from router.http.openai.rendering import (
    COMPLETION_TYPE,
    OpenAICompletionStreamRenderer,
    ResponseMetadata,
    completion_json,
)
from router.http.transport.body import TextsOrTokens, UInt32, json_text_response, read_body
from router.http.transport.request_context import RequestContext, response_headers
from router.http.transport.services import ServiceRoutes, generate_all, timing_headers
from router.text.prompt_encoder import DialectParameterNames
from router.validation import bounds

COMPLETION_PARAMETER_NAMES = DialectParameterNames(prompt="prompt", max_new_tokens="max_tokens", truncate="")


class CompletionRequest(OpenAIBaseRequest):
    """Body of `/v1/completions`."""

    prompt: Annotated[TextsOrTokens, bounds.NON_EMPTY_TEXTS_OR_TOKENS]
    suffix: Annotated[str | None, bounds.EMPTY_TEXT] = None
    best_of: Annotated[UInt32 | None, bounds.EXACTLY_ONE] = None
    echo: Annotated[bool | None, bounds.FALSE] = None
    logprobs: Annotated[UInt32 | None, bounds.AT_MOST_ZERO] = None

    def check_supported(self, max_prompts: int, *, is_tgi: bool) -> None:
        """Reject fields that are not implemented; with `is_tgi` only those that text-generation-inference rejects, too.
        Raises InvalidRequest."""
        if self.suffix:
            raise InvalidRequest("`suffix` is given, but text is only generated at the end of a prompt; leave it out",
                                 "suffix not supported")
        if len(self.prompt) > max_prompts:
            raise InvalidRequest(f"`prompt` must hold at most {max_prompts} texts (--max-client-batch-size), "
                                 f"got {len(self.prompt)}", "batch size exceeded")
        if is_tgi:
            return
        if self.best_of not in {None, 1, self.n}:
            raise InvalidRequest(f"`best_of` must be 1 or as `n`, got {self.best_of}: all choices are returned")
        for name in ("echo", "logprobs"):
            if getattr(self, name):
                raise InvalidRequest(f"`{name}` is given, but completions are served without it yet; leave it out")


class CompletionRoutes(ServiceRoutes):
    """Handler of `/v1/completions`. It answers with a whole response or a stream, as that of chats does."""

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/v1/completions", self.complete)]

    async def complete(self, request: web.Request) -> web.StreamResponse:
        services = self._services
        context = RequestContext.from_request(request, services.engine)
        completion_request = await read_body(request, CompletionRequest)
        completion_request.check_supported(services.config.max_client_batch_size, is_tgi=services.is_tgi)
        num_choices = 1 if services.is_tgi or completion_request.n is None else completion_request.n
        max_requests = services.config.max_concurrent_requests
        if len(completion_request.prompt) * num_choices > max_requests:
            raise InvalidRequest(f"`n` times the number of prompts must be at most {max_requests} "
                                 f"(--max-concurrent-requests), got {len(completion_request.prompt) * num_choices}")
        validated_requests = [
            choice for index, prompt in enumerate(completion_request.prompt)
            for choice in await validate_with_model_adapter(services, completion_request, replace(
                completion_request.base_generation_input(prompt if isinstance(prompt, str) else tuple(prompt),
                                                         COMPLETION_PARAMETER_NAMES, context.for_prompt(index)),
                num_choices=num_choices), context)]
        validated_at = clock()
        metadata = ResponseMetadata.create(services, request.path, "cmpl",
                                           get_echoed_model(services, completion_request))
        trimmed_stop_strings = completion_request.trimmed_stop_strings(is_tgi=services.is_tgi)
        headers = response_headers(request, services.engine.model_info,
                                   sum(choice.num_prompt_characters for choice in validated_requests[::num_choices]),
                                   validated_requests[0].adapter)
        if not completion_request.stream:
            outputs = await generate_all(services, validated_requests, context)
            headers |= timing_headers(outputs, validated_at - context.arrived_at, clock() - context.arrived_at,
                                      num_choices=num_choices)
            return json_text_response(completion_json(metadata, outputs, num_choices, trimmed_stop_strings), headers)

        renderers = [OpenAICompletionStreamRenderer(metadata, index, len(choice.request.prompt), trimmed_stop_strings)
                     for index, choice in enumerate(validated_requests)]
        return await stream_choices(services, request, context, headers, StreamedChoices(
            metadata, validated_requests, renderers, num_choices,
            COMPLETION_TYPE if completion_request.should_include_usage else ""))
