"""Parser of a model's output into content, reasoning and tool calls. The format of the output (`OutputFormat`) is data:
the `response_template` of tokenizer_config.json, as in transformers, or one of those below, chosen by strings in the
chat template. Output that does not fit its format is content."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

OutputFormat = Mapping[str, Any]
TOOL_CALLS_FIELD, REASONING_FIELDS = "tool_calls", ("reasoning_content", "reasoning", "thinking")
CONTENT = {"repeats": True, "join": "", "content_args": {"strip": False}}
# Invalid calls are rejected one by one, by `parse_tool_call`: the parser would also drop valid ones of the same piece.
JSON_CALLS = {"content": "json", "content_args": {"allow_non_json": True}}
HERMES_FORMAT: OutputFormat = {
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "reasoning_content": {"open": "<think>", "close_pattern": r"</think>\s*"},
        "tool_calls": {**JSON_CALLS, "open_pattern": r"\s*<tool_call>", "close": "</tool_call>", "repeats": True,
                       "transform": {"function": "{content}"}},
        "content": {**CONTENT, "close_pattern": r"\s*<\|im_end\|>"},
    },
}
LLAMA_FORMAT: OutputFormat = {
    "start_anchor": "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "fields": {
        "tool_calls": {**JSON_CALLS, "open_pattern": r"\s*<\|python_tag\|>\s*|\A\s*(?=\{\s*\"name\")",
                       "close_pattern": r"<\|eom_id\|>|<\|eot_id\|>", "repeats": True,
                       "transform": {"function": "{content}"}},
        "content": {**CONTENT, "close_pattern": r"\s*(?:<\|eom_id\|>|<\|eot_id\|>)"},
    },
}
MISTRAL_FORMAT: OutputFormat = {
    "start_anchor": "[/INST]",
    "fields": {
        "tool_calls": {**JSON_CALLS, "open_pattern": r"\s*\[TOOL_CALLS\]\s*", "close": "</s>"},
        "content": {**CONTENT, "close": "</s>"},
    },
}
MISTRAL_NAMED_FORMAT: OutputFormat = {
    "start_anchor": "[/INST]",
    "fields": {
        "tool_calls": {**JSON_CALLS, "open_pattern": r"\s*\[TOOL_CALLS\](?P<name>[^\[\s]+)\s*(?:\[ARGS\])\s*",
                       "close_pattern": r"</s>|(?=\[TOOL_CALLS\])", "repeats": True,
                       "transform": {"function": {"name": "{name}", "arguments": "{content}"}}},
        "content": {**CONTENT, "close": "</s>"},
    },
}
# For models whose prompt describes the tools in plain text: an answer that is JSON is a call.
BARE_JSON_FORMAT: OutputFormat = {
    "start_anchor": "\0",  # occurs in no prompt
    "fields": {
        "tool_calls": {**JSON_CALLS, "open_pattern": r"\A\s*(?:```(?:json)?\s*)?(?=\{\s*\"name\")",
                       "close_pattern": r"\s*```|\Z", "repeats": True},
        "content": CONTENT,
    },
}
# The first of these strings that a chat template contains determines the format of its model's output.
FORMAT_BY_TEMPLATE_MARKER: Mapping[str, OutputFormat | None] = {
    "<function=": None,  # calls whose arguments are not JSON
    "<tool_call>": HERMES_FORMAT, "[ARGS]": MISTRAL_NAMED_FORMAT, "[TOOL_CALLS]": MISTRAL_FORMAT,
    "<|python_tag|>": LLAMA_FORMAT, "<|start_header_id|>": LLAMA_FORMAT,
}


@dataclass(frozen=True, slots=True)
class ContentPiece:
    text: str


@dataclass(frozen=True, slots=True)
class ReasoningPiece:
    """Piece of the reasoning that precedes the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ParsedToolCall:
    name: str
    arguments: str  # JSON


ResponsePart = ContentPiece | ReasoningPiece | ParsedToolCall


def detect_output_format(template: str) -> OutputFormat | None:
    return next((output_format for marker, output_format in FORMAT_BY_TEMPLATE_MARKER.items() if marker in template),
                None)


def import_chat_parsing() -> Any:
    """Import transformers' parser on first use: it takes half a second, and most servers never need it."""
    return import_module("transformers.utils.chat_parsing")


class StreamingResponseParser:
    """Streaming parser of one answer. `prompt` is the prompt or its end: a template may have begun the answer there.
    From the first invalid call on, calls are no longer parsed but returned as text."""

    def __init__(self, output_format: OutputFormat, prompt: str) -> None:
        self._output_format = output_format
        _, anchor, rest = prompt.rpartition(output_format["start_anchor"])
        self._response_prefix = anchor + rest if anchor else ""  # the prompt from where the answer begins
        self._parser = create_parser(output_format, self._response_prefix)
        self._parses_calls = True
        self._text_since_call = ""  # text since the last valid call
        self._num_returned: Counter[type[ResponsePart]] = Counter()  # characters of it that were returned
        self._call_body = ""  # body of the call that is being read

    def feed(self, text: str) -> list[ResponsePart]:
        """Add text, including that of special tokens; return the parts that are certain by now."""
        self._text_since_call += text
        return self._collect_parts(text)

    def closes_field(self, token: str) -> bool:
        """Return whether this token closes a field. An empty match of the field's pattern does not count."""
        return any(field.get("close") == token
                   or ((match := re.search(field.get("close_pattern", r"\Z"), token)) is not None and match[0])
                   for field in self._output_format["fields"].values())

    def finish(self) -> list[ResponsePart]:
        """Return the remaining parts, at the end of the answer."""
        return self._collect_parts(None)

    def _collect_parts(self, text: str | None) -> list[ResponsePart]:
        """Return the parts that are certain after more text, or at the end if it is None."""
        parts: list[ResponsePart] = []
        try:
            for event in self._parser.finalize()[1] if text is None else self._parser.feed(text):
                parts += self._parse_event(event)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            if not self._parses_calls:
                raise
            parts += self._reparse_as_text(is_finished=text is None)
        return parts

    def _reparse_as_text(self, *, is_finished: bool) -> list[ResponsePart]:
        """Parse the text since the last valid call again, without calls; leave out what was returned before."""
        text, num_to_skip = self._text_since_call, self._num_returned
        fields = {name: field for name, field in self._output_format["fields"].items() if name != TOOL_CALLS_FIELD}
        self._parser = create_parser({**self._output_format, "fields": fields}, self._response_prefix)
        self._parses_calls, self._text_since_call, self._num_returned = False, "", Counter()
        new_parts: list[ResponsePart] = []
        for part in self.feed(text) + (self.finish() if is_finished else []):
            assert not isinstance(part, ParsedToolCall)
            num_skipped = min(num_to_skip[type(part)], len(part.text))
            num_to_skip[type(part)] -= num_skipped
            if new_text := part.text[num_skipped:]:
                new_parts.append(type(part)(new_text))
        return new_parts

    def _parse_event(self, event: Mapping[str, Any]) -> Iterator[ResponsePart]:
        field, is_text = event["field"], event["type"] == "region_chunk"
        if field == TOOL_CALLS_FIELD and is_text:
            self._call_body += event["text"]
        elif field == TOOL_CALLS_FIELD and event["type"] == "region_close":
            items = event["value"] if isinstance(event["value"], list) else [event["value"]]
            calls = [parse_tool_call(item.get("function", item)) for item in items]
            self._text_since_call = self._text_since_call.partition(self._call_body)[2]
            self._call_body, self._response_prefix, self._num_returned = "", "", Counter()
            yield from calls
        elif is_text and event["text"]:
            kind = ReasoningPiece if field in REASONING_FIELDS else ContentPiece
            self._num_returned[kind] += len(event["text"])
            yield kind(event["text"])


class RequiredCallParser:
    """Parser of an answer that must be the JSON of one call. A truncated call is returned as content."""

    def __init__(self) -> None:
        self._text = ""

    def feed(self, text: str) -> list[ResponsePart]:
        self._text += text
        return []

    def closes_field(self, _token: str) -> bool:
        """Return False: no token closes the JSON, which is parsed by `finish`."""
        return False

    def finish(self) -> list[ResponsePart]:
        try:
            return [parse_tool_call(json.JSONDecoder().raw_decode(self._text.lstrip())[0])]
        except (ValueError, RecursionError):
            return [ContentPiece(self._text)]


AnyResponseParser = StreamingResponseParser | RequiredCallParser


def find_call_opening(output_format: OutputFormat | None, template: str) -> str:
    """Return the text that precedes the JSON of a call; empty if that is not fixed, or if calls form a list."""
    field = (output_format or {}).get("fields", {}).get(TOOL_CALLS_FIELD, {})
    if field.get("content") != "json" or not field.get("repeats"):
        return ""
    pattern = field.get("open_pattern", "").removeprefix(r"\s*").removesuffix(r"\s*")
    unescaped = re.sub(r"\\(\W)", r"\1", pattern)
    text = str(field.get("open") or (unescaped if re.escape(unescaped) == pattern else ""))
    return f"{text}\n" if text and (f"{text}\\n" in template or f"{text}\n" in template) else text


def create_parser(output_format: OutputFormat, prefix: str) -> Any:
    return import_chat_parsing().ResponseParser(dict(output_format), prefix=prefix)


def parse_tool_call(function: Any) -> ParsedToolCall:
    """Return the call that a JSON value describes. Raises ValueError if it is not a call."""
    name = function.get("name") if isinstance(function, dict) else None
    arguments = function.get("arguments", function.get("parameters", {})) if name else None
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise ValueError("a call has a name and an object of arguments")
    return ParsedToolCall(name, json.dumps(arguments, ensure_ascii=False))


def parse_complete_response(parser: AnyResponseParser, pieces: Iterable[str]) -> list[ResponsePart]:
    """Parse a complete answer; adjacent parts of the same kind are joined."""
    return join_adjacent_parts([*(part for piece in pieces for part in parser.feed(piece)), *parser.finish()])


def join_adjacent_parts(parts: Sequence[ResponsePart]) -> list[ResponsePart]:
    result: list[ResponsePart] = []
    for part in parts:
        last = result[-1] if result else None
        if not isinstance(part, ParsedToolCall) and isinstance(last, type(part)):
            result[-1] = type(part)(last.text + part.text)
        else:
            result.append(part)
    return result
