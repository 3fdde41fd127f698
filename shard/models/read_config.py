"""Reader of a model folder's config.json, which dispatches on the architecture.

A setting that would be computed wrongly is rejected by name.
"""

import json
from dataclasses import replace
from pathlib import Path

from shard.json_config import Given
from shard.models.config import ModelConfig
from shard.models.registry import describe
from shard.quantization.registry import read_quantization


def read_config(folder: Path) -> ModelConfig:
    path = folder / "config.json"
    if not path.is_file():
        raise ValueError(f"{folder} holds no model: there is no config.json")
    try:
        values = json.loads(path.read_text())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path} is no JSON object")
    try:
        return describe_model(Given(values, str(path)))
    except (AttributeError, LookupError, TypeError, ArithmeticError) as error:
        raise ValueError(f"{path} has a value of the wrong kind: {error}") from error


def describe_model(given: Given) -> ModelConfig:
    described = describe(given)
    told = given.get("quantization_config", "compression_config")
    return replace(described, quantization=read_quantization(told, given.source))
