"""What the config.json of a model's folder says, by the reader of its architecture.

Whatever would be computed wrongly is refused, by name. Knows nothing of weights.
"""

import json
from pathlib import Path

from shard.given import Given
from shard.models.config import ModelConfig
from shard.models.table import find_architecture


def read_config(folder: Path) -> ModelConfig:
    path = folder / "config.json"
    if not path.is_file():
        raise ValueError(f"{folder} holds no model: there is no config.json")
    try:
        values = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path} is no JSON object")
    return read_model(Given(values, str(path)))


def read_model(given: Given) -> ModelConfig:
    architecture = (given.get("architectures") or ["none"])[0]
    refuse_quantised(given)
    return find_architecture(architecture).describe(given)


def refuse_quantised(given: Given) -> None:
    if (quantization := given.get("quantization_config")) is not None:
        raise ValueError(f"{given.source}: weights quantised as {quantization.get('quant_method', quantization)} are "
                         f"not supported; supported: weights in float32, bfloat16, float16")
