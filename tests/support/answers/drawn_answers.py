"""What models write, drawn for every output format, and cut into tokens at random. The events of the tokens come from
the engine's own `OutputBuilder`, so that characters are held back and stop strings found as on a server."""

import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import tokenizers
from hypothesis import strategies as st
from support.servers.expected_streams import make_finished_timeline
from tokenizers import AddedToken, decoders, models

from router.engine.output_stream import FinishedEvent, OutputBuilder, RequestStream, StreamEvent, TokenEvent
from router.http.transport.services import GenerationOutput
from router.request import FinishReason, Request
from router.scheduler.shard_messages import StepResultRow
from router.scheduler.step import find_finish_point
from router.telemetry.server_metrics import RequestRecord
from router.text.constrained_answer_parsers import CallsOrTextParser, RequiredCallParser
from router.text.output_formats import (
    BARE_JSON_FORMAT,
    FORMAT_BY_TEMPLATE_MARKER,
    PYTHONIC_FORMAT,
    REASONING_FIELDS,
    OutputFormat,
    find_reasoning_state,
    get_output_syntax,
    without_fields,
    without_tool_calls,
)
from router.text.pythonic_calls import PythonicCallParser
from router.text.response_parser import OutputFormatParser, ResponseParserProtocol
from router.text.tokenizer import Tokenizer, byte_level_alphabet
from router.validation.validator import ValidatedRequest

TOOLS = [{"type": "function", "function": {"name": "weave", "parameters": {"type": "object", "properties": {
             "wool": {"type": "string"}, "rows": {"type": "integer"}}}}},
         {"type": "function", "function": {"name": "get_weather"}}]
ARGUMENTS = '{"wool": "Gr\u00fcn \U0001f9f5", "rows": 2}'
CALL = f'{{"name": "weave", "arguments": {ARGUMENTS}}}'
BAR, GAP = "\uff5c", "\u2581"
# A call in each output format, by the marker of its template.
CALLS_BY_MARKER = {
    "<function=": "<tool_call>\n<function=weave>\n<parameter=wool>\nGr\u00fcn\n</parameter>\n<parameter=rows>\n2\n"
                  "</parameter>\n</function>\n</tool_call>",
    "<tool_call>": f"<tool_call>\n{CALL}\n</tool_call>",
    "[ARGS]": f"[TOOL_CALLS]weave[ARGS]{ARGUMENTS}",
    "[TOOL_CALLS]": f"[TOOL_CALLS] [{CALL}, {CALL}]",
    f"<{BAR}Assistant{BAR}>": f"<{BAR}tool{GAP}calls{GAP}begin{BAR}><{BAR}tool{GAP}call{GAP}begin{BAR}>function"
                              f"<{BAR}tool{GAP}sep{BAR}>weave\n```json\n{ARGUMENTS}\n```"
                              f"<{BAR}tool{GAP}call{GAP}end{BAR}><{BAR}tool{GAP}calls{GAP}end{BAR}>",
    "<|python_tag|>": f"<|python_tag|>{CALL}<|eom_id|>",
    "<|start_header_id|>": CALL.replace('"arguments"', '"parameters"'),
    "<|header_start|>": f"<|python_start|>{CALL}<|python_end|>",
    "func_name1(": 'Well. [weave(wool="Gr\u00fcn", rows=2), get_weather()]',
    "<|channel|>": "<|channel|>analysis<|message|>Why?<|end|><|start|>assistant<|channel|>commentary "
                   f"to=functions.weave <|constrain|>json<|message|>{ARGUMENTS}<|call|>",
    "<|tool_call>": '<|channel>thought\nWhy?\n<channel|><|tool_call>call:weave{wool:<|"|>Gr\u00fcn<|"|>,rows:2}'
                    "<tool_call|>",
    "<start_function_call>": "<start_function_call>call:weave{wool:<escape>Gr\u00fcn<escape>,rows:2}"
                             "<end_function_call>",
    "<|tool_call|>": f"<|tool_call|>[{CALL}, {CALL}]",
    "[THINK]": f"[THINK]Why?[/THINK][TOOL_CALLS]weave[ARGS]{ARGUMENTS}",
}
FORMATTED = '{"wool": "Gr\u00fcn", "rows": [2]}'
THOUGHT = "<think>\nWhy, \u7e54?\n</think>\n\n"
TEXTS = ("Hi", " ", "\n", "\n\n", "\u00e9\U0001f9f5", "It is {a}.", "<", "STOP", "ST", "OP", "[", '"', "\\", "e\u0301",
         "<think>", "</think>", "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "</s>")
# What the demo model wrote, as its tokens.
RECORDED_ANSWERS: Mapping[str, Sequence[str]] = {
    "call": ("<tool_call>", "\n", '{"', "name", '":', ' "', "get", "_", "weather", '",', ' "', "arguments", '":', ' {"',
             "city", '":', ' "', "P", "aris", '"}}', "\n", "</tool_call>"),
    "thoughts": ("I", " go", " ", "3", " up", " from", " ", "2", ":", " ", "3", ",", " ", "4", ",", " ", "5", ".", "\n",
                 "</think>", "\n", "2", " +", " ", "3", " =", " ", "5", "."),
    "thoughts and a call": (
        "The", " user", " wants", " me", " to", " get", " the", " weather", " of", " a", " city", ".", " get", "_",
        "weather", " fits", ".", "\n", "</think>", "\n", "<tool_call>", "\n", '{"', "name", '":', ' "', "get", "_",
        "weather", '",', ' "', "arguments", '":', ' {"', "city", '":', ' "', "P", "aris", '"}}', "\n", "</tool_call>"),
    "numbers": ("1", ",", " ", "2", ",", " ", "3", ",", " ", "4", ",", " ", "5", "."),
    "JSON": ('{"', "name", '":', ' "', "ro", "ice", '",', ' "', "age", '":', " ", "3", "}"),
}
MARKER_PATTERN = re.compile(rf"<\|?\w+\|>|<\|\w+\|?>|<{BAR}[^{BAR}<]+{BAR}>|</?think>|</?tool_call>|\[/?[A-Z_]+\]|</s>")
END_TOKEN_TEXT, STOP_STRINGS = "<|im_end|>", ("STOP", "OP.")
PROMPT_TEXT = "hi"
ENDINGS = ("end token", "stop string", "stop token", "length", "timeout")
LETTERS = {byte: letter for letter, byte in byte_level_alphabet().items()}


@dataclass(frozen=True, slots=True)
class DrawnAnswer:
    """What a model writes and how it ends, before it is cut into tokens."""

    text: str
    num_bytes: int | None  # the answer is cut off after so many; None: it is whole
    ending: str  # one of ENDINGS
    has_stop_strings: bool
    is_at_limit: bool  # the last token is the last that is allowed
    marker_kind: str  # markers of the format are "special" tokens, other "added" ones, or "plain" text
    output_format: OutputFormat | None  # None: the answer is text alone
    must_call: bool  # a call is required; its JSON is the answer
    has_format: bool  # the answer is calls or a text in a format, behind reasoning or not
    prompt_end: str  # what of the answer the template has begun
    stop_token_text: str

    def create_parser(self) -> ResponseParserProtocol | None:
        if self.must_call:
            return RequiredCallParser()
        if self.has_format:
            assert self.output_format is not None, "the format of calls is known"
            names = {str(tool["function"]["name"]) for tool in TOOLS}
            return CallsOrTextParser(
                get_output_syntax(self.output_format), find_reasoning_state(self.output_format, self.prompt_end), names,
                partial(OutputFormatParser, without_fields(self.output_format, *REASONING_FIELDS), "", TOOLS))
        if self.output_format is PYTHONIC_FORMAT:
            return PythonicCallParser(TOOLS)
        return (None if self.output_format is None
                else OutputFormatParser(self.output_format, self.prompt_end, TOOLS))

    def list_segments(self) -> list[tuple[bytes, bool]]:
        """Return the answer as bytes, each with whether it is one token."""
        text, segments, end = self.text, [], 0
        for match in MARKER_PATTERN.finditer(text) if self.marker_kind != "plain" else ():
            segments += [(text[end:match.start()].encode(), False), (match[0].encode(), True)]
            end = match.end()
        segments.append((text[end:].encode(), False))
        num_left = len(text.encode()) if self.num_bytes is None else self.num_bytes
        kept: list[tuple[bytes, bool]] = []
        for segment, is_token in segments:
            kept.append((segment[:max(num_left, 0)], is_token and len(segment) <= num_left))
            num_left -= len(segment)
        return [(segment, is_token) for segment, is_token in kept if segment]


@dataclass(frozen=True, slots=True)
class Generation:
    """One way in which an answer came: its events and, from the same events, its whole output."""

    events: list[StreamEvent]
    output: GenerationOutput
    tokenizer: Tokenizer

    @property
    def final_event(self) -> FinishedEvent:
        return self.output.final_event

    def cut_into_bursts(self, rng: random.Random) -> list[list[StreamEvent]]:
        """Return the events as they are taken from the stream. The end comes with the last token, unless time ran
        out."""
        last = len(self.events) - (1 if self.final_event.finish_reason is FinishReason.TIMEOUT else 2)
        places = [place for place in range(1, last + 1) if rng.random() < 0.7]
        return [self.events[start:stop] for start, stop in pairwise([0, *places, len(self.events)])]


def cut_randomly(segment: bytes, rng: random.Random) -> list[bytes]:
    density = rng.choice((0.02, 0.2, 0.5, 1.0))
    places = [place for place in range(1, len(segment)) if rng.random() < density]
    return [segment[start:stop] for start, stop in pairwise([0, *places, len(segment)])]


Cut = list[tuple[bytes, bool]]  # an answer's tokens, each with whether it is a marker


def cut_answer(answer: DrawnAnswer, rng: random.Random) -> Cut:
    return [(piece, is_marker) for segment, is_marker in answer.list_segments()
            for piece in ([segment] if is_marker else cut_randomly(segment, rng))]


def get_letters(piece: bytes) -> str:
    return "".join([LETTERS[byte] for byte in piece])


class AnswerTokenizer:
    """Tokenizer whose vocabulary holds the tokens of some cuts of an answer."""

    def __init__(self, answer: DrawnAnswer, cuts: Iterable[Cut]) -> None:
        pieces = [piece for cut in cuts for piece, is_marker in cut if not is_marker]
        stop_piece = answer.stop_token_text.encode()
        names = dict.fromkeys([*LETTERS.values(), *map(get_letters, [*pieces, stop_piece])])
        self._tokens = {name: token for token, name in enumerate(names)}
        tokenizer = tokenizers.Tokenizer(models.BPE(vocab=self._tokens, merges=[]))
        tokenizer.decoder = decoders.ByteLevel()
        markers = {piece.decode() for cut in cuts for piece, is_marker in cut if is_marker} - {END_TOKEN_TEXT}
        tokenizer.add_tokens([AddedToken(marker, special=answer.marker_kind == "special", normalized=False)
                              for marker in sorted(markers)])
        tokenizer.add_special_tokens([AddedToken(END_TOKEN_TEXT, special=True, normalized=False)])
        self._find_marker = tokenizer.token_to_id
        self.end_token = tokenizer.token_to_id(END_TOKEN_TEXT)
        self.stop_token = self._tokens[get_letters(stop_piece)]
        self.tokenizer = Tokenizer(tokenizer, [self.end_token])

    def find_tokens(self, cut: Cut) -> list[int]:
        return [self._find_marker(piece.decode()) if is_marker else self._tokens[get_letters(piece)]
                for piece, is_marker in cut]


def generate(answer: DrawnAnswer, tokenizer: AnswerTokenizer, cut: Cut, rng: random.Random) -> Generation:
    """Make the events of an answer's tokens, which come in rows of one or several, as the engine does."""
    tokens = tokenizer.find_tokens(cut)
    tokens += [tokenizer.end_token] * (answer.ending == "end token")
    tokens += [tokenizer.stop_token] * (answer.ending == "stop token")
    max_new_tokens = max(len(tokens), 1) if answer.is_at_limit or answer.ending == "length" else 100_000
    prompt = tuple(tokenizer.find_tokens([(PROMPT_TEXT[:1].encode(), False), (PROMPT_TEXT[1:].encode(), False)]))
    end_tokens = {tokenizer.end_token, *[tokenizer.stop_token] * (answer.ending == "stop token")}
    request = Request("0", prompt, max_new_tokens, end_tokens=frozenset(end_tokens),
                      stop_strings=STOP_STRINGS if answer.has_stop_strings else ())
    stream = RequestStream(request, 2**40, *[lambda: None] * 3)
    timeline = make_finished_timeline()
    timeline.num_prefix_hit_tokens = 1
    builder = OutputBuilder(request, stream, tokenizer.tokenizer, RequestRecord("0", "", len(prompt), 0.0, timeline))
    reason = None
    while tokens and reason is None:
        row, tokens = tokens[:(size := rng.choice((1, 1, 1, 2, 3)))], tokens[size:]
        num_stopped = builder.detokenize_row(StepResultRow(
            row, [-rng.randrange(64) / 8 for _ in row], [[(token, -0.125), (65, -2.5)] for token in row]))
        _, reason = find_finish_point(request, builder.record.num_generated, row, num_stopped)
        builder.deliver_row()
    builder.finish(reason or FinishReason.TIMEOUT)
    events = stream.take_events()
    final_event = events[-1]
    assert isinstance(final_event, FinishedEvent)
    token_events = [event for event in events if isinstance(event, TokenEvent)]
    output = GenerationOutput(ValidatedRequest(request, None), token_events, [None, -1.5], final_event, [[(65, -0.5)]])
    return Generation(events, output, tokenizer.tokenizer)


def resume_events(generation: Generation, num_tokens: int) -> tuple[list[TokenEvent], list[StreamEvent]]:
    """Make the events of a stream that goes on behind an answer's first tokens: those which tell the renderer of these
    tokens, and those of the rest."""
    output, tokens = generation.output, [token.id for token in generation.output.tokens]
    request = replace(output.validated_request.request, resumed_tokens=tuple(tokens[:num_tokens]))
    stream = RequestStream(request, 2**40, *[lambda: None] * 3)
    builder = OutputBuilder(
        request, stream, generation.tokenizer, RequestRecord("0", "", 2, 0.0, output.final_event.timeline),
        generation.tokenizer.decode_resumed(request.prompt, request.resumed_tokens))
    for token in output.tokens[num_tokens:]:
        builder.detokenize_row(StepResultRow([token.id], [token.logprob],
                                             [[(top.id, top.logprob) for top in token.top_tokens]]))
        builder.deliver_row()
    builder.finish(output.final_event.finish_reason)
    return stream.make_resumed_events(), stream.take_events()


def generate_in_cuts(answer: DrawnAnswer, num_cuts: int, rng: random.Random) -> list[Generation]:
    cuts = [cut_answer(answer, rng) for _ in range(num_cuts)]
    tokenizer = AnswerTokenizer(answer, cuts)
    return [generate(answer, tokenizer, cut, rng) for cut in cuts]


# -- drawing

def list_snippets(output_format: OutputFormat | None) -> tuple[str, ...]:
    """Return pieces of answers in a format: calls that are valid, cut off, of unknown tools and with other faults."""
    call = next((CALLS_BY_MARKER[marker] for marker, known in FORMAT_BY_TEMPLATE_MARKER.items()
                 if known is output_format and marker in CALLS_BY_MARKER), CALL)
    return (call, call, call[:len(call) // 3], call[:-len(call) // 4], call.replace("weave", "unravel"),
            call.replace("2", "NaN"), call.replace("{", "[", 1), call[len(call) // 2:], hide_marks(call),
            *(f"```json\n{each}\n```" for each in (call, hide_marks(call)) if output_format is BARE_JSON_FORMAT))


def hide_marks(call: str) -> str:
    """Return a call with a string that holds marks which close calls and open reasoning."""
    return call.replace("Gr\u00fcn", "Gr\u00fcn</tool_call> ```</s><|eom_id|><|call|><think>[TOOL_CALLS]")


FORMATS: tuple[OutputFormat | None, ...] = (None, BARE_JSON_FORMAT, *{
    id(known): known for known in FORMAT_BY_TEMPLATE_MARKER.values()}.values())


@st.composite
def drawn_answers(draw: st.DrawFn) -> DrawnAnswer:
    output_format, must_call = draw(st.sampled_from(FORMATS)), draw(st.integers(0, 9)) == 0
    calls = list_snippets(output_format)
    snippets = draw(st.lists(st.sampled_from([*calls, *TEXTS]), max_size=7))
    has_format = (output_format is not None and not must_call and bool(get_output_syntax(output_format).call)
                  and draw(st.integers(0, 3)) == 0)
    if has_format:
        snippets = draw(st.sampled_from([calls[:1], calls[:1] * 2, calls[-2:-1], [FORMATTED], [hide_marks(FORMATTED)]]))
        snippets = [*draw(st.sampled_from([[], [THOUGHT], [THOUGHT[len("<think>"):]]])), *snippets]
    elif must_call:
        snippets = [draw(st.sampled_from([CALL, hide_marks(CALL)]))]  # all that the grammar lets the model write
    elif draw(st.booleans()):
        snippets = [THOUGHT, *snippets]
    text = "".join(snippets)
    ending = draw(st.sampled_from(ENDINGS if text else ENDINGS[:3]))  # there is at least one token
    has_stop_strings = ending == "stop string" or draw(st.integers(0, 3)) == 0
    num_bytes = draw(st.integers(1, len(text.encode()))) if ending in {"length", "timeout"} else None
    if output_format is not None and not must_call and not has_format and draw(st.integers(0, 3)) == 0:
        output_format = without_tool_calls(output_format)
    anchor = "" if output_format is None else output_format["start_anchor"]
    stop_token_text = draw(st.sampled_from(["!", "</tool_call>"]))
    return DrawnAnswer(
        text + draw(st.sampled_from(STOP_STRINGS)) * (ending == "stop string"), num_bytes, ending,
        has_stop_strings, draw(st.integers(0, 4)) == 0, draw(st.sampled_from(["plain", "added", "special"])),
        output_format, must_call, has_format, draw(st.sampled_from(["", anchor, f"{anchor}<think>\n"])),
        "!" if stop_token_text in text else stop_token_text)
