"""BERT, and the parts that XLM-RoBERTa shares with it."""

from typing import Any

from shard.json_config import JsonConfig
from shard.models.common_config import parse_common_config
from shard.models.decoder import ModelReader
from shard.models.encoder import Encoder, EncoderConfig, EncoderModuleNames, add_labels_to_config, read_encoder
from shard.models.gpt_layers import compute_head_dim, read_gelu_approximation

MODULE_NAMES = EncoderModuleNames(
    "encoder.layer", "attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense",
    "attention.output.LayerNorm", "intermediate.dense", "output.dense", "output.LayerNorm")


def parse_bert_config(hf_config: JsonConfig, **overrides: Any) -> EncoderConfig:
    for name in ("is_decoder", "add_cross_attention"):
        if hf_config.get_bool(name, default=False):
            raise ValueError(f"{hf_config.source}: {name} true is not supported; supported: encoders without a decoder")
    hf_config.require_supported("position_embedding_type", hf_config.get("position_embedding_type") or "absolute",
                                ("absolute",))
    hidden_size, num_heads = (hf_config.get_positive_int("hidden_size"),
                              hf_config.get_positive_int("num_attention_heads"))
    config: EncoderConfig = parse_common_config(hf_config, EncoderConfig, **{
        "hidden_size": hidden_size, "num_heads": num_heads, "num_kv_heads": num_heads,
        "head_dim": compute_head_dim(hf_config, hidden_size, num_heads), "rotary": None, "attention_bias": True,
        "mlp_bias": True, "max_positions": hf_config.get_positive_int("max_position_embeddings", 512),
        "norm_epsilon": hf_config.get_positive_number("layer_norm_eps", 1e-12),
        "gelu_approximate": read_gelu_approximation(hf_config, "hidden_act", "gelu"),
        "num_token_types": hf_config.get_positive_int("type_vocab_size", 2)} | overrides)
    return config


def parse_bert_token_classifier_config(hf_config: JsonConfig) -> EncoderConfig:
    return add_labels_to_config(hf_config, parse_bert_config(hf_config))


def read_bert(source: ModelReader[EncoderConfig]) -> Encoder:
    return read_encoder(source, "bert.", MODULE_NAMES)
