"""Request bodies and answer parsers of each dialect.

Parsers are fed with the pieces of an answer as they arrive.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from benchmarks.bench.load.http import ResponseHead
from benchmarks.bench.load.request_records import PlannedRequest

JsonBody = dict[str, Any]
# fields of a chat delta that hold tokens
TOKEN_DELTA_FIELDS = "content", "reasoning_content", "reasoning", "tool_calls"


class ParsedEvent(NamedTuple):
    """Content of a server-sent event."""

    has_tokens: bool = False  # whether it has tokens
    num_tokens: int | None = None  # of the whole answer, if the event has their number
    prompt_tokens: int | None = None
    error: str = ""
    is_last: bool = False  # the answer is complete


DONE_EVENT = ParsedEvent(is_last=True)


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """Options shared by all requests of a run."""

    model: str = ""
    sampling: Mapping[str, Any] = field(default_factory=dict)  # sent unchanged
    ignore_eos: bool = True


@dataclass(frozen=True, slots=True)
class Dialect:
    """An HTTP API of a server: its path, the request bodies, and the parser of its streamed events."""

    path: str
    make_body: Callable[[PlannedRequest, RequestOptions], JsonBody]
    # parses an event; None: answers are not streamed and have all requested tokens
    parse_event: Callable[[Any], ParsedEvent] | None
    # body of POST /tokenize
    make_tokenize_body: Callable[[str, RequestOptions], JsonBody] = lambda text, _: {"inputs": text}
    # seconds that the head of an answer reports, such as the request's latency by the server's own clock
    parse_server_seconds: Callable[[ResponseHead], float | None] = lambda _: None
    stats_path: str = ""  # path of the server's own counters


# -- TGI and LoRAX

def make_tgi_body(request: PlannedRequest, options: RequestOptions) -> JsonBody:
    parameters: JsonBody = {"max_new_tokens": request.output_tokens, "details": True, **options.sampling}
    if request.adapter:
        parameters["adapter_id"] = request.adapter
    if options.ignore_eos:
        parameters["ignore_eos_token"] = True
    return {"inputs": request.prompt, "parameters": parameters}


def parse_tgi_event(event: Any) -> ParsedEvent:
    if event.get("error"):
        return ParsedEvent(error=get_error_message(event))
    details = event.get("details") or {}
    return ParsedEvent(has_tokens=True, num_tokens=details.get("generated_tokens"),
                       prompt_tokens=details.get("input_length", details.get("prompt_tokens")),
                       is_last=event.get("generated_text") is not None)


# -- OpenAI

def make_openai_body(request: PlannedRequest, options: RequestOptions) -> JsonBody:
    body: JsonBody = {"prompt": request.prompt, "max_tokens": request.output_tokens, "temperature": 0, "stream": True,
                      "stream_options": {"include_usage": True}, **options.sampling}
    if name := request.adapter or options.model:
        body["model"] = name
    return body | ({"ignore_eos": True} if options.ignore_eos else {})


def make_chat_body(request: PlannedRequest, options: RequestOptions) -> JsonBody:
    body = make_openai_body(request, options)
    return body | {"messages": [{"role": "user", "content": body.pop("prompt")}]}


def parse_openai_event(event: Any) -> ParsedEvent:
    """Parse a chunk. One with only a role has no tokens; usage arrives in a chunk of its own."""
    if event.get("error"):
        return ParsedEvent(error=get_error_message(event))
    usage, choices = event.get("usage") or {}, event.get("choices") or ()
    return ParsedEvent(any(map(has_choice_tokens, choices)), usage.get("completion_tokens"), usage.get("prompt_tokens"),
                       is_last=any(choice.get("finish_reason") for choice in choices))


def has_choice_tokens(choice: Mapping[str, Any]) -> bool:
    delta = choice.get("delta") or {}
    return bool(choice.get("text") or any(delta.get(name) for name in TOKEN_DELTA_FIELDS))


# -- the effective-batching study

def parse_study_latency(head: ResponseHead) -> float | None:
    seconds = head.headers.get("x-weft-seconds")
    return float(seconds) if seconds else None


def make_batching_study_body(request: PlannedRequest, _: RequestOptions) -> JsonBody:
    return {"prompt": request.prompt, "num_tokens": request.output_tokens}


def get_error_message(answer: Any) -> str:
    """Return the error message of an answer in any dialect."""
    error = answer.get("error", answer) if isinstance(answer, dict) else answer
    return str(error.get("message", error) if isinstance(error, dict) else error)


def make_openai_tokenize_body(text: str, options: RequestOptions) -> JsonBody:
    """Return a body with the text by the name that vLLM, weft or llama.cpp reads."""
    return {"prompt": text, "inputs": text, "content": text} | ({"model": options.model} if options.model else {})


DIALECTS: Mapping[str, Dialect] = {
    "tgi": Dialect("/generate_stream", make_tgi_body, parse_tgi_event),
    "lorax": Dialect("/generate_stream", make_tgi_body, parse_tgi_event),
    "openai": Dialect("/v1/completions", make_openai_body, parse_openai_event,
                      make_tokenize_body=make_openai_tokenize_body),
    "openai-chat": Dialect("/v1/chat/completions", make_chat_body, parse_openai_event,
                           make_tokenize_body=make_openai_tokenize_body),
    "batching": Dialect("/inference", make_batching_study_body, None, parse_server_seconds=parse_study_latency,
                        stats_path="/stats"),}
# TGI's route without a stream, which no flag names: experiments use it
UNSTREAMED_TGI_DIALECT = Dialect("/generate", make_tgi_body, None)


class EventStreamParser:
    """Incremental parser of a stream of server-sent events."""

    def __init__(self, parse_event: Callable[[Any], ParsedEvent]) -> None:
        self._parse_event = parse_event
        self._incomplete_line = b""

    def feed(self, chunk: bytes) -> Iterator[ParsedEvent]:
        """Yield the parts of complete events lazily, so that those before an unreadable one still count."""
        lines = (self._incomplete_line + chunk).split(b"\n")
        self._incomplete_line = lines.pop()
        for line in lines:
            if line.startswith(b"data:"):
                event = line[5:].strip()
                yield DONE_EVENT if event == b"[DONE]" else self._parse_event(json.loads(event))
