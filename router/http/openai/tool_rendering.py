"""Rendering of chat answers with reasoning and tool calls as OpenAI's JSON: chunks of a stream, or a whole message.

text/response_parser.py parses the text of the model.
"""

import secrets
from collections.abc import Iterator, Sequence
from json.encoder import encode_basestring_ascii as quoted

from router.engine.stream import FinishedEvent, TokenEvent
from router.http.openai.rendering import Chunks, Extras, Label, Words, chat_json
from router.http.transport.collect import Answer
from router.request import FinishReason
from router.text.response_parser import AnyReader, Call, Part, Said, Thought, read_whole

OVER = frozenset({FinishReason.END_TOKEN, FinishReason.STOP_STRING})


def reason_of(end: FinishedEvent, num_calls: int, words: Words) -> str:
    return words.calls if num_calls and end.reason in OVER else words.whole[end.reason]


def call_json(call: Call, index: int | None = None) -> str:
    """Render a tool call; in a stream it has an `index`. `description` is there because some clients look for it."""
    place = "" if index is None else f'"index":{index},'
    return (f'{{{place}"id":"call_{secrets.token_hex(12)}","type":"function","function":{{"description":null,'
            f'"name":{quoted(call.name)},"arguments":{quoted(call.arguments)}}}}}')


def thought_json(text: str) -> str:
    """Render reasoning under both names that clients read."""
    return f'"reasoning":{quoted(text)},"reasoning_content":{quoted(text)}'


def spoken_json(label: Label, answer: Answer, extras: Extras, reader: AnyReader) -> str:
    parts = read_whole(reader, raw_pieces(answer, reader))
    calls = [call_json(part) for part in parts if isinstance(part, Call)]
    message = json_object(['"role":"assistant"', *fields(parts), *[f'"tool_calls":[{",".join(calls)}]'] * bool(calls)])
    return chat_json(label, answer, extras, message, reason_of(answer.end, len(calls), label.words))


def fields(parts: Sequence[Part]) -> Iterator[str]:
    """Yield the fields of a message without its tool calls. Whitespace that separated text, reasoning and calls is
    stripped."""
    text = "".join(part.text for part in parts if isinstance(part, Said)).strip()
    thought = "".join(part.text for part in parts if isinstance(part, Thought)).strip()
    if text or not any(isinstance(part, Call) for part in parts):
        yield f'"content":{quoted(text)}'
    if thought:
        yield thought_json(thought)


def json_object(given: Sequence[str]) -> str:
    return f"{{{','.join(given)}}}"


def raw_pieces(answer: Answer, reader: AnyReader) -> Iterator[str]:
    """Yield the texts of all tokens, special ones included. The last piece is the rest of the visible text, with the
    last token if `last_raw` keeps it."""
    tokens, last = answer.tokens[:-1], next(reversed(answer.tokens), None)
    yield from (token.text for token in tokens)
    left = answer.end.text[sum(len(token.text) for token in tokens if not token.special):]
    yield last_raw(left, last, answer.end, reader)


class SpokenChunks(Chunks):
    """Renderer of a chat's stream with reasoning and tool calls. A call is sent in one chunk, when it is complete."""

    __slots__ = ("_num_calls", "_reader", "_role")

    def __init__(self, label: Label, num_prompt_tokens: int, extras: Extras, reader: AnyReader) -> None:
        super().__init__(label, num_prompt_tokens, extras)
        self._reader = reader
        self._num_calls = 0
        self._role = '"role":"assistant"'  # only in the first chunk

    def _chunk(self, text: str, token: TokenEvent | None, /) -> str:
        return self._told(self._reader.feed(raw(text, token)), token)

    def _end(self, event: FinishedEvent, text: str, token: TokenEvent | None, /) -> str:
        last = last_raw(text, token, event, self._reader)
        told = self._told([*self._reader.feed(last), *self._reader.finish()], token)
        reason = reason_of(event, self._num_calls, self._words)
        return told + self._delta("", None, f'"{reason}"') + self._after(event.num_tokens)

    def _told(self, parts: Sequence[Part], token: TokenEvent | None) -> str:
        deltas = [self._field(part) for part in parts]
        if not deltas and token is not None and self._extras.logprobs:
            deltas = [""]
        return "".join(self._delta(delta, None if place else token) for place, delta in enumerate(deltas))

    def _field(self, part: Part) -> str:
        if isinstance(part, Call):
            self._num_calls += 1
            return f'"tool_calls":[{call_json(part, self._num_calls - 1)}]'
        return f'"content":{quoted(part.text)}' if isinstance(part, Said) else thought_json(part.text)

    def _delta(self, content: str, token: TokenEvent | None, reason: str = "null") -> str:
        delta = json_object([given for given in (self._role, content) if given])
        self._role = ""
        return (f'{self._begin}{{"index":0,"delta":{delta},"logprobs":{self._told_of(token)},'
                f'"finish_reason":{reason}}}],"usage":null}}\n\n')


def raw(text: str, token: TokenEvent | None) -> str:
    """Return the text, followed by the token's own text if it is special: visible text leaves special tokens out."""
    return text + token.text if token is not None and token.special else text


def last_raw(text: str, token: TokenEvent | None, end: FinishedEvent, reader: AnyReader) -> str:
    """Return the last token's text. An end token is left out, unless it closes a tool call or reasoning."""
    if token is None or end.reason is not FinishReason.END_TOKEN or reader.closes(token.text):
        return raw(text, token)
    return text
