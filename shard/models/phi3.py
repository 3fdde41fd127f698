"""Phi-3 and Phi-4: Llama with queries, keys and values in one tensor of the checkpoint, and gate and up in another."""

from shard.json_config import Given
from shard.layers.parallel_linear import Part
from shard.models.config import ModelConfig
from shard.models.decoder import Decoder, Source, read_decoder
from shard.models.hf_config import describe, refuse_activation
from shard.models.llama import LlamaLayer, Mlp, SelfAttention, widened
from shard.models.mistral import one_window
from shard.models.rope_config import read_rotary

USUAL = {"max_position_embeddings": 4096, "original_max_position_embeddings": 4096, "rms_norm_eps": 1e-5}
RENAMED = {"su": "longrope", "yarn": "longrope"}  # rope types in the first files


def describe_phi3(given: Given) -> ModelConfig:
    refuse_activation(given, "silu")
    told = given.usually(**USUAL)
    rotary = read_rotary(told, told.count("max_position_embeddings"), renamed=RENAMED)
    told.one_of("rope_type", rotary.kind, ("default", "longrope"))
    config: ModelConfig = describe(told, rotary=rotary, windows=one_window(told))
    return config


def shifted(rows: range, by: int) -> range:
    return range(rows.start + by, rows.stop + by)


def qkv_parts(source: Source[ModelConfig], layer: int) -> list[Part]:
    """Return this rank's heads of one weight that holds all queries, then all keys, then all values."""
    config = source.config
    firsts = (0, config.num_heads, config.num_heads + config.num_kv_heads)
    shape = ((config.num_heads + 2 * config.num_kv_heads) * config.head_dim, config.hidden_size)
    return [Part(f"{source.prefix}.layers.{layer}.self_attn.qkv_proj", shape,
                 widened(shifted(heads, first), config.head_dim), bias=False)
            for first, heads in zip(firsts, (source.heads, source.kv_heads, source.kv_heads), strict=True)]


def gate_up_parts(source: Source[ModelConfig], layer: int) -> list[Part]:
    wide = source.config.intermediate_size
    return [Part(f"{source.prefix}.layers.{layer}.mlp.gate_up_proj", (2 * wide, source.config.hidden_size),
                 shifted(source.intermediate, first), bias=False) for first in (0, wide)]


def read_layer(source: Source[ModelConfig], layer: int) -> LlamaLayer:
    attention = SelfAttention(source, layer, qkv_bias=False, output_bias=False, parts=qkv_parts(source, layer))
    return LlamaLayer(source, layer, attention, Mlp(source, layer, bias=False, parts=gate_up_parts(source, layer)))


def read_phi3(source: Source[ModelConfig]) -> Decoder:
    return read_decoder(source, read_layer)
