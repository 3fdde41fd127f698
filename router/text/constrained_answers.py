"""Parsers of answers that a grammar constrains: behind the reasoning stands a text in a format, or a required call.
Marks are looked for only around the reasoning."""

import json
import re

from router.text.json_reader import JsonReader
from router.text.output_formats import OutputSyntax, ReasoningState
from router.text.response_parser import (
    CALL_OPENING_PATTERN,
    ArgumentsPiece,
    ContentPiece,
    ReasoningPiece,
    ResponsePart,
    ToolCallOpening,
)

REQUIRED_CALL_OPENING = re.compile(CALL_OPENING_PATTERN)


class FormattedAnswerParser:
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
            return self._take_answer()
        parts = self._take_reasoning()
        if self._reasoning_state is ReasoningState.CLOSED:
            self._skip_marks()
            parts += [] if self._is_at_start else self._take_answer()
        return parts

    def closes_field(self, _token: str) -> bool:
        """Return False: the grammar determines the end of the answer."""
        return False

    def finish(self) -> list[ResponsePart]:
        part_type = ReasoningPiece if self._reasoning_state is ReasoningState.OPEN else ContentPiece
        return [part_type(self._text)] if self._text else []

    def _take_answer(self) -> list[ResponsePart]:
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


class RequiredCallParser(FormattedAnswerParser):
    """Parser of an answer that must be the JSON of one call. The arguments are returned as they come. An answer that is
    cut off before them is returned as content."""

    def __init__(self, syntax: OutputSyntax | None = None, state: ReasoningState = ReasoningState.CLOSED,
                 opening: str = "") -> None:
        super().__init__(syntax, state, opening)
        self.strips_text = True
        self._arguments: JsonReader | None = None  # once the arguments have begun

    def _take_answer(self) -> list[ResponsePart]:
        parts: list[ResponsePart] = []
        if self._arguments is None:
            if (match := REQUIRED_CALL_OPENING.match(self._text)) is None:
                return parts
            self._arguments, self._text = JsonReader(), self._text[match.end():]
            parts.append(ToolCallOpening(json.loads(match[1])))
        arguments, self._text = self._arguments.take(self._text), ""
        return parts + [ArgumentsPiece(arguments)] * bool(arguments)
