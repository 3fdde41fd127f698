"""Request bodies and answer parsers of each dialect.

Parsers are fed with the pieces of an answer as they arrive.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from benchmarks.bench.load.record import Ask

Body = dict[str, Any]
SAYING = "content", "reasoning_content", "reasoning", "tool_calls"  # fields of a chat delta that hold tokens


class Part(NamedTuple):
    """Content of a server-sent event."""

    brings: bool = False  # whether it has tokens
    num_tokens: int | None = None  # of the whole answer, if the event has their number
    prompt_tokens: int | None = None
    error: str = ""
    is_last: bool = False  # the answer is complete


LAST = Part(is_last=True)


@dataclass(frozen=True, slots=True)
class Options:
    """Options shared by all requests of a run."""

    model: str = ""
    sampling: Mapping[str, Any] = field(default_factory=dict)  # sent unchanged
    ignore_eos: bool = True


@dataclass(frozen=True, slots=True)
class Dialect:
    path: str
    body: Callable[[Ask, Options], Body]
    read: Callable[[Any], Part] | None  # parses an event; None: answers are not streamed and have all requested tokens
    counting: Callable[[str, Options], Body] = lambda text, _: {"inputs": text}  # body of POST /tokenize
    seconds: str = ""  # response header with the request's seconds by the server's own clock
    stats: str = ""  # path of the server's own counters


# -- TGI and LoRAX

def tgi_body(ask: Ask, options: Options) -> Body:
    parameters: Body = {"max_new_tokens": ask.output_tokens, "details": True, **options.sampling}
    if ask.adapter:
        parameters["adapter_id"] = ask.adapter
    return {"inputs": ask.prompt, "parameters": parameters}


def lorax_body(ask: Ask, options: Options) -> Body:
    body = tgi_body(ask, options)
    body["parameters"]["ignore_eos_token"] = options.ignore_eos
    return body


def read_tgi(event: Any) -> Part:
    if event.get("error"):
        return Part(error=error_of(event))
    details = event.get("details") or {}
    return Part(brings=True, num_tokens=details.get("generated_tokens"),
                prompt_tokens=details.get("input_length", details.get("prompt_tokens")),
                is_last=event.get("generated_text") is not None)


# -- OpenAI

def openai_body(ask: Ask, options: Options) -> Body:
    body: Body = {"prompt": ask.prompt, "max_tokens": ask.output_tokens, "temperature": 0, "stream": True,
                  "stream_options": {"include_usage": True}, **options.sampling}
    if name := ask.adapter or options.model:
        body["model"] = name
    return body | ({"ignore_eos": True} if options.ignore_eos else {})


def chat_body(ask: Ask, options: Options) -> Body:
    body = openai_body(ask, options)
    return body | {"messages": [{"role": "user", "content": body.pop("prompt")}]}


def read_openai(event: Any) -> Part:
    """Parse a chunk. One with only a role has no tokens; usage arrives in a chunk of its own."""
    if event.get("error"):
        return Part(error=error_of(event))
    usage, choices = event.get("usage") or {}, event.get("choices") or ()
    return Part(any(map(says, choices)), usage.get("completion_tokens"), usage.get("prompt_tokens"),
                is_last=any(choice.get("finish_reason") for choice in choices))


def says(choice: Mapping[str, Any]) -> bool:
    delta = choice.get("delta") or {}
    return bool(choice.get("text") or any(delta.get(name) for name in SAYING))


# -- the effective-batching study

def inference_body(ask: Ask, _: Options) -> Body:
    return {"prompt": ask.prompt, "num_tokens": ask.output_tokens}


def error_of(answer: Any) -> str:
    """Return the error message of an answer in any dialect."""
    found = answer.get("error", answer) if isinstance(answer, dict) else answer
    return str(found.get("message", found) if isinstance(found, dict) else found)


def count_for_openai(text: str, options: Options) -> Body:
    return {"prompt": text, "inputs": text} | ({"model": options.model} if options.model else {})


DIALECTS: Mapping[str, Dialect] = {
    "tgi": Dialect("/generate_stream", tgi_body, read_tgi),
    "lorax": Dialect("/generate_stream", lorax_body, read_tgi),
    "openai": Dialect("/v1/completions", openai_body, read_openai, counting=count_for_openai),
    "openai-chat": Dialect("/v1/chat/completions", chat_body, read_openai, counting=count_for_openai),
    "batching": Dialect("/inference", inference_body, None, seconds="x-weft-seconds", stats="/stats"),
}


class Events:
    """Incremental parser of a stream of server-sent events."""

    def __init__(self, read: Callable[[Any], Part]) -> None:
        self._read = read
        self._rest = b""

    def heard(self, piece: bytes) -> Iterator[Part]:
        """Yield the parts of complete events lazily, so that those before an unreadable one still count."""
        lines = (self._rest + piece).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            if line.startswith(b"data:"):
                event = line[5:].strip()
                yield LAST if event == b"[DONE]" else self._read(json.loads(event))
