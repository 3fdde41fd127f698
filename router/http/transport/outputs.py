"""Outputs of requests: waits for the events of a stream and collects them as a `GenerationOutput` or a
`PoolingRequestOutput`.

Text is escaped to ASCII: some clients take U+2028 and the like for the end of an event's line.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from json.encoder import encode_basestring_ascii as quoted

from router.engine.stream import (
    FailedEvent,
    FinishedEvent,
    PoolingEvent,
    PromptLogprobsEvent,
    RequestStream,
    StreamEvent,
    TokenEvent,
    TopToken,
)
from router.errors import Cancelled
from router.http.transport.errors import TgiErrorReply
from router.text.tokenizer import Tokenizer
from router.validation.validator import ValidatedRequest

EMPTY_TOKEN = TokenEvent(0, "", 0.0, special=True)  # placeholder for an end without a token
UNFINISHED_FIELDS = '"generated_text":null,"details":null'


def float32_json(value: float | None) -> str:
    """Render a 32-bit float. Nine digits tell all such numbers apart. JSON has no infinities: the logprob of an
    excluded token becomes null."""
    return f"{value:.9g}" if value is not None and value - value == 0 else "null"


def token_json(token: TokenEvent | TopToken) -> str:
    special = "true" if token.special else "false"
    return (
        f'{{"id":{token.id},"text":{quoted(token.text)},"logprob":{float32_json(token.logprob)},"special":{special}}}')


def top_tokens_json(top_tokens: Sequence[TopToken]) -> str:
    return f"[{','.join(map(token_json, top_tokens))}]"


def seed_json(seed: int | None) -> str:
    return "null" if seed is None else str(seed)


class TgiStreamRenderer:
    """Renderer of one request's events. The last token's event carries the end; after a timeout without a token, an
    empty special token does."""

    __slots__ = ("_has_details", "_text_prefix", "_token_index", "_validated_request", "is_finished")

    def __init__(self, validated_request: ValidatedRequest, has_details: bool, text_prefix: str) -> None:
        self.is_finished = False
        self._validated_request = validated_request
        self._has_details = has_details
        self._text_prefix = text_prefix  # prepended to the generated text
        self._token_index = 0

    def render(self, events: list[StreamEvent]) -> bytes:
        parts: list[str] = []
        token: TokenEvent | None = None
        for event in events:
            if type(event) is TokenEvent:
                token = event
                self._token_index += 1
                parts.append(self._render_token_event(event, UNFINISHED_FIELDS))
            elif type(event) is FinishedEvent:
                if token is None:
                    token = EMPTY_TOKEN
                    self._token_index += 1
                    parts.append("")
                parts[-1] = self._render_token_event(token, self._render_end_fields(event))
                self.is_finished = True
            elif type(event) is FailedEvent:
                parts.append(self._render_failure(event))
                self.is_finished = True
        return "".join(parts).encode("ascii")

    def _render_token_event(self, token: TokenEvent, end_fields: str) -> str:
        if token.top_tokens:
            end_fields = f'"top_tokens":{top_tokens_json(token.top_tokens)},{end_fields}'
        return f'data: {{"index":{self._token_index},"token":{token_json(token)},{end_fields}}}\n\n'

    def _render_end_fields(self, event: FinishedEvent) -> str:
        details = "null"
        if self._has_details:
            details = (f'{{"finish_reason":"{event.finish_reason}","generated_tokens":{event.num_tokens},'
                       f'"seed":{seed_json(self._validated_request.seed)},'
                       f'"input_length":{len(self._validated_request.request.prompt)}}}')
        return f'"generated_text":{quoted(self._text_prefix + event.text)},"details":{details}'

    def _render_failure(self, event: FailedEvent) -> str:
        if isinstance(event.error, Cancelled):
            raise event.error
        return tgi_error_event(event.error)


def tgi_error_event(error: Exception) -> str:
    return f"data: {TgiErrorReply.from_exception(error).to_json()}\n\n"


@dataclass(frozen=True, slots=True)
class GenerationOutput:
    """Complete output of one choice."""

    validated_request: ValidatedRequest
    tokens: list[TokenEvent]
    prompt_logprobs: list[float | None]  # one per prompt token
    final_event: FinishedEvent

    @property
    def mean_logprob(self) -> float:
        return sum(token.logprob for token in self.tokens) / max(len(self.tokens), 1)

    def details_json(self, tokenizer: Tokenizer, other_outputs: Sequence["GenerationOutput"], text_prefix: str) -> str:
        best_of_sequences = ",".join(other.best_of_sequence_json(tokenizer, text_prefix) for other in other_outputs)
        best_of = f',"best_of_sequences":[{best_of_sequences}]'
        return f"{{{self._details_fields(tokenizer)}{best_of if other_outputs else ''}{self._top_tokens_field()}}}"

    def best_of_sequence_json(self, tokenizer: Tokenizer, text_prefix: str) -> str:
        """Render one of the choices other than the best."""
        text = quoted(text_prefix + self.final_event.text)
        return f'{{"generated_text":{text},{self._details_fields(tokenizer)}{self._top_tokens_field()}}}'

    def _details_fields(self, tokenizer: Tokenizer) -> str:
        return (f'"finish_reason":"{self.final_event.finish_reason}","generated_tokens":{self.final_event.num_tokens},'
                f'"seed":{seed_json(self.validated_request.seed)},"prefill":[{self.prefill_json(tokenizer)}],'
                f'"tokens":[{",".join(map(token_json, self.tokens))}]')

    def prefill_json(self, tokenizer: Tokenizer) -> str:
        if not self.validated_request.request.prompt_logprobs:
            return ""
        return ",".join(
            f'{{"id":{token},"text":{quoted(tokenizer.decode_token(token))},"logprob":{float32_json(logprob)}}}'
            for token, logprob in zip(self.validated_request.request.prompt, self.prompt_logprobs, strict=True))

    def _top_tokens_field(self) -> str:
        tops = [token.top_tokens for token in self.tokens]
        return f',"top_tokens":[{",".join(map(top_tokens_json, tops))}]' if any(tops) else ""


@dataclass(frozen=True, slots=True)
class PoolingRequestOutput:
    """Output of a pooling request (embedding or classification)."""

    validated_request: ValidatedRequest
    final_event: PoolingEvent


async def wait_for_pooling_output(stream: RequestStream, validated_request: ValidatedRequest) -> PoolingRequestOutput:
    """Wait for the output of a pooling request. Raises the request's error if it failed."""
    while True:
        for event in await stream.wait_for_events():
            if isinstance(event, FailedEvent):
                raise event.error
            if isinstance(event, PoolingEvent):
                return PoolingRequestOutput(validated_request, event)


class OutputCollector:
    """Collects the events of one stream in a callback, so that the waiting task wakes only once, at the end."""

    def __init__(self, stream: RequestStream, validated_request: ValidatedRequest) -> None:
        self._stream = stream
        self._validated_request = validated_request
        self._tokens: list[TokenEvent] = []
        self._prompt_logprobs: list[float | None] = [None] * len(validated_request.request.prompt)
        self._final_event: asyncio.Future[FinishedEvent] = asyncio.get_running_loop().create_future()

    async def wait_for_output(self) -> GenerationOutput:
        """Wait for the end and return the answer. Raises the request's error if it failed."""
        self._stream.set_event_callback(self._collect_events)
        self._collect_events()
        final_event = await self._final_event
        return GenerationOutput(self._validated_request, self._tokens, self._prompt_logprobs, final_event)

    def _collect_events(self) -> None:
        for event in self._stream.take_events():
            match event:
                case TokenEvent():
                    self._tokens.append(event)
                case PromptLogprobsEvent(start, logprobs):
                    self._prompt_logprobs[start:start + len(logprobs)] = logprobs
                case FinishedEvent() if not self._final_event.done():
                    self._final_event.set_result(event)
                case FailedEvent(error) if not self._final_event.done():
                    self._final_event.set_exception(error)
