"""Rendering of generated tokens, errors and headers in LoRAX's format.

Times are whole milliseconds. The number of skipped tokens is always 0: LoRAX skips tokens when it speculates, and weft
does not speculate.
"""

from collections.abc import Sequence
from dataclasses import replace
from json.encoder import encode_basestring_ascii as quoted

from router.engine.stream import FailedEvent, FinishedEvent, TokenEvent, TopToken
from router.errors import Cancelled, InvalidRequest, Overloaded, TemplateFailed
from router.http.openai.rendering import Pieces
from router.http.transport.collect import Answer, Streaming, number, seed_json
from router.http.transport.errors import Told, shortened
from router.http.transport.headers import milliseconds, seconds_of, timings
from router.request import FinishReason
from router.scheduler.timeline import Cause
from router.text.tokenizer import Tokenizer

DONE = b"data:[DONE]\n\n"
KIND = "gpu+optimized"  # what every LoRAX server sends, whatever its hardware
NO_USAGE = '{"prompt_tokens":0,"total_tokens":0,"completion_tokens":0}'
NOBODY = '"id":"null","object":"{}","created":0,"model":"null"'
# LoRAX's clients know three finish reasons; a timeout is sent as `length`, which also means that the text was cut off.
REASONS = {reason: str(reason) for reason in FinishReason} | {FinishReason.TIMEOUT: "length"}
OPENAI_REASONS = {FinishReason.END_TOKEN: "stop", FinishReason.STOP_STRING: "content_filter",
                  FinishReason.LENGTH: "length", FinishReason.TIMEOUT: "length"}


def told(error: Exception) -> Told:
    found = Told.of(error)
    if isinstance(error, Overloaded):
        return replace(found, text="Model is overloaded")
    if isinstance(error, InvalidRequest):
        return replace(found, error_type="validation")  # the only type that LoRAX's clients know for it
    if isinstance(error, TemplateFailed):
        return replace(found, text=shortened(f"Failed applying chat template to inputs: {error}"))
    return found


def error_event(error: Exception) -> str:
    return f"data:{told(error).json()}\n\n"


def head(model: str, num_characters: int | None) -> dict[str, str]:
    """Return the headers of every response. The length of a chat is unknown until its prompt is rendered."""
    known = {} if num_characters is None else {"x-compute-characters": str(num_characters)}
    return {"x-compute-type": KIND, "x-model-id": model} | known


def times(best: Answer, validation_seconds: float, total_seconds: float) -> dict[str, str]:
    spent, num_tokens = seconds_of([best]), best.end.num_tokens
    decode = spent.get(Cause.DECODE, 0.0) / max(num_tokens - 1, 1)
    return timings([best], validation_seconds, total_seconds) | {
        "x-compute-time": milliseconds(total_seconds),
        "x-time-to-first-token": milliseconds(spent.get(Cause.PREFILL, 0.0)),
        "x-time-per-output-token": milliseconds(decode),
        "x-skipped-tokens": "0",
        "x-total-tokens": str(len(best.choice.request.prompt) + num_tokens),
    }


def token_json(token: TokenEvent) -> str:
    special = "true" if token.special else "false"
    others = f',"alternative_tokens":[{",".join(map(plain_json, token.top))}]' if token.top else ""
    return f'{plain_json(token)[:-1]},"special":{special},"skipped":false{others}}}'


def plain_json(token: TokenEvent | TopToken) -> str:
    return f'{{"id":{token.id},"text":{quoted(token.text)},"logprob":{number(token.logprob)}}}'


def answer_json(answer: Answer, tokenizer: Tokenizer, others: Sequence[Answer], prefix: str, *, details: bool) -> str:
    text = quoted(prefix + answer.end.text)
    if not details:
        return f'{{"generated_text":{text}}}'
    counts = f'"prompt_tokens":{len(answer.choice.request.prompt)},"generated_tokens":{answer.end.num_tokens}'
    best_of = f',"best_of_sequences":[{",".join(other_json(other, tokenizer, prefix) for other in others)}]'
    return (f'{{"generated_text":{text},"details":{{{reason_json(answer.end)},{counts},"skipped_tokens":0,'
            f'{tokens_json(answer, tokenizer)}{best_of if others else ""}}}}}')


def other_json(answer: Answer, tokenizer: Tokenizer, prefix: str) -> str:
    """Render one of the choices other than the best."""
    return (f'{{"generated_text":{quoted(prefix + answer.end.text)},{reason_json(answer.end)},'
            f'"generated_tokens":{answer.end.num_tokens},{tokens_json(answer, tokenizer)}}}')


def reason_json(end: FinishedEvent) -> str:
    return f'"finish_reason":"{REASONS[end.reason]}"'


def tokens_json(answer: Answer, tokenizer: Tokenizer) -> str:
    return (f'"seed":{seed_json(answer.choice.seed)},"prefill":[{answer.prefill_json(tokenizer)}],'
            f'"tokens":[{",".join(map(token_json, answer.tokens))}]')


class LoraxStreaming(Streaming):
    __slots__ = ()

    def _event(self, token: TokenEvent, end: str) -> str:
        return f'data:{{"token":{token_json(token)},{end}}}\n\n'

    def _end(self, event: FinishedEvent) -> str:
        details = "null"
        if self._details:
            num_prompt_tokens = len(self._choice.request.prompt)
            details = (f'{{{reason_json(event)},"prompt_tokens":{num_prompt_tokens},"generated_tokens":'
                       f'{event.num_tokens},"skipped_tokens":0,"seed":{seed_json(self._choice.seed)}}}')
        return f'"generated_text":{quoted(self._prefix + event.text)},"details":{details}'

    def _failed(self, event: FailedEvent) -> str:
        return failure(event)


def failure(event: FailedEvent) -> str:
    if isinstance(event.error, Cancelled):
        raise event.error
    return error_event(event.error)


def usage_json(num_prompt_tokens: int, num_tokens: int) -> str:
    return (f'{{"prompt_tokens":{num_prompt_tokens},"total_tokens":{num_prompt_tokens + num_tokens},'
            f'"completion_tokens":{num_tokens}}}')


def usage_of(answer: Answer) -> str:
    return usage_json(len(answer.choice.request.prompt), answer.end.num_tokens)


def completion_json(answer: Answer, prefix: str) -> str:
    choice = (f'{{"index":0,"text":{quoted(prefix + answer.end.text)},"logprobs":null,'
              f'"finish_reason":"{OPENAI_REASONS[answer.end.reason]}"}}')
    return f'{{{NOBODY.format("text_completion")},"choices":[{choice}],"usage":{usage_of(answer)}}}'


def chat_json(answer: Answer, message: str, model: str, created: int, fingerprint: str) -> str:
    choice = f'{{"index":0,"message":{message},"finish_reason":"{OPENAI_REASONS[answer.end.reason]}"}}'
    return (f'{{"id":"null","object":"text_completion","created":{created},"model":{quoted(model)},'
            f'"choices":[{choice}],"usage":{usage_of(answer)},"system_fingerprint":"{fingerprint}"}}')


class ChatChunks(Pieces):
    __slots__ = ("_num_prompt_tokens",)

    def __init__(self, num_prompt_tokens: int) -> None:
        super().__init__()
        self._num_prompt_tokens = num_prompt_tokens

    def _chunk(self, text: str, _: TokenEvent | None, /) -> str:
        return self._told(f'"role":"assistant","content":{quoted(text)}', "null", "")

    def _end(self, event: FinishedEvent, text: str, _: TokenEvent | None, /) -> str:
        """Render the end; after an end token without text, the delta is empty."""
        is_empty = not text and event.reason is FinishReason.END_TOKEN
        delta = "" if is_empty else f'"role":"assistant","content":{quoted(text)}'
        usage = usage_json(self._num_prompt_tokens, event.num_tokens)
        return self._told(delta, f'"{OPENAI_REASONS[event.reason]}"', f',"usage":{usage}') + DONE.decode()

    def _told(self, delta: str, reason: str, usage: str) -> str:
        return (f'data:{{{NOBODY.format("chat.completion.chunk")},"choices":[{{"index":0,"delta":{{{delta}}},'
                f'"finish_reason":{reason}}}]{usage}}}\n\n')

    def _failed(self, event: FailedEvent) -> str:
        return failure(event)


class TextChunks(Pieces):
    __slots__ = ("_num_prompt_tokens",)

    def __init__(self, num_prompt_tokens: int) -> None:
        super().__init__()
        self._num_prompt_tokens = num_prompt_tokens

    def _chunk(self, text: str, _: TokenEvent | None, /) -> str:
        return self._told(text, "null", NO_USAGE)

    def _end(self, event: FinishedEvent, text: str, _: TokenEvent | None, /) -> str:
        usage = usage_json(self._num_prompt_tokens, event.num_tokens)
        return self._told(text, f'"{OPENAI_REASONS[event.reason]}"', usage) + DONE.decode()

    def _told(self, text: str, reason: str, usage: str) -> str:
        return (f'data:{{{NOBODY.format("text_completion")},"choices":[{{"index":0,"text":{quoted(text)},'
                f'"logprobs":null,"finish_reason":{reason}}}],"usage":{usage}}}\n\n')

    def _failed(self, event: FailedEvent) -> str:
        return failure(event)
