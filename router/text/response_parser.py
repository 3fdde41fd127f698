"""Parser of a model's output into content, reasoning and tool calls. The format of the output (`OutputFormat`) is data:
the `response_template` of tokenizer_config.json, as in transformers, or one of those below, chosen by strings in the
chat template. Output that does not fit its format is content."""

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

OutputFormat = Mapping[str, Any]
TOOL_CALLS_FIELD, REASONING_FIELDS = "tool_calls", ("reasoning_content", "reasoning", "thinking")
CONTENT = {"repeats": True, "join": "", "content_args": {"strip": False}}
# Repetitions in patterns are bounded: each piece of the output is searched again from where a match may begin.
# Invalid calls are rejected one by one, by `parse_tool_call`: the parser would also drop valid ones of the same piece.
JSON_CALLS = {"content": "json", "content_args": {"allow_non_json": True}}
HERMES_FORMAT: OutputFormat = {
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "reasoning_content": {"open": "<think>", "close_pattern": r"</think>\s{0,16}"},
        "tool_calls": {**JSON_CALLS, "open_pattern": r"\s{0,16}<tool_call>", "close": "</tool_call>", "repeats": True,
                       "transform": {"function": "{content}"}},
        "content": {**CONTENT, "close_pattern": r"\s{0,16}<\|im_end\|>"},
    },
}
QWEN_CODER_FORMAT: OutputFormat = {
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "reasoning_content": {"open": "<think>", "close_pattern": r"</think>\s{0,16}"},
        "tool_calls": {"content": "xml-inline", "content_args": {
                           "tag_pattern": r"<parameter=(?P<key>[^>\n]{1,128})>\n?(?P<value>.*?)\n?</parameter>"},
                       "open_pattern": r"\s{0,16}<tool_call>\s{0,16}<function=(?P<name>[^>\n]{1,128})>",
                       "close_pattern": r"</function>\s{0,16}</tool_call>", "repeats": True,
                       "transform": {"function": {"name": "{name}", "arguments": "{content}"}}},
        "content": {**CONTENT, "close_pattern": r"\s{0,16}<\|im_end\|>"},
    },
}
LLAMA_FORMAT: OutputFormat = {
    "start_anchor": "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "fields": {
        "tool_calls": {**JSON_CALLS,
                       "open_pattern": r"\s{0,16}<\|python_tag\|>\s{0,16}|\A\s{0,16}(?=\{\s{0,16}\"name\")",
                       "close_pattern": r"<\|eom_id\|>|<\|eot_id\|>", "repeats": True,
                       "transform": {"function": "{content}"}},
        "content": {**CONTENT, "close_pattern": r"\s{0,16}(?:<\|eom_id\|>|<\|eot_id\|>)"},
    },
}
MISTRAL_FORMAT: OutputFormat = {
    "start_anchor": "[/INST]",
    "fields": {
        "tool_calls": {**JSON_CALLS, "open_pattern": r"\s{0,16}\[TOOL_CALLS\]\s{0,16}", "close": "</s>"},
        "content": {**CONTENT, "close": "</s>"},
    },
}
MISTRAL_NAMED_FORMAT: OutputFormat = {
    "start_anchor": "[/INST]",
    "fields": {
        "tool_calls": {**JSON_CALLS, "open_pattern": r"\s{0,16}\[TOOL_CALLS\](?P<name>[^\[\s]{1,128})\s{0,16}"
                                                     r"(?:\[ARGS\])\s{0,16}",
                       "close_pattern": r"</s>|(?=\[TOOL_CALLS\])", "repeats": True,
                       "transform": {"function": {"name": "{name}", "arguments": "{content}"}}},
        "content": {**CONTENT, "close": "</s>"},
    },
}
DEEPSEEK_FORMAT: OutputFormat = {
    "start_anchor": "<\uff5cAssistant\uff5c>",
    "fields": {
        "reasoning_content": {"open": "<think>", "close_pattern": r"</think>\s{0,16}"},
        "tool_calls": {**JSON_CALLS,
                       "open_pattern": r"\s{0,16}(?:<\uff5ctool\u2581calls\u2581begin\uff5c>)?\s{0,16}"
                                       r"<\uff5ctool\u2581call\u2581begin\uff5c>function<\uff5ctool\u2581sep\uff5c>"
                                       r"(?P<name>[^\n]{1,128})\n```json\n",
                       "close": "\n```<\uff5ctool\u2581call\u2581end\uff5c>", "repeats": True,
                       "transform": {"function": {"name": "{name}", "arguments": "{content}"}}},
        "after_calls": {"open": "<\uff5ctool\u2581calls\u2581end\uff5c>",
                        "close": "<\uff5cend\u2581of\u2581sentence\uff5c>"},
        "content": {**CONTENT, "close_pattern": r"\s{0,16}<\uff5cend\u2581of\u2581sentence\uff5c>"},
    },
}
# For models whose prompt describes the tools in plain text: an answer that is JSON is a call.
BARE_JSON_FORMAT: OutputFormat = {
    "start_anchor": "\0",  # occurs in no prompt
    "fields": {
        "tool_calls": {**JSON_CALLS, "open_pattern": r"\A\s{0,16}(?:```(?:json)?\s{0,16})?(?=\{\s{0,16}\"name\")",
                       "close_pattern": r"\s{0,16}```|\Z", "repeats": True},
        "content": CONTENT,
    },
}
# The first of these strings that a chat template contains determines the format of its model's output.
FORMAT_BY_TEMPLATE_MARKER: Mapping[str, OutputFormat] = {
    "<function=": QWEN_CODER_FORMAT, "<tool_call>": HERMES_FORMAT, "[ARGS]": MISTRAL_NAMED_FORMAT,
    "[TOOL_CALLS]": MISTRAL_FORMAT,
    "<\uff5cAssistant\uff5c>": DEEPSEEK_FORMAT, "<|python_tag|>": LLAMA_FORMAT, "<|start_header_id|>": LLAMA_FORMAT,
}

# Beginning of a required call, up to its arguments.
CALL_OPENING_PATTERN = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*")'
                                  r'\s*,\s*"arguments"\s*:\s*(?=\{)')


@dataclass(frozen=True, slots=True)
class ContentPiece:
    text: str


@dataclass(frozen=True, slots=True)
class ReasoningPiece:
    """Piece of the reasoning that precedes the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ParsedToolCall:
    """A whole call. `arguments` is JSON, unless the answer was cut off within it."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ToolCallOpening:
    """Beginning of a call whose arguments follow in pieces, up to the next part that is none of them."""

    name: str


@dataclass(frozen=True, slots=True)
class ArgumentsPiece:
    """Piece of the JSON of a call's arguments."""

    text: str


ResponsePart = ContentPiece | ReasoningPiece | ParsedToolCall | ToolCallOpening | ArgumentsPiece
WholePart = ContentPiece | ReasoningPiece | ParsedToolCall


def detect_output_format(template: str) -> OutputFormat | None:
    return next((output_format for marker, output_format in FORMAT_BY_TEMPLATE_MARKER.items() if marker in template),
                None)


def find_reasoning_format(output_format: OutputFormat | None, template: str) -> OutputFormat | None:
    """Return the format of answers without tool calls if the model's template knows reasoning, else None."""
    if output_format is None:
        return None
    fields = output_format["fields"]
    openings = [fields[name].get("open", "") for name in REASONING_FIELDS if name in fields]
    return without_tool_calls(output_format) if any(opening in template for opening in openings) else None


def without_tool_calls(output_format: OutputFormat) -> OutputFormat:
    return {**output_format, "fields": {name: field for name, field in output_format["fields"].items()
                                        if name != TOOL_CALLS_FIELD}}


def import_chat_parsing() -> Any:
    """Import transformers' parser on first use: it takes half a second, and most servers never need it."""
    return import_module("transformers.utils.chat_parsing")


class StreamingResponseParser:
    """Streaming parser of one answer. `prompt` is the prompt or its end: a template may have begun the answer there.
    From the first invalid call on, calls are no longer parsed but returned as text."""

    def __init__(self, output_format: OutputFormat, prompt: str, tools: Sequence[Mapping[str, Any]] | None = None,
                 max_calls: int | None = None) -> None:
        """`tools`: those that may be called (None: any), as chat templates take them; a call of another is text. Calls
        beyond `max_calls` are left out."""
        self._tool_names = None if tools is None else {tool["function"]["name"] for tool in tools}
        self._num_calls_left = max_calls
        calls = output_format["fields"].get(TOOL_CALLS_FIELD)
        self.strips_text = calls is not None  # whether whitespace around the text separates it from calls
        self._call_end = compile_field_end(calls or {})
        self._has_json_calls = has_json_calls(output_format)
        self._output_format = output_format
        _, anchor, rest = prompt.rpartition(output_format["start_anchor"])
        self._response_prefix = anchor + rest if anchor else ""  # the prompt from where the answer begins
        self._parser = create_parser(output_format, self._response_prefix, tools or ())
        self._open_field = find_open_field(self._parser.initial_events)
        self._parses_calls = True
        self._text_since_call = ""  # text since the last valid call
        self._num_returned: Counter[type[ResponsePart]] = Counter()  # characters of it that were returned
        self._call_body = ""  # body of the call that is being read

    def feed(self, text: str) -> list[ResponsePart]:
        """Add text, including that of special tokens; return the parts that are certain by now."""
        self._text_since_call += text
        return self._collect_parts(text)

    def closes_field(self, token: str) -> bool:
        """Return whether this token closes the reasoning or the call that is being read."""
        field = self._output_format["fields"].get(self._open_field, {})
        if field.keys().isdisjoint({"open", "open_pattern"}):  # the text around them
            return False
        match = compile_field_end(field).search(token)
        return match is not None and bool(match[0])

    def finish(self) -> list[ResponsePart]:
        """Return the remaining parts, at the end of the answer."""
        return self._collect_parts(None)

    def _collect_parts(self, text: str | None) -> list[ResponsePart]:
        """Return the parts that are certain after more text, or at the end if it is None."""
        parts: list[ResponsePart] = []
        try:
            for event in self._parser.finalize()[1] if text is None else self._parser.feed(text):
                if event["type"] != "region_chunk":
                    self._open_field = find_open_field([event])
                parts += self._parse_event(event, is_finished=text is None)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            if not self._parses_calls:
                raise
            parts += self._reparse_as_text(is_finished=text is None)
        return parts

    def _reparse_as_text(self, *, is_finished: bool) -> list[ResponsePart]:
        """Parse the text since the last valid call again, without calls; leave out what was returned before."""
        text, num_to_skip = self._text_since_call, self._num_returned
        self._parser = create_parser(without_tool_calls(self._output_format), self._response_prefix)
        self._open_field = find_open_field(self._parser.initial_events)
        self._parses_calls, self._text_since_call, self._num_returned = False, "", Counter()
        new_parts: list[ResponsePart] = []
        for part in self.feed(text) + (self.finish() if is_finished else []):
            assert isinstance(part, ContentPiece | ReasoningPiece), "the parser reads no calls any more"
            num_skipped = min(num_to_skip[type(part)], len(part.text))
            num_to_skip[type(part)] -= num_skipped
            if new_text := part.text[num_skipped:]:
                new_parts.append(type(part)(new_text))
        return new_parts

    def _parse_event(self, event: Mapping[str, Any], *, is_finished: bool) -> Iterator[ResponsePart]:
        field, is_text = event["field"], event["type"] == "region_chunk"
        if field == TOOL_CALLS_FIELD and is_text:
            self._call_body += event["text"]
        elif field == TOOL_CALLS_FIELD and event["type"] == "region_close":
            if is_finished and not self._has_json_calls and not self._call_end.search(self._text_since_call):
                raise ValueError("a call in tags that the answer does not close is cut off")
            items = event["value"] if isinstance(event["value"], list) else [event["value"]]
            calls = [parse_tool_call(item.get("function", item), self._tool_names) for item in items]
            if self._call_body:
                self._text_since_call = self._text_since_call.partition(self._call_body)[2]
            call_end = self._call_end.search(self._text_since_call)
            self._text_since_call = self._text_since_call[0 if call_end is None else call_end.end():]
            self._call_body, self._response_prefix, self._num_returned = "", "", Counter()
            if self._num_calls_left is not None:
                calls = calls[:self._num_calls_left]
                self._num_calls_left -= len(calls)
            yield from calls
        elif is_text and event["text"]:
            kind = ReasoningPiece if field in REASONING_FIELDS else ContentPiece
            self._num_returned[kind] += len(event["text"])
            yield kind(event["text"])


class RequiredCallParser:
    """Parser of an answer that must be the JSON of one call, which a grammar ensures. The arguments are returned as
    they come. An answer that is cut off before them is returned as content."""

    strips_text = True

    def __init__(self) -> None:
        self._text = ""  # that was not returned yet
        self._arguments_end: ObjectEndFinder | None = None  # once the arguments have begun

    def feed(self, text: str) -> list[ResponsePart]:
        self._text += text
        parts: list[ResponsePart] = []
        if self._arguments_end is None:
            if (match := CALL_OPENING_PATTERN.match(self._text)) is None:
                return parts
            self._arguments_end, self._text = ObjectEndFinder(), self._text[match.end():]
            parts.append(ToolCallOpening(json.loads(match[1])))
        arguments, self._text = self._arguments_end.take(self._text), ""
        return parts + [ArgumentsPiece(arguments)] * bool(arguments)

    def closes_field(self, _token: str) -> bool:
        """Return False: the JSON itself tells where the call ends."""
        return False

    def finish(self) -> list[ResponsePart]:
        return [ContentPiece(self._text)] if self._text else []


class ObjectEndFinder:
    """Finds the end of a JSON object in a text that comes in pieces, and drops what follows it."""

    def __init__(self) -> None:
        self._depth = 0
        self._is_in_string = self._is_escaped = self._is_complete = False

    def take(self, piece: str) -> str:
        """Return the beginning of the piece that belongs to the object."""
        for index, character in enumerate(piece):
            if self._is_complete:
                return piece[:index]
            if self._is_escaped:
                self._is_escaped = False
            elif self._is_in_string:
                self._is_escaped, self._is_in_string = character == "\\", character != '"'
            elif character == '"':
                self._is_in_string = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                self._is_complete = not self._depth
        return piece


AnyResponseParser = StreamingResponseParser | RequiredCallParser


def find_call_opening(output_format: OutputFormat | None, template: str) -> str:
    """Return the text that precedes the JSON of a call; empty if that is not fixed, or if calls form a list."""
    field = (output_format or {}).get("fields", {}).get(TOOL_CALLS_FIELD, {})
    if field.get("content") != "json" or not field.get("repeats"):
        return ""
    pattern = re.sub(r"^\\s(?:\*|\{0,16\})|\\s(?:\*|\{0,16\})$", "", field.get("open_pattern", ""))
    unescaped = re.sub(r"\\(\W)", r"\1", pattern)
    text = str(field.get("open") or (unescaped if re.escape(unescaped) == pattern else ""))
    return f"{text}\n" if text and (f"{text}\\n" in template or f"{text}\n" in template) else text


def create_parser(output_format: OutputFormat, prefix: str, tools: Sequence[Mapping[str, Any]] = ()) -> Any:
    """Return transformers' parser. Arguments that are no JSON get the types of the tools' parameters."""
    typed_tools = [] if has_json_calls(output_format) else [dict(tool) for tool in tools]
    return import_chat_parsing().ResponseParser(dict(output_format), prefix=prefix, tools=typed_tools)


def find_open_field(events: Sequence[Mapping[str, Any]]) -> str:
    """Return the field that is open after events of transformers' parser; empty if none is."""
    last = next((event for event in reversed(events) if event["type"] != "region_chunk"), None)
    return str(last["field"]) if last is not None and last["type"] == "region_open" else ""


def compile_field_end(field: Mapping[str, Any]) -> re.Pattern[str]:
    """Return the pattern of what ends a field, such as a call; an empty one if nothing does, or if the model's own
    format says it in another dialect of patterns."""
    closes = field.get("close") or ()
    pattern = field.get("close_pattern") or "|".join(map(re.escape, [closes] if isinstance(closes, str) else closes))
    try:
        return re.compile(pattern)
    except re.error:
        return re.compile("")


def has_json_calls(output_format: OutputFormat) -> bool:
    """Return whether calls are JSON, which tells by itself whether a call is whole."""
    return bool(output_format["fields"].get(TOOL_CALLS_FIELD, {}).get("content") == "json")


def parse_tool_call(function: Any, tool_names: Collection[str] | None = None) -> ParsedToolCall:
    """Return the call that a JSON value describes. Raises ValueError if it is not a call, or of an unknown function."""
    name = function.get("name") if isinstance(function, dict) else None
    arguments = function.get("arguments", function.get("parameters", {})) if name else None
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise ValueError("a call has a name and an object of arguments")
    if tool_names is not None and name not in tool_names:
        raise ValueError("a call names a function that the request offers")
    return ParsedToolCall(name, json.dumps(arguments, ensure_ascii=False, allow_nan=False))


def parse_complete_response(parser: AnyResponseParser, pieces: Iterable[str]) -> list[WholePart]:
    """Parse a complete answer; adjacent parts of the same kind are joined."""
    return join_adjacent_parts([*(part for piece in pieces for part in parser.feed(piece)), *parser.finish()])


def join_adjacent_parts(parts: Iterable[ResponsePart]) -> list[WholePart]:
    result: list[WholePart] = []
    for part in parts:
        last = result[-1] if result else None
        if isinstance(part, ToolCallOpening):
            result.append(ParsedToolCall(part.name, ""))
        elif isinstance(part, ArgumentsPiece):
            assert isinstance(last, ParsedToolCall), "arguments follow the opening of their call"
            result[-1] = ParsedToolCall(last.name, last.arguments + part.text)
        elif not isinstance(part, ParsedToolCall) and isinstance(last, type(part)):
            result[-1] = type(part)(last.text + part.text)
        else:
            result.append(part)
    return result
