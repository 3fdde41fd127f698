"""Registry of architectures. To add one, add a file to this package and a line here."""

from collections.abc import Callable
from typing import Any, NamedTuple

from shard.checkpoint.reader import Weights
from shard.json_config import Given
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
from shard.models.decoder import LanguageModel, Source
from shard.models.encoder import Encoder, EncoderConfig
from shard.models.hf_fallback import loader
from shard.models.hf_fallback.probe import Unsuitable
from shard.parallel.group import Group


class Architecture(NamedTuple):
    describe: Callable[[Given], ModelConfig]
    read: Callable[[Source[Any]], LanguageModel]


class EncoderArchitecture(NamedTuple):
    describe: Callable[[Given], EncoderConfig]
    read: Callable[[Source[Any]], Encoder]


ARCHITECTURES: dict[str, Architecture] = {
    "CohereForCausalLM": Architecture(cohere.describe_cohere, cohere.read_cohere),
    "FalconForCausalLM": Architecture(falcon.describe_falcon, falcon.read_falcon),
    "GPT2LMHeadModel": Architecture(gpt2.describe_gpt2, gpt2.read_gpt2),
    "GPTNeoXForCausalLM": Architecture(gpt_neox.describe_gpt_neox, gpt_neox.read_gpt_neox),
    "Gemma2ForCausalLM": Architecture(gemma2.describe_gemma2, gemma2.read_gemma2),
    "Gemma3ForCausalLM": Architecture(gemma3.describe_gemma3, gemma3.read_gemma3),
    "Gemma3ForConditionalGeneration": Architecture(gemma3.describe_text_part, gemma3.read_text_part),
    "GemmaForCausalLM": Architecture(gemma.describe_gemma, gemma.read_gemma),
    "LlamaForCausalLM": Architecture(llama.describe_llama, llama.read_llama),
    "MistralForCausalLM": Architecture(mistral.describe_mistral, mistral.read_mistral),
    "MixtralForCausalLM": Architecture(mixtral.describe_mixtral, mixtral.read_mixtral),
    "Olmo2ForCausalLM": Architecture(olmo2.describe_olmo2, olmo2.read_olmo2),
    "Phi3ForCausalLM": Architecture(phi3.describe_phi3, phi3.read_phi3),
    "Qwen2ForCausalLM": Architecture(qwen2.describe_qwen2, qwen2.read_qwen2),
    "Qwen3ForCausalLM": Architecture(qwen3.describe_qwen3, qwen3.read_qwen3),
    "Qwen3MoeForCausalLM": Architecture(qwen3_moe.describe_qwen3_moe, qwen3_moe.read_qwen3_moe),
    "Starcoder2ForCausalLM": Architecture(starcoder2.describe_starcoder2, starcoder2.read_starcoder2),
}

ENCODERS: dict[str, EncoderArchitecture] = {
    "BertForTokenClassification": EncoderArchitecture(bert.describe_bert_with_labels, bert.read_bert),
    "BertModel": EncoderArchitecture(bert.describe_bert, bert.read_bert),
    "DistilBertForTokenClassification": EncoderArchitecture(
        distilbert.describe_distilbert_with_labels, distilbert.read_distilbert),
    "DistilBertModel": EncoderArchitecture(distilbert.describe_distilbert, distilbert.read_distilbert),
    "XLMRobertaForTokenClassification": EncoderArchitecture(
        xlm_roberta.describe_xlm_roberta_with_labels, xlm_roberta.read_xlm_roberta),
    "XLMRobertaModel": EncoderArchitecture(xlm_roberta.describe_xlm_roberta, xlm_roberta.read_xlm_roberta),
}


def describe_other(given: Given) -> ModelConfig:
    try:
        return loader.describe_foreign(given)
    except Unsuitable as unsuitable:
        raise ValueError(f"{given.source}: architecture {read_architecture(given)} is not supported: {unsuitable}; "
                         f"supported: {', '.join([*ARCHITECTURES, *ENCODERS])}, and decoders of text with plain "
                         f"attention that transformers knows") from unsuitable


OTHERS = Architecture(describe_other, loader.read_foreign)


def find_architecture(name: str) -> Architecture:
    return ARCHITECTURES.get(name, OTHERS)


def read_architecture(given: Given) -> str:
    """Return the first name in `architectures`, or "none"."""
    names = given.get("architectures") or ["none"]
    if not isinstance(names, list) or not isinstance(names[0], str):
        raise ValueError(f"{given.source}: architectures must be a list of names, got {names!r}")
    return names[0]


def describe(given: Given) -> ModelConfig:
    """Return the config of the model, read by its architecture."""
    name = read_architecture(given)
    return (ENCODERS.get(name) or find_architecture(name)).describe(given)


def load_model(config: ModelConfig, weights: Weights, group: Group) -> LanguageModel:
    """Load this rank's part of the model, in the dtype and on the device of `weights`."""
    return find_architecture(config.architecture).read(Source(config, weights, group))


def load_encoder(config: EncoderConfig, weights: Weights, group: Group) -> Encoder:
    return ENCODERS[config.architecture].read(Source(config, weights, group))
