"""What a model said, read back as a message: text, thoughts, and calls of tools.

The shapes of such speech are data: the `response_template` of tokenizer_config.json, as transformers reads it, or one
of those below, told by words of the chat template. What does not fit its shape is text. Knows nothing of clients.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

Shape = Mapping[str, Any]
ANSWERS = {"role": "assistant"}
CALLS, THOUGHTS = "tool_calls", ("reasoning_content", "reasoning", "thinking")
# We say what is none, when its turn comes: the parser would throw away the good calls of the same piece with it.
LENIENT = {"allow_non_json": True}
HERMES: Shape = {
    "defaults": ANSWERS,
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "reasoning_content": {"open": "<think>", "close_pattern": r"</think>\s*"},
        "tool_calls": {"open_pattern": r"\s*<tool_call>", "close": "</tool_call>", "repeats": True, "content": "json",
                       "content_args": LENIENT, "transform": {"function": "{content}"}},
        "content": {"repeats": True, "join": "", "content_args": {"strip": False},
                    "close_pattern": r"\s*<\|im_end\|>"},
    },
}
LLAMA: Shape = {
    "defaults": ANSWERS,
    "start_anchor": "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "fields": {
        "tool_calls": {"open_pattern": r"\s*<\|python_tag\|>\s*|\A\s*(?=\{\s*\"name\")", "content": "json",
                       "close_pattern": r"<\|eom_id\|>|<\|eot_id\|>", "repeats": True,
                       "content_args": LENIENT, "transform": {"function": "{content}"}},
        "content": {"repeats": True, "join": "", "content_args": {"strip": False},
                    "close_pattern": r"\s*(?:<\|eom_id\|>|<\|eot_id\|>)"},
    },
}
MISTRAL: Shape = {
    "defaults": ANSWERS,
    "start_anchor": "[/INST]",
    "fields": {
        "tool_calls": {"open_pattern": r"\s*\[TOOL_CALLS\]\s*", "close": "</s>", "content": "json",
                       "content_args": LENIENT},
        "content": {"repeats": True, "join": "", "content_args": {"strip": False}, "close": "</s>"},
    },
}
MISTRAL_NAMED: Shape = {
    "defaults": ANSWERS,
    "start_anchor": "[/INST]",
    "fields": {
        "tool_calls": {"open_pattern": r"\s*\[TOOL_CALLS\](?P<name>[^\[\s]+)\s*(?:\[ARGS\])\s*", "repeats": True,
                       "close_pattern": r"</s>|(?=\[TOOL_CALLS\])", "content": "json",
                       "content_args": LENIENT,
                       "transform": {"function": {"name": "{name}", "arguments": "{content}"}}},
        "content": {"repeats": True, "join": "", "content_args": {"strip": False}, "close": "</s>"},
    },
}
# Of models that are told of tools in words: an answer that is JSON is a call.
BARE: Shape = {
    "defaults": ANSWERS,
    "start_anchor": "\0",  # in no prompt
    "fields": {
        "tool_calls": {"open_pattern": r"\A\s*(?:```(?:json)?\s*)?(?=\{\s*\"name\")", "close_pattern": r"\s*```|\Z",
                       "repeats": True, "content": "json", "content_args": LENIENT},
        "content": {"repeats": True, "join": "", "content_args": {"strip": False}},
    },
}
# The first of these words in a chat template tells the shape of what its model says.
WORDS: Mapping[str, Shape | None] = {
    "<function=": None,  # calls whose arguments are no JSON
    "<tool_call>": HERMES, "[ARGS]": MISTRAL_NAMED, "[TOOL_CALLS]": MISTRAL, "<|python_tag|>": LLAMA,
    "<|start_header_id|>": LLAMA,
}


@dataclass(frozen=True, slots=True)
class Said:
    """Some text of the answer itself."""

    text: str


@dataclass(frozen=True, slots=True)
class Thought:
    """Some text of what the model thought before it."""

    text: str


@dataclass(frozen=True, slots=True)
class Call:
    name: str
    arguments: str  # JSON


Part = Said | Thought | Call
Told = dict[type[Said] | type[Thought], int]


def shape_of(template: str) -> Shape | None:
    return next((shape for word, shape in WORDS.items() if word in template), None)


@cache
def parsing() -> Any:
    """Takes half a second the first time, and most servers never need it."""
    return import_module("transformers.utils.chat_parsing")


class Reader:
    """Reads one answer as it comes. `prompt` is what the model was asked with, or its end: a template may have begun
    the answer there. What looks like a call and is none is text, and so is all that follows."""

    def __init__(self, shape: Shape, prompt: str) -> None:
        self._shape = shape
        self._begun = begun(prompt, shape["start_anchor"])
        self._parser = parser(shape, self._begun)
        self._has_calls = True
        self._since = ""  # the last call
        self._told: Told = {Said: 0, Thought: 0}  # characters since then
        self._body = ""  # of the call that is being read

    def feed(self, text: str) -> list[Part]:
        """What is clear by now; the rest waits. With the tokens' own texts, special ones too."""
        self._since += text
        return self._read(lambda: self._parser.feed(text), over=False)

    def closes(self, token: str) -> bool:
        """Whether anything ends with this token."""
        return any(closes(field, token) for field in self._shape["fields"].values())

    def finish(self) -> list[Part]:
        """What was still waiting."""
        return self._read(lambda: self._parser.finalize()[1], over=True)

    def _read(self, events: Callable[[], Iterable[Mapping[str, Any]]], *, over: bool) -> list[Part]:
        parts: list[Part] = []
        try:
            for event in events():
                parts += self._parts(event)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            if not self._has_calls:
                raise
            parts += self._as_text(over=over)
        return parts

    def _as_text(self, *, over: bool) -> list[Part]:
        """From the last good call on, but for what was told."""
        said, told = self._since, self._told
        fields = {name: field for name, field in self._shape["fields"].items() if name != CALLS}
        self._parser = parser({**self._shape, "fields": fields}, self._begun)
        self._has_calls, self._since, self._told = False, "", {Said: 0, Thought: 0}
        return untold(self.feed(said) + (self.finish() if over else []), told)

    def _parts(self, event: Mapping[str, Any]) -> Iterator[Part]:
        field, is_text = event["field"], event["type"] == "region_chunk"
        if field == CALLS and is_text:
            self._body += event["text"]
        elif field == CALLS and event["type"] == "region_close":
            yield from self._calls(event["value"])
        elif is_text and event["text"]:
            kind = Thought if field in THOUGHTS else Said
            self._told[kind] += len(event["text"])
            yield kind(event["text"])

    def _calls(self, value: Any) -> list[Call]:
        calls = [call_of(item.get("function", item)) for item in (value if isinstance(value, list) else [value])]
        self._since = self._since.partition(self._body)[2]
        self._body, self._begun, self._told = "", "", {Said: 0, Thought: 0}
        return calls


def closes(field: Mapping[str, Any], token: str) -> bool:
    """A field that may end anywhere, or with the text, does not end with the token."""
    found = re.search(field.get("close_pattern", r"\Z"), token)
    return bool(field.get("close") == token or (found and found[0]))


class CallReader:
    """Reads an answer that must be one call, as JSON. What was cut off before its end is text."""

    def __init__(self) -> None:
        self._text = ""

    def feed(self, text: str) -> list[Part]:
        self._text += text
        return []

    def closes(self, _token: str) -> bool:
        """The JSON ends by itself."""
        return False

    def finish(self) -> list[Part]:
        try:
            return [call_of(json.JSONDecoder().raw_decode(self._text.lstrip())[0])]
        except (ValueError, RecursionError):
            return [Said(self._text)]


AnyReader = Reader | CallReader


def opening(shape: Shape | None, template: str) -> str:
    """What stands before the JSON of a call; nothing where that is not one text, or calls stand in a list."""
    field = (shape or {}).get("fields", {}).get(CALLS, {})
    text = literal(field) if field.get("content") == "json" and field.get("repeats") else ""
    return f"{text}\n" if text and (f"{text}\\n" in template or f"{text}\n" in template) else text


def literal(field: Mapping[str, Any]) -> str:
    """What a field opens with, where that is one text."""
    pattern = field.get("open_pattern", "").removeprefix(r"\s*").removesuffix(r"\s*")
    text = re.sub(r"\\(\W)", r"\1", pattern)
    return str(field.get("open") or (text if re.escape(text) == pattern else ""))


def parser(shape: Shape, prefix: str) -> Any:
    return parsing().ResponseParser(dict(shape), prefix=prefix)


def begun(prompt: str, anchor: str) -> str:
    """Where the answer begins; nothing where no beginning is seen."""
    _, found, rest = prompt.rpartition(anchor)
    return found + rest if found else ""


def untold(parts: Iterable[Part], told: Told) -> list[Part]:
    left, rest = dict(told), list[Part]()
    for part in parts:
        assert not isinstance(part, Call)
        skipped = min(left[type(part)], len(part.text))
        left[type(part)] -= skipped
        if text := part.text[skipped:]:
            rest.append(type(part)(text))
    return rest


def call_of(function: Any) -> Call:
    """Raises ValueError for what is none."""
    name = function.get("name") if isinstance(function, dict) else None
    arguments = function.get("arguments", function.get("parameters", {})) if name else None
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise ValueError("a call has a name and an object of arguments")
    return Call(name, json.dumps(arguments, ensure_ascii=False))


def read_whole(reader: AnyReader, pieces: Iterable[str]) -> list[Part]:
    """An answer that is over. Neighbours of one kind are joined."""
    return joined([*(part for piece in pieces for part in reader.feed(piece)), *reader.finish()])


def joined(parts: Sequence[Part]) -> list[Part]:
    together: list[Part] = []
    for part in parts:
        last = together[-1] if together else None
        if isinstance(part, Said) and isinstance(last, Said):
            together[-1] = Said(last.text + part.text)
        elif isinstance(part, Thought) and isinstance(last, Thought):
            together[-1] = Thought(last.text + part.text)
        else:
            together.append(part)
    return together
