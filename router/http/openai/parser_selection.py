"""Choice of the parser for the answer to a chat."""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from router.http.openai.requests import ChatRequest
from router.http.transport.services import Services
from router.text.constrained_answer_parsers import CallsOrTextParser, ConstrainedAnswerParser, RequiredCallParser
from router.text.output_formats import (
    BARE_JSON_FORMAT,
    PYTHONIC_FORMAT,
    REASONING_FIELDS,
    AnswerBeginning,
    get_output_syntax,
    without_fields,
)
from router.text.pythonic_calls import PythonicCallParser
from router.text.response_parser import OutputFormatParser, ResponseParserProtocol
from router.text.transformers_parser import import_chat_parsing
from router.validation.validator import RequestValidator, ValidatedRequest

TemplateTools = Sequence[Mapping[str, Any]]  # as chat templates take them


async def create_response_parser(services: Services, chat_request: ChatRequest, validated_request: ValidatedRequest,
                                 template_tools: TemplateTools, *,
                                 is_compat: bool = False) -> ResponseParserProtocol | None:
    """Return the parser of the answer if it may hold tool calls, or reasoning that the model sets apart, else None.
    `template_tools`: those of the conversation. With `is_compat`, read all calls whole and no reasoning without tools,
    as TGI and LoRAX."""
    validator, beginning = services.validator, validated_request.answer_beginning
    reasoning_format = None if is_compat else validator.reasoning_format
    if reasoning_format is None and not chat_request.may_call_tool:
        return None
    if chat_request.needs_tool_call or (validated_request.request.grammar is not None and not is_compat):
        return await create_constrained_parser(validator, chat_request, template_tools, beginning)
    if reasoning_format is not None and not chat_request.may_call_tool:
        tools, output_format = None, reasoning_format
    else:
        tools = None if is_compat else template_tools
        output_format = validator.output_format or BARE_JSON_FORMAT
    max_calls = get_max_calls(chat_request)
    if output_format is PYTHONIC_FORMAT:
        return PythonicCallParser(tools, max_calls)
    # In a thread: the first parser is imported, and all read the beginning, which may be long.
    parser = await asyncio.to_thread(OutputFormatParser, output_format, beginning.text, tools, max_calls,
                                     streams_calls=not is_compat)
    if chat_request.messages[-1].role == "assistant":
        parser.strips_text = False  # the answer goes on with that text, maybe with a space
    return parser


async def create_constrained_parser(validator: RequestValidator, chat_request: ChatRequest,
                                    template_tools: TemplateTools,
                                    beginning: AnswerBeginning) -> ResponseParserProtocol:
    """Return the parser of an answer that a grammar constrains (whole_answer_grammar.py)."""
    output_format = validator.output_format or BARE_JSON_FORMAT
    syntax, state = get_output_syntax(output_format), beginning.reasoning_state
    if chat_request.needs_tool_call:
        template = validator.chat_template
        return RequiredCallParser(syntax, state, "" if template is None else template.tool_call_opening)
    if not chat_request.may_call_tool:
        return ConstrainedAnswerParser(syntax, state)
    await asyncio.to_thread(import_chat_parsing)
    return CallsOrTextParser(
        syntax, state, {tool["function"]["name"] for tool in template_tools},
        partial(OutputFormatParser, without_fields(output_format, *REASONING_FIELDS), "", template_tools,
                get_max_calls(chat_request)))


def get_max_calls(chat_request: ChatRequest) -> int | None:
    return 1 if chat_request.parallel_tool_calls is False else None
