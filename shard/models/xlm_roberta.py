"""XLM-RoBERTa: BERT whose positions begin at the id of the padding token plus one."""

from shard.json_config import Given
from shard.models.bert import NAMES, describe_bert
from shard.models.decoder import Source
from shard.models.encoder import Encoder, EncoderConfig, labelled, read_encoder


def describe_xlm_roberta(given: Given) -> EncoderConfig:
    padding = 1 if given.get("pad_token_id") is None else int(given.get("pad_token_id"))
    num_places = given.count("max_position_embeddings", 514)
    if not 0 <= padding < num_places - 1:
        raise ValueError(f"{given.source}: pad_token_id must leave positions of the {num_places} of "
                         f"max_position_embeddings, got {padding}")
    return describe_bert(given, padding=padding, max_positions=num_places - padding - 1,
                         num_types=given.count("type_vocab_size", 1))


def describe_xlm_roberta_with_labels(given: Given) -> EncoderConfig:
    return labelled(given, describe_xlm_roberta(given))


def read_xlm_roberta(source: Source[EncoderConfig]) -> Encoder:
    return read_encoder(source, "roberta.", NAMES)
