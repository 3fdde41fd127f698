"""Parser of answers whose tool calls are a list as Python writes it: `[get_weather(city="Paris"), stop()]`. Such a list
is the beginning of an answer, and all of it are calls of known functions, or none of it is."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from router.text.response_parser import ContentPiece, ParsedToolCall, ResponsePart

MAX_CHARACTERS = 65_536  # of a list of calls; a longer one is text
MAX_DEPTH = 32  # of brackets
LIST_OPENING, LIST_CLOSING = "<|python_start|>", "<|python_end|>"  # special tokens of some models around the list
BEGINNING_PATTERN = re.compile(r"\[\s{0,16}(?:(?P<name>[A-Za-z_][\w.]{0,127})\s{0,16}(?P<call>\()?)?")
TOKEN_PATTERN = re.compile(
    r"""\s*(?:(?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|(?P<number>-?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)"""
    r"""|(?P<name>[A-Za-z_][\w.]*)|(?P<mark>[\[\](){}=,:]))\s*""", re.DOTALL)
ESCAPE_PATTERN = re.compile(
    r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U(000[0-9a-fA-F]{5}|0010[0-9a-fA-F]{4})|(.))", re.DOTALL)
ESCAPED_CHARACTERS = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "\\": "\\", "'": "'", '"': '"', "\n": ""}
CONSTANTS = {"True": True, "False": False, "None": None, "true": True, "false": False, "null": None}
CLOSING_BRACKETS = {"[": "]", "(": ")", "{": "}"}


class PythonicCallParser:
    """Streaming parser of one answer. A list of calls is returned when it is complete; text is returned as it comes."""

    strips_text = True

    def __init__(self, tools: Sequence[Mapping[str, Any]] | None = None, max_calls: int | None = None) -> None:
        """`tools`: those that may be called (None: any). Calls beyond `max_calls` are left out."""
        self._tool_names = None if tools is None else {tool["function"]["name"] for tool in tools}
        self._max_calls = max_calls
        self._text = ""  # that was not returned yet
        self._list_end = ListEndFinder()
        self._num_scanned = 0  # characters of the text in which the end of the list is not
        self._may_be_list = True
        self._may_be_closing = False  # whether LIST_CLOSING may follow

    def feed(self, text: str) -> list[ResponsePart]:
        self._text += text
        parts: list[ResponsePart] = self._read_list() if self._may_be_list else []
        return parts if self._may_be_list else parts + self._take_text()

    def is_field_end_token(self, _token: str) -> bool:
        """Return False: no token closes the list."""
        return False

    def finish(self) -> list[ResponsePart]:
        return [ContentPiece(self._text)] if self._text else []

    def _take_text(self) -> list[ResponsePart]:
        if self._may_be_closing and LIST_CLOSING.startswith(self._text):
            self._may_be_closing = self._text != LIST_CLOSING
            self._text = self._text if self._may_be_closing else ""
            return []
        text, self._text = self._text.removeprefix(LIST_CLOSING if self._may_be_closing else ""), ""
        self._may_be_closing = False
        return [ContentPiece(text)] if text else []

    def _read_list(self) -> list[ResponsePart]:
        """Return the calls if the list is complete. Decide whether there is or may be one."""
        text = self._text.lstrip().removeprefix(LIST_OPENING).lstrip()
        if not text.startswith("["):
            self._may_be_list = LIST_OPENING.startswith(text)
            return []
        offset = len(self._text) - len(text)
        end = self._list_end.find(text[self._num_scanned:])
        if end is None:
            self._num_scanned = len(text)
            self._may_be_list = self._begins_with_call(text) and self._is_in_bounds(len(text))
            return []
        self._may_be_list, end = False, self._num_scanned + end
        try:
            calls = [*parse_pythonic_calls(text[:end])] if self._is_in_bounds(end) else []
        except ValueError:
            return []
        if not calls or (self._tool_names is not None and not self._tool_names.issuperset(call.name for call in calls)):
            return []
        self._text, self._may_be_closing = self._text[offset + end:], True
        return [*calls[:self._max_calls]]

    def _is_in_bounds(self, num_characters: int) -> bool:
        return num_characters <= MAX_CHARACTERS and self._list_end.max_depth <= MAX_DEPTH

    def _begins_with_call(self, text: str) -> bool:
        """Return whether the text begins like a list of calls, as far as it goes."""
        match = BEGINNING_PATTERN.match(text)
        if match is None or (match["call"] is None and match.end() < len(text)):
            return False
        return match["call"] is None or self._tool_names is None or match["name"] in self._tool_names


class ListEndFinder:
    """Finds the end of a list of Python in a text that comes in pieces."""

    def __init__(self) -> None:
        self.max_depth = self._depth = 0
        self._quote = ""
        self._is_escaped = False

    def find(self, piece: str) -> int | None:
        """Return the place behind the list's last bracket, if it is in this piece."""
        for index, character in enumerate(piece):
            if self._is_escaped:
                self._is_escaped = False
            elif self._quote:
                self._is_escaped = character == "\\"
                self._quote = "" if character == self._quote else self._quote
            elif character in "\"'":
                self._quote = character
            elif character in "[({":
                self._depth += 1
                self.max_depth = max(self.max_depth, self._depth)
            elif character in "])}":
                self._depth -= 1
                if not self._depth:
                    return index + 1
        return None


class PythonTokenReader:
    """Tokens of an expression, one after the other: strings, numbers, names and marks."""

    def __init__(self, text: str) -> None:
        self._tokens = [*iterate_tokens(text), ("end", "")]
        self._place = 0

    @property
    def next_text(self) -> str:
        return self._tokens[self._place][1]

    def take(self, kind: str = "", text: str = "") -> tuple[str, str]:
        """Return the next token; raise ValueError if it is of another kind or text."""
        token = self._tokens[self._place]
        if token[0] == "end" or (kind and token[0] != kind) or (text and token != ("mark", text)):
            raise ValueError(f"{token[1]!r} stands where {text or kind or 'a value'} is expected")
        self._place += 1
        return token

    def take_if(self, mark: str) -> bool:
        """Take the next token if it is this mark."""
        is_mark = self._tokens[self._place] == ("mark", mark)
        self._place += is_mark
        return is_mark

    def iterate_items(self, closing: str) -> Iterator[None]:
        """Yield before each item of a list with commas, and take the commas and the closing bracket."""
        while not self.take_if(closing):
            yield
            if not self.take_if(","):
                self.take("mark", closing)
                return


def iterate_tokens(text: str) -> Iterator[tuple[str, str]]:
    place = 0
    while place < len(text):
        if (match := TOKEN_PATTERN.match(text, place)) is None:
            raise ValueError(f"{text[place:place + 20]!r} is no part of a call")
        assert match.lastgroup is not None, "each alternative is a group"
        yield match.lastgroup, match[match.lastgroup]
        place = match.end()


def parse_pythonic_calls(text: str) -> Iterator[ParsedToolCall]:
    """Yield the calls of a list. Raises ValueError if the text is no list of calls."""
    tokens = PythonTokenReader(text)
    tokens.take("mark", "[")
    for _ in tokens.iterate_items("]"):
        name = tokens.take("name")[1]
        tokens.take("mark", "(")
        arguments: dict[str, Any] = {}
        for _ in tokens.iterate_items(")"):
            key = tokens.take("name")[1]
            tokens.take("mark", "=")
            arguments[key] = parse_literal(tokens)
        yield ParsedToolCall(name, json.dumps(arguments, ensure_ascii=False, allow_nan=False))


def parse_literal(tokens: PythonTokenReader) -> Any:
    """Return the value of a literal. Raises ValueError."""
    kind, text = tokens.take()
    if kind == "string":
        return ESCAPE_PATTERN.sub(unescape, text[1:-1])
    if kind == "number":
        return float(text) if re.search("[.eE]", text) else int(text)
    if kind == "name" and text in CONSTANTS:
        return CONSTANTS[text]
    if text in {"[", "("}:
        return [parse_literal(tokens) for _ in tokens.iterate_items(CLOSING_BRACKETS[text])]
    if text != "{":
        raise ValueError(f"{text!r} is no value")
    items: dict[str, Any] = {}
    for _ in tokens.iterate_items("}"):
        key = tokens.take("string")[1]
        tokens.take("mark", ":")
        items[ESCAPE_PATTERN.sub(unescape, key[1:-1])] = parse_literal(tokens)
    return items


def unescape(match: re.Match[str]) -> str:
    """Return the character of an escape in a string, or an unknown escape unchanged, as Python does."""
    code = match[1] or match[2] or match[3]
    return chr(int(code, 16)) if code else ESCAPED_CHARACTERS.get(match[4], match[0])
