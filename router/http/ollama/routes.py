"""Ollama's routes that run the model: `/api/chat`, `/api/generate`, `/api/embed` and `/api/embeddings`."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from json.encoder import encode_basestring_ascii as quoted
from time import monotonic as clock

from aiohttp import web

from router.errors import InvalidRequest
from router.http.ollama.rendering import (
    LOADED,
    OllamaResponseRenderer,
    OllamaStreamRenderer,
    ollama_answer_json,
    to_nanoseconds,
)
from router.http.ollama.requests import (
    OLLAMA_GENERATE_PARAMETER_NAMES,
    OllamaChatOrGenerateRequest,
    OllamaChatRequest,
    OllamaEmbeddingsRequest,
    OllamaEmbedRequest,
    OllamaGenerateRequest,
    OllamaModelRequest,
)
from router.http.openai.answer_parts import stream_answer
from router.http.openai.chat import ValidatedChat, validate_chat
from router.http.openai.requests import ChatRequest, validate_with_model_adapter
from router.http.routes.pooling import (
    EmbeddingsRequest,
    create_embedding_input,
    get_output_vector,
    run_pooling_requests,
    truncate_vector,
    vector_json,
)
from router.http.transport.body import ListJson, json_list_response, json_text_response, read_body
from router.http.transport.request_context_and_middleware import (
    RequestContext,
    ignored_fields_headers,
    response_headers,
)
from router.http.transport.services import (
    PoolingRequestOutput,
    ServiceRoutes,
    Services,
    generate_all,
    run_in_thread_if_long,
    timing_headers,
)
from router.telemetry.spans import CHAT_OPERATION, EMBEDDINGS_OPERATION
from router.text.infill import InfillPrompt, require_infill
from router.validation.validator import GenerationInput

NDJSON_HEADERS = {"Content-Type": "application/x-ndjson"}  # of a stream: one JSON object per line


class OllamaRoutes(ServiceRoutes):
    """Handlers of the routes that run the model. Chats and generations answer with a stream unless it is declined."""

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/api/chat", self.chat), web.post("/api/generate", self.generate),
                web.post("/api/embed", self.embed), web.post("/api/embeddings", self.embeddings)]

    async def chat(self, request: web.Request) -> web.StreamResponse:
        context = RequestContext.from_request(request, self._services.engine, CHAT_OPERATION)
        return await self._respond(request, context, await read_body(request, OllamaChatRequest, any_media_type=True))

    async def generate(self, request: web.Request) -> web.StreamResponse:
        context = RequestContext.from_request(request, self._services.engine)
        body = await read_body(request, OllamaGenerateRequest, any_media_type=True)
        return await self._respond(request, context, body)

    async def embed(self, request: web.Request) -> web.StreamResponse:
        """Return vectors of unit length, as Ollama does."""
        context = RequestContext.from_request(request, self._services.engine, EMBEDDINGS_OPERATION)
        embed_request = await read_body(request, OllamaEmbedRequest, any_media_type=True)

        def unit_vector_json(_: int, output: PoolingRequestOutput) -> str:
            vector = get_output_vector(output)
            return vector_json(truncate_vector(vector, embed_request.dimensions or len(vector)))

        inputs = EmbeddingsRequest(input=embed_request.input).to_pooling_inputs(context)
        vectors, headers, num_tokens = await self._embed(request, context, embed_request, inputs, unit_vector_json)
        answer = ListJson(
            f'{{"model":{quoted(embed_request.get_echoed_name(self._services))},"embeddings":[', vectors,
            f'],"total_duration":{to_nanoseconds(clock() - context.arrived_at)},"prompt_eval_count":{num_tokens}}}')
        return await json_list_response(request, answer, headers, self._services.config.slow_client_timeout)

    async def embeddings(self, request: web.Request) -> web.Response:
        context = RequestContext.from_request(request, self._services.engine, EMBEDDINGS_OPERATION)
        embeddings_request = await read_body(request, OllamaEmbeddingsRequest, any_media_type=True)
        inputs = [create_embedding_input(embeddings_request.prompt, OLLAMA_GENERATE_PARAMETER_NAMES, None, context)]
        [vector], headers, _ = await self._embed(request, context, embeddings_request, inputs,
                                                 lambda _, output: vector_json(get_output_vector(output)))
        return json_text_response(f'{{"embedding":{vector}}}', headers)

    async def _embed(self, request: web.Request, context: RequestContext, body: OllamaModelRequest,
                     inputs: Iterable[GenerationInput], render_vector: Callable[[int, PoolingRequestOutput], str],
                     ) -> tuple[list[str], dict[str, str], int]:
        adapter = body.adapter_reference(self._services, context.source_token)
        with body.translate_missing_model_error():
            return await run_pooling_requests(
                self._services, request, context, [replace(each, adapter=adapter) for each in inputs], render_vector)

    async def _respond(self, request: web.Request, context: RequestContext,
                       body: OllamaChatOrGenerateRequest) -> web.StreamResponse:
        """Generate an answer, whole or as a stream; nothing but the end for an empty prompt."""
        services = self._services
        response = OllamaResponseRenderer(
            body.get_echoed_name(services), context.arrived_at, is_chat=isinstance(body, OllamaChatRequest),
            logprob_tokenizer=services.validator.tokenizer if body.logprobs or body.top_logprobs else None)
        if body.is_empty:
            await body.load_adapter(services, context.source_token, context.tenant, context.deadline)
            return json_text_response(response.to_json(LOADED), ignored_fields_headers(request))
        chat_request = await context.run_in_thread_if_long(body.to_chat_request)
        with body.translate_missing_model_error():
            chat = await validate_generation(services, body, chat_request, context)
        validated_at = clock()
        [choice], [parser] = chat.choices, chat.parsers
        stop_strings = tuple(chat_request.stop)
        headers = response_headers(request, services.engine.model_info, choice.num_prompt_characters, choice.adapter)
        if body.stream is False:
            outputs = await generate_all(services, [choice], context)
            headers |= timing_headers(outputs, validated_at - context.arrived_at, clock() - context.arrived_at)
            answer = await run_in_thread_if_long(outputs[0], ollama_answer_json, response, outputs[0], parser,
                                                 stop_strings)
            return json_text_response(answer, headers)
        renderer = OllamaStreamRenderer(response, len(choice.request.prompt), stop_strings, parser)
        return await stream_answer(services, request, context, headers | NDJSON_HEADERS, choice=choice,
                                   renderer=renderer)


async def validate_generation(services: Services, body: OllamaChatOrGenerateRequest, chat_request: ChatRequest,
                              context: RequestContext) -> ValidatedChat:
    """Validate a chat, or a prompt that goes to the model as it is. Raises InvalidRequest and AdapterNotFound."""
    validator = services.validator
    if isinstance(body, OllamaGenerateRequest) and (body.raw or body.suffix or validator.chat_template is None):
        body.check_raw()
        generation_input = replace(await context.run_in_thread_if_long(
            partial(chat_request.to_generation_input, context, body.parameter_names)), prompt=body.prompt or "")
        if body.suffix:
            infill = require_infill(validator.prompt_encoder.infill)
            generation_input = replace(generation_input.with_extra_stop_tokens(infill.end_tokens),
                                       prompt=InfillPrompt(body.prompt or "", body.suffix))
        choices = await validate_with_model_adapter(services, chat_request, generation_input, context)
        return ValidatedChat(choices, [None])
    if body.think and validator.reasoning_format is None:
        raise InvalidRequest("`think` is given, but this model does not set reasoning apart; leave it out")
    return await validate_chat(services, chat_request, context, body.parameter_names)
