"""Anthropic's Messages: `POST /v1/messages` and `POST /v1/messages/count_tokens`."""

from time import monotonic as clock

from aiohttp import web

from router.http.anthropic.rendering import AnthropicStreamRenderer, MessageMetadata, answer_json
from router.http.anthropic.requests import (
    ANTHROPIC_PARAMETER_NAMES,
    AnthropicCountTokensRequest,
    AnthropicMessagesRequest,
)
from router.http.openai.answer_parts import parse_answer, stream_answer
from router.http.openai.chat import validate_chat
from router.http.openai.requests import get_echoed_model
from router.http.transport.auth import CLIENT
from router.http.transport.body import (
    add_ignored_fields,
    json_response,
    json_text_response,
    read_body,
    run_in_thread_if_long_body,
)
from router.http.transport.request_context_and_middleware import (
    ANSWER_ID,
    RequestContext,
    ignored_fields_headers,
    response_headers,
)
from router.http.transport.services import ServiceRoutes, generate_all, run_in_thread_if_long, timing_headers
from router.telemetry.spans import CHAT_OPERATION


class AnthropicRoutes(ServiceRoutes):
    """Handlers of `/v1/messages` and `/v1/messages/count_tokens`."""

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/v1/messages", self.create_message),
                web.post("/v1/messages/count_tokens", self.count_tokens)]

    async def create_message(self, request: web.Request) -> web.StreamResponse:
        services = self._services
        context = RequestContext.from_request(request, services.engine, CHAT_OPERATION)
        messages_request = await read_body(request, AnthropicMessagesRequest)
        chat_request = await context.run_in_thread_if_long(messages_request.to_chat_request)
        chat = await validate_chat(services, chat_request, context, ANTHROPIC_PARAMETER_NAMES)
        add_ignored_fields(request, chat_request.list_unused_formats(ANTHROPIC_PARAMETER_NAMES))
        validated_at, [choice], [parser] = clock(), chat.choices, chat.parsers
        thinking = messages_request.thinking
        metadata = MessageMetadata(f"msg_{request[ANSWER_ID]}", get_echoed_model(services, chat_request),
                                   len(choice.request.prompt), choice.request.stop_strings,
                                   shows_thinking=thinking is None or thinking.display != "omitted")
        headers = response_headers(request, services.engine.model_info, choice.num_prompt_characters, choice.adapter)
        if messages_request.stream:
            return await stream_answer(services, request, context, headers, choice=choice,
                                       renderer=AnthropicStreamRenderer(metadata, parser))
        outputs = await generate_all(services, chat.choices, context)
        headers |= timing_headers(outputs, validated_at - context.arrived_at, clock() - context.arrived_at)
        answer = await run_in_thread_if_long(outputs[0], parse_answer, outputs[0], parser, metadata.stop_sequences)
        return json_text_response(answer_json(metadata, answer), headers)

    async def count_tokens(self, request: web.Request) -> web.Response:
        """Count the tokens of the prompt that the model's template makes of the messages."""
        count_request = await read_body(request, AnthropicCountTokensRequest)
        conversation = await run_in_thread_if_long_body(request, lambda: count_request.to_chat_request().conversation)
        num_tokens = await self._services.validator.prompt_encoder.tokenize_and_call(
            conversation, ANTHROPIC_PARAMETER_NAMES, lambda encoded: len(encoded.token_ids),
            tenant=request[CLIENT].tenant)
        return json_response({"input_tokens": num_tokens}, ignored_fields_headers(request))
