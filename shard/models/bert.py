"""BERT; DistilBERT: half of BERT's layers, other names, and no token types; XLM-RoBERTa: BERT whose positions begin at
the id of the padding token plus one."""

from functools import partial
from typing import Any

from shard.json_config import JsonConfig
from shard.models.config import parse_common_config
from shard.models.encoder import EncoderConfig, EncoderModuleNames, load_bert_encoder, parse_labels
from shard.models.gpt_layers import compute_head_dim, parse_gelu_approximation

BERT_NAMES = EncoderModuleNames(
    "encoder.layer", "attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense",
    "attention.output.LayerNorm", "intermediate.dense", "output.dense", "output.LayerNorm")
DISTILBERT_NAMES = EncoderModuleNames(
    "transformer.layer", "attention.q_lin", "attention.k_lin", "attention.v_lin", "attention.out_lin",
    "sa_layer_norm", "ffn.lin1", "ffn.lin2", "output_layer_norm")
DISTILBERT_NORM_EPSILON = 1e-12  # not part of config.json


def parse_encoder_config(hf_config: JsonConfig, hidden_key: str, heads_key: str, activation_key: str,
                         **overrides: Any) -> EncoderConfig:
    """Return the config. The arguments are the names of settings that differ between families."""
    hidden_size, num_heads = hf_config.get_positive_int(hidden_key), hf_config.get_positive_int(heads_key)
    return parse_common_config(hf_config, EncoderConfig, **{
        "hidden_size": hidden_size, "num_heads": num_heads, "num_kv_heads": num_heads,
        "head_dim": compute_head_dim(hf_config, hidden_size, num_heads), "rotary": None, "attention_bias": True,
        "mlp_bias": True, "max_positions": hf_config.get_positive_int("max_position_embeddings", 512),
        "labels": parse_labels(hf_config),
        "gelu_approximate": parse_gelu_approximation(hf_config, activation_key, "gelu")} | overrides)


def parse_bert_config(hf_config: JsonConfig, **overrides: Any) -> EncoderConfig:
    for name in ("is_decoder", "add_cross_attention"):
        if hf_config.get_bool(name):
            raise ValueError(f"{hf_config.source}: {name} true is not supported; supported: encoders without a decoder")
    hf_config.require_supported("position_embedding_type", hf_config.get("position_embedding_type") or "absolute",
                                ("absolute",))
    return parse_encoder_config(hf_config, "hidden_size", "num_attention_heads", "hidden_act", **{
        "norm_epsilon": hf_config.get_positive_number("layer_norm_eps", 1e-12),
        "num_token_types": hf_config.get_positive_int("type_vocab_size", 2)} | overrides)


def parse_distilbert_config(hf_config: JsonConfig) -> EncoderConfig:
    return parse_encoder_config(
        hf_config, "dim", "n_heads", "activation", num_layers=hf_config.get_positive_int("n_layers"),
        intermediate_size=hf_config.get_positive_int("hidden_dim"), norm_epsilon=DISTILBERT_NORM_EPSILON)


def parse_xlm_roberta_config(hf_config: JsonConfig) -> EncoderConfig:
    padding = 1 if hf_config.get("pad_token_id") is None else int(hf_config.get("pad_token_id"))
    num_positions = hf_config.get_positive_int("max_position_embeddings", 514)
    if not 0 <= padding < num_positions - 1:
        raise ValueError(f"{hf_config.source}: pad_token_id must leave positions of the {num_positions} of "
                         f"max_position_embeddings, got {padding}")
    return parse_bert_config(hf_config, padding_id=padding, max_positions=num_positions - padding - 1,
                             num_token_types=hf_config.get_positive_int("type_vocab_size", 1))


load_bert = partial(load_bert_encoder, prefix="bert.", module_names=BERT_NAMES)
load_distilbert = partial(load_bert_encoder, prefix="distilbert.", module_names=DISTILBERT_NAMES)
load_xlm_roberta = partial(load_bert_encoder, prefix="roberta.", module_names=BERT_NAMES)
