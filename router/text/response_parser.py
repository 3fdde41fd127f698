"""Parser of a model's output into content, reasoning and tool calls.

The format of the output (`Shape`) is data: the `response_template` of tokenizer_config.json, as in transformers, or one
of those below, chosen by strings in the chat template. Output that does not fit its format is content.
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
# Invalid calls are rejected one by one, by `call_of`: the parser would also drop the valid calls of the same piece.
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
# For models whose prompt describes the tools in plain text: an answer that is JSON is a call.
BARE: Shape = {
    "defaults": ANSWERS,
    "start_anchor": "\0",  # occurs in no prompt
    "fields": {
        "tool_calls": {"open_pattern": r"\A\s*(?:```(?:json)?\s*)?(?=\{\s*\"name\")", "close_pattern": r"\s*```|\Z",
                       "repeats": True, "content": "json", "content_args": LENIENT},
        "content": {"repeats": True, "join": "", "content_args": {"strip": False}},
    },
}
# The first of these strings that a chat template contains determines the format of its model's output.
WORDS: Mapping[str, Shape | None] = {
    "<function=": None,  # calls whose arguments are not JSON
    "<tool_call>": HERMES, "[ARGS]": MISTRAL_NAMED, "[TOOL_CALLS]": MISTRAL, "<|python_tag|>": LLAMA,
    "<|start_header_id|>": LLAMA,
}


@dataclass(frozen=True, slots=True)
class Said:
    """Piece of the answer's content."""

    text: str


@dataclass(frozen=True, slots=True)
class Thought:
    """Piece of the reasoning that precedes the answer."""

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
    """Import transformers' parser on first use: it takes half a second, and most servers never need it."""
    return import_module("transformers.utils.chat_parsing")


class Reader:
    """Streaming parser of one answer.

    `prompt` is the prompt or its end: a template may have begun the answer there. From the first invalid call on, calls
    are no longer parsed but returned as text.
    """

    def __init__(self, shape: Shape, prompt: str) -> None:
        self._shape = shape
        self._begun = begun(prompt, shape["start_anchor"])
        self._parser = parser(shape, self._begun)
        self._has_calls = True
        self._since = ""  # text since the last valid call
        self._told: Told = {Said: 0, Thought: 0}  # characters of it that were returned
        self._body = ""  # body of the call that is being read

    def feed(self, text: str) -> list[Part]:
        """Add text, including that of special tokens; return the parts that are certain by now."""
        self._since += text
        return self._read(lambda: self._parser.feed(text), over=False)

    def closes(self, token: str) -> bool:
        """Return whether this token closes a field."""
        return any(closes(field, token) for field in self._shape["fields"].values())

    def finish(self) -> list[Part]:
        """Return the remaining parts, at the end of the answer."""
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
        """Parse the text since the last valid call again, without calls; leave out what was returned before."""
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
    """Return whether `token` closes the field. An empty match of the field's pattern does not count."""
    found = re.search(field.get("close_pattern", r"\Z"), token)
    return bool(field.get("close") == token or (found and found[0]))


class CallReader:
    """Parser of an answer that must be the JSON of one call. A truncated call is returned as content."""

    def __init__(self) -> None:
        self._text = ""

    def feed(self, text: str) -> list[Part]:
        self._text += text
        return []

    def closes(self, _token: str) -> bool:
        """Return False: no token closes the JSON, which is parsed by `finish`."""
        return False

    def finish(self) -> list[Part]:
        try:
            return [call_of(json.JSONDecoder().raw_decode(self._text.lstrip())[0])]
        except (ValueError, RecursionError):
            return [Said(self._text)]


AnyReader = Reader | CallReader


def opening(shape: Shape | None, template: str) -> str:
    """Return the text that precedes the JSON of a call; empty if that is not fixed, or if calls form a list."""
    field = (shape or {}).get("fields", {}).get(CALLS, {})
    text = literal(field) if field.get("content") == "json" and field.get("repeats") else ""
    return f"{text}\n" if text and (f"{text}\\n" in template or f"{text}\n" in template) else text


def literal(field: Mapping[str, Any]) -> str:
    """Return the fixed text that opens a field, or an empty string if it is not fixed."""
    pattern = field.get("open_pattern", "").removeprefix(r"\s*").removesuffix(r"\s*")
    text = re.sub(r"\\(\W)", r"\1", pattern)
    return str(field.get("open") or (text if re.escape(text) == pattern else ""))


def parser(shape: Shape, prefix: str) -> Any:
    return parsing().ResponseParser(dict(shape), prefix=prefix)


def begun(prompt: str, anchor: str) -> str:
    """Return the prompt from the last anchor on, where the answer begins; empty without an anchor."""
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
    """Return the call that a JSON value describes. Raises ValueError if it is not a call."""
    name = function.get("name") if isinstance(function, dict) else None
    arguments = function.get("arguments", function.get("parameters", {})) if name else None
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise ValueError("a call has a name and an object of arguments")
    return Call(name, json.dumps(arguments, ensure_ascii=False))


def read_whole(reader: AnyReader, pieces: Iterable[str]) -> list[Part]:
    """Parse a complete answer; adjacent parts of the same kind are joined."""
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
