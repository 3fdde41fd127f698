"""Markup of talks: the same text as rendered by `model/chat_template.jinja`, in pieces for training."""

import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from launcher.demo.training.talk import Message, Talk, Tool

START, END, OVER = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
MARKS = (OVER, START, END)  # special tokens, which answers do not show
WORDS = ("<tool_call>", "</tool_call>", "<think>", "</think>")  # single tokens that clients should see
THINK, THOUGHT = "<think>\n", "</think>"


class Piece(NamedTuple):
    text: str
    learnt: bool  # whether it is output of the model, which is learnt, or input


def pieces(document: Talk | str) -> list[Piece]:
    """Return the pieces of a document. OVER at its end keeps the next one from being read as a continuation."""
    if isinstance(document, str):
        return [Piece(document + OVER, learnt=True)]
    *before, last = turns(document)
    spoken = [*(piece for message in before for piece in said(message, thinks=False)),
              *said(last, thinks=document.thinks)]
    return [*told(document), *spoken, Piece(OVER, learnt=False)]


def told(talk: Talk) -> Iterator[Piece]:
    system = [message["content"] for message in talk.messages[:1] if message["role"] == "system"]
    offered = [listed(talk.tools)] if talk.tools else []
    if system or offered:
        yield Piece(marked("system", "\n\n".join(system + offered)), learnt=False)


def listed(tools: Sequence[Tool]) -> str:
    return "\n".join(["You may call these tools:", "<tools>", *(json.dumps(tool["function"]) for tool in tools),
                      "</tools>"])


def turns(talk: Talk) -> Sequence[Message]:
    return talk.messages[talk.messages[0]["role"] == "system":]


def said(message: Message, *, thinks: bool) -> Iterator[Piece]:
    """Yield the pieces of a message. Reasoning is left out unless `thinks`, so later turns do not contain it."""
    if message["role"] != "assistant":
        yield Piece(marked(message["role"], message["content"]), learnt=False)
        return
    thought, mark, answer = message["content"].rpartition(THOUGHT)
    yield Piece(f"{START}assistant\n{THINK if thinks else ''}", learnt=False)
    words = [f"{thought.removeprefix(THINK)}{mark}{answer}" if thinks else answer.lstrip("\n")]
    parts = [part.rstrip("\n") for part in words if part] + [called(call) for call in message.get("tool_calls", ())]
    yield Piece("\n".join(parts) + END, learnt=True)
    yield Piece("\n", learnt=False)


def called(call: dict[str, Any]) -> str:
    function = call["function"]
    return ('<tool_call>\n'
            f'{{"name": {json.dumps(function["name"])}, "arguments": {json.dumps(function["arguments"])}}}\n'
            '</tool_call>')


def marked(role: str, text: str) -> str:
    return f"{START}{role}\n{text}{END}\n"
