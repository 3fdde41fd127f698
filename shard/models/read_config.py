"""Reader of a model folder's config.json, which dispatches on the architecture.

A setting that would be computed wrongly is rejected by name.
"""

import json
from dataclasses import replace
from pathlib import Path

from shard.json_config import JsonConfig
from shard.models.config import ModelConfig
from shard.models.registry import parse_model_config
from shard.quantization.registry import parse_quantization_config


def read_model_config(model_folder: Path) -> ModelConfig:
    path = model_folder / "config.json"
    if not path.is_file():
        raise ValueError(f"{model_folder} holds no model: there is no config.json")
    try:
        values = json.loads(path.read_text())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path} is no JSON object")
    try:
        return parse_config_with_quantization(JsonConfig(values, str(path)))
    except (AttributeError, LookupError, TypeError, ArithmeticError) as error:
        raise ValueError(f"{path} has a value of the wrong kind: {error}") from error


def parse_config_with_quantization(hf_config: JsonConfig) -> ModelConfig:
    model_config = parse_model_config(hf_config)
    quantization_config = hf_config.get("quantization_config", "compression_config")
    return replace(model_config, quantization=parse_quantization_config(quantization_config, hf_config.source))
