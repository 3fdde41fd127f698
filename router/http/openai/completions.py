"""OpenAI's `POST /v1/completions`, with one or several prompts in a request."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from time import monotonic as clock
from typing import Annotated, Any

from aiohttp import web

from router.engine.output_stream import RequestStream
from router.errors import InvalidRequest
from router.grammars.parameters import parse_grammar
from router.http.openai.chat import StreamedChoices, compute_max_concurrent_prompts, stream_choices
from router.http.openai.completion_rendering import (
    COMPLETION_TYPE,
    CompletionOutputOptions,
    EchoedPrompt,
    EchoOnlyStreamRenderer,
    LogprobsAndEchoStreamRenderer,
    OpenAICompletionStreamRenderer,
    completion_json,
    drop_generated_output,
    output_choice_json,
)
from router.http.openai.rendering import ResponseMetadata
from router.http.openai.requests import (
    MAX_TOP_LOGPROBS,
    REFUSED_FIELDS,
    OpenAIBaseRequest,
    get_echoed_model,
    validate_with_model_adapter,
)
from router.http.transport.body import TextsOrTokens, UInt32, json_list_response, read_body, report_ignored_fields
from router.http.transport.request_context_and_middleware import RequestContext, response_headers
from router.http.transport.services import (
    GenerationOutput,
    RequestGroupThrottle,
    ServiceRoutes,
    Services,
    collect_output,
    gather_or_cancel,
    timing_headers,
)
from router.text.infill import InfillEncoder, InfillPrompt, require_infill
from router.text.prompt_encoder import DialectParameterNames, RawPrompt
from router.text.tokenizer import Tokenizer
from router.validation import bounds
from router.validation.validator import GenerationInput, ValidatedRequest

# With --compat tgi, unless they have these values.
TGI_IGNORED_FIELDS: Mapping[str, Sequence[object]] = {"n": (None, 1), "best_of": (None, 1), "echo": (None, False),
                                                      "logprobs": (None,)}
MAX_CHOICES = 2048  # of all prompts of a request
COMPLETION_PARAMETER_NAMES = DialectParameterNames(prompt="prompt", max_new_tokens="max_tokens", truncate="",
                                                   top_n_tokens="logprobs", max_top_n_tokens=MAX_TOP_LOGPROBS)


class CompletionRequest(OpenAIBaseRequest):
    """Body of `/v1/completions`."""

    refused_fields = REFUSED_FIELDS | {"add_special_tokens": (None, True)}

    prompt: Annotated[TextsOrTokens, bounds.NON_EMPTY_TEXTS_OR_TOKENS]
    suffix: str | None = None
    best_of: Annotated[UInt32 | None, bounds.EXACTLY_ONE] = None
    echo: bool | None = None
    response_format: Annotated[Any, bounds.GRAMMAR] = None
    logprobs: UInt32 | None = None

    def check_supported(self, max_tgi_prompts: int, infill: InfillEncoder | None, *, is_tgi: bool) -> None:
        """Reject what is not served; with `is_tgi` only what text-generation-inference rejects, too. `infill`: None if
        the model cannot fill in a suffix's place. Raises InvalidRequest."""
        if is_tgi:
            if self.suffix:
                raise InvalidRequest("`suffix` is given, but text is only generated at the end of a prompt; leave it "
                                     "out", "suffix not supported")
            if len(self.prompt) > max_tgi_prompts:
                raise InvalidRequest(f"`prompt` must hold at most {max_tgi_prompts} texts (--max-client-batch-size), "
                                     f"got {len(self.prompt)}", "batch size exceeded")
            return
        if self.best_of not in {None, 1, self.n}:
            raise InvalidRequest(f"`best_of` must be 1 or as `n`, got {self.best_of}: all choices are returned")
        if self.suffix:
            self._check_infill(infill)
        if self.max_tokens == 0 and not self.echo:
            raise InvalidRequest("`max_tokens` must be at least 1, or 0 with `echo`, got 0")
        if self.returns_prompt_only and self.min_tokens:
            raise InvalidRequest(f"`min_tokens` must be at most `max_tokens` (0), got {self.min_tokens}")

    def _check_infill(self, infill: InfillEncoder | None) -> None:
        require_infill(infill)
        if not all(isinstance(prompt, str) for prompt in self.prompt):
            raise InvalidRequest("`prompt` must be text beside `suffix`, got token ids")
        if self.echo:
            raise InvalidRequest("`echo` and `suffix` are given, but a text between two others does not follow the "
                                 "prompt alone; leave one of them out")

    @property
    def returns_prompt_only(self) -> bool:
        """Whether the prompt is all that is wanted, such as for its logprobs."""
        return self.max_tokens == 0 and bool(self.echo)

    @property
    def logprob_parameters(self) -> Mapping[str, Any]:
        """Fields of GenerationInput by which the logprobs are computed."""
        if self.logprobs is None:
            return {}
        prompt_parameters = ({"prompt_logprobs": True, "num_prompt_top_tokens": self.logprobs} if self.echo else {})
        return {"raw_logprobs": True, "top_n_tokens": self.logprobs, **prompt_parameters}

    def to_generation_input(self, context: RequestContext, num_choices: int, infill: InfillEncoder | None = None, *,
                            is_tgi: bool) -> GenerationInput:
        """Return the input without the prompt. Text-generation-inference gave no logprobs here."""
        found = self.find_grammar(None if self.response_format is None
                                  else partial(parse_grammar, value=self.response_format))
        names = COMPLETION_PARAMETER_NAMES if found is None else replace(COMPLETION_PARAMETER_NAMES, grammar=found[0])
        generation_input = replace(self.base_generation_input("", names, context), num_choices=num_choices,
                                   grammar=None if found is None else found[1])
        if is_tgi:
            return generation_input
        if self.suffix and infill is not None:
            generation_input = generation_input.with_extra_stop_tokens(infill.end_tokens)
        if self.returns_prompt_only:  # its last token is computed to choose another, which is left out
            generation_input = replace(generation_input, max_new_tokens=1,
                                       parameter_names=replace(names, max_required_new_tokens=0))
        return replace(generation_input, **self.logprob_parameters)

    def make_prompt(self, prompt: str | list[int]) -> RawPrompt:
        if not isinstance(prompt, str):
            return tuple(prompt)
        return InfillPrompt(prompt, self.suffix) if self.suffix else prompt

    def completion_details(self, index: int, token_ids: tuple[int, ...],
                           tokenizer: Tokenizer) -> CompletionOutputOptions | None:
        """Return the optional parts of a completion of the prompt at `index`, of these tokens; None without any."""
        has_ids = bool(self.return_token_ids) and not self.stream  # a stream has them beside the other details
        if not self.echo and self.logprobs is None and not has_ids:
            return None
        echoed_prompt = None
        if self.echo:
            prompt = self.prompt[index]
            echoed_prompt = EchoedPrompt(token_ids, prompt if isinstance(prompt, str) else tokenizer.decode(token_ids))
        return CompletionOutputOptions(tokenizer, self.logprobs is not None, echoed_prompt, has_ids)


class CompletionRoutes(ServiceRoutes):
    """Handler of `/v1/completions`. It answers with a whole response or a stream, as that of chats does."""

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/v1/completions", self.complete)]

    async def complete(self, request: web.Request) -> web.StreamResponse:
        services = self._services
        context = RequestContext.from_request(request, services.engine)
        completion_request = await read_body(request, CompletionRequest)
        if services.is_tgi:
            report_ignored_fields(request, completion_request, TGI_IGNORED_FIELDS)
        completion_request.check_supported(services.config.max_client_batch_size,
                                           services.validator.prompt_encoder.infill, is_tgi=services.is_tgi)
        num_choices = 1 if services.is_tgi or completion_request.n is None else completion_request.n
        choices, all_details = await self._validate_prompts(completion_request, context, num_choices)
        validated_at = clock()
        metadata = ResponseMetadata.create(services, request, "cmpl-",
                                           get_echoed_model(services, completion_request))
        stop_strings_to_remove = completion_request.stop_strings_to_remove(is_tgi=services.is_tgi)
        headers = response_headers(request, services.engine.model_info,
                                   sum(choice.num_prompt_characters for choice in choices[::num_choices]),
                                   choices[0].adapter)
        if not completion_request.stream:
            async def render_output(index: int, output: GenerationOutput) -> str:
                details = all_details[index]
                if details is None or not (details.has_logprobs or details.has_token_ids):
                    return output_choice_json(metadata, index, output, stop_strings_to_remove, details)
                # Logprobs and ids of long prompts take a while to render, so they are rendered off the event loop.
                return await asyncio.to_thread(output_choice_json, metadata, index, output, stop_strings_to_remove,
                                               details)

            outputs, choices_json = await generate_prompts_in_groups(
                services, context, choices, num_choices, render_output,
                collect=collect_prompt_only_output if completion_request.returns_prompt_only else collect_output)
            headers |= timing_headers(outputs, validated_at - context.arrived_at, clock() - context.arrived_at,
                                      num_choices=num_choices)
            return await json_list_response(request, completion_json(metadata, outputs, num_choices, choices_json),
                                            headers, services.config.slow_client_timeout)

        detailed_renderer = (EchoOnlyStreamRenderer if completion_request.returns_prompt_only
                             else LogprobsAndEchoStreamRenderer)
        renderers = [
            OpenAICompletionStreamRenderer(metadata, index, len(choice.request.prompt), stop_strings_to_remove)
            if details is None else detailed_renderer(
                metadata, index, len(choice.request.prompt), stop_strings_to_remove, details)
            for index, (choice, details) in enumerate(zip(choices, all_details, strict=True))]
        return await stream_choices(services, request, context, headers, StreamedChoices(
            metadata, choices, renderers, num_choices,
            COMPLETION_TYPE if completion_request.should_include_usage else "",
            completion_request.has_continuous_usage, bool(completion_request.return_token_ids)))

    async def _validate_prompts(
            self, completion_request: CompletionRequest, context: RequestContext,
            num_choices: int) -> tuple[list[ValidatedRequest], list[CompletionOutputOptions | None]]:
        """Return the choices of all prompts, prompt by prompt, and the optional parts of each. Raises InvalidRequest
        and AdapterNotFound."""
        services, prompts = self._services, completion_request.prompt
        if completion_request.resume_token_ids and len(prompts) > 1:
            raise InvalidRequest(f"`prompt` must hold one text with `resume_token_ids`, got {len(prompts)}: one text "
                                 "goes on", param="prompt")
        max_prompts = max(MAX_CHOICES // max(num_choices, 1), 1)
        if len(prompts) > max_prompts:
            raise InvalidRequest(f"`prompt` must hold at most {max_prompts} texts with `n` {num_choices}, got "
                                 f"{len(prompts)}")
        generation_input = await context.run_in_thread_if_long(partial(
            completion_request.to_generation_input, context, num_choices, services.validator.prompt_encoder.infill,
            is_tgi=services.is_tgi))
        choices: list[ValidatedRequest] = []
        all_details: list[CompletionOutputOptions | None] = []
        for index, prompt in enumerate(prompts):
            if index:  # short prompts are tokenized on the event loop: other tasks may run after each
                await asyncio.sleep(0)
            new_choices = await validate_with_model_adapter(services, completion_request, replace(
                generation_input, prompt=completion_request.make_prompt(prompt),
                request_id=context.for_prompt(index).request_id), context)
            make_details = partial(completion_request.completion_details, index, new_choices[0].request.prompt,
                                   services.validator.tokenizer)
            decodes_prompt = completion_request.echo and not isinstance(prompt, str)
            details = (None if services.is_tgi else await context.run_in_thread_if_long(make_details) if decodes_prompt
                       else make_details())
            choices += new_choices
            all_details += [details] * len(new_choices)
        return choices, all_details


async def collect_prompt_only_output(stream: RequestStream, validated_request: ValidatedRequest) -> GenerationOutput:
    """Return the output of a request for its prompt alone."""
    output = await collect_output(stream, validated_request)
    return replace(output, tokens=[], final_event=drop_generated_output(output.final_event))


async def generate_prompts_in_groups(
    services: Services, context: RequestContext, choices: Sequence[ValidatedRequest], num_choices: int,
    render: Callable[[int, GenerationOutput], Awaitable[str]], *,
    collect: Callable[[RequestStream, ValidatedRequest], Coroutine[None, None, GenerationOutput]],
) -> tuple[list[GenerationOutput], list[str]]:
    """Generate the `num_choices` choices of each prompt, a limited number of prompts at a time. Return the outputs,
    which `collect` makes of streams, and what `render` makes of the output at an index. Tokens are dropped once they
    are rendered: their logprobs take much more memory than JSON."""
    outputs, rendered = dict[int, GenerationOutput](), dict[int, str]()
    groups = [choices[start:start + num_choices] for start in range(0, len(choices), num_choices)]

    async def generate_prompt(group_index: int, streams: Sequence[RequestStream]) -> None:
        for place, output in enumerate(await gather_or_cancel(map(collect, streams, groups[group_index]))):
            index = group_index * num_choices + place
            rendered[index] = await render(index, output)
            outputs[index] = replace(output, tokens=[], prompt_logprobs=[], prompt_top_logprobs=())

    with closing(RequestGroupThrottle(services, context, groups,
                                      compute_max_concurrent_prompts(services.config, num_choices))) as throttle:
        throttle.submit()
        await throttle.run(generate_prompt)
    return [outputs[index] for index in range(len(choices))], [rendered[index] for index in range(len(choices))]
