"""Parsers of answers that a grammar constrains: behind the reasoning stands a text in a format, a required call, or
either calls or such a text. Marks are looked for around reasoning and calls, never in a text in a format."""

import json
import re
from collections.abc import Callable, Collection
from functools import cache

from router.text.output_formats import OutputSyntax, ReasoningState
from router.text.response_parser import (
    CALL_OPENING_PATTERN,
    MAX_OPENING_CHARACTERS,
    ArgumentsPiece,
    ContentPiece,
    ReasoningPiece,
    ResponseParserProtocol,
    ResponsePart,
    ToolCallStart,
)
from router.text.streaming_json_reader import StreamingJsonReader

REQUIRED_CALL_OPENING = re.compile(CALL_OPENING_PATTERN)
NAME_CHARACTERS = r'"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*'
ESCAPE_BEGINNING = r"(?:\\(?:u[0-9a-fA-F]{0,3})?)?"
BLANK_PATTERN = r"[ \t\n\r]*"


class ConstrainedAnswerParser:
    """Parser of an answer that a grammar ensures: reasoning, if the prompt leaves room for it, and a text in a format,
    in which nothing else is looked for."""

    def __init__(self, syntax: OutputSyntax | None = None, state: ReasoningState = ReasoningState.CLOSED,
                 opening: str = "") -> None:
        """`state`: whether reasoning as in `syntax` precedes the text. `opening`: what may precede the text then."""
        syntax = OutputSyntax() if syntax is None else syntax
        self.strips_text = False
        self._reasoning_state = state if syntax.thoughts is not None else ReasoningState.CLOSED
        self._thoughts_opening, self._thoughts_closing = syntax.thoughts or ("", "")
        self._marks = [] if self._reasoning_state is ReasoningState.CLOSED else [
            mark.strip() for mark in (syntax.thoughts_end, opening or syntax.answer_opening) if mark]
        # Whether whitespace and marks that separate the text from reasoning may follow.
        self._is_at_start = self._reasoning_state is not ReasoningState.CLOSED
        self._text = ""  # that was not returned yet

    def feed(self, text: str) -> list[ResponsePart]:
        self._text += text
        if self._reasoning_state is ReasoningState.CLOSED and not self._is_at_start:
            return self._parse_answer_text()
        parts = self._take_reasoning()
        if self._reasoning_state is ReasoningState.CLOSED:
            self._skip_marks()
            parts += [] if self._is_at_start else self._parse_answer_text()
        return parts

    def is_field_end_token(self, _token: str) -> bool:
        """Return False: the grammar determines the end of the answer."""
        return False

    def finish(self) -> list[ResponsePart]:
        part_type = ReasoningPiece if self._reasoning_state is ReasoningState.OPEN else ContentPiece
        return [part_type(self._text)] if self._text else []

    def _parse_answer_text(self) -> list[ResponsePart]:
        """Return the parts that are certain by now of the text behind the reasoning."""
        text, self._text = self._text, ""
        return [ContentPiece(text)] if text else []

    def _skip_marks(self) -> None:
        """Skip whitespace and marks before the text, as far as it is there."""
        while self._is_at_start:
            text = self._text.lstrip()
            if self._marks and text.startswith(self._marks[0]):
                text = text.removeprefix(self._marks.pop(0))
            elif self._marks and not self._marks[0].startswith(text):
                del self._marks[0]
                continue
            elif self._marks or not text:
                return
            else:
                self._is_at_start = False
            self._text = text

    def _take_reasoning(self) -> list[ResponsePart]:
        """Return the reasoning that is certain by now, which ends with the first closing."""
        if self._reasoning_state is ReasoningState.POSSIBLE:
            text = self._text.lstrip()
            if text.startswith(self._thoughts_opening):
                self._reasoning_state, self._text = ReasoningState.OPEN, text.removeprefix(self._thoughts_opening)
            elif not self._thoughts_opening.startswith(text):
                self._reasoning_state, self._is_at_start = ReasoningState.CLOSED, bool(self._marks)
        if self._reasoning_state is not ReasoningState.OPEN:
            return []
        reasoning, closing, rest = self._text.partition(self._thoughts_closing)
        if closing:
            self._reasoning_state = ReasoningState.CLOSED
        else:  # its end may be the beginning of the closing
            num_held = next(length for length in range(len(self._thoughts_closing) - 1, -1, -1)
                            if reasoning.endswith(self._thoughts_closing[:length]))
            reasoning, rest = reasoning[:len(reasoning) - num_held], reasoning[len(reasoning) - num_held:]
        self._text = rest
        return [ReasoningPiece(reasoning)] if reasoning else []


class RequiredCallParser(ConstrainedAnswerParser):
    """Parser of an answer that must be the JSON of one call. The arguments are returned as they come, behind a long
    opening only at the end. An answer that is cut off before them is returned as content."""

    def __init__(self, syntax: OutputSyntax | None = None, state: ReasoningState = ReasoningState.CLOSED,
                 opening: str = "") -> None:
        super().__init__(syntax, state, opening)
        self.strips_text = True
        self._arguments: StreamingJsonReader | None = None  # once the arguments have begun
        self._is_opening_long = False

    def finish(self) -> list[ResponsePart]:
        parts = self._parse_call() if self._is_opening_long else []
        return parts + super().finish()

    def _parse_answer_text(self) -> list[ResponsePart]:
        return [] if self._is_opening_long else self._parse_call()

    def _parse_call(self) -> list[ResponsePart]:
        parts: list[ResponsePart] = []
        if self._arguments is None:
            if (match := REQUIRED_CALL_OPENING.match(self._text)) is None:
                self._is_opening_long = len(self._text) > MAX_OPENING_CHARACTERS
                return parts
            self._arguments, self._text = StreamingJsonReader(), self._text[match.end():]
            parts.append(ToolCallStart(json.loads(match[1])))
        arguments, self._text = self._arguments.take(self._text), ""
        return parts + [ArgumentsPiece(arguments)] * bool(arguments)


class CallsOrTextParser(ConstrainedAnswerParser):
    """Parser of an answer that is either calls or a text in a format. Its first characters behind the reasoning decide
    which, once."""

    def __init__(self, syntax: OutputSyntax, state: ReasoningState, tool_names: Collection[str],
                 create_call_parser: Callable[[], ResponseParserProtocol]) -> None:
        """`tool_names`: functions that the calls may be of. `create_call_parser` is called if the answer is calls."""
        super().__init__(syntax, state)
        self._syntax, self._tool_names = syntax, tool_names
        self._create_call_parser = create_call_parser
        self._call_parser: ResponseParserProtocol | None = None
        self._is_text = False

    def is_field_end_token(self, token: str) -> bool:
        return self._call_parser is not None and self._call_parser.is_field_end_token(token)

    def finish(self) -> list[ResponsePart]:
        return super().finish() if self._call_parser is None else self._call_parser.finish()

    def _parse_answer_text(self) -> list[ResponsePart]:
        if self._call_parser is None and not self._is_text:
            is_call = begins_call(self._text.lstrip(), self._syntax, self._tool_names)
            if is_call is None:
                return []
            self._is_text = not is_call
            if is_call:
                self._call_parser, self._text = self._create_call_parser(), self._text.lstrip()
                self.strips_text = self._call_parser.strips_text
        if self._call_parser is None:
            return super()._parse_answer_text()
        text, self._text = self._text, ""
        return self._call_parser.feed(text)


def begins_call(text: str, syntax: OutputSyntax, tool_names: Collection[str]) -> bool | None:
    """Return whether an answer that begins with this text is a call; None if what follows decides that."""
    if mark := syntax.call_mark:
        return True if text.startswith(mark) else None if mark.startswith(text) else False
    opening, beginning = compile_call_patterns(syntax.arguments_key)
    if match := opening.match(text):
        return json.loads(match[1]) in tool_names
    return None if len(text) <= MAX_OPENING_CHARACTERS and beginning.fullmatch(text) else False


@cache
def compile_call_patterns(arguments_key: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Return the patterns of the JSON of a call up to its arguments, and of any beginning of that."""
    before, behind = ("{", '"name"', ":"), (",", f'"{arguments_key}"', ":", "{")
    opening = BLANK_PATTERN.join([*map(re.escape, before), f'({NAME_CHARACTERS}")', *map(re.escape, behind)])
    atoms = [atom for text in before for atom in (*map(re.escape, text), BLANK_PATTERN)]
    atoms += [NAME_CHARACTERS + ESCAPE_BEGINNING, '"', BLANK_PATTERN]
    atoms += [atom for text in behind for atom in (*map(re.escape, text), BLANK_PATTERN)]
    beginning = ""
    for atom in reversed(atoms):
        beginning = f"(?:{atom}{beginning})?"
    return re.compile(opening), re.compile(beginning)
