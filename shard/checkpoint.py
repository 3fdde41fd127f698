"""What the config.json of a model's folder says.

Whatever would be computed wrongly is refused here, by name. Knows nothing of weights.
"""

import json
import math
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch

from shard.models.config import ModelConfig, Rotary
from shard.models.table import ARCHITECTURES

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
ROTARY_KINDS = {  # and what each cannot do without
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor",),
}


def read_config(folder: Path) -> ModelConfig:
    path = folder / "config.json"
    if not path.is_file():
        raise ValueError(f"{folder} holds no model: there is no config.json")
    try:
        values = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    return read_model(Given(values, str(path)))


class Given:
    """Values as somebody wrote them, which may be missing or of the wrong kind."""

    def __init__(self, values: dict[str, Any], source: str) -> None:
        self._values = values
        self.source = source

    def get(self, *names: str) -> Any:
        """What the first of these names that is there stands for."""
        return next((self._values[name] for name in names if self._values.get(name) is not None), None)

    def count(self, name: str, default: int | None = None) -> int:
        value = self.get(name) if self.get(name) is not None else default
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{self.source}: {name} must be a whole number of at least 1, got {value}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self.get(name) if self.get(name) is not None else default
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
            raise ValueError(f"{self.source}: {name} must be a number above 0, got {value}")
        return float(value)

    def flag(self, name: str, *, default: bool) -> bool:
        value = self.get(name)
        return default if value is None else bool(value)

    def within(self, values: dict[str, Any], name: str) -> "Given":
        return Given(values, f"{self.source}: {name}")

    def refuse_unless(self, supported: Collection[str], name: str, value: object) -> None:
        if value not in supported:
            raise ValueError(f"{self.source}: {name} {value} is not supported; supported: {', '.join(supported)}")


def read_model(given: Given) -> ModelConfig:
    architecture = (given.get("architectures") or ["none"])[0]
    given.refuse_unless(ARCHITECTURES, "architecture", architecture)
    num_layers, num_heads = given.count("num_hidden_layers"), given.count("num_attention_heads")
    refuse_variants(given, num_layers)
    hidden_size, positions = given.count("hidden_size"), given.count("max_position_embeddings", 2048)
    num_kv_heads = given.count("num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise ValueError(f"{given.source}: num_attention_heads ({num_heads}) must be a multiple of num_key_value_heads "
                         f"({num_kv_heads})")
    rotary = read_rotary(given, positions)
    return ModelConfig(
        architecture=architecture, vocabulary_size=given.count("vocab_size"), hidden_size=hidden_size,
        intermediate_size=given.count("intermediate_size"), num_layers=num_layers, num_heads=num_heads,
        num_kv_heads=num_kv_heads, head_dim=given.count("head_dim", hidden_size // num_heads),
        norm_epsilon=given.number("rms_norm_eps", 1e-6), rotary=rotary,
        max_positions=reach(rotary, positions), tied=given.flag("tie_word_embeddings", default=False),
        attention_bias=given.flag("attention_bias", default=False), mlp_bias=given.flag("mlp_bias", default=False),
        dtype=read_dtype(given))


def refuse_variants(given: Given, num_layers: int) -> None:
    """What these architectures can be told to do that is not done here."""
    given.refuse_unless(("silu",), "hidden_act", given.get("hidden_act") or "silu")
    if (quantization := given.get("quantization_config")) is not None:
        raise ValueError(f"{given.source}: weights quantised as {quantization.get('quant_method', quantization)} are "
                         f"not supported; supported: weights in {', '.join(DTYPES)}")
    slides = given.flag("use_sliding_window", default=False) and given.count("max_window_layers", 28) < num_layers
    if slides or set(given.get("layer_types") or ()) - {"full_attention"}:
        raise ValueError(f"{given.source}: attention over a sliding window is not supported; supported: full attention "
                         f"in every layer (use_sliding_window false)")


def read_dtype(given: Given) -> torch.dtype:
    """A checkpoint that does not say is as torch makes numbers by itself."""
    dtype = given.get("dtype", "torch_dtype") or "float32"
    given.refuse_unless(DTYPES, "dtype", dtype)
    return DTYPES[dtype]


# ---------------------------------------------------------------------------------------------------------------------
# Rotary embedding


def read_rotary(given: Given, positions: int) -> Rotary:
    """From `rope_parameters`, or from `rope_scaling` with `rope_theta` beside it, as older files have it."""
    values = given.get("rope_parameters", "rope_scaling") or {}
    scaling = given.within(values.get("full_attention", values), "rope_parameters")
    kind = scaling.get("rope_type", "type") or "default"
    scaling.refuse_unless(ROTARY_KINDS, "rope_type", kind)
    if (partial := scaling.get("partial_rotary_factor") or given.get("partial_rotary_factor") or 1.0) != 1.0:
        raise ValueError(f"{given.source}: partial_rotary_factor {partial} is not supported; supported: 1.0")
    theta = scaling.number("rope_theta", given.number("rope_theta", 10000.0))
    required = {name: scaling.number(name) for name in ROTARY_KINDS[kind]}
    if not required:
        return Rotary(kind, theta)
    return Rotary(
        kind, theta, factor=required["factor"],
        original_positions=given.count("original_max_position_embeddings",
                                       scaling.count("original_max_position_embeddings", positions)),
        low_frequency_factor=scaling.number("low_freq_factor", 1.0),
        high_frequency_factor=scaling.number("high_freq_factor", 4.0),
        beta_fast=scaling.number("beta_fast", 32.0), beta_slow=scaling.number("beta_slow", 1.0),
        truncate=scaling.flag("truncate", default=True),
        amplitude=yarn_amplitude(scaling, required["factor"]) if kind == "yarn" else 1.0)


def yarn_amplitude(scaling: Given, factor: float) -> float:
    """By how much cosines and sines grow: as given, or by the logarithm of the stretching."""
    if scaling.get("attention_factor") is not None:
        return scaling.number("attention_factor")
    above, below = scaling.get("mscale"), scaling.get("mscale_all_dim")
    if above and below:
        return growth(factor, above) / growth(factor, below)
    return growth(factor, 1.0)


def growth(factor: float, scale: float) -> float:
    return 0.1 * scale * math.log(factor) + 1.0 if factor > 1.0 else 1.0


def reach(rotary: Rotary, positions: int) -> int:
    """The most positions for which the rotary embedding is fixed and meant. Where `max_position_embeddings` may be
    that of the model before it was stretched, the stretched length counts."""
    if rotary.kind == "linear":
        return int(positions * rotary.factor)
    if rotary.kind == "yarn":
        return max(positions, int(rotary.original_positions * rotary.factor))
    return positions
