"""DistilBERT: BERT with half of the layers, other names, and no token types."""

from shard.json_config import Given
from shard.models.decoder import Source
from shard.models.encoder import Encoder, EncoderConfig, Names, labelled, read_encoder
from shard.models.gpt import read_gelu, share_evenly
from shard.models.hf_config import describe

NAMES = Names(
    "transformer.layer", "attention.q_lin", "attention.k_lin", "attention.v_lin", "attention.out_lin",
    "sa_layer_norm", "ffn.lin1", "ffn.lin2", "output_layer_norm")
EPSILON = 1e-12  # not part of config.json


def describe_distilbert(given: Given) -> EncoderConfig:
    hidden_size, num_heads = given.count("dim"), given.count("n_heads")
    config: EncoderConfig = describe(
        given, EncoderConfig, hidden_size=hidden_size, num_heads=num_heads, num_kv_heads=num_heads,
        num_layers=given.count("n_layers"), head_dim=share_evenly(given, hidden_size, num_heads),
        intermediate_size=given.count("hidden_dim"), max_positions=given.count("max_position_embeddings", 512),
        rotary=None, norm_epsilon=EPSILON, attention_bias=True, mlp_bias=True,
        approximate=read_gelu(given, "activation", "gelu"))
    return config


def describe_distilbert_with_labels(given: Given) -> EncoderConfig:
    return labelled(given, describe_distilbert(given))


def read_distilbert(source: Source[EncoderConfig]) -> Encoder:
    return read_encoder(source, "distilbert.", NAMES)
