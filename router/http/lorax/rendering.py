"""LoRAX's words in responses, its chunks of chats and completions, its errors and headers. Times are whole
milliseconds. The number of skipped tokens is always 0: guesses that a step verifies (--speculate) are not
told apart from other tokens."""

from dataclasses import dataclass, replace
from json.encoder import encode_basestring_ascii as quoted

from router.engine.output_stream import FinishedEvent, TokenEvent
from router.errors import ChatTemplateFailed, InvalidRequest, Overloaded
from router.http.openai.completion_rendering import completion_choice_json
from router.http.openai.rendering import ChunkStreamRenderer, format_usage, usage_json
from router.http.tgi.rendering import TGI_DIALECT
from router.http.transport.error_responses import TgiErrorReply, shorten_message
from router.http.transport.services import GenerationOutput, sum_seconds_by_phase, timing_headers
from router.request import FinishReason
from router.scheduler.sequence import RequestPhase

DONE_EVENT = "data:[DONE]\n\n"
USAGE_TEMPLATE = '{{"prompt_tokens":{0},"total_tokens":{2},"completion_tokens":{1}}}'
DETAILS_FIELDS = ('"finish_reason":"{reason}","prompt_tokens":{num_prompt_tokens},"generated_tokens":{num_tokens},'
                  '"skipped_tokens":0,"seed":{seed}')
PLACEHOLDER_METADATA_JSON = '"id":"null","object":"{}","created":0,"model":"null"'
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


LORAX_DIALECT = replace(
    TGI_DIALECT,
    before_index="data:{",
    numbers_events=False,
    after_index='"token":',
    token_ends=(',"special":false,"skipped":false}', ',"special":true,"skipped":false}'),
    top_token_ends=("}", "}"),
    nests_top_tokens=True,
    # Clients know three finish reasons; a timeout is sent as `length`, which also means that the text was cut off.
    finish_reasons={**TGI_DIALECT.finish_reasons, FinishReason.TIMEOUT: "length"},
    details_fields=DETAILS_FIELDS,
    stream_details_fields=DETAILS_FIELDS,
    render_error_event=lorax_error_event,
)


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


def completion_response_json(output: GenerationOutput, text_prefix: str) -> str:
    choice = completion_choice_json(0, text_prefix + output.final_event.text,
                                    OPENAI_FINISH_REASONS[output.final_event.finish_reason])
    return (f'{{{PLACEHOLDER_METADATA_JSON.format("text_completion")},"choices":[{choice}],'
            f'"usage":{usage_json([output], template=USAGE_TEMPLATE)}}}')


def chat_response_json(output: GenerationOutput, message_json: str, model: str, created: int, fingerprint: str) -> str:
    choice = (f'{{"index":0,"message":{message_json},'
              f'"finish_reason":"{OPENAI_FINISH_REASONS[output.final_event.finish_reason]}"}}')
    return (f'{{"id":"null","object":"text_completion","created":{created},"model":{quoted(model)},'
            f'"choices":[{choice}],"usage":{usage_json([output], template=USAGE_TEMPLATE)},'
            f'"system_fingerprint":"{fingerprint}"}}')


@dataclass(frozen=True, slots=True)
class LoraxChunkTemplate:
    """JSON of a chunk before and after its text."""

    start: str
    before_text: str
    after_text: str
    empty_end: str  # in place of an empty text and what is around it, at the end after an end token
    unfinished_usage_field: str  # of every chunk but the last


LORAX_CHAT_TEMPLATE = LoraxChunkTemplate(
    f'data:{{{PLACEHOLDER_METADATA_JSON.format("chat.completion.chunk")},"choices":[{{"index":0,"delta":',
    '{"role":"assistant","content":', "}", "{}", "")
LORAX_COMPLETION_TEMPLATE = LoraxChunkTemplate(
    f'data:{{{PLACEHOLDER_METADATA_JSON.format("text_completion")},"choices":[{{"index":0,"text":',
    "", ',"logprobs":null', '"","logprobs":null', f',"usage":{format_usage(0, 0, USAGE_TEMPLATE)}')


class LoraxOpenAiStreamRenderer(ChunkStreamRenderer):
    """Renderer of the chunks of a chat or a completion as LoRAX sends them, with placeholders for id and model."""

    __slots__ = ("_num_prompt_tokens", "_template")

    def __init__(self, num_prompt_tokens: int, template: LoraxChunkTemplate) -> None:
        super().__init__(lorax_error_event)
        self._num_prompt_tokens = num_prompt_tokens
        self._template = template

    def _render_chunk(self, text: str, _: TokenEvent | None, /) -> str:
        template = self._template
        return (f'{template.start}{template.before_text}{quoted(text)}{template.after_text},"finish_reason":null}}]'
                f"{template.unfinished_usage_field}}}\n\n")

    def _render_end(self, event: FinishedEvent, text: str, _: TokenEvent | None, /) -> str:
        template, usage = self._template, format_usage(self._num_prompt_tokens, event.num_tokens, USAGE_TEMPLATE)
        content = (template.empty_end if not text and event.finish_reason is FinishReason.END_TOKEN
                   else f"{template.before_text}{quoted(text)}{template.after_text}")
        return (f'{template.start}{content},"finish_reason":"{OPENAI_FINISH_REASONS[event.finish_reason]}"}}],'
                f'"usage":{usage}}}\n\n{DONE_EVENT}')
