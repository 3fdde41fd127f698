"""Rendering of generated tokens as JSON of text-generation-inference and of LoRAX, which is a fork of it: events of a
stream, and the details of a whole response.

A `GenerateResponseDialect` holds what differs between the two. Text is escaped to ASCII: some clients take U+2028 and
the like for the end of an event's line.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from json.encoder import encode_basestring_ascii as quoted

from router.engine.output_stream import FailedEvent, FinishedEvent, StreamEvent, TokenEvent, TopToken
from router.errors import Cancelled
from router.http.transport.error_responses import TgiErrorReply
from router.http.transport.services import GenerationOutput
from router.request import FinishReason
from router.text.tokenizer import Tokenizer
from router.validation.validator import ValidatedRequest

EMPTY_TOKEN = TokenEvent(0, "", 0.0, special=True)  # placeholder for an end without a token
UNFINISHED_FIELDS = '"generated_text":null,"details":null'
END_FIELDS = '"finish_reason":"{reason}","generated_tokens":{num_tokens},"seed":{seed}'


def tgi_error_event(error: Exception) -> str:
    return f"data: {TgiErrorReply.from_exception(error).to_json()}\n\n"


@dataclass(frozen=True, slots=True)
class GenerateResponseDialect:
    """Differences between dialects in the answers of `/generate` and `/generate_stream`.

    The fields of the end are templates with `reason`, `num_tokens`, `seed` and `num_prompt_tokens`.
    """

    before_index: str  # beginning of an event
    numbers_events: bool  # whether events have an `index`
    after_index: str
    token_ends: tuple[str, str]  # after the logprob of a token that is not special, and of one that is
    top_token_ends: tuple[str, str]
    nests_top_tokens: bool  # whether top tokens are in their token, as `alternative_tokens`, or beside it
    finish_reasons: Mapping[FinishReason, str]
    details_fields: str  # first fields of the details of a whole response
    stream_details_fields: str
    render_error_event: Callable[[Exception], str]


TGI_DIALECT = GenerateResponseDialect(
    before_index='data: {"index":',
    numbers_events=True,
    after_index=',"token":',
    token_ends=(',"special":false}', ',"special":true}'),
    top_token_ends=(',"special":false}', ',"special":true}'),
    nests_top_tokens=False,
    finish_reasons={reason: str(reason) for reason in FinishReason},
    details_fields=END_FIELDS,
    stream_details_fields=END_FIELDS + ',"input_length":{num_prompt_tokens}',
    render_error_event=tgi_error_event,
)


def float32_json(value: float | None) -> str:
    """Render a 32-bit float. Nine digits tell all such numbers apart. JSON has no infinities: the logprob of an
    excluded token becomes null."""
    return f"{value:.9g}" if value is not None and value - value == 0 else "null"


def token_json(token: TokenEvent, dialect: GenerateResponseDialect = TGI_DIALECT) -> str:
    logprob = token.logprob  # as `float32_json` renders it, without the call
    token_object = (f'{{"id":{token.id},"text":{quoted(token.text)},"logprob":'
                    f"{f'{logprob:.9g}' if logprob - logprob == 0 else 'null'}{dialect.token_ends[token.special]}")
    if token.top_tokens and dialect.nests_top_tokens:
        return f'{token_object[:-1]},"alternative_tokens":{top_tokens_json(token.top_tokens, dialect)}}}'
    return token_object


def top_tokens_json(top_tokens: Sequence[TopToken], dialect: GenerateResponseDialect) -> str:
    tops = ",".join(f'{{"id":{top.id},"text":{quoted(top.text)},"logprob":{float32_json(top.logprob)}'
                    f"{dialect.top_token_ends[top.special]}" for top in top_tokens)
    return f"[{tops}]"


def format_end(template: str, event: FinishedEvent, validated_request: ValidatedRequest,
               dialect: GenerateResponseDialect) -> str:
    seed = validated_request.seed
    return template.format(reason=dialect.finish_reasons[event.finish_reason], num_tokens=event.num_tokens,
                           seed="null" if seed is None else seed,
                           num_prompt_tokens=len(validated_request.request.prompt))


@dataclass(slots=True)
class GenerateStreamRenderer:
    """Renderer of one request's events. The last token's event carries the end; after a timeout without a token, an
    empty special token does."""

    _validated_request: ValidatedRequest
    _has_details: bool
    _text_prefix: str  # prepended to the generated text
    _dialect: GenerateResponseDialect = TGI_DIALECT
    _token_index: int = 0
    is_finished: bool = False

    def render(self, events: list[StreamEvent]) -> bytes:
        dialect = self._dialect
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
                details = (f"{{{format_end(dialect.stream_details_fields, event, self._validated_request, dialect)}}}"
                           if self._has_details else "null")
                text = quoted(self._text_prefix + event.text)
                parts[-1] = self._render_token_event(token, f'"generated_text":{text},"details":{details}')
                self.is_finished = True
            elif type(event) is FailedEvent:
                if isinstance(event.error, Cancelled):
                    raise event.error
                parts.append(dialect.render_error_event(event.error))
                self.is_finished = True
        return "".join(parts).encode("ascii")

    def _render_token_event(self, token: TokenEvent, end_fields: str) -> str:
        dialect = self._dialect
        index = self._token_index if dialect.numbers_events else ""
        if token.top_tokens and not dialect.nests_top_tokens:
            end_fields = f'"top_tokens":{top_tokens_json(token.top_tokens, dialect)},{end_fields}'
        return f"{dialect.before_index}{index}{dialect.after_index}{token_json(token, dialect)},{end_fields}}}\n\n"


def generate_response_json(output: GenerationOutput, tokenizer: Tokenizer, other_outputs: Sequence[GenerationOutput],
                           text_prefix: str, *, has_details: bool,
                           dialect: GenerateResponseDialect = TGI_DIALECT) -> str:
    """Render a whole response: the best choice, with the others among its details."""
    text = quoted(text_prefix + output.final_event.text)
    if not has_details:
        return f'{{"generated_text":{text}}}'
    details = details_json(output, tokenizer, other_outputs, text_prefix, dialect)
    return f'{{"generated_text":{text},"details":{details}}}'


def details_json(output: GenerationOutput, tokenizer: Tokenizer, other_outputs: Sequence[GenerationOutput],
                 text_prefix: str, dialect: GenerateResponseDialect = TGI_DIALECT) -> str:
    """Render the field `details` of a whole response."""
    best_of = ",".join(f'{{"generated_text":{quoted(text_prefix + other.final_event.text)},'
                       f'{choice_fields(other, tokenizer, END_FIELDS, "", dialect)}}}' for other in other_outputs)
    best_of_field = f',"best_of_sequences":[{best_of}]' if other_outputs else ""
    return f"{{{choice_fields(output, tokenizer, dialect.details_fields, best_of_field, dialect)}}}"


def choice_fields(output: GenerationOutput, tokenizer: Tokenizer, end_fields: str, best_of_field: str,
                  dialect: GenerateResponseDialect) -> str:
    """Render the details of one choice. The prompt's tokens are there if their logprobs were requested."""
    request = output.validated_request.request
    prefill = "" if not request.prompt_logprobs else ",".join(
        f'{{"id":{token},"text":{quoted(tokenizer.decode_token(token))},"logprob":{float32_json(logprob)}}}'
        for token, logprob in zip(request.prompt, output.prompt_logprobs, strict=True))
    tokens = ",".join([token_json(token, dialect) for token in output.tokens])
    top_tokens = [] if dialect.nests_top_tokens else [token.top_tokens for token in output.tokens]
    top_tokens_field = (f',"top_tokens":[{",".join(top_tokens_json(tops, dialect) for tops in top_tokens)}]'
                        if any(top_tokens) else "")
    return (f"{format_end(end_fields, output.final_event, output.validated_request, dialect)},"
            f'"prefill":[{prefill}],"tokens":[{tokens}]{best_of_field}{top_tokens_field}')
