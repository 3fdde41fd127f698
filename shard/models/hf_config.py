"""Reader of the settings that the config.json of most families have in common."""

from typing import Any

import torch

from shard.json_config import Given
from shard.models.config import ModelConfig
from shard.models.rope_config import reach, read_rotary

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def describe(given: Given, kind: type[ModelConfig] = ModelConfig, **differently: Any) -> Any:
    """Return a `kind` with settings read under their usual names, except for the fields given in `differently`."""
    config = kind(**usual_sizes(given, differently) | differently)
    if config.num_heads % config.num_kv_heads:
        raise ValueError(f"{given.source}: num_attention_heads ({config.num_heads}) must be a multiple of "
                         f"num_key_value_heads ({config.num_kv_heads})")
    check_factors(given, config)
    return config


def check_factors(given: Given, config: ModelConfig) -> None:
    """Check that rope factors, if there are any, are as many as rotated pairs."""
    if config.rotary is None or not config.rotary.factors:
        return
    num_pairs = int(config.rotary.share * config.head_dim) // 2
    if len(config.rotary.factors) != num_pairs:
        raise ValueError(f"{given.source}: rope_parameters: {num_pairs} pairs of a head are turned and need as many "
                         f"factors, got {len(config.rotary.factors)}")


def usual_sizes(given: Given, known: dict[str, Any]) -> dict[str, Any]:
    """Read the settings under their usual names. Fields in `known` are not read."""
    num_heads = known.get("num_heads") or given.count("num_attention_heads")
    hidden_size = known.get("hidden_size") or given.count("hidden_size")
    positions = known.get("max_positions") or given.count("max_position_embeddings", 2048)
    rotary = known["rotary"] if "rotary" in known else read_rotary(given, positions)
    return {
        "architecture": given.get("architectures")[0], "hidden_size": hidden_size, "num_heads": num_heads,
        "num_layers": known.get("num_layers") or given.count("num_hidden_layers"),
        "vocabulary_size": known.get("vocabulary_size") or given.count("vocab_size"),
        "intermediate_size": known.get("intermediate_size") or given.count("intermediate_size"),
        "num_kv_heads": known.get("num_kv_heads") or given.count("num_key_value_heads", num_heads),
        "head_dim": known.get("head_dim") or given.count("head_dim", hidden_size // num_heads),
        "norm_epsilon": known.get("norm_epsilon") or given.number("rms_norm_eps", 1e-6),
        "rotary": rotary, "max_positions": reach(rotary, positions) if rotary else positions,
        "tied": given.flag("tie_word_embeddings", default=False), "dtype": read_dtype(given)}


def read_dtype(given: Given) -> torch.dtype:
    """Return the checkpoint's dtype; float32, torch's default, if config.json has none."""
    dtype = given.get("dtype", "torch_dtype") or "float32"
    given.one_of("dtype", dtype, DTYPES)
    return DTYPES[dtype]


def read_windows(given: Given, num_layers: int, *, usual: bool) -> tuple[int, ...]:
    """Return the window sizes by layer, none if no layer has a window.

    Without `layer_types`, all layers have one if that is `usual` and `sliding_window` is set.
    """
    kinds = given.get("layer_types") or (["sliding_attention" if usual else "full_attention"] * num_layers)
    for kind in kinds:
        given.one_of("layer_types", kind, ("full_attention", "sliding_attention"))
    if len(kinds) != num_layers:
        raise ValueError(f"{given.source}: layer_types has {len(kinds)} entries for num_hidden_layers {num_layers}")
    if given.get("sliding_window") is None or "sliding_attention" not in kinds:
        return ()
    size = given.count("sliding_window")
    return tuple(size if kind == "sliding_attention" else 0 for kind in kinds)


def refuse_activation(given: Given, *supported: str) -> None:
    """Reject an activation that is not among `supported`."""
    named = given.get("hidden_activation", "hidden_act", "activation_function") or supported[0]
    given.one_of("hidden_act", named, supported)
