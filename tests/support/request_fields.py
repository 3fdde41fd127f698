"""How bodies treat the fields of other servers' and clients' types, and the fields of vLLM's."""

from collections.abc import Iterable, Mapping
from typing import Any

from router.http.anthropic.requests import (
    AnthropicCountTokensRequest,
    AnthropicMessagesRequest,
    OutputConfig,
    ThinkingConfig,
)
from router.http.ollama.requests import (
    OllamaChatRequest,
    OllamaEmbeddingsRequest,
    OllamaEmbedRequest,
    OllamaGenerateRequest,
    OllamaOptions,
    OllamaShowRequest,
)
from router.http.openai.completions import CompletionRequest
from router.http.openai.requests import ChatRequest, StreamOptions
from router.http.openai.responses import ReasoningOptions, ResponsesRequest, TextOptions
from router.http.openai.structured_outputs import StructuredOutputs
from router.http.routes.pooling import EmbeddingsRequest
from router.http.transport.body import LenientBodyModel
from router.validation import bounds

BODY_MODELS: Mapping[str, type[LenientBodyModel]] = {  # by the route, and the name of an object in its body
    "/v1/chat/completions": ChatRequest, "/v1/chat/completions stream_options": StreamOptions,
    "/v1/completions": CompletionRequest, "/v1/completions structured_outputs": StructuredOutputs,
    "/v1/responses": ResponsesRequest, "/v1/responses reasoning": ReasoningOptions, "/v1/responses text": TextOptions,
    "/v1/embeddings": EmbeddingsRequest, "/v1/messages": AnthropicMessagesRequest,
    "/v1/messages output_config": OutputConfig, "/v1/messages thinking": ThinkingConfig,
    "/v1/messages/count_tokens": AnthropicCountTokensRequest, "/api/chat": OllamaChatRequest,
    "/api/chat options": OllamaOptions, "/api/generate": OllamaGenerateRequest, "/api/embed": OllamaEmbedRequest,
    "/api/embeddings": OllamaEmbeddingsRequest, "/api/show": OllamaShowRequest}
# Of fields that are read only to refuse every value with an effect.
REFUSING_BOUNDS = (bounds.NULL, bounds.FALSE, bounds.DISABLED, bounds.EMPTY_TEXT, bounds.EMPTY_LIST,
                   bounds.EXACTLY_ONE, bounds.AT_MOST_ZERO)
# Fields of the request types of vLLM 0.32, without those of OpenAI's and Anthropic's: words of a text.
VLLM_EXTRA_FIELDS = """
    allowed_token_ids bad_words cache_salt ec_transfer_params ignore_eos include_stop_str_in_output kv_transfer_params
    length_penalty logprob_token_ids min_p min_tokens mm_payload priority prompt_logprobs repetition_detection
    repetition_penalty request_id response_format return_mm_kwargs return_token_ids return_token_offsets
    return_tokens_as_token_ids routed_experts_prompt_start session_id skip_special_tokens spaces_between_special_tokens
    stop_token_ids stream_interval structured_outputs thinking_token_budget top_k truncate_prompt_tokens truncation_side
    use_beam_search vllm_xargs watermarking add_special_tokens guided_json guided_regex guided_choice guided_grammar
    """
VLLM_FIELDS: Mapping[str, str] = {
    "/v1/chat/completions": VLLM_EXTRA_FIELDS + """
        add_generation_prompt best_of chat_template chat_template_kwargs continue_final_message documents early_stopping
        echo include_reasoning media_io_kwargs mm_processor_kwargs return_prompt_text""",
    "/v1/completions": VLLM_EXTRA_FIELDS + "prompt_embeds",
    "/v1/completions structured_outputs": """
        json regex choice grammar json_object structural_tag disable_any_whitespace disable_additional_properties
        whitespace_pattern""",
    "/v1/responses": """
        cache_salt chat_template_kwargs ec_transfer_params enable_response_messages frequency_penalty ignore_eos
        include_reasoning include_stop_str_in_output kv_transfer_params logit_bias media_io_kwargs min_p mm_payload
        mm_processor_kwargs presence_penalty previous_input_messages priority repetition_penalty request_id
        return_mm_kwargs seed session_id skip_special_tokens stop stop_token_ids structured_outputs top_k vllm_xargs
        watermarking""",
    "/v1/embeddings": """
        add_special_tokens cache_salt embed_dtype endianness mm_processor_kwargs padding priority request_id
        truncate_prompt_tokens truncation_side use_activation""",
    "/v1/messages": """
        cache_salt chat_template_kwargs ec_transfer_params kv_transfer_params mm_payload return_mm_kwargs temperature
        top_k top_p vllm_xargs watermarking""",
    "/v1/messages/count_tokens": "chat_template_kwargs",
}


def list_treatments(body_model: type[LenientBodyModel], name: str) -> list[str]:
    """Return how a body treats a field: `honoured`, `refused` or `ignored`. Any other number than one is a fault."""
    field = next((field for known, field in body_model.model_fields.items() if name in {known, field.alias}), None)
    is_refused = field is not None and is_refusing(field.annotation, field.metadata)
    treatments = {"honoured": field is not None and not is_refused and name not in body_model.ignored_fields,
                  "refused": is_refused or name in body_model.refused_fields,
                  "ignored": name in body_model.ignored_fields}
    return [treatment for treatment, holds in treatments.items() if holds]


def is_refusing(annotation: Any, metadata: Iterable[object]) -> bool:
    return annotation is type(None) or any(bound in REFUSING_BOUNDS for bound in metadata)


def find_faults(fields_by_body: Mapping[str, Iterable[str]]) -> dict[str, list[str]]:
    """Return, by the body and field, each treatment of a field that does not have exactly one."""
    return {f"{body}: {name}": treatments for body, names in fields_by_body.items() for name in sorted(names)
            if len(treatments := list_treatments(BODY_MODELS[body], name)) != 1}
