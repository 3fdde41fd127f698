"""Answers as typed parts: a stream in any pieces has the same parts as the whole answer."""

import asyncio
import json
import threading
from functools import partial
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.servers.expected_streams import make_finished_timeline

from router.engine.output_stream import FailedEvent, FinishedEvent, TokenEvent
from router.errors import GenerationFailed
from router.http.openai.answer_parts import (
    AnswerStreamRenderer,
    AnswerWhitespaceStripper,
    parse_answer,
)
from router.http.transport.services import MAX_INLINE_TOKENS, GenerationOutput, run_in_thread_if_long
from router.request import FinishReason, Request
from router.text.constrained_answer_parsers import CallsOrTextParser, ConstrainedAnswerParser, RequiredCallParser
from router.text.output_formats import (
    GEMMA_FORMAT,
    GRANITE_FORMAT,
    HARMONY_FORMAT,
    HERMES_FORMAT,
    LLAMA_FORMAT,
    MISTRAL_NAMED_FORMAT,
    ReasoningState,
    get_output_syntax,
    without_fields,
    without_tool_calls,
)
from router.text.pythonic_calls import PythonicCallParser
from router.text.response_parser import (
    ArgumentsPiece,
    ContentPiece,
    OutputFormatParser,
    ParsedToolCall,
    ReasoningPiece,
    ToolCallStart,
    join_adjacent_parts,
)
from router.validation.validator import ValidatedRequest

PARTS = st.one_of(st.builds(ContentPiece, st.text(" \na", max_size=3)),
                  st.builds(ReasoningPiece, st.text(" b", max_size=3)), st.just(ParsedToolCall("f", "{}")))
CALL = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
TOOLS = [{"function": {"name": "f"}}]
TEXTS = [" ", "\n", "Hi", "é", "STOP", "ST"]
HERMES_TEXTS = ["<think>", "</think>", CALL, CALL[:20], CALL[:44], CALL.replace("1", "[NaN"), "<tool_call>",
                "</tool_call>", CALL.replace('"f"', '"g"')]
HARMONY_TEXTS = ["<|start|>assistant", "<|channel|>analysis<|message|>", "<|channel|>final<|message|>", "<|end|>",
                 "<|channel|>commentary to=functions.f <|constrain|>json<|message|>", '{"a": 1}', "{", "<|call|>"]
# By the kind of an answer: its parser, and texts that it may hold.
ANSWER_KINDS = {
    "none": (lambda: None, HERMES_TEXTS), "required": (RequiredCallParser, [CALL[11:-12], CALL[11:30], *HERMES_TEXTS]),
    "calls": (lambda: OutputFormatParser(HERMES_FORMAT, "", TOOLS), HERMES_TEXTS),
    "one call": (lambda: OutputFormatParser(HERMES_FORMAT, "", TOOLS, 1), HERMES_TEXTS),
    "reasoning": (lambda: OutputFormatParser(without_tool_calls(HERMES_FORMAT), ""), HERMES_TEXTS),
    "required behind reasoning": (lambda: RequiredCallParser(
        get_output_syntax(HERMES_FORMAT), ReasoningState.POSSIBLE, "<tool_call>"), HERMES_TEXTS),
    "required behind open reasoning": (lambda: RequiredCallParser(
        get_output_syntax(HERMES_FORMAT), ReasoningState.OPEN, "<tool_call>"), HERMES_TEXTS),
    "format": (lambda: ConstrainedAnswerParser(
        get_output_syntax(HERMES_FORMAT), ReasoningState.POSSIBLE), HERMES_TEXTS),
    "calls or a text": (lambda: CallsOrTextParser(
        get_output_syntax(HERMES_FORMAT), ReasoningState.POSSIBLE, {"f"}, partial(
            OutputFormatParser, without_fields(HERMES_FORMAT, "reasoning_content"), "", TOOLS)), HERMES_TEXTS),
    "harmony": (lambda: OutputFormatParser(HARMONY_FORMAT, "<|start|>assistant", TOOLS), HARMONY_TEXTS),
    "mistral": (lambda: OutputFormatParser(MISTRAL_NAMED_FORMAT, "", TOOLS),
                ["[THINK]", "[/THINK]", "[TOOL_CALLS]f", "[ARGS]", '{"a": "b"}', '{"a', "[TOOL_CALLS]g[ARGS]{}"]),
    "llama": (lambda: OutputFormatParser(LLAMA_FORMAT, "", TOOLS),
              ["<|python_tag|>", CALL[11:-12], CALL[11:30], "<|eom_id|>", "; "]),
    "granite": (lambda: OutputFormatParser(GRANITE_FORMAT, "", TOOLS),
                ["<think>", "</think>", "<response>", "</response>", "<|tool_call|>", f"[{CALL[11:-12]}]", "["]),
    "gemma": (lambda: OutputFormatParser(GEMMA_FORMAT, "", TOOLS),
              ["<|channel>thought\n", "<channel|>", '<|tool_call>call:f{a:<|"|>b<|"|>}', "<tool_call|>", "<turn|>"]),
    "python": (lambda: PythonicCallParser(TOOLS),
               ["[f(a=1)]", "[f(", "f(b='x')", ", ", "]", "<|python_end|>", "[g()]"])}


class PartLines(AnswerStreamRenderer):
    """Renderer that writes a line of JSON for each event."""

    __slots__ = ()

    def render_opening(self):
        return "[]\n"

    def _render_text(self, text):
        return json.dumps(["text", text]) + "\n"

    def _render_reasoning(self, text):
        return json.dumps(["reasoning", text]) + "\n"

    def _render_call_opening(self, name):
        return json.dumps(["call", name]) + "\n"

    def _render_arguments(self, text):
        return json.dumps(["arguments", text]) + "\n"

    def _render_call_end(self):
        return json.dumps(["call end", ""]) + "\n"

    def _render_answer_end(self, event):
        return json.dumps(["end", str(event.finish_reason)]) + "\n"


@given(parts=st.lists(PARTS, max_size=8), strips_text=st.booleans())
def test_whitespace_is_stripped_around_text_and_reasoning_in_pieces(parts, strips_text):
    parser = RequiredCallParser() if strips_text else ConstrainedAnswerParser()
    assert parser.strips_text == strips_text
    stripped = [*AnswerWhitespaceStripper(parser).strip_parts(parts)]
    for kind in (ContentPiece, ReasoningPiece):
        whole = "".join(part.text for part in parts if isinstance(part, kind))
        is_stripped = strips_text or kind is ReasoningPiece
        assert "".join(part.text for part in stripped if isinstance(part, kind)) == (
            whole.strip() if is_stripped else whole)
    assert ParsedToolCall("f", "{}") not in parts or ParsedToolCall("f", "{}") in stripped


def make_tokens(text, cuts):
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [TokenEvent(1, text[start:stop], -0.5, False) for start, stop in pairwise(places)]


def read_lines(lines):
    """Return the parts that rendered lines stand for, and the rest of the lines: ends of calls, and of the answer."""
    parts, ends = [], []
    for kind, text in lines:
        if kind in {"text", "reasoning"}:
            parts.append((ContentPiece if kind == "text" else ReasoningPiece)(text))
        elif kind == "call":
            parts.append(ToolCallStart(text))
        elif kind == "arguments":
            parts.append(ArgumentsPiece(text))
        else:
            ends.append(kind)
    return join_adjacent_parts(parts), ends


@given(data=st.data(), cuts=st.lists(st.integers(0, 200), max_size=12), reason=st.sampled_from(FinishReason),
       stops=st.sampled_from([(), ("STOP",)]), kind=st.sampled_from([*ANSWER_KINDS]))
def test_stream_in_any_pieces_has_the_parts_of_the_whole_answer(data, cuts, reason, stops, kind):
    make_parser, texts = ANSWER_KINDS[kind]
    text = "".join(data.draw(st.lists(st.sampled_from([*texts, *TEXTS]), max_size=8))).partition("STOP")[0]
    is_stopped = bool(stops) and reason is FinishReason.STOP_STRING
    text += "STOP" * is_stopped
    tokens = make_tokens(text, cuts)
    end = FinishedEvent(reason, text, len(tokens), make_finished_timeline(), is_stopped=is_stopped)
    output = GenerationOutput(ValidatedRequest(Request("0", (1, 2), 50), None), tokens, [], end)
    answer = parse_answer(output, make_parser(), stops)
    renderer = PartLines(str, 2, stops, make_parser())
    bursts = [renderer.render([token]) for token in tokens[:-1]] + [renderer.render([*tokens[-1:], end])]
    lines = [json.loads(line) for line in b"".join(bursts).splitlines()]
    parts, ends = read_lines(lines)
    assert [*parts] == [*answer.parts]
    assert renderer._stripper.num_reasoning_tokens == answer.num_reasoning_tokens <= len(tokens)
    assert answer.reasoning or not answer.num_reasoning_tokens
    assert ends == [*["call end"] * len(answer.tool_calls), "end"]
    assert lines[-1] == ["end", str(reason)]
    assert (renderer.num_tokens, renderer.is_finished) == (len(tokens), True)


def test_failure_is_kept_after_the_text_before_it():
    renderer = PartLines(str, 2, ("STOP",), None)
    assert renderer.render_opening() == "[]\n"
    rendered = renderer.render([TokenEvent(1, "a S", -0.5, False), FailedEvent(GenerationFailed("broken"))])
    assert [json.loads(line) for line in rendered.splitlines()] == [["text", "a "], ["text", "S"]]
    assert (str(renderer.error), renderer.is_finished) == ("broken", True)


def test_long_output_is_parsed_off_the_event_loop():
    async def main():
        threads = []
        for num_tokens in (MAX_INLINE_TOKENS, MAX_INLINE_TOKENS + 1):
            end = FinishedEvent(FinishReason.LENGTH, "", num_tokens, make_finished_timeline())
            output = GenerationOutput(ValidatedRequest(Request("0", (1, 2), 500), None),
                                      make_tokens("a" * num_tokens, range(num_tokens)), [], end)
            assert len(output.tokens) == num_tokens
            threads.append(await run_in_thread_if_long(output, threading.current_thread))
        return threads
    inline, other = asyncio.run(main())
    assert inline is threading.current_thread()
    assert other is not inline


@pytest.mark.parametrize(("text", "reason", "part"), [
    ("<think>Hm", FinishReason.END_TOKEN, ReasoningPiece("Hm")), ("Hi", FinishReason.LENGTH, ContentPiece("Hi")),
    ("<tool_call>\n{", FinishReason.END_TOKEN, ContentPiece("<tool_call>\n{"))])
def test_end_token_is_part_of_no_text(text, reason, part):
    """Regression: it was shown behind reasoning or a call that it broke off, and as the last token that was allowed."""
    tokens = [TokenEvent(1, text, -0.5, False), TokenEvent(256, "<|im_end|>", -0.5, True)]
    end = FinishedEvent(reason, text, len(tokens), make_finished_timeline())
    output = GenerationOutput(ValidatedRequest(Request("0", (1, 2), 50), None), tokens, [], end)
    assert parse_answer(output, OutputFormatParser(HERMES_FORMAT, ""), ()).parts == [part]
