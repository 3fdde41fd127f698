"""OpenAI's `POST /v1/completions`, with one or several prompts in a request."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from time import monotonic as clock
from typing import Annotated, Any

from aiohttp import web

from router.errors import InvalidRequest
from router.grammars.parameters import parse_grammar
from router.http.openai.chat import (
    MAX_TOP_LOGPROBS,
    REFUSED_FIELDS,
    OpenAIBaseRequest,
    StreamedChoices,
    get_echoed_model,
    stream_choices,
    validate_with_model_adapter,
)
from router.http.openai.completion_rendering import (
    COMPLETION_TYPE,
    CompletionDetails,
    DetailedCompletionStreamRenderer,
    EchoedPrompt,
    OpenAICompletionStreamRenderer,
    completion_json,
    output_choice_json,
)
from router.http.openai.rendering import ResponseMetadata
from router.http.transport.body import TextsOrTokens, UInt32, json_text_response, read_body
from router.http.transport.request_context import RequestContext, response_headers
from router.http.transport.services import ServiceRoutes, generate_all, timing_headers
from router.text.prompt_encoder import DialectParameterNames
from router.text.tokenizer import Tokenizer
from router.validation import bounds
from router.validation.validator import GenerationInput

COMPLETION_PARAMETER_NAMES = DialectParameterNames(prompt="prompt", max_new_tokens="max_tokens", truncate="",
                                                   top_n_tokens="logprobs", max_top_n_tokens=MAX_TOP_LOGPROBS)


class CompletionRequest(OpenAIBaseRequest):
    """Body of `/v1/completions`."""

    refused_fields = REFUSED_FIELDS | {"add_special_tokens": (None, True)}

    prompt: Annotated[TextsOrTokens, bounds.NON_EMPTY_TEXTS_OR_TOKENS]
    suffix: Annotated[str | None, bounds.EMPTY_TEXT] = None
    best_of: Annotated[UInt32 | None, bounds.EXACTLY_ONE] = None
    echo: bool | None = None
    response_format: Annotated[Any, bounds.GRAMMAR] = None
    logprobs: UInt32 | None = None

    def check_supported(self, max_tgi_prompts: int, *, is_tgi: bool) -> None:
        """Reject fields that are not implemented; with `is_tgi` only what text-generation-inference rejects, too.
        Raises InvalidRequest."""
        if self.suffix:
            raise InvalidRequest("`suffix` is given, but text is only generated at the end of a prompt; leave it out",
                                 "suffix not supported")
        if is_tgi:
            if len(self.prompt) > max_tgi_prompts:
                raise InvalidRequest(f"`prompt` must hold at most {max_tgi_prompts} texts (--max-client-batch-size), "
                                     f"got {len(self.prompt)}", "batch size exceeded")
        elif self.best_of not in {None, 1, self.n}:
            raise InvalidRequest(f"`best_of` must be 1 or as `n`, got {self.best_of}: all choices are returned")

    @property
    def logprob_parameters(self) -> Mapping[str, Any]:
        """Fields of GenerationInput by which the logprobs are computed."""
        if self.logprobs is None:
            return {}
        prompt_parameters = ({"prompt_logprobs": True, "num_prompt_top_tokens": self.logprobs} if self.echo else {})
        return {"raw_logprobs": True, "top_n_tokens": self.logprobs, **prompt_parameters}

    def to_generation_input(self, prompt: str | tuple[int, ...], context: RequestContext,
                            num_choices: int, *, is_tgi: bool) -> GenerationInput:
        """Return the input for one of the prompts. Text-generation-inference gave no logprobs here."""
        found = self.find_grammar(None if self.response_format is None
                                  else partial(parse_grammar, value=self.response_format))
        names = COMPLETION_PARAMETER_NAMES if found is None else replace(COMPLETION_PARAMETER_NAMES, grammar=found[0])
        return replace(self.base_generation_input(prompt, names, context), num_choices=num_choices,
                       grammar=None if found is None else found[1], **({} if is_tgi else self.logprob_parameters))

    def completion_details(self, index: int, token_ids: tuple[int, ...],
                           tokenizer: Tokenizer) -> CompletionDetails | None:
        """Return the optional parts of a completion of the prompt at `index`, of these tokens; None without any."""
        if not self.echo and self.logprobs is None:
            return None
        prompt = self.prompt[index]
        echoed_prompt = EchoedPrompt(token_ids, prompt if isinstance(prompt, str) else tokenizer.decode(token_ids))
        return CompletionDetails(tokenizer, self.logprobs is not None, echoed_prompt if self.echo else None)


class CompletionRoutes(ServiceRoutes):
    """Handler of `/v1/completions`. It answers with a whole response or a stream, as that of chats does."""

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/v1/completions", self.complete)]

    async def complete(self, request: web.Request) -> web.StreamResponse:
        services, tokenizer = self._services, self._services.validator.tokenizer
        context = RequestContext.from_request(request, services.engine)
        completion_request = await read_body(request, CompletionRequest)
        completion_request.check_supported(services.config.max_client_batch_size, is_tgi=services.is_tgi)
        num_choices = 1 if services.is_tgi or completion_request.n is None else completion_request.n
        max_requests = services.config.max_concurrent_requests
        if len(completion_request.prompt) * num_choices > max_requests:
            raise InvalidRequest(f"`prompt` must hold at most {max_requests // num_choices} texts with `n` "
                                 f"{num_choices}, since --max-concurrent-requests is {max_requests}, got "
                                 f"{len(completion_request.prompt)}")
        choices = [
            choice for index, prompt in enumerate(completion_request.prompt)
            for choice in await validate_with_model_adapter(services, completion_request, (
                completion_request.to_generation_input(prompt if isinstance(prompt, str) else tuple(prompt),
                                                       context.for_prompt(index), num_choices,
                                                       is_tgi=services.is_tgi)), context)]
        validated_at = clock()
        metadata = ResponseMetadata.create(services, request.path, "cmpl",
                                           get_echoed_model(services, completion_request))
        trimmed_stop_strings = completion_request.trimmed_stop_strings(is_tgi=services.is_tgi)
        all_details = [None if services.is_tgi else completion_request.completion_details(
            index // num_choices, choice.request.prompt, tokenizer) for index, choice in enumerate(choices)]
        headers = response_headers(request, services.engine.model_info,
                                   sum(choice.num_prompt_characters for choice in choices[::num_choices]),
                                   choices[0].adapter)
        if not completion_request.stream:
            outputs = await generate_all(services, choices, context)
            headers |= timing_headers(outputs, validated_at - context.arrived_at, clock() - context.arrived_at,
                                      num_choices=num_choices)
            # Logprobs of long prompts take a while to render, so they are rendered off the event loop.
            choices_json = [
                output_choice_json(metadata, index, output, trimmed_stop_strings, details)
                if details is None or not details.has_logprobs else await asyncio.to_thread(
                    output_choice_json, metadata, index, output, trimmed_stop_strings, details)
                for index, (output, details) in enumerate(zip(outputs, all_details, strict=True))]
            return json_text_response(completion_json(metadata, outputs, num_choices, choices_json), headers)

        renderers = [
            OpenAICompletionStreamRenderer(metadata, index, len(choice.request.prompt), trimmed_stop_strings)
            if details is None else DetailedCompletionStreamRenderer(
                metadata, index, len(choice.request.prompt), trimmed_stop_strings, details)
            for index, (choice, details) in enumerate(zip(choices, all_details, strict=True))]
        return await stream_choices(services, request, context, headers, StreamedChoices(
            metadata, choices, renderers, num_choices,
            COMPLETION_TYPE if completion_request.should_include_usage else ""))
