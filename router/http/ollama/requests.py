"""Bodies of Ollama's routes. Those of chats and generations become a `ChatRequest`; what it cannot express is refused,
and options of the machine are ignored and reported, like all unknown fields."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AliasChoices, FailFast, Field

from router.adapters.reference import AdapterReference
from router.errors import AdapterNotFound, InvalidRequest
from router.grammars.parameters import make_json_schema_grammar
from router.http.openai.request_tools import MAX_NAME_CHARS_IN_ERROR, Tool, ToolCall
from router.http.openai.requests import (
    CHAT_PARAMETER_NAMES,
    ChatRequest,
    Message,
    OpenAIBaseRequest,
    StringList,
    get_echoed_model,
)
from router.http.transport.body import (
    NOT_GIVEN,
    BodyModel,
    Int32,
    LenientBodyModel,
    RefusedFields,
    TextsOrTokens,
    UInt32,
)
from router.http.transport.services import Services
from router.request import Tenant
from router.text.prompt_encoder import DialectParameterNames
from router.validation import bounds

LATEST_TAG = ":latest"  # of a model's name; the only one that is known here
OLLAMA_CHAT_PARAMETER_NAMES = replace(CHAT_PARAMETER_NAMES, max_new_tokens="num_predict", grammar="format",
                                      repetition_penalty="repeat_penalty")
OLLAMA_GENERATE_PARAMETER_NAMES = replace(OLLAMA_CHAT_PARAMETER_NAMES, prompt="prompt")
# Fields that must be empty, with the reason.
REFUSAL_REASONS = {
    "images": "images are not served",
    "template": "the model's own template makes the prompt",
    "context": "earlier turns are only taken as text, by /api/chat",
}
RESUMPTION_FIELDS: RefusedFields = {"resume_token_ids": NOT_GIVEN}  # streams of these routes name no tokens


def refuse_given_fields(body: BodyModel, *names: str) -> None:
    for name in names:
        if getattr(body, name):
            raise InvalidRequest(f"`{name}` is given, but {REFUSAL_REASONS[name]}; leave it out")


class OllamaOptions(LenientBodyModel):
    """The field `options`. Null means that an option is not given; the model's own default then counts."""

    ignored_fields = frozenset({
        "embedding_only", "f16_kv", "logits_all", "low_vram", "main_gpu", "mirostat_eta", "mirostat_tau", "num_batch",
        "num_ctx", "num_gpu", "num_keep", "num_thread", "numa", "penalize_newline", "repeat_last_n", "use_mlock",
        "use_mmap", "vocab_only"})
    refused_fields = RESUMPTION_FIELDS
    num_predict: Annotated[int | None, Field(ge=-2, lt=2**32)] = None  # below 1: to the end of the context
    seed: Annotated[int | None, Field(ge=-1, lt=2**64)] = None  # -1: a random one
    temperature: Annotated[float | None, bounds.NOT_NEGATIVE] = None
    top_k: Annotated[Int32 | None, bounds.TOP_K_OR_ALL] = None
    top_p: Annotated[float | None, bounds.FRACTION_OR_ONE] = None
    min_p: Annotated[float | None, bounds.MIN_P] = None
    repeat_penalty: Annotated[float | None, bounds.POSITIVE] = None
    presence_penalty: Annotated[float | None, bounds.PENALTY] = None
    frequency_penalty: Annotated[float | None, bounds.PENALTY] = None
    stop: Annotated[StringList, bounds.STOP_STRINGS] = Field(default_factory=list)
    typical_p: Annotated[float | None, bounds.EXACTLY_ONE] = Field(
        default=None, description="this filter is not served")
    tfs_z: Annotated[float | None, bounds.EXACTLY_ONE] = None
    mirostat: Annotated[Int32 | None, bounds.AT_MOST_ZERO] = None

    def to_chat_fields(self) -> dict[str, Any]:
        """Return the fields of a `ChatRequest`. Raises InvalidRequest."""
        self.check_refused_fields("options.")
        for name in ("typical_p", "tfs_z"):
            if (value := getattr(self, name)) not in {None, 1}:
                raise InvalidRequest(f"`{name}` must be 1, which keeps all candidates, got {value}: this filter is not "
                                     "served here")
        if self.mirostat is not None and self.mirostat > 0:
            raise InvalidRequest(f"`mirostat` must be 0, got {self.mirostat}: this way of sampling is not served")
        return {
            **self.model_dump(include={"temperature", "top_k", "top_p", "min_p", "presence_penalty",
                                       "frequency_penalty", "stop"}),
            "repetition_penalty": self.repeat_penalty,
            "max_tokens": self.num_predict if (self.num_predict or 0) > 0 else None,
            "seed": None if self.seed == -1 else self.seed,
        }


class OllamaModelRequest(LenientBodyModel):
    """Body that names a model: the served one, or an adapter."""

    ignored_fields = frozenset({"keep_alive"})  # the model is there as long as the server
    model: Annotated[str, Field(min_length=1)]

    @property
    def model_name(self) -> str:
        return self.model.removesuffix(LATEST_TAG)

    def get_echoed_name(self, services: Services) -> str:
        return get_echoed_model(services, OpenAIBaseRequest(model=self.model))

    def adapter_reference(self, services: Services, source_token: str) -> AdapterReference | None:
        model = self.model if self.model in services.served_model.names else self.model_name
        return OpenAIBaseRequest(model=model).adapter_reference(services, source_token)

    async def load_adapter(self, services: Services, source_token: str, tenant: Tenant,
                           deadline: float | None = None) -> AdapterReference | None:
        """Load the adapter that the model is, and return it; None if it is the served model. Raises AdapterNotFound."""
        adapter, registry = self.adapter_reference(services, source_token), services.validator.adapter_registry
        if adapter is not None and registry is not None:
            with self.translate_missing_model_error():
                await registry.resolve(adapter, deadline, tenant)
        return adapter

    @contextmanager
    def translate_missing_model_error(self) -> Iterator[None]:
        """Report an unknown model in Ollama's words: clients look for them."""
        try:
            yield
        except AdapterNotFound as error:
            raise AdapterNotFound(f"model '{self.model[:MAX_NAME_CHARS_IN_ERROR]}' not found: {error}",
                                  param="model") from error


class OllamaChatOrGenerateRequest(OllamaModelRequest):
    """Fields that chats and generations have in common. Null means that a field is not given."""

    parameter_names: ClassVar[DialectParameterNames]
    ignored_fields = OllamaModelRequest.ignored_fields | {"shift", "truncate"}  # a long prompt is refused
    refused_fields = RESUMPTION_FIELDS

    stream: bool | None = None  # true unless it is false
    format: Literal["", "json"] | dict[str, Any] | None = None
    options: OllamaOptions | None = None
    think: Literal["low", "medium", "high"] | bool | None = None
    logprobs: bool | None = None
    top_logprobs: UInt32 | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing is to be generated: clients ask so that the model is loaded."""
        raise NotImplementedError

    def to_chat_request(self) -> ChatRequest:
        """Convert to OpenAI's fields. Raises InvalidRequest."""
        raise NotImplementedError

    def build_chat_request(self, messages: list[Message], tools: list[Tool] | None = None) -> ChatRequest:
        self.check_refused_fields()
        options = {} if self.options is None else self.options.to_chat_fields()
        return ChatRequest(model=self.model_name, messages=messages, tools=tools, logprobs=self.logprobs,
                           top_logprobs=self.top_logprobs, response_format=self._response_format(), **options,
                           **self._template_fields())

    def _response_format(self) -> Mapping[str, Any] | None:
        if isinstance(self.format, str):
            return {"type": "json_object"} if self.format else None
        if self.format is None:
            return None
        make_json_schema_grammar("format", self.format)  # validates, with the location in the error message
        return {"type": "json_object", "value": self.format}

    def _template_fields(self) -> dict[str, Any]:
        if self.think is None:
            return {}
        effort = {"reasoning_effort": self.think} if isinstance(self.think, str) else {}
        return {"chat_template_kwargs": {"enable_thinking": bool(self.think)}, **effort}


class OllamaFunctionCall(LenientBodyModel):
    """Name and arguments of a call that an earlier message made."""

    unreported_fields = frozenset({"index"})
    name: str
    arguments: dict[str, Any] = Field(default_factory=dict)


class OllamaToolCall(LenientBodyModel):
    """A tool call in an earlier message."""

    unreported_fields = frozenset({"type"})
    id: str | None = None
    function: OllamaFunctionCall

    def to_chat_call(self) -> ToolCall:
        function = {"name": self.function.name, "arguments": self.function.arguments}
        return ToolCall.model_validate({"type": "function", **({} if self.id is None else {"id": self.id}),
                                        "function": function})


class OllamaMessage(LenientBodyModel):
    """A message of the chat."""

    role: Annotated[str, Field(min_length=1)]
    content: str | None = None
    thinking: str | None = None
    images: Annotated[list[str] | None, FailFast(), bounds.EMPTY_LIST] = None
    tool_calls: Annotated[list[OllamaToolCall] | None, FailFast()] = None
    tool_name: str | None = None
    tool_call_id: str | None = None

    def to_chat_message(self) -> Message:
        refuse_given_fields(self, "images")
        calls = [call.to_chat_call() for call in self.tool_calls or ()]
        return Message(role=self.role, content=self.content or "", reasoning_content=self.thinking or None,
                       name=self.tool_name, tool_call_id=self.tool_call_id, tool_calls=calls or None)


class OllamaChatRequest(OllamaChatOrGenerateRequest):
    """Body of `/api/chat`."""

    parameter_names = OLLAMA_CHAT_PARAMETER_NAMES

    messages: Annotated[list[OllamaMessage] | None, FailFast()] = None
    tools: Annotated[list[Tool] | None, FailFast()] = None

    @property
    def is_empty(self) -> bool:
        return not self.messages

    def to_chat_request(self) -> ChatRequest:
        return self.build_chat_request([message.to_chat_message() for message in self.messages or ()],
                                       self.tools or None)


class OllamaGenerateRequest(OllamaChatOrGenerateRequest):
    """Body of `/api/generate`."""

    parameter_names = OLLAMA_GENERATE_PARAMETER_NAMES
    ignored_fields = OllamaChatOrGenerateRequest.ignored_fields | {"height", "steps", "width"}  # of pictures

    prompt: str | None = None
    system: str | None = None
    raw: bool | None = None
    suffix: str | None = None
    template: Annotated[str | None, bounds.EMPTY_TEXT] = None
    context: Annotated[list[int] | None, FailFast(), bounds.EMPTY_LIST] = None
    images: Annotated[list[str] | None, FailFast(), bounds.EMPTY_LIST] = None

    @property
    def is_empty(self) -> bool:
        return not (self.prompt or self.suffix)

    def to_chat_request(self) -> ChatRequest:
        refuse_given_fields(self, *REFUSAL_REASONS)
        system = [Message(role="system", content=self.system)] if self.system else []
        return self.build_chat_request([*system, Message(role="user", content=self.prompt or "")])

    def check_raw(self) -> None:
        """Reject fields that need a chat template, for a prompt that goes to the model as it is."""
        for name in ("system", "think"):
            if getattr(self, name):
                raise InvalidRequest(f"`{name}` is given, but the prompt goes to the model as it is (`raw`, `suffix`, "
                                     "or a model without a chat template); leave it out")


class OllamaEmbedRequest(OllamaModelRequest):
    """Body of `/api/embed`: one or several texts."""

    ignored_fields = OllamaModelRequest.ignored_fields | {"options", "truncate"}

    input: Annotated[TextsOrTokens, bounds.NON_EMPTY_TEXTS_OR_TOKENS]
    dimensions: UInt32 | None = None  # 0: all


class OllamaEmbeddingsRequest(OllamaModelRequest):
    """Body of `/api/embeddings`: one text."""

    ignored_fields = OllamaModelRequest.ignored_fields | {"options"}

    prompt: Annotated[str, bounds.NON_EMPTY_TEXT]


class OllamaShowRequest(OllamaModelRequest):
    """Body of `/api/show`. Old clients send `name` for `model`."""

    model: Annotated[str, Field(min_length=1, validation_alias=AliasChoices("model", "name"))]
