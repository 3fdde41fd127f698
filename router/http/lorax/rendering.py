"""Rendering of generated tokens, errors and headers in LoRAX's format.

Times are whole milliseconds. The number of skipped tokens is always 0: LoRAX skips tokens when it speculates, and weft
does not speculate.
"""

from collections.abc import Sequence
from dataclasses import replace
from json.encoder import encode_basestring_ascii as quoted

from router.engine.stream import FailedEvent, FinishedEvent, TokenEvent, TopToken
from router.errors import Cancelled, ChatTemplateFailed, InvalidRequest, Overloaded
from router.http.openai.rendering import ChunkStreamRenderer
from router.http.tgi.errors import TgiErrorReply, shorten_message
from router.http.tgi.rendering import TgiStreamRenderer, float32_json, prefill_json, seed_json
from router.http.transport.services import COMPUTE_TYPE, GenerationOutput, sum_seconds_by_phase, timing_headers
from router.request import FinishReason
from router.scheduler.request_timeline import RequestPhase
from router.text.tokenizer import Tokenizer

DONE_EVENT = b"data:[DONE]\n\n"
ZERO_USAGE_JSON = '{"prompt_tokens":0,"total_tokens":0,"completion_tokens":0}'
PLACEHOLDER_METADATA_JSON = '"id":"null","object":"{}","created":0,"model":"null"'
# LoRAX's clients know three finish reasons; a timeout is sent as `length`, which also means that the text was cut off.
FINISH_REASONS = {reason: str(reason) for reason in FinishReason} | {FinishReason.TIMEOUT: "length"}
OPENAI_FINISH_REASONS = {FinishReason.END_TOKEN: "stop", FinishReason.STOP_STRING: "content_filter",
                         FinishReason.LENGTH: "length", FinishReason.TIMEOUT: "length"}


def lorax_error_reply(error: Exception) -> TgiErrorReply:
    reply = TgiErrorReply.from_exception(error)
    if isinstance(error, Overloaded):
        return replace(reply, message="Model is overloaded")
    if isinstance(error, InvalidRequest):
        return replace(reply, error_type="validation")  # the only type that LoRAX's clients know for it
    if isinstance(error, ChatTemplateFailed):
        return replace(reply, message=shorten_message(f"Failed applying chat template to inputs: {error}"))
    return reply


def lorax_error_event(error: Exception) -> str:
    return f"data:{lorax_error_reply(error).to_json()}\n\n"


def lorax_base_headers(model_name: str, num_characters: int | None) -> dict[str, str]:
    """Return the headers of every response. The length of a chat is unknown until its prompt is rendered."""
    length_header = {} if num_characters is None else {"x-compute-characters": str(num_characters)}
    return {"x-compute-type": COMPUTE_TYPE, "x-model-id": model_name} | length_header


def lorax_timing_headers(best_output: GenerationOutput, validation_seconds: float,
                         total_seconds: float) -> dict[str, str]:
    seconds_by_phase, num_tokens = sum_seconds_by_phase([best_output]), best_output.final_event.num_tokens
    decode = seconds_by_phase.get(RequestPhase.DECODE, 0.0) / max(num_tokens - 1, 1)
    return timing_headers([best_output], validation_seconds, total_seconds) | {
        "x-compute-time": str(int(total_seconds * 1000)),
        "x-time-to-first-token": str(int(seconds_by_phase.get(RequestPhase.PREFILL, 0.0) * 1000)),
        "x-time-per-output-token": str(int(decode * 1000)),
        "x-skipped-tokens": "0",
        "x-total-tokens": str(len(best_output.validated_request.request.prompt) + num_tokens),
    }


def token_json(token: TokenEvent) -> str:
    special = "true" if token.special else "false"
    alternatives = (f',"alternative_tokens":[{",".join(map(plain_token_json, token.top_tokens))}]' if token.top_tokens
                    else "")
    return f'{plain_token_json(token)[:-1]},"special":{special},"skipped":false{alternatives}}}'


def plain_token_json(token: TokenEvent | TopToken) -> str:
    return f'{{"id":{token.id},"text":{quoted(token.text)},"logprob":{float32_json(token.logprob)}}}'


def generate_response_json(output: GenerationOutput, tokenizer: Tokenizer, other_outputs: Sequence[GenerationOutput],
                           text_prefix: str, *, has_details: bool) -> str:
    text = quoted(text_prefix + output.final_event.text)
    if not has_details:
        return f'{{"generated_text":{text}}}'
    counts = (f'"prompt_tokens":{len(output.validated_request.request.prompt)},'
              f'"generated_tokens":{output.final_event.num_tokens}')
    best_of_sequences = ",".join(best_of_sequence_json(other, tokenizer, text_prefix) for other in other_outputs)
    best_of = f',"best_of_sequences":[{best_of_sequences}]'
    return (f'{{"generated_text":{text},"details":{{{finish_reason_field(output.final_event)},{counts},'
            f'"skipped_tokens":0,{seed_and_token_fields(output, tokenizer)}{best_of if other_outputs else ""}}}}}')


def best_of_sequence_json(output: GenerationOutput, tokenizer: Tokenizer, text_prefix: str) -> str:
    """Render one of the choices other than the best."""
    return (
        f'{{"generated_text":{quoted(text_prefix + output.final_event.text)},{finish_reason_field(output.final_event)},'
        f'"generated_tokens":{output.final_event.num_tokens},{seed_and_token_fields(output, tokenizer)}}}')


def finish_reason_field(final_event: FinishedEvent) -> str:
    return f'"finish_reason":"{FINISH_REASONS[final_event.finish_reason]}"'


def seed_and_token_fields(output: GenerationOutput, tokenizer: Tokenizer) -> str:
    return (f'"seed":{seed_json(output.validated_request.seed)},"prefill":[{prefill_json(output, tokenizer)}],'
            f'"tokens":[{",".join(map(token_json, output.tokens))}]')


class LoraxStreamRenderer(TgiStreamRenderer):
    """Renderer of the events of LoRAX's `/generate_stream`."""

    __slots__ = ()

    def _render_token_event(self, token: TokenEvent, end_fields: str) -> str:
        return f'data:{{"token":{token_json(token)},{end_fields}}}\n\n'

    def _render_end_fields(self, event: FinishedEvent) -> str:
        details = "null"
        if self._has_details:
            num_prompt_tokens = len(self._validated_request.request.prompt)
            details = (f'{{{finish_reason_field(event)},"prompt_tokens":{num_prompt_tokens},"generated_tokens":'
                       f'{event.num_tokens},"skipped_tokens":0,"seed":{seed_json(self._validated_request.seed)}}}')
        return f'"generated_text":{quoted(self._text_prefix + event.text)},"details":{details}'

    def _render_failure(self, event: FailedEvent) -> str:
        return render_failure_event(event)


def render_failure_event(event: FailedEvent) -> str:
    if isinstance(event.error, Cancelled):
        raise event.error
    return lorax_error_event(event.error)


def usage_json(num_prompt_tokens: int, num_tokens: int) -> str:
    return (f'{{"prompt_tokens":{num_prompt_tokens},"total_tokens":{num_prompt_tokens + num_tokens},'
            f'"completion_tokens":{num_tokens}}}')


def output_usage_json(output: GenerationOutput) -> str:
    return usage_json(len(output.validated_request.request.prompt), output.final_event.num_tokens)


def completion_response_json(output: GenerationOutput, text_prefix: str) -> str:
    choice = (f'{{"index":0,"text":{quoted(text_prefix + output.final_event.text)},"logprobs":null,'
              f'"finish_reason":"{OPENAI_FINISH_REASONS[output.final_event.finish_reason]}"}}')
    return (f'{{{PLACEHOLDER_METADATA_JSON.format("text_completion")},"choices":[{choice}],'
            f'"usage":{output_usage_json(output)}}}')


def chat_response_json(output: GenerationOutput, message_json: str, model: str, created: int, fingerprint: str) -> str:
    choice = (f'{{"index":0,"message":{message_json},'
              f'"finish_reason":"{OPENAI_FINISH_REASONS[output.final_event.finish_reason]}"}}')
    return (f'{{"id":"null","object":"text_completion","created":{created},"model":{quoted(model)},'
            f'"choices":[{choice}],"usage":{output_usage_json(output)},"system_fingerprint":"{fingerprint}"}}')


class LoraxChatStreamRenderer(ChunkStreamRenderer):
    """Renderer of a chat's chunks as LoRAX sends them, with placeholders for id and model."""

    __slots__ = ("_num_prompt_tokens",)

    def __init__(self, num_prompt_tokens: int) -> None:
        super().__init__()
        self._num_prompt_tokens = num_prompt_tokens

    def _render_chunk(self, text: str, _: TokenEvent | None, /) -> str:
        return self._format_chunk(f'"role":"assistant","content":{quoted(text)}', "null", "")

    def _render_end(self, event: FinishedEvent, text: str, _: TokenEvent | None, /) -> str:
        """Render the end; after an end token without text, the delta is empty."""
        is_empty = not text and event.finish_reason is FinishReason.END_TOKEN
        delta = "" if is_empty else f'"role":"assistant","content":{quoted(text)}'
        usage = usage_json(self._num_prompt_tokens, event.num_tokens)
        return self._format_chunk(delta, f'"{OPENAI_FINISH_REASONS[event.finish_reason]}"',
                                  f',"usage":{usage}') + DONE_EVENT.decode()

    def _format_chunk(self, delta_fields: str, finish_reason_json: str, usage_field: str) -> str:
        return (f'data:{{{PLACEHOLDER_METADATA_JSON.format("chat.completion.chunk")},"choices":[{{"index":0,'
                f'"delta":{{{delta_fields}}},"finish_reason":{finish_reason_json}}}]{usage_field}}}\n\n')

    def _render_failure(self, event: FailedEvent) -> str:
        return render_failure_event(event)


class LoraxCompletionStreamRenderer(ChunkStreamRenderer):
    """Renderer of a completion's chunks as LoRAX sends them, each with a usage."""

    __slots__ = ("_num_prompt_tokens",)

    def __init__(self, num_prompt_tokens: int) -> None:
        super().__init__()
        self._num_prompt_tokens = num_prompt_tokens

    def _render_chunk(self, text: str, _: TokenEvent | None, /) -> str:
        return self._format_chunk(text, "null", ZERO_USAGE_JSON)

    def _render_end(self, event: FinishedEvent, text: str, _: TokenEvent | None, /) -> str:
        usage = usage_json(self._num_prompt_tokens, event.num_tokens)
        return self._format_chunk(text, f'"{OPENAI_FINISH_REASONS[event.finish_reason]}"', usage) + DONE_EVENT.decode()

    def _format_chunk(self, text: str, finish_reason_json: str, usage_json: str) -> str:
        return (f'data:{{{PLACEHOLDER_METADATA_JSON.format("text_completion")},"choices":[{{"index":0,'
                f'"text":{quoted(text)},"logprobs":null,"finish_reason":{finish_reason_json}}}],'
                f'"usage":{usage_json}}}\n\n')

    def _render_failure(self, event: FailedEvent) -> str:
        return render_failure_event(event)
