"""Parsers of a model's output into content, reasoning and tool calls, by its format (output_formats.py). Output that
does not fit its format is content. constrained_answer_parsers.py parses what a grammar ensures."""

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from router.text.output_formats import (
    REASONING_FIELDS,
    TOOL_CALLS_FIELD,
    OutputFormat,
    find_begun_answer,
    has_json_calls,
    without_tool_calls,
)
from router.text.streaming_json_reader import StreamingJsonReader
from router.text.transformers_parser import compile_field_end, create_parser, find_open_field, has_streamed_calls

# Beginning of the JSON of a call, up to its arguments.
CALL_OPENING_PATTERN = (r'\s*\{\s*"name"\s*:\s*("(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*")'
                        r'\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)')
OBJECT_AHEAD = r'\s*(?=\{\s*["}])'
CALL_OPENING, ARGUMENTS_OPENING = re.compile(CALL_OPENING_PATTERN + OBJECT_AHEAD), re.compile(OBJECT_AHEAD)
MAX_OPENING_CHARACTERS = 1024  # of the beginning of a call whose arguments are returned as they come


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
class ToolCallStart:
    """Beginning of a call whose arguments follow in pieces, up to the next part that is none of them."""

    name: str


@dataclass(frozen=True, slots=True)
class ArgumentsPiece:
    """Piece of the JSON of a call's arguments."""

    text: str


ResponsePart = ContentPiece | ReasoningPiece | ParsedToolCall | ToolCallStart | ArgumentsPiece
WholePart = ContentPiece | ReasoningPiece | ParsedToolCall


class ResponseParserProtocol(Protocol):
    """Parser of one answer."""

    strips_text: bool  # whether whitespace around the text separates it from calls

    def feed(self, text: str) -> list[ResponsePart]:
        """Add text, including that of special tokens; return the parts that are certain by now."""

    def is_field_end_token(self, token: str) -> bool:
        """Return whether this token belongs to the answer though it ends it."""

    def finish(self) -> list[ResponsePart]:
        """Return the remaining parts, at the end of the answer."""


class OutputFormatParser:
    """Streaming parser of one answer. `prompt` is the prompt or its end: a template may have begun the answer there.
    A call whose name is known and whose arguments have begun is returned as it comes, and stays a call whatever
    follows. From the first other invalid call on, calls are no longer parsed but returned as text."""

    def __init__(self, output_format: OutputFormat, prompt: str, tools: Sequence[Mapping[str, Any]] | None = None,
                 max_calls: int | None = None, *, streams_calls: bool = True) -> None:
        """`tools`: those that may be called (None: any), as chat templates take them; a call of another is text. Calls
        beyond `max_calls` are left out. Without `streams_calls`, all calls come whole."""
        self._tool_names = None if tools is None else {tool["function"]["name"] for tool in tools}
        self._num_calls_left = max_calls
        calls = output_format["fields"].get(TOOL_CALLS_FIELD)
        self.strips_text = calls is not None  # whether whitespace around the text separates it from calls
        self._call_end = compile_field_end(calls or {})
        self._has_json_calls = has_json_calls(output_format)
        self._has_streamed_calls, self._streams_calls = has_streamed_calls(output_format), streams_calls
        self._wraps_calls = calls is not None and "transform" not in calls
        self._output_format = output_format
        self._response_prefix = find_begun_answer(output_format, prompt)
        self._parser = create_parser(output_format, self._response_prefix, tools or ())
        self._open_field = find_open_field(self._parser.initial_events)
        self._parses_calls = True
        self._text_since_call = ""  # text since the last valid call
        self._num_returned: Counter[type[ResponsePart]] = Counter()  # characters of it that were returned
        self._call = JsonCallReader(None, ())  # that is being read

    def feed(self, text: str) -> list[ResponsePart]:
        """Add text, including that of special tokens; return the parts that are certain by now."""
        self._text_since_call += text
        return self._collect_parts(text)

    def is_field_end_token(self, token: str) -> bool:
        """Return whether this token closes the reasoning or the call that is being read."""
        if self._parser.is_in_json:
            return False
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
        field, kind = event["field"], event["type"]
        if field != TOOL_CALLS_FIELD:
            if kind == "region_chunk" and event["text"]:
                part_type = ReasoningPiece if field in REASONING_FIELDS else ContentPiece
                self._num_returned[part_type] += len(event["text"])
                yield part_type(event["text"])
        elif kind == "region_open":
            can_begin = self._has_streamed_calls and self._streams_calls and self._num_calls_left != 0
            self._call = JsonCallReader(event["captures"].get("name"), self._tool_names if can_begin else ())
        elif kind == "region_chunk":
            yield from self._call.feed(event["text"])
        else:
            calls = self._finish_call(event, is_finished=is_finished)
            # The call stands behind the text that was returned, which may hold the same JSON.
            body_end = (self._text_since_call.find(self._call.body, self._num_returned.total())
                        + len(self._call.body))
            call_end = self._call_end.search(self._text_since_call, body_end)
            self._text_since_call = self._text_since_call[body_end if call_end is None else call_end.end():]
            self._response_prefix, self._num_returned = "", Counter()
            yield from calls

    def _finish_call(self, event: Mapping[str, Any], *, is_finished: bool) -> Sequence[ResponsePart]:
        """Return what was not returned of a call, or of a list of calls, that ends here. Raises ValueError if there is
        an invalid one."""
        parts: Sequence[ResponsePart]
        if self._call.has_begun:
            num_calls, parts = 1, self._call.finish()
        elif is_finished and not self._has_json_calls and not self._call_end.search(self._text_since_call):
            raise ValueError("a call in tags that the answer does not close is cut off")
        else:
            value = self._call.read_value() if self._has_streamed_calls else event["value"]
            items = [item.get("function", item) if self._wraps_calls or not self._has_streamed_calls else item
                     for item in (value if isinstance(value, list) else [value])]
            parts = [parse_tool_call(item, self._tool_names) for item in items][:self._num_calls_left]
            num_calls = len(parts)
        if self._num_calls_left is not None:
            self._num_calls_left -= num_calls
        return parts


class JsonCallReader:
    """Reader of the text of a call in JSON. `name`: of the function, if it stands before the JSON. Arguments of
    functions among `tool_names` (None: of any) are returned as they come, as far as they are JSON."""

    def __init__(self, name: str | None, tool_names: Collection[str] | None) -> None:
        self.body = ""
        self._name, self._tool_names = name, tool_names
        self._arguments: StreamingJsonReader | None = None  # once the arguments have begun
        self._rest = ""  # text behind the arguments

    @property
    def has_begun(self) -> bool:
        """Whether the opening of the call was returned."""
        return self._arguments is not None

    def feed(self, text: str) -> list[ResponsePart]:
        num_characters = len(self.body)
        self.body += text
        parts: list[ResponsePart] = []
        if self._arguments is None:
            if num_characters > MAX_OPENING_CHARACTERS:
                return parts
            match = (CALL_OPENING if self._name is None else ARGUMENTS_OPENING).match(self.body)
            if match is None or match.end() > MAX_OPENING_CHARACTERS:
                return parts
            name = json.loads(match[1]) if self._name is None else self._name
            if self._tool_names is not None and name not in self._tool_names:
                return parts
            self._arguments, text = StreamingJsonReader(), self.body[match.end():]
            parts.append(ToolCallStart(name))
        arguments = self._arguments.take(text)
        self._rest += text[len(arguments):]
        return parts + [ArgumentsPiece(arguments)] * bool(arguments)

    def read_value(self) -> Any:
        """Return the value of the JSON, with the name that stands before it. Raises ValueError."""
        value = json.loads(self.body)
        return value if self._name is None else {"name": self._name, "arguments": value}

    def finish(self) -> list[ResponsePart]:
        """Return the text behind a call that has begun, if it is none of the call's."""
        rest = self._rest
        if self._arguments is not None and self._arguments.is_complete:
            rest = rest.lstrip() if self._name is not None else rest.lstrip().removeprefix("}")
            if rest.strip() and self._is_json():
                return []
        return [ContentPiece(rest)] if rest.strip() else []

    def _is_json(self) -> bool:
        try:
            self.read_value()
        except (ValueError, RecursionError):
            return False
        return True


def parse_tool_call(function: Any, tool_names: Collection[str] | None = None) -> ParsedToolCall:
    """Return the call that a JSON value describes. Raises ValueError if it is not a call, or of an unknown function."""
    name = function.get("name") if isinstance(function, dict) else None
    arguments = function.get("arguments", function.get("parameters", {})) if name else None
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise ValueError("a call has a name and an object of arguments")
    if tool_names is not None and name not in tool_names:
        raise ValueError("a call names a function that the request offers")
    return ParsedToolCall(name, json.dumps(arguments, ensure_ascii=False, allow_nan=False))


def parse_complete_response(parser: ResponseParserProtocol, pieces: Iterable[str]) -> list[WholePart]:
    """Parse a complete answer; adjacent parts of the same kind are joined."""
    return join_adjacent_parts([*(part for piece in pieces for part in parser.feed(piece)), *parser.finish()])


def join_adjacent_parts(parts: Iterable[ResponsePart]) -> list[WholePart]:
    result: list[WholePart] = []
    for part in parts:
        last = result[-1] if result else None
        if isinstance(part, ToolCallStart):
            result.append(ParsedToolCall(part.name, ""))
        elif isinstance(part, ArgumentsPiece):
            assert isinstance(last, ParsedToolCall), "arguments follow the opening of their call"
            result[-1] = ParsedToolCall(last.name, last.arguments + part.text)
        elif not isinstance(part, ParsedToolCall) and isinstance(last, type(part)):
            result[-1] = type(part)(last.text + part.text)
        else:
            result.append(part)
    return result
