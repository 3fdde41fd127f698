"""DistilBERT: BERT with half of the layers, other names, and no token types."""

from shard.json_config import JsonConfig
from shard.models.common_config import parse_common_config
from shard.models.decoder import ModelReader
from shard.models.encoder import Encoder, EncoderConfig, EncoderModuleNames, add_labels_to_config, read_encoder
from shard.models.gpt_layers import compute_head_dim, read_gelu_approximation

MODULE_NAMES = EncoderModuleNames(
    "transformer.layer", "attention.q_lin", "attention.k_lin", "attention.v_lin", "attention.out_lin",
    "sa_layer_norm", "ffn.lin1", "ffn.lin2", "output_layer_norm")
NORM_EPSILON = 1e-12  # not part of config.json


def parse_distilbert_config(hf_config: JsonConfig) -> EncoderConfig:
    hidden_size, num_heads = hf_config.get_positive_int("dim"), hf_config.get_positive_int("n_heads")
    config: EncoderConfig = parse_common_config(
        hf_config, EncoderConfig, hidden_size=hidden_size, num_heads=num_heads, num_kv_heads=num_heads,
        num_layers=hf_config.get_positive_int("n_layers"), head_dim=compute_head_dim(hf_config, hidden_size, num_heads),
        intermediate_size=hf_config.get_positive_int("hidden_dim"),
        max_positions=hf_config.get_positive_int("max_position_embeddings", 512),
        rotary=None, norm_epsilon=NORM_EPSILON, attention_bias=True, mlp_bias=True,
        gelu_approximate=read_gelu_approximation(hf_config, "activation", "gelu"))
    return config


def parse_distilbert_token_classifier_config(hf_config: JsonConfig) -> EncoderConfig:
    return add_labels_to_config(hf_config, parse_distilbert_config(hf_config))


def read_distilbert(source: ModelReader[EncoderConfig]) -> Encoder:
    return read_encoder(source, "distilbert.", MODULE_NAMES)
