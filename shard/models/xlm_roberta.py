"""XLM-RoBERTa: BERT whose positions begin at the id of the padding token plus one."""

from shard.json_config import JsonConfig
from shard.models.bert import MODULE_NAMES, parse_bert_config
from shard.models.decoder import ModelReader
from shard.models.encoder import Encoder, EncoderConfig, add_labels_to_config, read_encoder


def parse_xlm_roberta_config(hf_config: JsonConfig) -> EncoderConfig:
    padding = 1 if hf_config.get("pad_token_id") is None else int(hf_config.get("pad_token_id"))
    num_positions = hf_config.get_positive_int("max_position_embeddings", 514)
    if not 0 <= padding < num_positions - 1:
        raise ValueError(f"{hf_config.source}: pad_token_id must leave positions of the {num_positions} of "
                         f"max_position_embeddings, got {padding}")
    return parse_bert_config(hf_config, padding_id=padding, max_positions=num_positions - padding - 1,
                             num_token_types=hf_config.get_positive_int("type_vocab_size", 1))


def parse_xlm_roberta_token_classifier_config(hf_config: JsonConfig) -> EncoderConfig:
    return add_labels_to_config(hf_config, parse_xlm_roberta_config(hf_config))


def read_xlm_roberta(source: ModelReader[EncoderConfig]) -> Encoder:
    return read_encoder(source, "roberta.", MODULE_NAMES)
