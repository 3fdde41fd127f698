"""Items of the input of `/v1/responses`, and their conversion to the messages of a chat."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, FailFast, Tag
from pydantic_core import PydanticCustomError

from router.http.transport.body import BodyModel, LenientBodyModel

MAX_TYPE_CHARS_IN_ERROR = 40
ITEM_FIELDS = frozenset({"id", "status"})  # fields of the output's items, which clients send back
TEXT_KEYS = {"input_text": "text", "output_text": "text", "refusal": "refusal"}  # of content parts, by their type

ChatMessageFields = dict[str, Any]  # of a message of ChatRequest


def make_type_check(*served_types: str) -> BeforeValidator:
    """Return a validator that refuses objects of other types than these, by the name of their type."""
    def check_type(value: object) -> object:
        given_type = value.get("type") if isinstance(value, dict) else None
        if given_type is not None and given_type not in served_types:
            shown_type = str(given_type)[:MAX_TYPE_CHARS_IN_ERROR]
            raise PydanticCustomError(
                "type", f"is of the type `{shown_type}`, which is not served, only {', '.join(served_types)}")
        return value

    return BeforeValidator(check_type)


def join_content_parts_text(content: object) -> object:
    """Return the joined text of content parts, and any other content unchanged."""
    if not isinstance(content, list):
        return content
    texts: list[str] = []
    for part in content:
        part_type = part.get("type") if isinstance(part, dict) else None
        text = part.get(TEXT_KEYS[part_type]) if isinstance(part_type, str) and part_type in TEXT_KEYS else None
        if not isinstance(text, str):
            raise PydanticCustomError("content", "must be a string or a list of parts with text, of the types "
                                      f"{', '.join(TEXT_KEYS)}; got `{str(part_type)[:MAX_TYPE_CHARS_IN_ERROR]}`")
        texts.append(text)
    return "".join(texts)


class InputTextPart(BodyModel):
    """Part of an item's content that is text."""

    type: Literal["input_text", "output_text"]
    text: str


class RefusalPart(BodyModel):
    """Part of an earlier answer with which the model refused."""

    type: Literal["refusal"]
    refusal: str


ContentText = Annotated[str, BeforeValidator(join_content_parts_text,
                                             json_schema_input_type=str | list[InputTextPart | RefusalPart])]


class InputMessage(LenientBodyModel):
    """Item of the input that is a message."""

    unreported_fields = ITEM_FIELDS
    type: Literal["message"] | None = None
    role: Literal["user", "assistant", "system", "developer"]
    content: ContentText

    def append_to_messages(self, messages: list[ChatMessageFields]) -> None:
        if self.role != "assistant":  # many templates know no `developer`, and would leave out what it says
            messages.append({"role": "user" if self.role == "user" else "system", "content": self.content})
            return
        answer = get_or_append_assistant_message(messages)
        if answer["content"] and "tool_calls" not in answer:
            messages.append({"role": "assistant", "content": self.content})
        else:
            answer["content"] += self.content


class FunctionCallItem(LenientBodyModel):
    """Item of the input that is a function call of an earlier answer."""

    unreported_fields = ITEM_FIELDS
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str

    def append_to_messages(self, messages: list[ChatMessageFields]) -> None:
        get_or_append_assistant_message(messages).setdefault("tool_calls", []).append(
            {"id": self.call_id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}})


class FunctionCallOutputItem(LenientBodyModel):
    """Item of the input that is the result of a function call."""

    unreported_fields = ITEM_FIELDS
    type: Literal["function_call_output"]
    call_id: str
    output: ContentText

    def append_to_messages(self, messages: list[ChatMessageFields]) -> None:
        messages.append({"role": "tool", "content": self.output, "tool_call_id": self.call_id})


class ReasoningPart(BodyModel):
    """Piece of reasoning, or of its summary."""

    type: Literal["reasoning_text", "summary_text"]
    text: str


class ReasoningItem(LenientBodyModel):
    """Item of the input that is the reasoning of an earlier answer, or only a summary of it."""

    unreported_fields = ITEM_FIELDS | {"encrypted_content"}
    type: Literal["reasoning"]
    summary: Annotated[list[ReasoningPart] | None, FailFast()] = None
    content: Annotated[list[ReasoningPart] | None, FailFast()] = None

    def append_to_messages(self, messages: list[ChatMessageFields]) -> None:
        answer = get_or_append_assistant_message(messages)
        text = "".join(part.text for part in self.content or self.summary or ())
        answer["reasoning_content"] = answer.get("reasoning_content", "") + text


def get_or_append_assistant_message(messages: list[ChatMessageFields]) -> ChatMessageFields:
    """Return the last message if it is the assistant's, else append one: its reasoning, text and calls are items in the
    input, but one message to templates."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    return messages[-1]


def get_item_type(item: Any) -> str:
    return (item.get("type") if isinstance(item, dict) else None) or "message"


def wrap_input_text(value: object) -> object:
    return [{"role": "user", "content": value}] if isinstance(value, str) else value


InputItem = Annotated[
    Annotated[InputMessage, Tag("message")] | Annotated[FunctionCallItem, Tag("function_call")]
    | Annotated[FunctionCallOutputItem, Tag("function_call_output")] | Annotated[ReasoningItem, Tag("reasoning")],
    Discriminator(get_item_type), make_type_check("message", "function_call", "function_call_output",
                                                  "reasoning")]
# In the document the types of items are alternatives without a discriminator: `type` may be absent.
DocumentedInput = str | list[InputMessage | FunctionCallItem | FunctionCallOutputItem | ReasoningItem]
