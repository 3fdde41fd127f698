"""Ranges of parameters: the numbers, the markers that document them on fields of HTTP bodies, and the checks of
floating-point ones, in float32, which is what the shards receive. Errors name the field, the bound and the value."""

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from router.config import MAX_NAME_LENGTH
from router.errors import InvalidRequest
from router.grammars.parameters import JSON_GRAMMAR_TYPES
from router.text.chat_template import RESERVED_TEMPLATE_VARIABLES

# Every token's text is searched for stop strings, in time proportional to the longest.
MAX_STOP_CHARACTERS = 1024
MAX_SALT_CHARACTERS = 256
MAX_PRIORITY = 10
MIN_PENALTY, MAX_PENALTY = -2.0, 2.0
MAX_BIAS = 100.0  # of a logit, as in OpenAI's API
MAX_LISTED_TOKENS = 1024  # tokens of a list in a request, or of `logit_bias`
MAX_FLOAT32 = (2 - 2**-23) * 2.0**127


@dataclass(frozen=True, slots=True)
class OpenApiBounds:
    """Range of a field, as keywords of JSON schema, in the `Annotated` type of the field. It only documents: pydantic
    does not check it, so that a value out of range gets the validator's message and not pydantic's. A test compares the
    document with the checks. Limits that are settings are not documented."""

    keywords: dict[str, Any]


POSITIVE = OpenApiBounds({"exclusiveMinimum": 0, "maximum": MAX_FLOAT32})
NOT_NEGATIVE = OpenApiBounds({"minimum": 0, "maximum": MAX_FLOAT32})  # a temperature of which 0 is greedy
FRACTION = OpenApiBounds({"exclusiveMinimum": 0, "exclusiveMaximum": 1})
FRACTION_OR_ONE = OpenApiBounds({"exclusiveMinimum": 0, "maximum": 1})  # of candidates, where 1 keeps all
PENALTY = OpenApiBounds({"minimum": int(MIN_PENALTY), "maximum": int(MAX_PENALTY)})
PRIORITY = OpenApiBounds({"minimum": -MAX_PRIORITY, "maximum": MAX_PRIORITY})
AT_LEAST_ONE = OpenApiBounds({"minimum": 1})
MIN_P = OpenApiBounds({"minimum": 0, "maximum": 1})  # of the best candidate's probability
TOP_K_OR_ALL = OpenApiBounds({"minimum": -1})  # -1 and 0 keep all candidates
TOKEN_IDS = OpenApiBounds({"items": {"type": "integer", "minimum": 0}, "maxItems": MAX_LISTED_TOKENS})
ALLOWED_TOKEN_IDS = OpenApiBounds(TOKEN_IDS.keywords | {"minItems": 1})
LOGIT_BIAS = OpenApiBounds({"propertyNames": {"pattern": "^[0-9]+$"}, "additionalProperties": {
    "type": "number", "minimum": int(-MAX_BIAS), "maximum": int(MAX_BIAS)}})
TEMPLATE_VARIABLES = OpenApiBounds({"propertyNames": {"not": {"enum": sorted(RESERVED_TEMPLATE_VARIABLES)}}})
EXACTLY_ONE = OpenApiBounds({"minimum": 1, "maximum": 1})
AT_MOST_ZERO = OpenApiBounds({"maximum": 0})
FALSE = OpenApiBounds({"enum": [False, None]})
NULL = OpenApiBounds({"type": "null"})  # a field that is refused
DISABLED = OpenApiBounds({"enum": ["disabled", None]})
EMPTY_TEXT = OpenApiBounds({"maxLength": 0})
EMPTY_LIST = OpenApiBounds({"maxItems": 0})
NON_EMPTY_TEXT = OpenApiBounds({"minLength": 1})
NON_EMPTY_LIST = OpenApiBounds({"minItems": 1})
NON_EMPTY_TEXTS = OpenApiBounds({"minItems": 1, "items": {"type": "string", "minLength": 1}})
NON_EMPTY_TEXTS_OR_TOKENS = OpenApiBounds({"minLength": 1, "minItems": 1, "items": {"minLength": 1, "minItems": 1}})
CACHE_SALT = OpenApiBounds({"minLength": 1, "maxLength": MAX_SALT_CHARACTERS})
ADAPTER_NAME = OpenApiBounds({"minLength": 1, "maxLength": MAX_NAME_LENGTH})
STOP_STRINGS = OpenApiBounds({"minLength": 1, "maxLength": MAX_STOP_CHARACTERS, "items": {
    "type": "string", "minLength": 1, "maxLength": MAX_STOP_CHARACTERS}})
GRAMMAR = OpenApiBounds({"anyOf": [
    {"type": "object", "required": ["type"],
     "properties": {"type": {"type": "string", "enum": [*JSON_GRAMMAR_TYPES, "regex", "text"]}}},
    {"type": "null"}]})


def round_to_float32(name: str, value: float) -> float:
    """Round to float32, so that a value which float32 cannot distinguish from a bound is rejected like the bound."""
    try:
        rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
    except (OverflowError, struct.error):  # beyond float32; an int beyond float64
        rounded = math.inf
    if not math.isfinite(rounded):
        raise InvalidRequest(f"`{name}` must be a finite 32-bit number, got {value}")
    return rounded


def validate_positive(name: str, value: float) -> float:
    rounded = round_to_float32(name, value)
    if rounded <= 0:
        raise InvalidRequest(f"`{name}` must be above 0, got {value}")
    return rounded


def validate_penalty(name: str, value: float) -> float:
    rounded = round_to_float32(name, value)
    if not MIN_PENALTY <= rounded <= MAX_PENALTY:
        raise InvalidRequest(f"`{name}` must be at least {MIN_PENALTY} and at most {MAX_PENALTY}, got {value}")
    return rounded


def validate_fraction(name: str, value: float) -> float:
    rounded = round_to_float32(name, value)
    if not 0 < rounded < 1:
        raise InvalidRequest(f"`{name}` must be above 0 and below 1, got {value}; leave it out to keep all candidates")
    return rounded


def validate_min_p(name: str, value: float) -> float:
    rounded = round_to_float32(name, value)
    if not 0 <= rounded <= 1:
        raise InvalidRequest(f"`{name}` must be at least 0 and at most 1, got {value}")
    return rounded


def validate_bias(name: str, value: float) -> float:
    rounded = round_to_float32(name, value)
    if abs(rounded) > MAX_BIAS:
        raise InvalidRequest(f"`{name}` must be at least {-MAX_BIAS:.0f} and at most {MAX_BIAS:.0f}, got {value}")
    return rounded


def validate_token_ids(name: str, tokens: Sequence[int], vocabulary_size: int) -> tuple[int, ...]:
    """Return the tokens sorted, each once."""
    if len(tokens) > MAX_LISTED_TOKENS:
        raise InvalidRequest(f"`{name}` must hold at most {MAX_LISTED_TOKENS} tokens, got {len(tokens)}")
    for token in tokens:
        if not 0 <= token < vocabulary_size:
            raise InvalidRequest(f"a token in `{name}` must be at least 0 and below {vocabulary_size}, the size of the "
                                 f"vocabulary, got {token}", param=name)
    return tuple(sorted(set(tokens)))
