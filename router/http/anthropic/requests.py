"""Bodies of Anthropic's Messages, and their conversion to the `ChatRequest` of OpenAI's dialect, which all chats share.
Content that is a string is read as one text block. Fields that would change the answer, and are not served, must be
null."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, FailFast, Field
from pydantic_core import PydanticCustomError

from router.errors import InvalidTools
from router.grammars.parameters import make_json_schema_grammar
from router.http.openai.request_tools import MAX_NAME_CHARS_IN_ERROR, FunctionName
from router.http.openai.requests import REFUSED_FIELDS, ChatRequest, TextPart
from router.http.transport.body import NOT_GIVEN, Int32, LenientBodyModel, UInt32, UInt64
from router.text.prompt_encoder import DialectParameterNames
from router.validation import bounds

ANTHROPIC_PARAMETER_NAMES = DialectParameterNames(
    prompt="messages", max_new_tokens="max_tokens", truncate="", grammar="output_config.format", stop="stop_sequences")
CACHE_FIELDS = frozenset({"cache_control"})  # the prefix cache works by itself
SAMPLING_FIELDS = ("max_tokens", "temperature", "top_p", "top_k", "seed", "cache_salt", "priority")


def wrap_text(content: object) -> object:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def refuse_value(value: object) -> None:
    if value is not None:
        raise PydanticCustomError("unsupported", "is not supported by this server; leave it out")


def check_tool_type(value: object) -> object:
    if not (value is None or value == "custom"):
        raise PydanticCustomError("tool_type", "must be `custom`: tools that run on the server are not supported")
    return value


Unsupported = Annotated[None, BeforeValidator(refuse_value)]
TextContent = Annotated[list[TextPart], Field(fail_fast=True),
                        BeforeValidator(wrap_text, json_schema_input_type=str | list[TextPart])]


class ToolResultBlock(LenientBodyModel):
    """Result of a call that an earlier message made."""

    unreported_fields = CACHE_FIELDS
    type: Literal["tool_result"]
    tool_use_id: str
    content: TextContent = Field(default_factory=list)
    is_error: bool | None = None

    def to_chat_message(self) -> dict[str, Any]:
        prefix = "Error: " if self.is_error else ""  # templates have no other place for it
        return {"role": "tool", "tool_call_id": self.tool_use_id, "content": prefix + join_texts(self.content)}


class ThinkingBlock(LenientBodyModel):
    """Reasoning in an earlier answer."""

    unreported_fields = frozenset({"signature"})
    type: Literal["thinking"]
    thinking: str


class RedactedThinkingBlock(LenientBodyModel):
    """Encrypted reasoning of an answer that another server gave; it is left out of the prompt."""

    unreported_fields = frozenset({"data"})
    type: Literal["redacted_thinking"]


class ToolUseBlock(LenientBodyModel):
    """Tool call in an earlier answer."""

    unreported_fields = CACHE_FIELDS
    type: Literal["tool_use"]
    id: str
    name: Annotated[str, Field(min_length=1)]
    input: dict[str, Any]


UserBlock = Annotated[TextPart | ToolResultBlock, Field(discriminator="type")]
AssistantBlock = Annotated[TextPart | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock, Field(discriminator="type")]


class AnthropicSystemMessage(LenientBodyModel):
    """An instruction between the messages of a chat."""

    role: Literal["system"]
    content: TextContent


class AnthropicUserMessage(LenientBodyModel):
    """A message of the user, or the results of tool calls, or both."""

    role: Literal["user"]
    content: Annotated[list[UserBlock], FailFast(),
                       BeforeValidator(wrap_text, json_schema_input_type=str | list[UserBlock])]


class AnthropicAssistantMessage(LenientBodyModel):
    """An earlier answer. A last message with text is continued."""

    role: Literal["assistant"]
    content: Annotated[list[AssistantBlock], FailFast(),
                       BeforeValidator(wrap_text, json_schema_input_type=str | list[AssistantBlock])]


AnthropicMessage = Annotated[AnthropicSystemMessage | AnthropicUserMessage | AnthropicAssistantMessage,
                             Field(discriminator="role")]
Block = TextPart | ToolResultBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock


def join_texts(blocks: Iterable[Block]) -> str:
    """Return the texts of the text blocks, each on lines of its own."""
    return "\n".join(block.text for block in blocks if isinstance(block, TextPart))


def iterate_chat_messages(messages: Iterable[AnthropicMessage]) -> Iterator[dict[str, Any]]:
    """Yield the messages of a `ChatRequest`. Adjacent messages of a role are one, as in Anthropic's API: templates may
    accept only roles that alternate."""
    for role, group in groupby(messages, key=lambda message: message.role):
        blocks: list[Block] = [block for message in group for block in message.content]
        if role == "assistant":
            yield make_assistant_message(blocks)
            continue
        results = [block.to_chat_message() for block in blocks if isinstance(block, ToolResultBlock)]
        yield from results
        if len(blocks) > len(results) or not results:
            yield {"role": role, "content": join_texts(blocks)}


def make_assistant_message(blocks: Sequence[Block]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": join_texts(blocks)}
    if thoughts := [block.thinking for block in blocks if isinstance(block, ThinkingBlock)]:
        message["reasoning_content"] = "\n".join(thoughts)
    if calls := [block for block in blocks if isinstance(block, ToolUseBlock)]:
        message["tool_calls"] = [{"id": call.id, "type": "function",
                                  "function": {"name": call.name, "arguments": call.input}} for call in calls]
    return message


class AnthropicTool(LenientBodyModel):
    """A tool that the model may call and the client runs."""

    unreported_fields = CACHE_FIELDS | {"strict"}
    type: Annotated[Literal["custom"] | None,
                    BeforeValidator(check_tool_type, json_schema_input_type=Literal["custom"] | None)] = None
    name: FunctionName
    description: str | None = None
    input_schema: dict[str, Any]

    def to_openai_tool(self) -> dict[str, Any]:
        description = {} if self.description is None else {"description": self.description}
        return {"type": "function", "function": {"name": self.name, **description, "parameters": self.input_schema}}


class AnthropicToolChoice(LenientBodyModel):
    """Whether the model must call a tool, and which one."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None

    def to_openai_tool_choice(self, tools: Sequence[AnthropicTool]) -> str | dict[str, Any]:
        """Raises InvalidTools if there is no such tool, and InvalidRequest if its schema is none."""
        if self.type in {"auto", "none"}:
            return self.type
        callable_tools = [(index, tool) for index, tool in enumerate(tools) if self.type == "any" or tool.name
                          == self.name]
        if not callable_tools:
            names = ", ".join(tool.name for tool in tools)[:MAX_NAME_CHARS_IN_ERROR] or "there are none"
            raise InvalidTools(f"`tool_choice` must name one of the `tools` ({names}), got "
                               f"{(self.name or self.type)[:MAX_NAME_CHARS_IN_ERROR]}")
        for index, tool in callable_tools:
            make_json_schema_grammar(f"tools.{index}.input_schema", tool.input_schema)
        return "required" if self.type == "any" else {"function": {"name": self.name}}


class ThinkingConfig(LenientBodyModel):
    """Whether the model reasons before it answers, if its template leaves the choice."""

    ignored_fields = frozenset({"budget_tokens"})
    type: Literal["enabled", "disabled", "adaptive"]
    display: Literal["summarized", "omitted"] | None = None


class JsonSchemaFormat(LenientBodyModel):
    """JSON schema that the answer follows."""

    type: Literal["json_schema"]
    answer_schema: dict[str, Any] = Field(alias="schema")


class OutputConfig(LenientBodyModel):
    """Effort of the reasoning, and format of the answer."""

    ignored_fields = frozenset({"task_budget"})
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: JsonSchemaFormat | None = None


class AnthropicCountTokensRequest(LenientBodyModel):
    """Body of `/v1/messages/count_tokens`: the fields of a message on which its prompt depends."""

    ignored_fields = frozenset({
        "betas", "billing_policy", "cache_control", "speed", "user_profile_id", "workspace_id"})
    refused_fields = dict.fromkeys(("chat_template_kwargs", "context_management"), NOT_GIVEN)

    model: str | None = None
    messages: Annotated[list[AnthropicMessage], FailFast(), Field(min_length=1)]
    system: TextContent | None = None
    tools: Annotated[list[AnthropicTool] | None, FailFast()] = None
    tool_choice: AnthropicToolChoice | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    compaction: Unsupported = None
    container: Unsupported = None
    mcp_servers: Unsupported = None
    output_format: Unsupported = None
    thread: Unsupported = None

    def to_chat_request(self) -> ChatRequest:
        """Return the chat. Raises InvalidRequest and InvalidTools with this dialect's names of fields."""
        self.check_refused_fields()
        return ChatRequest.model_validate(self._chat_fields())

    def _chat_fields(self) -> dict[str, Any]:
        system = [AnthropicSystemMessage.model_construct(role="system", content=self.system)] if self.system else []
        fields: dict[str, Any] = {"model": self.model,
                                  "messages": [*iterate_chat_messages([*system, *self.messages])]}
        if self.tools:
            fields["tools"] = [tool.to_openai_tool() for tool in self.tools]
        if self.tool_choice is not None:
            fields |= {"tool_choice": self.tool_choice.to_openai_tool_choice(self.tools or ()),
                       "parallel_tool_calls": not self.tool_choice.disable_parallel_tool_use}
        if self.thinking is not None and self.thinking.type != "adaptive":
            fields["chat_template_kwargs"] = {"enable_thinking": self.thinking.type == "enabled"}
        if self.output_config is not None and (effort := self.output_config.effort) is not None:
            fields["reasoning_effort"] = "xhigh" if effort == "max" else effort
        if self.output_config is not None and (output_format := self.output_config.format) is not None:
            make_json_schema_grammar("output_config.format.schema", output_format.answer_schema)
            fields["response_format"] = {"type": "json_schema", "json_schema": {"schema": output_format.answer_schema}}
        return fields


class AnthropicMessagesRequest(AnthropicCountTokensRequest):
    """Body of `/v1/messages`. `seed`, `cache_salt` and `priority` are not of Anthropic."""

    ignored_fields = AnthropicCountTokensRequest.ignored_fields | {
        "diagnostics", "fallback_credit_token", "fallbacks", "inference_geo", "metadata", "mm_payload", "service_tier"}
    refused_fields = AnthropicCountTokensRequest.refused_fields | {name: REFUSED_FIELDS[name] for name in (
        "ec_transfer_params", "kv_transfer_params", "return_mm_kwargs", "vllm_xargs", "watermarking")} | {
        "resume_token_ids": NOT_GIVEN}  # its streams name no tokens

    max_tokens: Annotated[UInt32, bounds.AT_LEAST_ONE]
    stop_sequences: Annotated[list[str] | None, FailFast(), bounds.STOP_STRINGS] = None
    stream: bool | None = None
    temperature: Annotated[float | None, bounds.NOT_NEGATIVE] = None
    top_p: Annotated[float | None, bounds.FRACTION_OR_ONE] = None
    top_k: Annotated[Int32 | None, bounds.TOP_K_OR_ALL] = None
    seed: UInt64 | None = None
    cache_salt: Annotated[str | None, bounds.CACHE_SALT] = None
    priority: Annotated[Int32 | None, bounds.PRIORITY] = None

    def _chat_fields(self) -> dict[str, Any]:
        return {**super()._chat_fields(), "stop": self.stop_sequences,
                **{name: getattr(self, name) for name in SAMPLING_FIELDS}}
