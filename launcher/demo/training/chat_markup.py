"""Chat markup of training documents: the text that `model/chat_template.jinja` renders, in pieces that are learnt
(output of the model) or not.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from launcher.demo.training.conversation import Conversation, Message, Tool

TURN_START, TURN_END, END_OF_TEXT = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
SPECIAL_TOKENS = (END_OF_TEXT, TURN_START, TURN_END)  # special tokens, which answers do not show
VISIBLE_TOKENS = ("<tool_call>", "</tool_call>", "<think>", "</think>")  # single tokens that clients should see
REASONING_START, REASONING_END = "<think>\n", "</think>"


class TextPiece(NamedTuple):
    """Part of a training text that is either learnt (output of the model) or masked from the loss (input)."""

    text: str
    is_learnt: bool  # whether it is output of the model, which is learnt, or input


def split_into_pieces(document: Conversation | str) -> list[TextPiece]:
    """Return the pieces of a document. END_OF_TEXT separates it from the next document."""
    if isinstance(document, str):
        return [TextPiece(document + END_OF_TEXT, is_learnt=True)]
    *earlier_messages, last_message = drop_system_message(document)
    message_pieces = [*(piece for message in earlier_messages
                        for piece in iterate_message_pieces(message, keeps_reasoning=False)),
                      *iterate_message_pieces(last_message, keeps_reasoning=document.has_reasoning)]
    return [*iterate_system_pieces(document), *message_pieces, TextPiece(END_OF_TEXT, is_learnt=False)]


def iterate_system_pieces(conversation: Conversation) -> Iterator[TextPiece]:
    system = [message["content"] for message in conversation.messages[:1] if message["role"] == "system"]
    tool_texts = [format_tools(conversation.tools)] if conversation.tools else []
    if system or tool_texts:
        yield TextPiece(format_turn("system", "\n\n".join(system + tool_texts)), is_learnt=False)


def format_tools(tools: Sequence[Tool]) -> str:
    return "\n".join(["You may call these tools:", "<tools>", *(json.dumps(tool["function"]) for tool in tools),
                      "</tools>"])


def drop_system_message(conversation: Conversation) -> Sequence[Message]:
    return conversation.messages[conversation.messages[0]["role"] == "system":]


def iterate_message_pieces(message: Message, *, keeps_reasoning: bool) -> Iterator[TextPiece]:
    """Yield the pieces of a message. Without `keeps_reasoning`, as in earlier turns, reasoning is left out."""
    if message["role"] != "assistant":
        yield TextPiece(format_turn(message["role"], message["content"]), is_learnt=False)
        return
    reasoning, mark, answer = message["content"].rpartition(REASONING_END)
    yield TextPiece(f"{TURN_START}assistant\n{REASONING_START if keeps_reasoning else ''}", is_learnt=False)
    texts = [f"{reasoning.removeprefix(REASONING_START)}{mark}{answer}" if keeps_reasoning else answer.lstrip("\n")]
    parts = [part.rstrip("\n") for part in texts
             if part] + [format_tool_call(call) for call in message.get("tool_calls", ())]
    yield TextPiece("\n".join(parts) + TURN_END, is_learnt=True)
    yield TextPiece("\n", is_learnt=False)


def format_tool_call(call: dict[str, Any]) -> str:
    function = call["function"]
    return ('<tool_call>\n'
            f'{{"name": {json.dumps(function["name"])}, "arguments": {json.dumps(function["arguments"])}}}\n'
            '</tool_call>')


def format_turn(role: str, text: str) -> str:
    return f"{TURN_START}{role}\n{text}{TURN_END}\n"
