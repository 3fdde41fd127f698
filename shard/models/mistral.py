"""Mistral: Llama with the same sliding window in all layers, or none."""

from shard.json_config import Given
from shard.models.config import ModelConfig
from shard.models.decoder import Decoder, Source
from shard.models.hf_config import describe, refuse_activation
from shard.models.llama import read_llama

USUAL = {"sliding_window": 4096, "num_key_value_heads": 8, "max_position_embeddings": 131072}


def describe_mistral(given: Given) -> ModelConfig:
    refuse_activation(given, "silu")
    told = given.usually(**USUAL)
    config: ModelConfig = describe(told, windows=one_window(told))
    return config


def one_window(given: Given) -> tuple[int, ...]:
    """Return the window sizes by layer, which must all be the same."""
    size = given.get("sliding_window")
    kinds = set(given.get("layer_types") or ())
    if kinds - {"full_attention" if size is None else "sliding_attention"}:
        raise ValueError(f"{given.source}: layer_types {sorted(kinds)} with sliding_window {size} are not supported; "
                         f"supported: the same in every layer")
    return () if size is None else (given.count("sliding_window"),) * given.count("num_hidden_layers")


def read_mistral(source: Source[ModelConfig]) -> Decoder:
    return read_llama(source)
