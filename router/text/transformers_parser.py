"""transformers' parser of answers in a format: its import on first use, and what it is extended by."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import Any

from router.errors import NotReady
from router.text.output_formats import (
    CALL_TRANSFORM,
    NAMED_CALL_TRANSFORM,
    SYNTAX_KEY,
    TOOL_CALLS_FIELD,
    OutputFormat,
    has_json_calls,
    is_json_call,
)
from router.text.streaming_json_reader import StreamingJsonReader


def import_chat_parsing() -> Any:
    """Import transformers' parser on first use: it takes half a second, and most servers never need it. Raises NotReady
    if its files cannot be read now, as without descriptors; the next use tries again."""
    try:
        return import_module("transformers.utils.chat_parsing")
    except OSError as error:
        raise NotReady(f"the parser of answers cannot be loaded now: {error}; try again") from error


def preload_chat_parsing() -> None:
    """Import transformers' parser ahead of its first use, which tries again if that fails."""
    with suppress(NotReady):
        import_chat_parsing()


def create_parser(output_format: OutputFormat, prefix: str, tools: Sequence[Mapping[str, Any]] = ()) -> Any:
    """Return transformers' parser. Arguments that are no JSON get the types of the tools' parameters. Calls that are
    returned as they come are text to it."""
    template = {key: value for key, value in output_format.items() if key != SYNTAX_KEY}
    if has_streamed_calls(output_format):
        field = template["fields"][TOOL_CALLS_FIELD] | {"content": "text", "content_args": {"strip": False}}
        template["fields"] = template["fields"] | {TOOL_CALLS_FIELD: field}
    typed_tools = [] if has_json_calls(output_format) else [dict(tool) for tool in tools]
    return get_parser_class()(template, prefix=prefix, tools=typed_tools,
                              has_json_calls=has_streamed_calls(output_format))


@cache
def get_parser_class() -> Any:
    class CallResponseParser(import_chat_parsing().ResponseParser):  # type: ignore[misc]  # imported on first use
        """Parser whose events of opened fields have what their patterns captured. Nothing closes a call within its
        JSON, as in a string that holds such a mark."""

        _pos: int

        def __init__(self, *arguments: Any, has_json_calls: bool, **options: Any) -> None:
            self._json_field = TOOL_CALLS_FIELD if has_json_calls else ""
            self._json_reader = StreamingJsonReader()  # of the last call
            self._json_end = 0  # where in the text its JSON ends
            super().__init__(*arguments, **options)

        @property
        def is_in_json(self) -> bool:
            """Whether the JSON of a call is incomplete."""
            return self._current == self._json_field and not self._json_reader.is_finished

        def _open_explicit(self, events: list[dict[str, Any]], field: Any, match: Any) -> None:
            super()._open_explicit(events, field, match)
            events[-1]["captures"] = match.groupdict()
            self._json_reader, self._json_end = StreamingJsonReader(), match.end()

        def _scan(self, watch: Any, eos: bool) -> Any:
            if self._current == self._json_field:
                self._json_end += len(self._json_reader.take(self._buffer[self._json_end:]))
                if self.is_in_json:
                    return None, len(self._buffer)
                place, self._pos = self._pos, max(self._pos, self._json_end)
                result = super()._scan(watch, eos)
                self._pos = place
                return result
            return super()._scan(watch, eos)

    return CallResponseParser


def has_streamed_calls(output_format: OutputFormat) -> bool:
    """Return whether calls are plain JSON, so that their arguments can be returned as they come."""
    field = output_format["fields"].get(TOOL_CALLS_FIELD, {})
    return is_json_call(field, None, CALL_TRANSFORM, NAMED_CALL_TRANSFORM)


def find_open_field(events: Sequence[Mapping[str, Any]]) -> str:
    """Return the field that is open after events of transformers' parser; empty if none is."""
    last = next((event for event in reversed(events) if event["type"] != "region_chunk"), None)
    return str(last["field"]) if last is not None and last["type"] == "region_open" else ""


def compile_field_end(field: Mapping[str, Any]) -> re.Pattern[str]:
    """Return the pattern of what ends a field, such as a call; an empty one if nothing does, or if the model's own
    format has it in another dialect of patterns."""
    closes = field.get("close") or ()
    pattern = field.get("close_pattern") or "|".join(map(re.escape, [closes] if isinstance(closes, str) else closes))
    try:
        return re.compile(pattern)
    except re.error:
        return re.compile("")
