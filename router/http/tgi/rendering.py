"""Rendering of generated tokens as TGI's JSON: events of a stream, and the details of a whole response.

Text is escaped to ASCII: some clients take U+2028 and the like for the end of an event's line.
"""

from collections.abc import Sequence
from json.encoder import encode_basestring_ascii as quoted

from router.engine.stream import FailedEvent, FinishedEvent, StreamEvent, TokenEvent, TopToken
from router.errors import Cancelled
from router.http.tgi.errors import TgiErrorReply
from router.http.transport.services import GenerationOutput
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


def details_json(output: GenerationOutput, tokenizer: Tokenizer, other_outputs: Sequence[GenerationOutput],
                 text_prefix: str) -> str:
    """Render the field `details` of a whole response."""
    best_of_sequences = ",".join(best_of_sequence_json(other, tokenizer, text_prefix) for other in other_outputs)
    best_of = f',"best_of_sequences":[{best_of_sequences}]'
    return f"{{{_details_fields(output, tokenizer)}{best_of if other_outputs else ''}{_top_tokens_field(output)}}}"


def best_of_sequence_json(output: GenerationOutput, tokenizer: Tokenizer, text_prefix: str) -> str:
    """Render one of the choices other than the best."""
    text = quoted(text_prefix + output.final_event.text)
    return f'{{"generated_text":{text},{_details_fields(output, tokenizer)}{_top_tokens_field(output)}}}'


def _details_fields(output: GenerationOutput, tokenizer: Tokenizer) -> str:
    final_event = output.final_event
    return (f'"finish_reason":"{final_event.finish_reason}","generated_tokens":{final_event.num_tokens},'
            f'"seed":{seed_json(output.validated_request.seed)},"prefill":[{prefill_json(output, tokenizer)}],'
            f'"tokens":[{",".join(map(token_json, output.tokens))}]')


def prefill_json(output: GenerationOutput, tokenizer: Tokenizer) -> str:
    """Render the prompt's tokens with their logprobs, or nothing if they were not requested."""
    request = output.validated_request.request
    if not request.prompt_logprobs:
        return ""
    return ",".join(
        f'{{"id":{token},"text":{quoted(tokenizer.decode_token(token))},"logprob":{float32_json(logprob)}}}'
        for token, logprob in zip(request.prompt, output.prompt_logprobs, strict=True))


def _top_tokens_field(output: GenerationOutput) -> str:
    tops = [token.top_tokens for token in output.tokens]
    return f',"top_tokens":[{",".join(map(top_tokens_json, tops))}]' if any(tops) else ""
