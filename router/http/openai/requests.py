"""Bodies of OpenAI's chats, which those of other dialects become, too, and fields that chats and completions have in
common. Which fields of OpenAI's and vLLM's APIs are refused or ignored."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, FailFast, Field
from pydantic_core import PydanticCustomError

from router.adapters.reference import AdapterReference, check_adapter_name
from router.config import MAX_NAME_LENGTH
from router.errors import AdapterNotFound, InvalidRequest, InvalidTools
from router.grammars.parameters import Grammar, parse_grammar
from router.http.openai.request_tools import (
    NamedToolChoice,
    Tool,
    ToolCall,
    get_tool_choice_option,
    required_call_grammar,
    select_template_tools,
)
from router.http.openai.structured_outputs import CONSTRAINT_FIELDS, StructuredOutputRequest
from router.http.transport.body import (
    NOT_GIVEN,
    BodyModel,
    Int32,
    LenientBodyModel,
    RefusedFields,
    UInt32,
    UInt64,
    is_base_model,
)
from router.http.transport.request_context_and_middleware import RequestContext
from router.http.transport.services import Services, reject_resume_token_ids
from router.text.chat_template import RESERVED_TEMPLATE_VARIABLES, ChatTemplate, Conversation
from router.text.prompt_encoder import DialectParameterNames, RawPrompt
from router.validation import bounds
from router.validation.validator import GenerationInput, ValidatedRequest

MAX_TOP_LOGPROBS = 20  # as in OpenAI's API
OPENAI_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
MAX_NAMED_MODELS = 10  # models and adapters that an error names
CHAT_PARAMETER_NAMES = DialectParameterNames(prompt="messages", max_new_tokens="max_tokens", truncate="",
                                             grammar="response_format", top_n_tokens="top_logprobs",
                                             max_top_n_tokens=MAX_TOP_LOGPROBS)
# Fields that change how a chat is rendered, beside its messages and tools.
TEMPLATE_FIELDS = frozenset({"chat_template_kwargs", "reasoning_effort", "add_generation_prompt",
                             "continue_final_message"})
GRAMMAR_FIELDS = CONSTRAINT_FIELDS | {"response_format", "tool_choice"}  # from which the answer's grammar is made
# Of OpenAI's and vLLM's APIs.
REFUSED_FIELDS: RefusedFields = {
    **dict.fromkeys(("audio", "bad_words", "chat_template", "documents", "early_stopping", "ebnf", "ec_transfer_params",
                     "function_call", "functions", "grammar", "json_schema", "kv_transfer_params", "logits_processors",
                     "logprob_token_ids", "media_io_kwargs", "mm_processor_kwargs", "moderation", "prediction",
                     "prompt_embeds", "regex", "repetition_detection", "return_mm_kwargs", "return_prompt_text",
                     "return_token_offsets", "return_tokens_as_token_ids", "use_beam_search",
                     "vllm_xargs", "watermarking", "web_search_options"), NOT_GIVEN),
    **dict.fromkeys(("prompt_logprobs", "thinking_token_budget", "truncate_prompt_tokens"), (None,)),
    **dict.fromkeys(("include_reasoning", "skip_special_tokens", "spaces_between_special_tokens"), (None, True)),
    "adapter_id": (None, ""), "length_penalty": (None, 1), "modalities": (None, ["text"])}
# What clients of these APIs say about themselves and about OpenAI's accounts and caches, and what only counts beside a
# field that is refused.
IGNORED_FIELDS = frozenset({
    "metadata", "mm_payload", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "request_id",
    "routed_experts_prompt_start", "safety_identifier", "service_tier", "session_id", "store", "stream_interval",
    "truncation_side", "user", "verbosity"})
SERVED_MODEL_PLACEHOLDERS = frozenset({"", "tgi", "default"})  # values of `model` that mean the served one
KEEPS_ALL_CANDIDATES = (-1, 0)  # values of `top_k` that vLLM's clients send


def as_list(value: object) -> object:
    return [value] if isinstance(value, str) else [] if value is None else value


def check_logit_bias_size(value: object) -> object:
    """Refuse an object of very many entries before each of them is checked."""
    if isinstance(value, dict) and len(value) > bounds.MAX_LISTED_TOKENS:
        raise PydanticCustomError("entries", f"must have at most {bounds.MAX_LISTED_TOKENS} entries, got {len(value)}")
    return value


StringList = Annotated[list[str], FailFast(), BeforeValidator(as_list, json_schema_input_type=str | list[str] | None)]
ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class StreamOptions(LenientBodyModel):
    """The field `stream_options`: whether a stream ends with its usage, and whether all its chunks have theirs so
    far."""

    ignored_fields = frozenset({"include_obfuscation"})
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class OpenAIBaseRequest(StructuredOutputRequest):
    """Fields that chats and completions have in common. Null means that a field is not given."""

    ignored_fields = IGNORED_FIELDS
    refused_fields = REFUSED_FIELDS
    model: str | None = None
    adapter_source: str | None = None
    api_token: str | None = Field(default=None, repr=False)
    max_tokens: Annotated[UInt32 | None, bounds.AT_LEAST_ONE] = None
    temperature: Annotated[float | None, bounds.NOT_NEGATIVE] = None
    top_p: Annotated[float | None, bounds.FRACTION_OR_ONE] = None
    frequency_penalty: Annotated[float | None, bounds.PENALTY] = None
    presence_penalty: Annotated[float | None, bounds.PENALTY] = None
    repetition_penalty: Annotated[float | None, bounds.POSITIVE] = None
    top_k: Annotated[Int32 | None, bounds.TOP_K_OR_ALL] = None
    min_p: Annotated[float | None, bounds.MIN_P] = None
    logit_bias: Annotated[dict[str, float] | None, BeforeValidator(check_logit_bias_size), bounds.LOGIT_BIAS] = None
    allowed_token_ids: Annotated[list[int] | None, FailFast(), bounds.ALLOWED_TOKEN_IDS] = None
    min_tokens: UInt32 | None = None
    stop_token_ids: Annotated[list[int] | None, FailFast(), bounds.TOKEN_IDS] = None
    seed: UInt64 | None = None
    stop: Annotated[StringList, bounds.STOP_STRINGS] = Field(default_factory=list)
    n: Annotated[UInt32 | None, bounds.AT_LEAST_ONE] = None
    include_stop_str_in_output: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    ignore_eos: bool | None = None
    cache_salt: Annotated[str | None, bounds.CACHE_SALT] = None
    priority: Annotated[Int32 | None, bounds.PRIORITY] = None
    return_token_ids: bool | None = None
    resume_token_ids: Annotated[list[UInt32] | None, FailFast()] = None

    @property
    def should_include_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def has_continuous_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.continuous_usage_stats)

    def stop_strings_to_remove(self, *, is_tgi: bool) -> tuple[str, ...]:
        """Return the stop strings that are left out of the text; text-generation-inference keeps them."""
        keeps_them = is_tgi if self.include_stop_str_in_output is None else self.include_stop_str_in_output
        return () if keeps_them else tuple(self.stop)

    def adapter_reference(self, services: Services, source_token: str) -> AdapterReference | None:
        """Return the adapter that `model` names, if adapters are served; if not, any name means the model itself.
        `source_token` is the client's, unless the body has another."""
        if (services.validator.adapter_registry is None or self.model is None
            or is_base_model(self.model, services.served_model.names)):
            return None
        check_adapter_name("model", self.model)
        return AdapterReference(self.model, self.adapter_source or None, self.api_token or source_token)

    @property
    def extra_sampling_parameters(self) -> dict[str, Any]:
        """Fields of GenerationInput that TGI's and LoRAX's parameters do not have."""
        return {"min_p": self.min_p, "logit_bias": self.logit_bias or {}, "min_tokens": self.min_tokens or 0,
                "allowed_token_ids": None if self.allowed_token_ids is None else tuple(self.allowed_token_ids),
                "stop_token_ids": tuple(self.stop_token_ids or ())}

    def base_generation_input(self, prompt: RawPrompt, parameter_names: DialectParameterNames,
                              context: RequestContext) -> GenerationInput:
        if not self.stream:
            reject_resume_token_ids(self.resume_token_ids)
        greedy = self.temperature == 0
        if self.temperature is not None and self.temperature < 0:
            raise InvalidRequest(f"`temperature` must be at least 0, got {self.temperature}")
        if self.top_k is not None and self.top_k < -1:
            raise InvalidRequest(f"`top_k` must be at least -1, got {self.top_k}")
        return GenerationInput(
            prompt=prompt,
            parameter_names=parameter_names,
            num_choices=1 if self.n is None else self.n,
            greedy=greedy,
            do_sample=True,
            temperature=None if greedy else self.temperature,
            top_p=None if self.top_p == 1 else self.top_p,
            frequency_penalty=self.frequency_penalty,
            presence_penalty=self.presence_penalty,
            max_new_tokens=self.max_tokens,
            stop_strings=tuple(self.stop),
            repetition_penalty=self.repetition_penalty,
            top_k=None if self.top_k in KEEPS_ALL_CANDIDATES else self.top_k,
            **self.extra_sampling_parameters,
            seed=self.seed,
            ignore_eos=bool(self.ignore_eos),
            cache_salt=self.cache_salt,
            priority=self.priority or 0,
            resume_token_ids=tuple(self.resume_token_ids or ()),
            tenant=context.tenant,
            request_id=context.request_id,
            deadline=context.deadline,
        )


def join_content_parts(content: object) -> str | None:
    """Return the content as one text; the texts of parts are joined as in text-generation-inference."""
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise PydanticCustomError("content", "must be a string or a list of parts of type `text`")
    texts: list[str] = []
    for part in content:
        text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
        if not isinstance(text, str):
            raise PydanticCustomError(
                "content", "must be a string or a list of parts of type `text`; images and other parts are not served")
        texts.append(text)
    return "".join(texts)


class TextPart(BodyModel):
    """Part of a message's content that is text, the only type of part that is served."""

    type: Literal["text"]
    text: str


class Message(LenientBodyModel):
    """A message of the chat, as OpenAI's clients send it."""

    unreported_fields = frozenset({"refusal", "annotations"})
    role: Annotated[str, Field(min_length=1)]
    content: Annotated[str | None,
                       BeforeValidator(join_content_parts, json_schema_input_type=str | list[TextPart] | None)] = None
    name: str | None = None
    tool_calls: Annotated[list[ToolCall] | None, FailFast()] = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None  # its newer name

    def to_template_message(self) -> dict[str, Any]:
        """Return the message for the chat template, with `content` always a string. Raises InvalidRequest."""
        if self.content is None and not self.tool_calls:
            raise InvalidRequest(f"a message of the role `{self.role[:40]}` has neither `content` nor `tool_calls`",
                                 param="messages")
        fields = self.model_dump(exclude_none=True, exclude=set(self.model_extra or ()))
        return {"role": self.role, "content": "", **fields}  # in this order, which templates may show


class ChatRequest(OpenAIBaseRequest):
    """Body of `/v1/chat/completions`."""

    refused_fields = REFUSED_FIELDS | {"add_special_tokens": (None, False), "best_of": (None, 1), "echo": (None, False)}

    messages: Annotated[list[Message], FailFast(), Field(min_length=1)]
    max_completion_tokens: Annotated[UInt32 | None, bounds.AT_LEAST_ONE] = None
    logprobs: bool | None = None
    top_logprobs: UInt32 | None = None
    response_format: Annotated[Any, bounds.GRAMMAR] = None
    tools: Annotated[list[Tool] | None, FailFast()] = None
    tool_choice: str | NamedToolChoice | None = None
    parallel_tool_calls: bool | None = None
    tool_prompt: str | None = None
    reasoning_effort: ReasoningEffort | None = None
    chat_template_kwargs: Annotated[dict[str, Any] | None, bounds.TEMPLATE_VARIABLES] = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None

    def check_roles(self, template: ChatTemplate | None) -> None:
        """Refuse roles that neither OpenAI's API nor the model's chat template knows. Raises InvalidRequest."""
        if set(OPENAI_ROLES).issuperset(map(attrgetter("role"), self.messages)):
            return
        known_roles = (*OPENAI_ROLES, *(() if template is None else sorted(template.roles.difference(OPENAI_ROLES))))
        for index, message in enumerate(self.messages):
            if message.role not in known_roles:
                raise InvalidRequest(f"`messages.{index}.role` must be one of {', '.join(known_roles)}, got "
                                     f"{message.role[:40]!a}", param="messages")

    @property
    def conversation(self) -> Conversation:
        """Return the conversation for the chat template. Raises InvalidRequest and InvalidTools."""
        conversation = Conversation(
            tuple(message.to_template_message() for message in self.messages),
            (() if self.tools is None and self.tool_choice is None
             else select_template_tools(self.tools, self.tool_choice)),
            self.tool_prompt or "", self.needs_tool_call, may_reason=True)
        if self.model_fields_set.isdisjoint(TEMPLATE_FIELDS):
            return conversation
        return replace(conversation, template_variables=self._template_variables,
                       adds_generation_prompt=self.add_generation_prompt is not False,
                       continues_answer=self._continues_answer)

    @property
    def _template_variables(self) -> Mapping[str, Any]:
        variables = self.chat_template_kwargs or {}
        for name in RESERVED_TEMPLATE_VARIABLES & variables.keys():
            raise InvalidRequest(f"`chat_template_kwargs.{name}` is set by the server; leave it out",
                                 param="chat_template_kwargs")
        if self.reasoning_effort is None:
            return variables
        # Templates that know no effort can only switch reasoning off.
        no_reasoning = {"enable_thinking": False} if self.reasoning_effort == "none" else {}
        return {"reasoning_effort": self.reasoning_effort, **no_reasoning, **variables}

    @property
    def _continues_answer(self) -> bool | None:
        if self.continue_final_message:
            if self.add_generation_prompt:
                raise InvalidRequest("`continue_final_message` and `add_generation_prompt` exclude each other; give "
                                     "one", param="continue_final_message")
            if self.messages[-1].role != "assistant":
                raise InvalidRequest("`continue_final_message` needs a last message of the role `assistant`, got "
                                     f"`{self.messages[-1].role[:40]}`", param="continue_final_message")
        return self.continue_final_message

    @property
    def may_call_tool(self) -> bool:
        return bool(self.tools) and get_tool_choice_option(self.tool_choice) != "none"

    @property
    def needs_tool_call(self) -> bool:
        return self.tool_choice is not None and get_tool_choice_option(self.tool_choice) == "required"

    def without_empty_tools(self, *, is_tgi: bool) -> Self:
        """Return the request, in which an empty list of tools means none, but to text-generation-inference."""
        return self if is_tgi or self.tools != [] else self.model_copy(update={"tools": None})

    def to_tgi_generation_input(self, context: RequestContext) -> GenerationInput:
        """Convert as text-generation-inference did: ignore `n`; `presence_penalty` + 2 is the repetition penalty. A
        grammar beside tools is refused."""
        if self.tools is not None and (found := self._find_format()) is not None:
            raise InvalidTools("Grammar and tools are mutually exclusive", param=found[0])
        plain_request = self.model_copy(update={"n": None, "presence_penalty": None})
        generation_input = plain_request.to_generation_input(context)
        names = replace(generation_input.parameter_names, max_top_n_tokens=0)
        generation_input = replace(generation_input, raw_logprobs=False, parameter_names=names,
                                   prompt=replace(self.conversation, may_reason=False))
        return (generation_input if self.presence_penalty is None or self.repetition_penalty is not None
                else replace(generation_input, repetition_penalty=self.presence_penalty + 2))

    def to_generation_input(self, context: RequestContext,
                            parameter_names: DialectParameterNames = CHAT_PARAMETER_NAMES) -> GenerationInput:
        conversation, grammar = self.conversation, None
        if not self.model_fields_set.isdisjoint(GRAMMAR_FIELDS):
            parameter, grammar = self._output_grammar(parameter_names)
            parameter_names = replace(parameter_names, grammar=parameter)
        if self.max_completion_tokens is not None:
            parameter_names = replace(parameter_names, max_new_tokens="max_completion_tokens")
        return replace(self.base_generation_input(conversation, parameter_names, context),
                       max_new_tokens=self.resolve_max_new_tokens(), top_n_tokens=self.top_logprobs,
                       raw_logprobs=bool(self.logprobs or self.top_logprobs), grammar=grammar)

    def list_unused_formats(self, parameter_names: DialectParameterNames = CHAT_PARAMETER_NAMES) -> list[str]:
        """Return the field with a format for the text if there will be none, since a call is required. As OpenAI's API
        does, such a request is served. To be called once the request is validated: the format is not read again."""
        if not self.needs_tool_call:
            return []
        has_format = isinstance(self.response_format, dict) and self.response_format.get("type") != "text"
        return [parameter_names.answer_format_parameter(name)
                for name in ["response_format"] * has_format + self.list_given_constraints()]

    def _output_grammar(self, parameter_names: DialectParameterNames) -> tuple[str, Grammar | None]:
        """Return the parameter that constrains the answer, by default that of formats, and its grammar. A required call
        has no format: a format is that of the text."""
        found = self._find_format()
        if self.needs_tool_call:
            return "tool_choice", required_call_grammar(self.tools, self.tool_choice)
        if found is not None:
            return parameter_names.answer_format_parameter(found[0]), found[1]
        return parameter_names.grammar, None

    def _find_format(self) -> tuple[str, Grammar] | None:
        if self.response_format is not None:
            return self.find_grammar(partial(parse_grammar, value=self.response_format))
        return None if CONSTRAINT_FIELDS.isdisjoint(self.model_fields_set) else self.find_grammar(None)

    def resolve_max_new_tokens(self) -> int | None:
        limits = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(limits) > 1:
            raise InvalidRequest("`max_tokens` and `max_completion_tokens` are given, with different values; give one")
        return limits.pop() if limits else None


async def validate_with_model_adapter(services: Services, openai_request: OpenAIBaseRequest,
                                      generation_input: GenerationInput,
                                      context: RequestContext) -> list[ValidatedRequest]:
    """Validate a request, with the adapter that its `model` names. Raises AdapterNotFound with the names that
    `/v1/models` lists."""
    if openai_request.model_extra and not services.is_tgi:
        openai_request.check_refused_fields()
    async with name_known_models(services, openai_request.model):
        return await services.validator.validate(
            replace(generation_input, adapter=openai_request.adapter_reference(services, context.source_token)))


@asynccontextmanager
async def name_known_models(services: Services, model: str | None) -> AsyncIterator[None]:
    """Add the names that `/v1/models` lists to AdapterNotFound, which is raised for an unknown `model`."""
    try:
        yield
    except AdapterNotFound as error:
        registry = services.validator.adapter_registry
        aliases = {} if registry is None else registry.aliases
        names = sorted(await services.list_adapter_names(), key=lambda name: name not in aliases)
        model_names = ", ".join([*services.served_model.names, *names][:MAX_NAMED_MODELS])
        raise AdapterNotFound(f"this server has no model {model!r}: `model` may be {model_names} or the name of an "
                              f"adapter ({error}); `base` is the model without one", param="model") from error


def get_echoed_model(services: Services, openai_request: OpenAIBaseRequest) -> str:
    """Return the model that a response names: the one that was asked for, unless that is a placeholder or too long to
    be repeated in every chunk."""
    model = openai_request.model
    if model is None or model in SERVED_MODEL_PLACEHOLDERS or len(model) > MAX_NAME_LENGTH:
        return services.served_model.name
    return model
