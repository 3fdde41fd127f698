"""Phi-3 and Phi-4: Llama with queries, keys and values in one tensor of the checkpoint, and gate and up in another."""

from shard.json_config import JsonConfig
from shard.layers.parallel_linear import LinearRows
from shard.models.config import ModelConfig, check_activation, parse_common_config, parse_rotary_config
from shard.models.decoder import Decoder, ModelLoader, load_decoder
from shard.models.decoder_layers import GatedMlp, PreNormLayer, compute_head_rows, load_attention, load_pre_norm_layer
from shard.models.mistral import parse_uniform_window

DEFAULT_SETTINGS = {"max_position_embeddings": 4096, "original_max_position_embeddings": 4096, "rms_norm_eps": 1e-5}
ROPE_TYPE_ALIASES = {"su": "longrope", "yarn": "longrope"}  # rope types in the first files


def parse_phi3_config(hf_config: JsonConfig) -> ModelConfig:
    check_activation(hf_config, "silu")
    settings = hf_config.with_defaults_for_absent_keys(**DEFAULT_SETTINGS)
    rotary = parse_rotary_config(settings, settings.get_positive_int("max_position_embeddings"),
                                 rope_type_aliases=ROPE_TYPE_ALIASES)
    settings.require_supported("rope_type", rotary.rope_type, ("default", "longrope"))
    return parse_common_config(settings, ModelConfig, rotary=rotary, sliding_windows=parse_uniform_window(settings))


def shift_range(rows: range, offset: int) -> range:
    return range(rows.start + offset, rows.stop + offset)


def list_fused_qkv_rows(source: ModelLoader[ModelConfig], layer: int) -> list[LinearRows]:
    """Return this rank's heads of one weight that holds all queries, then all keys, then all values."""
    config = source.config
    firsts = (0, config.num_heads, config.num_heads + config.num_kv_heads)
    shape = ((config.num_heads + 2 * config.num_kv_heads) * config.head_dim, config.hidden_size)
    return [LinearRows(f"{source.prefix}.layers.{layer}.self_attn.qkv_proj", shape,
                       compute_head_rows(shift_range(heads, first), config.head_dim), has_bias=False)
            for first, heads in zip(firsts, (source.head_range, source.kv_head_range, source.kv_head_range),
                                    strict=True)]


def load_layer(source: ModelLoader[ModelConfig], layer: int) -> PreNormLayer:
    wide = source.config.intermediate_size
    gate_up_rows = [
        LinearRows(f"{source.prefix}.layers.{layer}.mlp.gate_up_proj", (2 * wide, source.config.hidden_size),
                   shift_range(source.intermediate_range, first), has_bias=False) for first in (0, wide)]
    return load_pre_norm_layer(source, layer,
                               load_attention(source, layer, qkv_rows=list_fused_qkv_rows(source, layer)),
                               GatedMlp(source, layer, gate_up_rows=gate_up_rows))


def load_phi3(source: ModelLoader[ModelConfig]) -> Decoder:
    return load_decoder(source, load_layer)
