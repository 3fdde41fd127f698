"""Registry of architectures. To add one, add a file to this package and a line here."""

from collections.abc import Callable
from typing import Any, NamedTuple

from shard.checkpoint.reader import CheckpointReader
from shard.json_config import JsonConfig
from shard.models import (
    bert,
    cohere,
    distilbert,
    falcon,
    gemma,
    gemma2,
    gemma3,
    gpt2,
    gpt_neox,
    llama,
    mistral,
    mixtral,
    olmo2,
    phi3,
    qwen2,
    qwen3,
    qwen3_moe,
    starcoder2,
    xlm_roberta,
)
from shard.models.config import ModelConfig
from shard.models.decoder import LanguageModel, ModelReader
from shard.models.encoder import Encoder, EncoderConfig
from shard.models.hf_fallback import loader
from shard.models.hf_fallback.probe import UnsupportedModel
from shard.parallel.group import RankGroup


class DecoderArchitecture(NamedTuple):
    """Functions that parse the config and read the weights of an architecture that generates."""

    parse_config: Callable[[JsonConfig], ModelConfig]
    read_model: Callable[[ModelReader[Any]], LanguageModel]


class EncoderArchitecture(NamedTuple):
    """Functions that parse the config and read the weights of an encoder architecture."""

    parse_config: Callable[[JsonConfig], EncoderConfig]
    read_model: Callable[[ModelReader[Any]], Encoder]


DECODER_ARCHITECTURES: dict[str, DecoderArchitecture] = {
    "CohereForCausalLM": DecoderArchitecture(cohere.parse_cohere_config, cohere.read_cohere),
    "FalconForCausalLM": DecoderArchitecture(falcon.parse_falcon_config, falcon.read_falcon),
    "GPT2LMHeadModel": DecoderArchitecture(gpt2.parse_gpt2_config, gpt2.read_gpt2),
    "GPTNeoXForCausalLM": DecoderArchitecture(gpt_neox.parse_gpt_neox_config, gpt_neox.read_gpt_neox),
    "Gemma2ForCausalLM": DecoderArchitecture(gemma2.parse_gemma2_config, gemma2.read_gemma2),
    "Gemma3ForCausalLM": DecoderArchitecture(gemma3.parse_gemma3_config, gemma3.read_gemma3),
    "Gemma3ForConditionalGeneration": DecoderArchitecture(gemma3.parse_multimodal_text_config,
                                                          gemma3.read_multimodal_text_model),
    "GemmaForCausalLM": DecoderArchitecture(gemma.parse_gemma_config, gemma.read_gemma),
    "LlamaForCausalLM": DecoderArchitecture(llama.parse_llama_config, llama.read_llama),
    "MistralForCausalLM": DecoderArchitecture(mistral.parse_mistral_config, mistral.read_mistral),
    "MixtralForCausalLM": DecoderArchitecture(mixtral.parse_mixtral_config, mixtral.read_mixtral),
    "Olmo2ForCausalLM": DecoderArchitecture(olmo2.parse_olmo2_config, olmo2.read_olmo2),
    "Phi3ForCausalLM": DecoderArchitecture(phi3.parse_phi3_config, phi3.read_phi3),
    "Qwen2ForCausalLM": DecoderArchitecture(qwen2.parse_qwen2_config, qwen2.read_qwen2),
    "Qwen3ForCausalLM": DecoderArchitecture(qwen3.parse_qwen3_config, qwen3.read_qwen3),
    "Qwen3MoeForCausalLM": DecoderArchitecture(qwen3_moe.parse_qwen3_moe_config, qwen3_moe.read_qwen3_moe),
    "Starcoder2ForCausalLM": DecoderArchitecture(starcoder2.parse_starcoder2_config, starcoder2.read_starcoder2),
}

ENCODER_ARCHITECTURES: dict[str, EncoderArchitecture] = {
    "BertForTokenClassification": EncoderArchitecture(bert.parse_bert_token_classifier_config, bert.read_bert),
    "BertModel": EncoderArchitecture(bert.parse_bert_config, bert.read_bert),
    "DistilBertForTokenClassification": EncoderArchitecture(
        distilbert.parse_distilbert_token_classifier_config, distilbert.read_distilbert),
    "DistilBertModel": EncoderArchitecture(distilbert.parse_distilbert_config, distilbert.read_distilbert),
    "XLMRobertaForTokenClassification": EncoderArchitecture(
        xlm_roberta.parse_xlm_roberta_token_classifier_config, xlm_roberta.read_xlm_roberta),
    "XLMRobertaModel": EncoderArchitecture(xlm_roberta.parse_xlm_roberta_config, xlm_roberta.read_xlm_roberta),
}


def parse_unlisted_config(hf_config: JsonConfig) -> ModelConfig:
    try:
        return loader.parse_fallback_config(hf_config)
    except UnsupportedModel as unsuitable:
        raise ValueError(f"{hf_config.source}: architecture {read_architecture_name(hf_config)} is not supported: "
                         f"{unsuitable}; " f"supported: {', '.join([*DECODER_ARCHITECTURES, *ENCODER_ARCHITECTURES])}, "
                         f"and decoders of text with plain " f"attention that transformers knows") from unsuitable


FALLBACK_ARCHITECTURE = DecoderArchitecture(parse_unlisted_config, loader.read_fallback_model)


def find_decoder_architecture(architecture_name: str) -> DecoderArchitecture:
    return DECODER_ARCHITECTURES.get(architecture_name, FALLBACK_ARCHITECTURE)


def read_architecture_name(hf_config: JsonConfig) -> str:
    """Return the first name in `architectures`, or "none"."""
    names = hf_config.get("architectures") or ["none"]
    if not isinstance(names, list) or not isinstance(names[0], str):
        raise ValueError(f"{hf_config.source}: architectures must be a list of names, got {names!r}")
    return names[0]


def parse_model_config(hf_config: JsonConfig) -> ModelConfig:
    """Return the config of the model, read by its architecture."""
    name = read_architecture_name(hf_config)
    return (ENCODER_ARCHITECTURES.get(name) or find_decoder_architecture(name)).parse_config(hf_config)


def load_model(config: ModelConfig, weights: CheckpointReader, group: RankGroup) -> LanguageModel:
    """Load this rank's part of the model, in the dtype and on the device of `weights`."""
    return find_decoder_architecture(config.architecture).read_model(ModelReader(config, weights, group))


def load_encoder(config: EncoderConfig, weights: CheckpointReader, group: RankGroup) -> Encoder:
    return ENCODER_ARCHITECTURES[config.architecture].read_model(ModelReader(config, weights, group))
