"""BERT, and the parts that XLM-RoBERTa shares with it."""

from typing import Any

from shard.json_config import Given
from shard.models.decoder import Source
from shard.models.encoder import Encoder, EncoderConfig, Names, labelled, read_encoder
from shard.models.gpt import read_gelu, share_evenly
from shard.models.hf_config import describe

NAMES = Names(
    "encoder.layer", "attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense",
    "attention.output.LayerNorm", "intermediate.dense", "output.dense", "output.LayerNorm")


def describe_bert(given: Given, **differently: Any) -> EncoderConfig:
    for name in ("is_decoder", "add_cross_attention"):
        if given.flag(name, default=False):
            raise ValueError(f"{given.source}: {name} true is not supported; supported: encoders without a decoder")
    given.one_of("position_embedding_type", given.get("position_embedding_type") or "absolute", ("absolute",))
    hidden_size, num_heads = given.count("hidden_size"), given.count("num_attention_heads")
    config: EncoderConfig = describe(given, EncoderConfig, **{
        "hidden_size": hidden_size, "num_heads": num_heads, "num_kv_heads": num_heads,
        "head_dim": share_evenly(given, hidden_size, num_heads), "rotary": None, "attention_bias": True,
        "mlp_bias": True, "max_positions": given.count("max_position_embeddings", 512),
        "norm_epsilon": given.number("layer_norm_eps", 1e-12), "approximate": read_gelu(given, "hidden_act", "gelu"),
        "num_types": given.count("type_vocab_size", 2)} | differently)
    return config


def describe_bert_with_labels(given: Given) -> EncoderConfig:
    return labelled(given, describe_bert(given))


def read_bert(source: Source[EncoderConfig]) -> Encoder:
    return read_encoder(source, "bert.", NAMES)
