"""Parameters of LoRAX: their defaults, and their checks in LoRAX's order and with LoRAX's messages."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import Field

from router.config import RouterConfig
from router.errors import InvalidRequest
from router.grammars.parameters import ANY_OBJECT_SCHEMA, Grammar, make_json_schema_grammar
from router.http.tgi.routes import BaseGenerateParameters
from router.http.transport.body import Int32, LenientBodyModel, MergedAdapters
from router.http.transport.request_context_and_middleware import RequestContext
from router.text.chat_template import Conversation
from router.text.prompt_encoder import DialectParameterNames, TokenLimits
from router.validation import bounds
from router.validation.validator import GenerationInput

PENALTY_FIELDS = ("frequency_penalty", "presence_penalty")


@dataclass(frozen=True, slots=True)
class LoraxParameterNames(DialectParameterNames):
    """LoRAX's names of parameters in error messages, and its messages for prompts that are too long."""

    top_n_tokens: str = "return_k_alternatives"
    grammar: str = "response_format"

    def check_prompt_length(self, num_tokens: int, max_new_tokens: int | None, limits: TokenLimits) -> None:
        max_total_tokens, max_input_tokens = limits.max_total_tokens, limits.max_input_tokens
        if max_new_tokens is not None and num_tokens + max_new_tokens > max_total_tokens:
            raise InvalidRequest(
                f"`inputs` tokens + `max_new_tokens` must be <= {max_total_tokens}. Given: {num_tokens} `inputs` "
                f"tokens and {max_new_tokens} `max_new_tokens`")
        if num_tokens > max_input_tokens:
            raise InvalidRequest(f"`inputs` must have less than {max_input_tokens} tokens. Given: {num_tokens}")


LORAX_PARAMETER_NAMES = LoraxParameterNames()


class ResponseFormat(LenientBodyModel):
    """Format of the answer. Whatever the `type`, the answer matches the schema; without a schema it is any JSON object,
    and with a null schema it is free text."""

    type: Literal["text", "json_object", "json_schema", "Text", "JsonObject", "JsonSchema"]
    response_schema: Any = Field(default=ANY_OBJECT_SCHEMA, alias="schema")

    def to_grammar(self) -> Grammar | None:
        return None if self.response_schema is None else make_json_schema_grammar("response_format.schema",
                                                                                  self.response_schema)


class LoraxParameters(BaseGenerateParameters):
    """The field `parameters` of LoRAX's requests."""

    temperature: Annotated[float | None, bounds.NOT_NEGATIVE] = None
    top_p: Annotated[float | None, bounds.FRACTION_OR_ONE] = None
    presence_penalty: Annotated[float | None, bounds.PENALTY] = None
    return_k_alternatives: Annotated[Int32 | None, bounds.AT_LEAST_ONE] = None
    apply_chat_template: bool = False
    response_format: ResponseFormat | None = None
    cache_salt: Annotated[str | None, bounds.CACHE_SALT] = None
    priority: Annotated[Int32, bounds.PRIORITY] = 0

    def find_grammar(self) -> tuple[str, Grammar] | None:
        """Return the parameter that holds a grammar, and the grammar; None without one. Raises InvalidRequest."""
        grammar = None if self.response_format is None else self.response_format.to_grammar()
        return None if grammar is None else (LORAX_PARAMETER_NAMES.grammar, grammar)

    @property
    def num_choices(self) -> int:
        return self.best_of or 1

    @property
    def is_sampling(self) -> bool:
        """Whether a parameter of sampling is given, even one with a value that has no effect; never if `is_greedy`."""
        sampling_values = (self.temperature, self.top_k, self.top_p, self.typical_p)
        return not self.is_greedy and (self.do_sample or any(value is not None for value in sampling_values))

    @property
    def is_greedy(self) -> bool:
        """Whether the temperature is 0: then tokens are not sampled, whatever else is given."""
        return self.temperature is not None and bounds.round_to_float32("temperature", self.temperature) == 0

    def to_generation_input(self, prompt: str | Conversation, context: RequestContext,
                            found_grammar: tuple[str, Grammar] | None) -> GenerationInput:
        """`found_grammar`: the parameter that holds a grammar, and the grammar."""
        grammar_name, grammar = found_grammar or (LORAX_PARAMETER_NAMES.grammar, None)
        return replace(
            self.base_generation_input(prompt, context),
            parameter_names=replace(LORAX_PARAMETER_NAMES, grammar=grammar_name),
            greedy=self.is_greedy,
            temperature=None if self.is_greedy else self.temperature,
            frequency_penalty=self.frequency_penalty,
            presence_penalty=self.presence_penalty,
            top_p=None if self.top_p is None or bounds.round_to_float32("top_p", self.top_p) == 1 else self.top_p,
            do_sample=self.do_sample or (self.num_choices > 1 and self.is_sampling),
            top_n_tokens=self.return_k_alternatives,
            grammar=grammar,
            cache_salt=self.cache_salt,
            priority=self.priority,
        )


def check_streamable(parameters: LoraxParameters) -> None:
    if parameters.best_of not in {None, 1}:
        raise InvalidRequest("`best_of` != 1 is not supported when streaming tokens")
    if parameters.decoder_input_details:
        raise InvalidRequest("`decoder_input_details` == true is not supported when streaming tokens")


def find_faults(parameters: LoraxParameters, prompt: str | Conversation, config: RouterConfig,
                limits: TokenLimits) -> Iterator[str]:
    """Yield the messages for everything that LoRAX rejects before the prompt is tokenized."""
    max_input_tokens = limits.max_input_tokens
    if parameters.num_choices > 1 and config.max_best_of == 1:
        yield "`best_of` != 1 is not allowed for this endpoint"
    if parameters.num_choices > config.max_best_of:
        yield f"`best_of` must be > 0 and <= {config.max_best_of}. Given: {parameters.best_of}"
    if parameters.merged_adapters is not None:
        yield from find_adapter_faults(parameters.adapter_id, parameters.merged_adapters)
    yield from find_sampling_faults(parameters)
    if parameters.max_new_tokens == 0:
        yield "`max_new_tokens` must be strictly positive"
    if len(parameters.stop) > config.max_stop_sequences:
        yield f"`stop` supports up to {config.max_stop_sequences} stop sequences. Given: {len(parameters.stop)}"
    if parameters.seed is not None and parameters.num_choices > 1:
        yield "`seed` must not be set when `best_of` > 1"
    if prompt == "":
        yield "`inputs` cannot be empty"
    if parameters.truncate is not None and not 1 <= parameters.truncate <= max_input_tokens:
        yield f"`truncate` must be strictly positive and less than {max_input_tokens}. Given: {parameters.truncate}"


def find_adapter_faults(adapter_id: str | None, merged: MergedAdapters) -> Iterator[str]:
    if adapter_id is not None:
        yield "at most one of `adapter_id` or `adapters` may be provided"
    if not merged.ids:
        yield "at least one adapter ID must be provided when setting `adapters`"
    if len(merged.ids) != len(merged.weights):
        yield "number of adapter IDs must match number of adapter weights"


def find_sampling_faults(parameters: LoraxParameters) -> Iterator[str]:
    if parameters.num_choices > 1 and not parameters.is_sampling:
        yield "you must use sampling when `best_of` is > 1"
    if round_parameter_to_float32(parameters, "temperature", 1.0) < 0:
        yield "`temperature` must be non-negative"
    if round_parameter_to_float32(parameters, "repetition_penalty", 1.0) <= 0:
        yield "`repetition_penalty` must be strictly positive"
    for name in PENALTY_FIELDS:
        if not bounds.MIN_PENALTY <= round_parameter_to_float32(parameters, name, 0.0) <= bounds.MAX_PENALTY:
            yield f"`{name}` must be >= -2.0 and <= 2.0"
    if not 0 < round_parameter_to_float32(parameters, "top_p", 1.0) <= 1:
        yield "`top_p` must be > 0.0 and < 1.0"
    if not 0 < round_parameter_to_float32(parameters, "typical_p", 0.5) < 1:
        yield "`typical_p` must be > 0.0 and < 1.0"
    for name in ("top_k", "return_k_alternatives"):
        if (value := getattr(parameters, name)) is not None and value <= 0:
            yield f"`{name}` must be strictly positive"


def round_parameter_to_float32(parameters: LoraxParameters, name: str, default: float) -> float:
    """Return the parameter as a shard will receive it, rounded to 32 bits. Raises InvalidRequest."""
    value = getattr(parameters, name)
    return default if value is None else bounds.round_to_float32(name, value)
