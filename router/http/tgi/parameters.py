"""Parameters that text-generation-inference and LoRAX have in common.

Checks, and defaults that depend on other parameters, are in the module of each dialect.
"""

from typing import Annotated, Any

from pydantic import FailFast, Field

from router.http.transport.adapter_parameters import AdapterParameters
from router.http.transport.body import Int32, UInt32, UInt64
from router.http.transport.request_context import RequestContext
from router.text.chat_template import Conversation
from router.validation.validator import GenerationInput


class SharedGenerateParameters(AdapterParameters):
    """Generation parameters that TGI's and LoRAX's `parameters` have in common."""

    best_of: UInt64 | None = None
    temperature: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    top_k: Int32 | None = None
    top_p: float | None = None
    typical_p: float | None = None
    do_sample: bool = False
    max_new_tokens: UInt32 | None = None
    return_full_text: bool | None = None
    stop: Annotated[list[str], FailFast()] = Field(default_factory=list)
    truncate: UInt64 | None = None
    watermark: bool = False
    details: bool = False
    decoder_input_details: bool = False
    seed: UInt64 | None = None

    def base_generation_input(self, prompt: str | Conversation, context: RequestContext) -> GenerationInput:
        """Convert all parameters but the frequency penalty, which means different things in the two dialects."""
        return GenerationInput(
            prompt=prompt,
            best_of=self.best_of,
            temperature=self.temperature,
            repetition_penalty=self.repetition_penalty,
            top_k=self.top_k,
            top_p=self.top_p,
            typical_p=self.typical_p,
            do_sample=self.do_sample,
            max_new_tokens=self.max_new_tokens,
            stop_strings=tuple(self.stop),
            truncate=self.truncate,
            watermark=self.watermark,
            seed=self.seed,
            prompt_logprobs=self.decoder_input_details,
            adapter=self.adapter_reference(context.source_token),
            tenant=context.tenant,
            request_id=context.request_id,
            deadline=context.deadline,
        )


class GenerateParameters(SharedGenerateParameters):
    """Parameters of a generation. Null means that a field is not given, where its type allows null."""

    top_n_tokens: UInt32 | None = None
    grammar: Any = None
    cache_salt: str | None = None
    priority: Int32 = 0
