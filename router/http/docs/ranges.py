"""Ranges of body fields for the OpenAPI document.

They are documentation only: the validator and the dialects do the checks, and a test compares both. Limits that are
settings are left out.
"""

from typing import Any

from router.adapters.reference import LONGEST_NAME
from router.grammars.schema import JSON_TYPES
from router.validation.validator import MAX_SALT_CHARACTERS, MAX_STOP_CHARACTERS, MOST_PRIORITY

Range = dict[str, Any]

LARGEST = (2 - 2**-23) * 2.0**127  # finite 32-bit float
ABOVE_ZERO: Range = {"exclusiveMinimum": 0, "maximum": LARGEST}
FRACTION: Range = {"exclusiveMinimum": 0, "exclusiveMaximum": 1}
PENALTY: Range = {"minimum": -2, "maximum": 2}
SOME: Range = {"minimum": 1}
ONE: Range = {"minimum": 1, "maximum": 1}
NONE: Range = {"maximum": 0}
TEXT: Range = {"minLength": 1}
NAME: Range = {"minLength": 1, "maxLength": LONGEST_NAME}
STOP_STRING: Range = {"minLength": 1, "maxLength": MAX_STOP_CHARACTERS}
STOP: Range = {**STOP_STRING, "items": {"type": "string", **STOP_STRING}}
GRAMMAR: Range = {"anyOf": [
    {"type": "object", "required": ["type"],
     "properties": {"type": {"type": "string", "enum": [*JSON_TYPES, "regex", "text"]}}},
    {"type": "null"}]}
# In every dialect.
SHARED: dict[str, Range] = {
    "cache_salt": {"minLength": 1, "maxLength": MAX_SALT_CHARACTERS},
    "priority": {"minimum": -MOST_PRIORITY, "maximum": MOST_PRIORITY},
    "frequency_penalty": PENALTY,
    "stop": STOP,
}
# OpenAI's routes: a temperature of 0 is greedy, a `top_p` of 1 keeps all candidates.
OPENAI: dict[str, Range] = SHARED | {
    "temperature": {"minimum": 0, "maximum": LARGEST},
    "top_p": {"exclusiveMinimum": 0, "maximum": 1},
    "presence_penalty": PENALTY,
    "max_tokens": SOME,
    "n": ONE,
}
# LoRAX's routes that generate.
LORAX: dict[str, Range] = SHARED | {
    "temperature": {"minimum": 0, "maximum": LARGEST},
    "top_p": {"exclusiveMinimum": 0, "maximum": 1},
    "top_k": SOME,
    "repetition_penalty": ABOVE_ZERO,
    "presence_penalty": PENALTY,
}
# By name of the model of a body, or of a part of one, and by field.
RANGES: dict[str, dict[str, Range]] = {
    "Generate": SHARED | {"inputs": TEXT},
    "CompatGenerate": SHARED | {"inputs": TEXT},
    "EmbedRequest": {"inputs": TEXT},
    "EmbeddingsRequest": {"input": {**TEXT, "minItems": 1, "items": {**TEXT, "minItems": 1}}, "dimensions": SOME},
    "ClassifyRequest": {"inputs": TEXT},
    "ClassifyBatchRequest": {"inputs": {"minItems": 1, "items": {"type": "string", **TEXT}}},
    "Parameters": SHARED | {
        "temperature": ABOVE_ZERO,
        "repetition_penalty": ABOVE_ZERO,
        "top_k": SOME,
        "top_p": FRACTION,
        "typical_p": FRACTION,
        "max_new_tokens": SOME,
        "truncate": SOME,
        "grammar": GRAMMAR,
    },
    "LoraxGenerate": {"inputs": TEXT},
    "LoraxCompatGenerate": {"inputs": TEXT},
    "LoraxParameters": LORAX | {
        "truncate": SOME,
        "max_new_tokens": SOME,
        "return_k_alternatives": SOME,
        "typical_p": FRACTION,
    },
    "LoraxChat": LORAX | {"max_tokens": SOME, "max_completion_tokens": SOME},
    "LoraxCompletion": LORAX | {"prompt": TEXT, "max_tokens": SOME},
    "ChatRequest": OPENAI | {"max_completion_tokens": SOME, "response_format": GRAMMAR},
    "Completion": OPENAI | {
        "prompt": {"minLength": 1, "minItems": 1, "items": {"type": "string", **TEXT}},
        "repetition_penalty": ABOVE_ZERO,
        "suffix": {"maxLength": 0},
        "best_of": ONE,
        "logprobs": NONE,
        "echo": {"enum": [False, None]},
    },
    "LoadAdapter": {"id": NAME, "alias": NAME},
    "LoadLora": {"lora_name": NAME, "lora_path": NAME},
}


def add_ranges(schemas: dict[str, dict[str, Any]]) -> None:
    """Add the ranges to the JSON schemas of bodies, which are given by name."""
    for name, ranges in RANGES.items():
        properties = schemas.get(name, {}).get("properties", {})
        for field in ranges.keys() & properties.keys():
            properties[field].update(ranges[field])
