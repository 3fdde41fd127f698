"""Parameters of LoRAX: their defaults, and their checks in LoRAX's order and with LoRAX's messages."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import Field

from router.config import RouterConfig
from router.errors import InvalidRequest
from router.grammars.schema import OBJECT, Grammar, json_schema
from router.http.tgi.parameters import Shared
from router.http.transport.body import Foreign, Integer32
from router.http.transport.headers import Caller
from router.text.chat_template import Conversation
from router.text.prompts import Limits, Names
from router.validation.bounds import as_float32
from router.validation.validator import Wanted

PENALTIES = ("frequency_penalty", "presence_penalty")


@dataclass(frozen=True, slots=True)
class LoraxNames(Names):
    top_n_tokens: str = "return_k_alternatives"
    grammar: str = "response_format"

    def check_length(self, num_tokens: int, max_new_tokens: int | None, limits: Limits) -> None:
        total, most = limits.max_total_tokens, limits.max_input_tokens
        if max_new_tokens is not None and num_tokens + max_new_tokens > total:
            raise InvalidRequest(f"`inputs` tokens + `max_new_tokens` must be <= {total}. Given: {num_tokens} `inputs` "
                                 f"tokens and {max_new_tokens} `max_new_tokens`")
        if num_tokens > most:
            raise InvalidRequest(f"`inputs` must have less than {most} tokens. Given: {num_tokens}")


NAMES = LoraxNames()


class ResponseFormat(Foreign):
    """Format of the answer. Whatever the `type`, the answer matches the schema; without a schema it is any JSON object,
    and with a null schema it is free text."""

    type: Literal["text", "json_object", "json_schema", "Text", "JsonObject", "JsonSchema"]
    wanted: Any = Field(default=OBJECT, alias="schema")

    def grammar(self) -> Grammar | None:
        return None if self.wanted is None else json_schema("response_format.schema", self.wanted)


class LoraxParameters(Shared):
    presence_penalty: float | None = None
    ignore_eos_token: bool = False
    return_k_alternatives: Integer32 | None = None
    apply_chat_template: bool = False
    response_format: ResponseFormat | None = None
    cache_salt: str | None = None
    priority: Integer32 = 0

    @property
    def num_choices(self) -> int:
        return self.best_of or 1

    @property
    def samples(self) -> bool:
        """Whether a parameter of sampling is given, even one with a value that has no effect; never if `is_greedy`."""
        given = (self.temperature, self.top_k, self.top_p, self.typical_p)
        return not self.is_greedy and (self.do_sample or any(value is not None for value in given))

    @property
    def is_greedy(self) -> bool:
        """Whether the temperature is 0: then tokens are not sampled, whatever else is given."""
        return self.temperature is not None and as_float32("temperature", self.temperature) == 0

    @property
    def has_details(self) -> bool:
        return self.details or self.decoder_input_details

    def wanted(self, prompt: str | Conversation, caller: Caller, grammar: Grammar | None) -> Wanted:
        return replace(
            self.as_wanted(prompt, caller),
            names=NAMES,
            greedy=self.is_greedy,
            temperature=None if self.is_greedy else self.temperature,
            frequency_penalty=self.frequency_penalty,
            presence_penalty=self.presence_penalty,
            top_p=None if self.top_p is None or as_float32("top_p", self.top_p) == 1 else self.top_p,
            do_sample=self.do_sample or (self.num_choices > 1 and self.samples),
            ignore_eos=self.ignore_eos_token,
            top_n_tokens=self.return_k_alternatives,
            grammar=grammar,
            cache_salt=self.cache_salt,
            priority=self.priority,
        )


def check(given: LoraxParameters, prompt: str | Conversation, config: RouterConfig, limits: Limits) -> None:
    """Reject everything that LoRAX rejects before the prompt is tokenised. Raises InvalidRequest."""
    for faults in (choices_faults(given, config), adapters_faults(given), sampling_faults(given),
                   length_faults(given, prompt, config, limits)):
        for fault in faults:
            raise InvalidRequest(fault)


def check_streamable(given: LoraxParameters) -> None:
    if given.best_of not in {None, 1}:
        raise InvalidRequest("`best_of` != 1 is not supported when streaming tokens")
    if given.decoder_input_details:
        raise InvalidRequest("`decoder_input_details` == true is not supported when streaming tokens")


def choices_faults(given: LoraxParameters, config: RouterConfig) -> Iterator[str]:
    if given.num_choices > 1 and config.max_best_of == 1:
        yield "`best_of` != 1 is not allowed for this endpoint"
    if given.num_choices > config.max_best_of:
        yield f"`best_of` must be > 0 and <= {config.max_best_of}. Given: {given.best_of}"


def adapters_faults(given: LoraxParameters) -> Iterator[str]:
    merged = given.merged_adapters
    if merged is None:
        return
    if given.adapter_id is not None:
        yield "at most one of `adapter_id` or `adapters` may be provided"
    if not merged.ids:
        yield "at least one adapter ID must be provided when setting `adapters`"
    if len(merged.ids) != len(merged.weights):
        yield "number of adapter IDs must match number of adapter weights"


def sampling_faults(given: LoraxParameters) -> Iterator[str]:
    if given.num_choices > 1 and not given.samples:
        yield "you must use sampling when `best_of` is > 1"
    if narrow(given, "temperature", 1.0) < 0:
        yield "`temperature` must be non-negative"
    if narrow(given, "repetition_penalty", 1.0) <= 0:
        yield "`repetition_penalty` must be strictly positive"
    for name in PENALTIES:
        if not -2 <= narrow(given, name, 0.0) <= 2:
            yield f"`{name}` must be >= -2.0 and <= 2.0"
    if not 0 < narrow(given, "top_p", 1.0) <= 1:
        yield "`top_p` must be > 0.0 and < 1.0"
    if not 0 < narrow(given, "typical_p", 0.5) < 1:
        yield "`typical_p` must be > 0.0 and < 1.0"
    for name in ("top_k", "return_k_alternatives"):
        if (value := getattr(given, name)) is not None and value <= 0:
            yield f"`{name}` must be strictly positive"


def length_faults(given: LoraxParameters, prompt: str | Conversation, config: RouterConfig,
                  limits: Limits) -> Iterator[str]:
    most = limits.max_input_tokens
    if given.max_new_tokens == 0:
        yield "`max_new_tokens` must be strictly positive"
    if len(given.stop) > config.max_stop_sequences:
        yield f"`stop` supports up to {config.max_stop_sequences} stop sequences. Given: {len(given.stop)}"
    if given.seed is not None and given.num_choices > 1:
        yield "`seed` must not be set when `best_of` > 1"
    if prompt == "":
        yield "`inputs` cannot be empty"
    if given.truncate is not None and not 1 <= given.truncate <= most:
        yield f"`truncate` must be strictly positive and less than {most}. Given: {given.truncate}"


def narrow(given: LoraxParameters, name: str, default: float) -> float:
    """Return the parameter as a shard will receive it, rounded to 32 bits. Raises InvalidRequest."""
    value = getattr(given, name)
    return default if value is None else as_float32(name, value)
