"""Ranges of body fields for the OpenAPI document.

They are documentation only: the validator and the dialects do the checks, and a test compares both. Limits that are
settings are left out.
"""

from typing import Any

from router.adapters.reference import MAX_NAME_LENGTH
from router.grammars.parameters import JSON_GRAMMAR_TYPES
from router.validation.validator import MAX_PRIORITY, MAX_SALT_CHARACTERS, MAX_STOP_CHARACTERS

SchemaBounds = dict[str, Any]

MAX_FLOAT32 = (2 - 2**-23) * 2.0**127  # finite 32-bit float
POSITIVE_FLOAT: SchemaBounds = {"exclusiveMinimum": 0, "maximum": MAX_FLOAT32}
BETWEEN_ZERO_AND_ONE: SchemaBounds = {"exclusiveMinimum": 0, "exclusiveMaximum": 1}
PENALTY_BOUNDS: SchemaBounds = {"minimum": -2, "maximum": 2}
AT_LEAST_ONE: SchemaBounds = {"minimum": 1}
EXACTLY_ONE: SchemaBounds = {"minimum": 1, "maximum": 1}
AT_MOST_ZERO: SchemaBounds = {"maximum": 0}
NON_EMPTY_TEXT: SchemaBounds = {"minLength": 1}
ADAPTER_NAME_LENGTH: SchemaBounds = {"minLength": 1, "maxLength": MAX_NAME_LENGTH}
STOP_STRING_LENGTH: SchemaBounds = {"minLength": 1, "maxLength": MAX_STOP_CHARACTERS}
STOP_STRINGS: SchemaBounds = {**STOP_STRING_LENGTH, "items": {"type": "string", **STOP_STRING_LENGTH}}
GRAMMAR_SCHEMA: SchemaBounds = {"anyOf": [
    {"type": "object", "required": ["type"],
     "properties": {"type": {"type": "string", "enum": [*JSON_GRAMMAR_TYPES, "regex", "text"]}}},
    {"type": "null"}]}
# In every dialect.
SHARED_BOUNDS: dict[str, SchemaBounds] = {
    "cache_salt": {"minLength": 1, "maxLength": MAX_SALT_CHARACTERS},
    "priority": {"minimum": -MAX_PRIORITY, "maximum": MAX_PRIORITY},
    "frequency_penalty": PENALTY_BOUNDS,
    "stop": STOP_STRINGS,
}
# OpenAI's routes: a temperature of 0 is greedy, a `top_p` of 1 keeps all candidates.
OPENAI_BOUNDS: dict[str, SchemaBounds] = SHARED_BOUNDS | {
    "temperature": {"minimum": 0, "maximum": MAX_FLOAT32},
    "top_p": {"exclusiveMinimum": 0, "maximum": 1},
    "presence_penalty": PENALTY_BOUNDS,
    "max_tokens": AT_LEAST_ONE,
    "n": EXACTLY_ONE,
}
# LoRAX's routes that generate.
LORAX_BOUNDS: dict[str, SchemaBounds] = SHARED_BOUNDS | {
    "temperature": {"minimum": 0, "maximum": MAX_FLOAT32},
    "top_p": {"exclusiveMinimum": 0, "maximum": 1},
    "top_k": AT_LEAST_ONE,
    "repetition_penalty": POSITIVE_FLOAT,
    "presence_penalty": PENALTY_BOUNDS,
}
# By name of the model of a body, or of a part of one, and by field.
BOUNDS_BY_BODY_MODEL: dict[str, dict[str, SchemaBounds]] = {
    "GenerateRequest": SHARED_BOUNDS | {"inputs": NON_EMPTY_TEXT},
    "CompatGenerateRequest": SHARED_BOUNDS | {"inputs": NON_EMPTY_TEXT},
    "EmbedRequest": {"inputs": NON_EMPTY_TEXT},
    "EmbeddingsRequest": {"input": {**NON_EMPTY_TEXT, "minItems": 1, "items": {**NON_EMPTY_TEXT, "minItems": 1}},
                          "dimensions": AT_LEAST_ONE},
    "ClassifyRequest": {"inputs": NON_EMPTY_TEXT},
    "ClassifyBatchRequest": {"inputs": {"minItems": 1, "items": {"type": "string", **NON_EMPTY_TEXT}}},
    "GenerateParameters": SHARED_BOUNDS | {
        "temperature": POSITIVE_FLOAT,
        "repetition_penalty": POSITIVE_FLOAT,
        "top_k": AT_LEAST_ONE,
        "top_p": BETWEEN_ZERO_AND_ONE,
        "typical_p": BETWEEN_ZERO_AND_ONE,
        "max_new_tokens": AT_LEAST_ONE,
        "truncate": AT_LEAST_ONE,
        "grammar": GRAMMAR_SCHEMA,
    },
    "LoraxGenerateRequest": {"inputs": NON_EMPTY_TEXT},
    "LoraxCompatGenerateRequest": {"inputs": NON_EMPTY_TEXT},
    "LoraxParameters": LORAX_BOUNDS | {
        "truncate": AT_LEAST_ONE,
        "max_new_tokens": AT_LEAST_ONE,
        "return_k_alternatives": AT_LEAST_ONE,
        "typical_p": BETWEEN_ZERO_AND_ONE,
    },
    "LoraxChatRequest": LORAX_BOUNDS | {"max_tokens": AT_LEAST_ONE, "max_completion_tokens": AT_LEAST_ONE},
    "LoraxCompletionRequest": LORAX_BOUNDS | {"prompt": NON_EMPTY_TEXT, "max_tokens": AT_LEAST_ONE},
    "ChatRequest": OPENAI_BOUNDS | {"max_completion_tokens": AT_LEAST_ONE, "response_format": GRAMMAR_SCHEMA},
    "CompletionRequest": OPENAI_BOUNDS | {
        "prompt": {"minLength": 1, "minItems": 1, "items": {"type": "string", **NON_EMPTY_TEXT}},
        "repetition_penalty": POSITIVE_FLOAT,
        "suffix": {"maxLength": 0},
        "best_of": EXACTLY_ONE,
        "logprobs": AT_MOST_ZERO,
        "echo": {"enum": [False, None]},
    },
    "LoadAdapterRequest": {"id": ADAPTER_NAME_LENGTH, "alias": ADAPTER_NAME_LENGTH},
    "LoadLoraAdapterRequest": {"lora_name": ADAPTER_NAME_LENGTH, "lora_path": ADAPTER_NAME_LENGTH},
}


def add_bounds_to_schemas(schemas: dict[str, dict[str, Any]]) -> None:
    """Add the ranges to the JSON schemas of bodies, which are given by name."""
    for name, bounds in BOUNDS_BY_BODY_MODEL.items():
        properties = schemas.get(name, {}).get("properties", {})
        for field in bounds.keys() & properties.keys():
            properties[field].update(bounds[field])
