"""Registry of architectures, and the loader of a model folder's config.json, which dispatches on the architecture.
To add an architecture, add a file to this package and a line here. A setting that would be computed wrongly is rejected
by name."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from shard.checkpoint.reader import CheckpointReader
from shard.json_config import JsonConfig
from shard.models import (
    bert,
    cohere,
    falcon,
    gemma,
    gpt2,
    gpt_neox,
    llama,
    mistral,
    mixtral,
    olmo2,
    phi3,
    qwen,
    starcoder2,
)
from shard.models.config import AnyConfig, ModelConfig
from shard.models.decoder import BaseLanguageModel, ModelLoader
from shard.models.encoder import Encoder, EncoderConfig
from shard.models.hf_fallback import loader
from shard.models.hf_fallback.attention_probe import UnsupportedModel
from shard.parallel.group import RankGroup
from shard.quantization.registry import parse_quantization_config

AnyModel = TypeVar("AnyModel")


class Architecture(NamedTuple, Generic[AnyConfig, AnyModel]):
    """Functions that parse the config and load the model of an architecture."""

    parse_config: Callable[[JsonConfig], AnyConfig]
    load_model: Callable[[ModelLoader[Any]], AnyModel]


DECODER_ARCHITECTURES: dict[str, Architecture[ModelConfig, BaseLanguageModel]] = {
    "CohereForCausalLM": Architecture(cohere.parse_cohere_config, cohere.load_cohere),
    "FalconForCausalLM": Architecture(falcon.parse_falcon_config, falcon.load_falcon),
    "GPT2LMHeadModel": Architecture(gpt2.parse_gpt2_config, gpt2.load_gpt2),
    "GPTNeoXForCausalLM": Architecture(gpt_neox.parse_gpt_neox_config, gpt_neox.load_gpt_neox),
    "Gemma2ForCausalLM": Architecture(gemma.parse_gemma2_config, gemma.load_gemma2),
    "Gemma3ForCausalLM": Architecture(gemma.parse_gemma3_config, gemma.load_gemma3),
    "Gemma3ForConditionalGeneration": Architecture(gemma.parse_multimodal_text_config,
                                                   gemma.load_multimodal_text_model),
    "GemmaForCausalLM": Architecture(gemma.parse_gemma_config, gemma.load_gemma),
    "LlamaForCausalLM": Architecture(llama.parse_llama_config, llama.load_llama),
    "MistralForCausalLM": Architecture(mistral.parse_mistral_config, llama.load_llama),
    "MixtralForCausalLM": Architecture(mixtral.parse_mixtral_config, mixtral.load_mixtral),
    "Olmo2ForCausalLM": Architecture(olmo2.parse_olmo2_config, olmo2.load_olmo2),
    "Phi3ForCausalLM": Architecture(phi3.parse_phi3_config, phi3.load_phi3),
    "Qwen2ForCausalLM": Architecture(qwen.parse_qwen2_config, qwen.load_qwen2),
    "Qwen3ForCausalLM": Architecture(qwen.parse_qwen3_config, qwen.load_qwen3),
    "Qwen3MoeForCausalLM": Architecture(qwen.parse_qwen3_moe_config, qwen.load_qwen3_moe),
    "Starcoder2ForCausalLM": Architecture(starcoder2.parse_starcoder2_config, starcoder2.load_starcoder2),
}

ENCODER_ARCHITECTURES: dict[str, Architecture[EncoderConfig, Encoder]] = {
    "BertForTokenClassification": Architecture(bert.parse_bert_config, bert.load_bert),
    "BertModel": Architecture(bert.parse_bert_config, bert.load_bert),
    "DistilBertForTokenClassification": Architecture(bert.parse_distilbert_config, bert.load_distilbert),
    "DistilBertModel": Architecture(bert.parse_distilbert_config, bert.load_distilbert),
    "XLMRobertaForTokenClassification": Architecture(bert.parse_xlm_roberta_config, bert.load_xlm_roberta),
    "XLMRobertaModel": Architecture(bert.parse_xlm_roberta_config, bert.load_xlm_roberta),
}


def parse_unlisted_config(hf_config: JsonConfig) -> ModelConfig:
    try:
        return loader.parse_fallback_config(hf_config)
    except UnsupportedModel as unsuitable:
        raise ValueError(f"{hf_config.source}: architecture {read_architecture_name(hf_config)} is not supported: "
                         f"{unsuitable}; supported: {', '.join([*DECODER_ARCHITECTURES, *ENCODER_ARCHITECTURES])}, "
                         f"and decoders of text with plain attention that transformers knows") from unsuitable


FALLBACK_ARCHITECTURE: Architecture[ModelConfig, BaseLanguageModel] = Architecture(
    parse_unlisted_config, loader.load_fallback_model)


def read_architecture_name(hf_config: JsonConfig) -> str:
    """Return the first name in `architectures`, or "none"."""
    names = hf_config.get("architectures") or ["none"]
    if not isinstance(names, list) or not isinstance(names[0], str):
        raise ValueError(f"{hf_config.source}: architectures must be a list of names, got {names!r}")
    return names[0]


def load_model_config(model_folder: Path) -> ModelConfig:
    path = model_folder / "config.json"
    if not path.is_file():
        raise ValueError(f"{model_folder} holds no model: there is no config.json")
    try:
        values = json.loads(path.read_text())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path} is no JSON object")
    try:
        return parse_model_config(JsonConfig(values, str(path)))
    except (AttributeError, LookupError, TypeError, ArithmeticError) as error:
        raise ValueError(f"{path} has a value of the wrong kind: {error}") from error


def parse_model_config(hf_config: JsonConfig) -> ModelConfig:
    """Return the config of the model, read by its architecture, with that of its quantized weights."""
    name = read_architecture_name(hf_config)
    architecture = ENCODER_ARCHITECTURES.get(name) or DECODER_ARCHITECTURES.get(name, FALLBACK_ARCHITECTURE)
    quantization_config = hf_config.get("quantization_config", "compression_config")
    return replace(architecture.parse_config(hf_config),
                   quantization=parse_quantization_config(quantization_config, hf_config.source))


def load_model(config: ModelConfig, weights: CheckpointReader, group: RankGroup) -> BaseLanguageModel:
    """Load this rank's part of the model, in the dtype and on the device of `weights`."""
    architecture = DECODER_ARCHITECTURES.get(config.architecture, FALLBACK_ARCHITECTURE)
    return architecture.load_model(ModelLoader(config, weights, group))


def load_encoder(config: EncoderConfig, weights: CheckpointReader, group: RankGroup) -> Encoder:
    return ENCODER_ARCHITECTURES[config.architecture].load_model(ModelLoader(config, weights, group))
