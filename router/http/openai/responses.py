"""OpenAI's `POST /v1/responses`, without state: nothing is stored, so that `input` holds the whole conversation. A body
becomes a `ChatRequest`; responses_rendering.py renders the answer."""

import json
from functools import partial
from time import monotonic as clock
from typing import Annotated, Any, ClassVar, Literal

from aiohttp import web
from pydantic import BeforeValidator, FailFast, Field

from router.errors import ChatTemplateFailed, InvalidRequest
from router.grammars.parameters import parse_grammar
from router.http.openai.answer_parts import stream_answer
from router.http.openai.chat import validate_chat
from router.http.openai.request_tools import TOOL_CHOICE_OPTIONS, FunctionName
from router.http.openai.requests import (
    IGNORED_FIELDS,
    MAX_TOP_LOGPROBS,
    REFUSED_FIELDS,
    ChatRequest,
    ReasoningEffort,
    StringList,
    get_echoed_model,
)
from router.http.openai.responses_input import DocumentedInput, InputItem, make_type_check, wrap_input_text
from router.http.openai.responses_rendering import ResponseEvents, ResponseStreamRenderer
from router.http.transport.body import (
    NOT_GIVEN,
    Int32,
    LenientBodyModel,
    RefusedFields,
    UInt32,
    UInt64,
    add_ignored_fields,
    json_text_response,
    read_body,
)
from router.http.transport.request_context_and_middleware import ANSWER_ID, RequestContext, response_headers
from router.http.transport.services import ServiceRoutes, generate_all, run_in_thread_if_long, timing_headers
from router.telemetry.spans import CHAT_OPERATION
from router.text.prompt_encoder import DialectParameterNames
from router.validation import bounds

RESPONSE_PARAMETER_NAMES = DialectParameterNames(
    prompt="input", max_new_tokens="max_output_tokens", truncate="", grammar="text.format", top_n_tokens="top_logprobs",
    max_top_n_tokens=MAX_TOP_LOGPROBS)
INCLUDED_LOGPROBS = "message.output_text.logprobs"
# Fields that `ChatRequest` has, too, with the same meaning.
CHAT_FIELDS = ("model", "adapter_source", "api_token", "temperature", "top_p", "top_logprobs", "parallel_tool_calls",
               "top_k", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty", "stop", "seed",
               "ignore_eos", "cache_salt", "priority", "chat_template_kwargs")
NOTHING_IS_STORED = "nothing is stored here: send the whole conversation in `input`"
REFUSAL_REASONS = {  # of fields of OpenAI's API
    "previous_response_id": NOTHING_IS_STORED,
    "conversation": NOTHING_IS_STORED,
    "prompt": "there are no stored prompts here: send `instructions` and `input`",
    "context_management": "the conversation is never shortened here",
    "max_tool_calls": "there are no built-in tools here",
    "moderation": "nothing is moderated here",
}

class FunctionTool(LenientBodyModel):
    """A function that the model may call."""

    type: Literal["function"]
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    def to_chat_tool(self) -> dict[str, Any]:
        function = self.model_dump(include={"name", "description", "parameters"}, exclude_none=True)
        return {"type": "function", "function": function}


class FunctionToolChoice(LenientBodyModel):
    """A `tool_choice` that requires a call of one function."""

    type: Literal["function"]
    name: FunctionName


class TextFormat(LenientBodyModel):
    """The format of a response's text."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    json_schema: Any = Field(default=None, alias="schema")
    strict: bool | None = None

    def to_response_format(self) -> dict[str, Any] | None:
        """Return the `response_format` of a chat; None if any text will do. Raises InvalidRequest."""
        if self.type == "text":
            return None
        if self.type == "json_schema" and self.json_schema is None:
            raise InvalidRequest("`text.format.schema` is missing: it holds the JSON schema")
        schema_field = {"schema": self.json_schema} if self.type == "json_schema" else {}
        response_format = {"type": "json_object", **schema_field}
        parse_grammar(RESPONSE_PARAMETER_NAMES.grammar, response_format)  # so that errors have this dialect's names
        return response_format

    def to_echo(self) -> dict[str, Any]:
        """Return the format as the response repeats it: `schema` and its name only where they count."""
        if self.type != "json_schema":
            return {"type": self.type}
        return self.model_dump(by_alias=True, exclude_none=True, exclude=set(self.model_extra or ()))


class TextOptions(LenientBodyModel):
    """The field `text`: options of a response's text."""

    ignored_fields = frozenset({"verbosity"})
    format: Annotated[TextFormat | None, make_type_check("text", "json_object", "json_schema")] = None


class ReasoningOptions(LenientBodyModel):
    """The field `reasoning`: options of the model's reasoning."""

    ignored_fields = frozenset({"context", "generate_summary", "mode", "summary"})
    effort: ReasoningEffort | None = None


class ResponsesRequest(LenientBodyModel):
    """Body of `/v1/responses`. Null means that a field is not given."""

    ignored_fields = IGNORED_FIELDS - {"metadata"} | {"access_programs", "image", "stream_options"}
    refused_fields: ClassVar[RefusedFields] = {  # of vLLM
        **{name: REFUSED_FIELDS[name] for name in (
            "ec_transfer_params", "include_reasoning", "kv_transfer_params", "media_io_kwargs", "mm_processor_kwargs",
            "return_mm_kwargs", "skip_special_tokens", "vllm_xargs", "watermarking")},
        **dict.fromkeys(("enable_response_messages", "include_stop_str_in_output", "logit_bias",
                         "previous_input_messages", "resume_token_ids", "stop_token_ids", "structured_outputs"),
                        NOT_GIVEN)}

    input: Annotated[
        list[InputItem], FailFast(), Field(min_length=1), bounds.NON_EMPTY_LIST,
        BeforeValidator(wrap_input_text, json_schema_input_type=DocumentedInput)]
    instructions: str | None = None
    model: str | None = None
    adapter_source: str | None = None
    api_token: str | None = Field(default=None, repr=False)
    max_output_tokens: Annotated[UInt32 | None, bounds.AT_LEAST_ONE] = None
    temperature: Annotated[float | None, bounds.NOT_NEGATIVE] = None
    top_p: Annotated[float | None, bounds.FRACTION_OR_ONE] = None
    top_logprobs: UInt32 | None = None
    include: Annotated[list[Literal["message.output_text.logprobs", "reasoning.encrypted_content"]] | None,
                       FailFast()] = None
    tools: Annotated[list[Annotated[FunctionTool, make_type_check("function")]] | None, FailFast()] = None
    tool_choice: Annotated[FunctionToolChoice | str | None, make_type_check("function")] = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    metadata: dict[str, str] | None = None
    stream: bool | None = None
    store: bool | None = None
    truncation: Annotated[Literal["auto", "disabled"] | None, bounds.DISABLED] = None
    background: Annotated[bool | None, bounds.FALSE] = None
    previous_response_id: Annotated[Any, bounds.NULL] = None
    conversation: Annotated[Any, bounds.NULL] = None
    prompt: Annotated[Any, bounds.NULL] = None
    context_management: Annotated[Any, bounds.NULL] = None
    max_tool_calls: Annotated[Any, bounds.NULL] = None
    moderation: Annotated[Any, bounds.NULL] = None
    # vLLM's fields
    top_k: Annotated[Int32 | None, bounds.TOP_K_OR_ALL] = None
    min_p: Annotated[float | None, bounds.MIN_P] = None
    repetition_penalty: Annotated[float | None, bounds.POSITIVE] = None
    frequency_penalty: Annotated[float | None, bounds.PENALTY] = None
    presence_penalty: Annotated[float | None, bounds.PENALTY] = None
    stop: Annotated[StringList, bounds.STOP_STRINGS] = Field(default_factory=list)
    seed: UInt64 | None = None
    ignore_eos: bool | None = None
    cache_salt: Annotated[str | None, bounds.CACHE_SALT] = None
    priority: Annotated[Int32 | None, bounds.PRIORITY] = None
    chat_template_kwargs: Annotated[dict[str, Any] | None, bounds.TEMPLATE_VARIABLES] = None

    @property
    def includes_logprobs(self) -> bool:
        return bool(self.top_logprobs) or INCLUDED_LOGPROBS in (self.include or ())

    @property
    def chat_tool_choice(self) -> str | dict[str, Any] | None:
        """The `tool_choice` of a chat."""
        choice = self.tool_choice
        return {"function": {"name": choice.name}} if isinstance(choice, FunctionToolChoice) else choice or None

    def check_supported(self) -> None:
        """Refuse the fields that would change the response and are not served. Raises InvalidRequest."""
        self.check_refused_fields()
        for name, reason in REFUSAL_REASONS.items():
            if getattr(self, name) is not None:
                raise InvalidRequest(f"`{name}` is given, but {reason}; leave it out")
        if self.background:
            raise InvalidRequest("`background` is given, but every response is for a client that waits; leave it out")
        if self.truncation == "auto":
            raise InvalidRequest("`truncation` must be `disabled`, got `auto`: the input is never shortened here")

    def to_chat_request(self) -> ChatRequest:
        """Return the chat with the same answer. Raises InvalidRequest."""
        messages = [] if self.instructions is None else [{"role": "system", "content": self.instructions}]
        for item in self.input:
            item.append_to_messages(messages)
        tools = [tool.to_chat_tool() for tool in self.tools or () if self.tool_choice != "none"]
        text_format = None if self.text is None else self.text.format
        response_format = None if text_format is None else text_format.to_response_format()
        fields = {name: getattr(self, name) for name in CHAT_FIELDS} | {
            "messages": messages,
            "max_tokens": self.max_output_tokens,
            "logprobs": self.includes_logprobs,
            "tools": tools or None,
            "tool_choice": self.chat_tool_choice,
            "response_format": response_format,
            "reasoning_effort": None if self.reasoning is None else self.reasoning.effort,
        }
        return ChatRequest.model_validate({name: value for name, value in fields.items() if value is not None})

    def _echo_tool_choice(self) -> str | dict[str, str]:
        """Return the choice as the response repeats it; a function that only a text names as an object, too."""
        choice = self.tool_choice or "auto"
        if isinstance(choice, str) and choice in TOOL_CHOICE_OPTIONS:
            return choice
        return {"type": "function", "name": choice if isinstance(choice, str) else choice.name}

    def echoed_fields(self, model: str) -> str:
        """Return the fields of the response that repeat the request, as JSON without braces. Raises InvalidRequest."""
        text_format = None if self.text is None else self.text.format
        fields = {
            "model": model,
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "temperature": 1.0 if self.temperature is None else self.temperature,
            "top_p": 1.0 if self.top_p is None else self.top_p,
            "top_logprobs": self.top_logprobs or 0,
            "tools": [tool.model_dump(exclude=set(tool.model_extra or ())) for tool in self.tools or ()],
            "tool_choice": self._echo_tool_choice(),
            "parallel_tool_calls": self.parallel_tool_calls is not False,
            "text": {"format": {"type": "text"} if text_format is None else text_format.to_echo()},
            "reasoning": {"effort": None if self.reasoning is None else self.reasoning.effort, "summary": None},
            "metadata": self.metadata or {},
            "truncation": "disabled",
            "previous_response_id": None,
            "store": False,
            "background": False,
        }
        try:
            return json.dumps(fields, separators=(",", ":"), allow_nan=False)[1:-1]
        except ValueError:
            raise InvalidRequest("`tools` holds a number that is not finite") from None


class ResponsesRoutes(ServiceRoutes):
    """Handler of `/v1/responses`."""

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/v1/responses", self.respond)]

    async def respond(self, request: web.Request) -> web.StreamResponse:
        services = self._services
        context = RequestContext.from_request(request, services.engine, CHAT_OPERATION)
        responses_request = await read_body(request, ResponsesRequest)
        responses_request.check_supported()
        chat_request = await context.run_in_thread_if_long(responses_request.to_chat_request)
        try:
            chat = await validate_chat(services, chat_request, context, RESPONSE_PARAMETER_NAMES)
        except ChatTemplateFailed as error:
            error.param = RESPONSE_PARAMETER_NAMES.prompt
            raise
        add_ignored_fields(request, chat_request.list_unused_formats(RESPONSE_PARAMETER_NAMES))
        validated_at, [choice], [parser] = clock(), chat.choices, chat.parsers
        echoed_fields = await context.run_in_thread_if_long(
            partial(responses_request.echoed_fields, get_echoed_model(services, chat_request)))
        events = ResponseEvents(f"resp_{request[ANSWER_ID]}", echoed_fields)
        renderer = ResponseStreamRenderer(events, len(choice.request.prompt),
                                          chat_request.stop_strings_to_remove(is_tgi=False), parser,
                                          services.validator.tokenizer if responses_request.includes_logprobs
                                          else None)
        headers = response_headers(request, services.engine.model_info, choice.num_prompt_characters, choice.adapter)
        if responses_request.stream:
            return await stream_answer(services, request, context, headers, choice=choice, renderer=renderer)

        [output] = await generate_all(services, [choice], context)
        headers |= timing_headers([output], validated_at - context.arrived_at, clock() - context.arrived_at)
        return json_text_response(await run_in_thread_if_long(output, renderer.render_whole, output), headers)
