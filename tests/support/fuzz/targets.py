"""Functions that feed bytes to a reader, and raise if it breaks its promise. Expected errors are caught.

    python -P -m support.fuzz.run_atheris NAME CORPUS -max_total_time=60
"""

import asyncio
import gzip
import io
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from math import isfinite
from pathlib import Path

from aiohttp import web
from google.protobuf.message import DecodeError

import launcher.demo
from router.engine.output_stream import StopStringMatcher
from router.errors import InvalidRequest
from router.grammars.compiler_process import convert_to_lark
from router.grammars.parameters import make_context_free_grammar, make_json_schema_grammar, make_regex_grammar
from router.http.transport.body import decompress
from router.model_info import ModelInfo
from router.request import Request, RequestKind
from router.scheduler.shard_messages import Decode, NewSequence, PoolingStep, StepPlan
from router.shards.message_conversion import InvalidShardAnswer, decode_answer
from router.text import output_formats
from router.text.output_formats import PYTHONIC_FORMAT, OutputFormat
from router.text.response_parser import (
    OutputFormatParser,
    ParsedToolCall,
    parse_complete_response,
)
from router.text.tokenizer import Tokenizer, create_byte_tokenizer
from shard.checkpoint.safetensors_file import read_file_header
from shard.errors import MalformedMessage, RejectedMessage
from shard.pb import shard_pb2 as pb
from shard.state.sequence import ModelLimits
from shard.state.shard_state import ShardState

DEMO_TOKENIZER = Path(launcher.demo.__file__).parent / "model" / "tokenizer.json"
BODY_LIMIT = 1_000_000
SAMPLED_TOKEN = 65
STATE_LIMITS = ModelLimits(vocabulary_size=512, max_positions=256, tokens_per_step=1, mixed_steps=True)
WARMUP = pb.WarmupRequest(block_size=16, max_prefill_tokens=64, max_batch_size=8)
MODEL_INFO = ModelInfo("m", "cpu", "float32", 100, 64, 16, 8, tokens_per_step=2, labels=("O", "B-PER"))
REQUESTS = [Request("r", (5,) * length, 0, kind=RequestKind.EMBED) for length in (3, 1)]
EMBED_STEP = PoolingStep(RequestKind.EMBED, tuple(NewSequence(number, request, (), ())
                                                  for number, request in enumerate(REQUESTS, 1)))
PLANS = (StepPlan(4, 10, (Decode(1),), (1, 2, 3), (1, 2), 0.1), StepPlan(4, 10, (EMBED_STEP,), (1, 2), (1, 2), 0.1))
STEP_MESSAGES = (pb.PrefillRequest, pb.DecodeRequest, pb.FilterRequest, pb.ConcatRequest)
ANSWER_MESSAGES = (pb.StepAnswer, pb.EmbedAnswer)
CHARACTERS = "a b\n\"\\{}[]<>|é\U0001f600"
FORMATS: tuple[OutputFormat, ...] = tuple(
    value for name, value in sorted(vars(output_formats).items())
    if name.endswith("_FORMAT") and value is not PYTHONIC_FORMAT)


class ByteSource:
    """Values drawn from bytes, one after the other; zeros when they are used up."""

    def __init__(self, data: bytes) -> None:
        self._bytes = iter(data)

    def draw(self, limit: int) -> int:
        return next(self._bytes, 0) % limit

    def rest(self) -> bytes:
        return bytes(self._bytes)


def split_text(text: str, cuts: bytes) -> Iterator[str]:
    """Split a text into pieces of 1 to 8 characters."""
    start, number = 0, 0
    while start < len(text):
        length = 1 + (cuts[number % len(cuts)] % 8 if cuts else 0)
        yield text[start:start + length]
        start, number = start + length, number + 1


@cache
def load_tokenizers() -> tuple[Tokenizer, ...]:
    import tokenizers  # noqa: PLC0415 - heavy, and only one target needs it
    return create_byte_tokenizer(), Tokenizer(tokenizers.Tokenizer.from_file(str(DEMO_TOKENIZER)), end_tokens=[0])


def fuzz_detokenizer(data: bytes) -> None:
    """The pieces of a sequence, joined, are the text of all its tokens."""
    source = ByteSource(data)
    tokenizer = load_tokenizers()[source.draw(2)]
    tokens = [first * 256 + second for first, second in zip(*[iter(source.rest())] * 2, strict=False)]
    tokens = [token % 4200 if tokenizer is load_tokenizers()[1] else token % 300 for token in tokens]
    detokenizer = tokenizer.create_detokenizer()
    text = "".join(map(detokenizer.step, tokens)) + detokenizer.finish()
    expected = tokenizer.decode([token for token in tokens if tokenizer.id_to_token(token)])
    assert text == expected, (text, expected)


def fuzz_stop_strings(data: bytes) -> None:
    """The stop string that ends first is found, however the text is cut into pieces."""
    source = ByteSource(data)
    strings = tuple("".join("ab c"[source.draw(4)] for _ in range(1 + source.draw(5)))
                    for _ in range(1 + source.draw(4)))
    rest = source.rest()
    text = "".join("ab c"[byte % 4] for byte in rest)
    matcher, end = StopStringMatcher(strings), None
    for piece in split_text(text, rest):
        if (end := matcher.find_match_end(piece)) is not None:
            break
    ends = [position + len(string) for string in strings if (position := text.find(string)) >= 0]
    if end is None:
        assert not ends, (strings, text)
    else:
        assert end == min(ends), (strings, text, end)


@cache
def list_snippets(number: int) -> tuple[str, ...]:
    """Return texts that mean something in a format: its marks, and parts of calls."""
    marks = []
    for field in FORMATS[number]["fields"].values():
        for kind in ("open", "close"):
            value = field.get(kind, [])
            marks += [value] if isinstance(value, str) else list(value)
    calls = ['{"name": "f", "arguments": {"x": 1}}', '{"name": "f", "parameters": {}}', '"arguments": ', "f", "{}",
             "<function=f>", "<parameter=x>", "</parameter>", "</function>", "[ARGS]", "<|message|>", "<|call|>"]
    return (*marks, *calls, *CHARACTERS)


def fuzz_response_parser(data: bytes) -> None:
    """Any text is parsed, in pieces as in one; no error leaves the parser."""
    source = ByteSource(data)
    number = source.draw(len(FORMATS))
    snippets = list_snippets(number)
    rest = source.rest()[:200]
    text = "".join(snippets[byte % len(snippets)] for byte in rest)
    whole, cut = (parse_complete_response(
        OutputFormatParser(FORMATS[number], "", None, streams_calls=False), pieces)
        for pieces in ([text], list(split_text(text, rest[::-1]))))
    assert [part for part in whole if isinstance(part, ParsedToolCall)] == [
        part for part in cut if isinstance(part, ParsedToolCall)], (text, whole, cut)


def fuzz_safetensors_header(data: bytes) -> None:
    """A header is read or refused with a ValueError, and tensors that are accepted lie within the file."""
    try:
        entries = read_file_header(io.BytesIO(data), len(data))
    except ValueError:
        return
    assert all(8 <= entry.begin <= entry.end <= len(data) for entry in entries.values())


def fuzz_step_messages(data: bytes) -> None:
    """Messages of a router are applied or refused; a refused one changes nothing, and blocks are never lost."""
    state = ShardState(STATE_LIMITS)
    state.apply_warmup(WARMUP, 32)
    source = ByteSource(data)
    methods: Mapping[type, Callable[..., object]] = {
        pb.PrefillRequest: state.apply_prefill, pb.DecodeRequest: state.apply_decode,
        pb.FilterRequest: state.apply_filter, pb.ConcatRequest: state.apply_concat}
    for _ in range(8):
        message_type = STEP_MESSAGES[source.draw(len(STEP_MESSAGES))]
        payload = bytes(source.draw(256) for _ in range(source.draw(256)))
        try:
            message = message_type.FromString(payload)
        except DecodeError:
            continue
        before = repr(state.sequences)
        try:
            step = methods[message_type](message)
        except (MalformedMessage, RejectedMessage):
            assert repr(state.sequences) == before, "a refused message changed the state"
            continue
        if step is not None:
            state.apply_results(step, {sequence.id: [SAMPLED_TOKEN] for sequence in step.sampled_sequences}, {})


def fuzz_shard_answers(data: bytes) -> None:
    """Answers of a shard make sense, or are refused with InvalidShardAnswer."""
    source = ByteSource(data)
    kind = source.draw(len(ANSWER_MESSAGES))
    try:
        answer = ANSWER_MESSAGES[kind].FromString(source.rest())
    except DecodeError:
        return
    answer.epoch, answer.order = PLANS[kind].epoch, PLANS[kind].last_message_number
    try:
        result = decode_answer(answer, PLANS[kind], MODEL_INFO)
    except InvalidShardAnswer:
        return
    for row in result.rows.values():
        tops = [top for candidates in row.top_logprobs for top in candidates]
        assert all(0 <= token < MODEL_INFO.vocabulary_size for token in (*row.tokens, *(top for top, _ in tops)))
        assert all(map(isfinite, (*row.logprobs, *(logprob for _, logprob in tops))))


def fuzz_grammars(data: bytes) -> None:
    """Sources of grammars are accepted or refused with an error of the request or a ValueError."""
    source = ByteSource(data)
    kind, text = source.draw(3), source.rest().decode(errors="replace")
    try:
        if kind == 0:
            make_json_schema_grammar("schema", text)
        elif kind == 1:
            make_regex_grammar("regex", text)
        else:
            convert_to_lark(make_context_free_grammar("grammar", text).source)
    except (InvalidRequest, ValueError):
        pass


def fuzz_compressed_body(data: bytes) -> None:
    """A body is decompressed as zlib does it, or refused with 400 or 413."""
    source = ByteSource(data)
    encoding, is_whole = ("gzip", "deflate")[source.draw(2)], source.draw(2)
    content = source.rest()
    compressed = (gzip.compress(content, mtime=0) if encoding == "gzip" else zlib.compress(content)) if is_whole \
        else content
    try:
        body = asyncio.run(decompress(compressed, encoding, BODY_LIMIT))
    except (web.HTTPBadRequest, web.HTTPRequestEntityTooLarge):
        assert not is_whole or len(content) > BODY_LIMIT
        return
    assert not is_whole or body == content
    assert len(body) <= BODY_LIMIT


TARGETS: Mapping[str, Callable[[bytes], None]] = {
    "detokenizer": fuzz_detokenizer, "stop_strings": fuzz_stop_strings, "response_parser": fuzz_response_parser,
    "safetensors_header": fuzz_safetensors_header, "step_messages": fuzz_step_messages,
    "shard_answers": fuzz_shard_answers, "grammars": fuzz_grammars, "compressed_body": fuzz_compressed_body}
