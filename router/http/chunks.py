"""Generated tokens as OpenAI's JSON: chunks of a stream, or one completion.

Knows nothing of HTTP. What a chunk says beside its text is the same for all chunks of an answer and made once; text is
escaped to ASCII, as in TGI's events.
"""

import json
from dataclasses import dataclass
from json.encoder import encode_basestring_ascii as quoted

from router.errors import Cancelled
from router.http.errors import Told
from router.http.rendering import Answer
from router.request import FinishReason
from router.stream import Event, FailedEvent, FinishedEvent, TokenEvent

DONE = "data: [DONE]\n\n"
# OpenAI has no word for a time that ran out; like a length, it cuts a text off.
REASONS = {FinishReason.END_TOKEN: "stop", FinishReason.STOP_STRING: "stop",
           FinishReason.LENGTH: "length", FinishReason.TIMEOUT: "length"}


@dataclass(frozen=True, slots=True)
class Label:
    """What an answer, and each chunk of it, says of itself."""

    id: str
    created: int  # in seconds
    model: str
    fingerprint: str

    def json(self, kind: str) -> str:
        return (f'"object":"{kind}","id":"{self.id}","created":{self.created},"model":{quoted(self.model)},'
                f'"system_fingerprint":"{self.fingerprint}"')


def completion_json(label: Label, answer: Answer) -> str:
    message = f'{{"role":"assistant","content":{quoted(answer.end.text)}}}'
    choice = f'{{"index":0,"message":{message},"logprobs":null,"finish_reason":"{REASONS[answer.end.reason]}"}}'
    usage = usage_json(len(answer.choice.request.prompt), answer.end.num_tokens)
    return f'{{{label.json("chat.completion")},"choices":[{choice}],"usage":{usage}}}'


class Chunks:
    """The events of one request, rendered burst by burst: a chunk for each token. The last token's chunk carries the
    reason for the end, and so much text that all chunks together have the whole."""

    __slots__ = ("_before", "_before_others", "_begin", "_num_prompt_tokens", "_num_told", "_usage", "ended")

    def __init__(self, label: Label, num_prompt_tokens: int, *, usage: bool) -> None:
        self.ended = False
        self._begin = f'data: {{{label.json("chat.completion.chunk")},"choices":['
        self._before = self._begin + '{"index":0,"delta":{"role":"assistant","content":'
        self._before_others = self._begin + '{"index":0,"delta":{"content":'
        self._num_prompt_tokens = num_prompt_tokens
        self._num_told = 0  # characters
        self._usage = usage  # asked for at the end

    def burst(self, events: list[Event]) -> bytes:
        parts: list[str] = []
        text: str | None = None  # of the last token: which may be the last of all
        for event in events:
            if text is not None and type(event) is not FinishedEvent:
                parts.append(self._chunk(text))
                text = None
            if type(event) is TokenEvent:
                text = "" if event.special else event.text
            elif type(event) is FinishedEvent:
                parts.append(self._end(event))
                text = None
            elif type(event) is FailedEvent:
                parts.append(self._failed(event))
        if text is not None:
            parts.append(self._chunk(text))
        return "".join(parts).encode("ascii")

    def _chunk(self, text: str, reason: str = "null") -> str:
        before, self._before = self._before, self._before_others
        self._num_told += len(text)
        return f'{before}{quoted(text)}}},"logprobs":null,"finish_reason":{reason}}}],"usage":null}}\n\n'

    def _end(self, event: FinishedEvent) -> str:
        self.ended = True
        last = self._chunk(event.text[self._num_told:], f'"{REASONS[event.reason]}"')
        return last + self._usage_chunk(event) + DONE

    def _usage_chunk(self, event: FinishedEvent) -> str:
        if not self._usage:
            return ""
        return f'{self._begin}],"usage":{usage_json(self._num_prompt_tokens, event.num_tokens)}}}\n\n'

    def _failed(self, event: FailedEvent) -> str:
        self.ended = True
        if isinstance(event.error, Cancelled):
            raise event.error
        return error_chunk(event.error)


def usage_json(num_prompt_tokens: int, num_tokens: int) -> str:
    return (f'{{"prompt_tokens":{num_prompt_tokens},"completion_tokens":{num_tokens},'
            f'"total_tokens":{num_prompt_tokens + num_tokens}}}')


def error_chunk(error: Exception) -> str:
    """TGI has `message` and `http_status_code`, OpenAI's clients `type`, those of the Hub `error_type`."""
    told = Told.of(error)
    inner = {"message": told.text, "type": told.error_type, "http_status_code": told.status}
    return f"data: {json.dumps({'error': inner, 'error_type': told.error_type}, separators=(',', ':'))}\n\n{DONE}"
