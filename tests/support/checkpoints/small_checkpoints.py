"""Small random checkpoints on disk, written by transformers, which also loads them as an oracle.

    folder = make_tiny_checkpoint(tmp_path, "llama", rope_parameters=LLAMA3_ROPE, dtype="bfloat16")
    oracle = AutoModelForCausalLM.from_pretrained(folder)

The same arguments make the same model; it is written once per folder. The weights are chosen so that a mistake changes
the output: norms and biases differ from their initial values, logits are far apart, every head matters. The logit of
END_TOKEN is 0, so greedy generation never stops by itself; pass another `eos_token_id` to make it stop.
"""

import hashlib
import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    BertConfig,
    BertForTokenClassification,
    BertModel,
    Cohere2Config,
    Cohere2ForCausalLM,
    CohereConfig,
    CohereForCausalLM,
    DistilBertConfig,
    DistilBertForTokenClassification,
    DistilBertModel,
    FalconConfig,
    FalconForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GemmaConfig,
    GemmaForCausalLM,
    GlmConfig,
    GlmForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    OlmoConfig,
    OlmoForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PhiConfig,
    PhiForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
    Starcoder2Config,
    Starcoder2ForCausalLM,
    XLMRobertaConfig,
    XLMRobertaForTokenClassification,
    XLMRobertaModel,
)
from transformers.utils.logging import disable_progress_bar

disable_progress_bar()

VOCABULARY_SIZE = 512
TOKENIZER_SIZE = 480  # smaller than the logits, as in many real models
BEGIN_TOKEN, END_TOKEN = 0, 1
MODEL_FAMILIES = {
    "falcon": (FalconConfig, FalconForCausalLM, {"new_decoder_architecture": True, "num_kv_heads": 2}),
    "gpt2": (GPT2Config, GPT2LMHeadModel, {}),
    "gpt_neox": (GPTNeoXConfig, GPTNeoXForCausalLM, {}),
    "llama": (LlamaConfig, LlamaForCausalLM, {}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {}),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 32}),
    "starcoder2": (Starcoder2Config, Starcoder2ForCausalLM, {}),
    "mixtral": (MixtralConfig, MixtralForCausalLM, {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen3_moe": (Qwen3MoeConfig, Qwen3MoeForCausalLM, {
        "head_dim": 32, "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 48,
        "norm_topk_prob": True}),
    "mistral": (MistralConfig, MistralForCausalLM, {"sliding_window": 24}),
    "gemma": (GemmaConfig, GemmaForCausalLM, {"head_dim": 32}),
    "gemma2": (Gemma2Config, Gemma2ForCausalLM, {
        "head_dim": 32, "sliding_window": 24, "query_pre_attn_scalar": 24, "attn_logit_softcapping": 3.0,
        "final_logit_softcapping": 8.0}),
    "gemma3": (Gemma3TextConfig, Gemma3ForCausalLM, {
        "head_dim": 32, "sliding_window": 24, "query_pre_attn_scalar": 24,
        "layer_types": ["sliding_attention", "full_attention"]}),
    "phi3": (Phi3Config, Phi3ForCausalLM, {"pad_token_id": END_TOKEN, "sliding_window": 24}),
    "cohere": (CohereConfig, CohereForCausalLM, {"logit_scale": 1.5}),
    "olmo2": (Olmo2Config, Olmo2ForCausalLM, {}),
}
FALLBACK_FAMILIES = {  # families without a file in shard/models, which run through the transformers fallback
    "cohere2": (Cohere2Config, Cohere2ForCausalLM, {
        "sliding_window": 24, "layer_types": ["sliding_attention", "full_attention"], "logit_scale": 1.0}),
    "glm": (GlmConfig, GlmForCausalLM, {"pad_token_id": 0, "head_dim": 32}),
    "granite": (GraniteConfig, GraniteForCausalLM, {
        "embedding_multiplier": 3.0, "attention_multiplier": 0.5, "residual_multiplier": 0.7, "logits_scaling": 0.5}),
    "olmo": (OlmoConfig, OlmoForCausalLM, {"pad_token_id": 0, "clip_qkv": 2.0}),
    "phi": (PhiConfig, PhiForCausalLM, {"partial_rotary_factor": 0.5}),
    "smollm3": (SmolLM3Config, SmolLM3ForCausalLM, {"pad_token_id": 0, "no_rope_layers": [1, 0]}),
}
ENCODER_FAMILIES: dict[str, tuple[type[PretrainedConfig], type[PreTrainedModel], type[PreTrainedModel]]] = {
    "bert": (BertConfig, BertModel, BertForTokenClassification),
    "distilbert": (DistilBertConfig, DistilBertModel, DistilBertForTokenClassification),
    "xlm_roberta": (XLMRobertaConfig, XLMRobertaModel, XLMRobertaForTokenClassification),
}
TOKEN_LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
ENCODER_SIZES = {
    "vocab_size": VOCABULARY_SIZE, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 160}
EMBEDDING_NAMES = (
    "embed_tokens", "embed_in", "word_embeddings", "position_embeddings", "token_type_embeddings", "wte", "wpe")
NORM_PLUS_ONE_FAMILIES = ("gemma", "gemma2", "gemma3")  # families whose norms add one to their weights
TIED_FAMILIES = (*NORM_PLUS_ONE_FAMILIES, "cohere")  # families whose embeddings are tied by default
DECODER_SIZES = {
    "vocab_size": VOCABULARY_SIZE, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 2048, "bos_token_id": BEGIN_TOKEN,
    "eos_token_id": END_TOKEN}

# Values of `rope_parameters`, one for each kind.
DEFAULT_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
DYNAMIC_ROPE = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
YARN_ROPE = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 512}
LLAMA3_ROPE = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
               "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
LONGROPE_ROPE = {"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 512,
                 "long_factor": [1.0 + place / 2 for place in range(16)], "short_factor": [1.0] * 16}  # for heads of 32

TOKENIZER_TRAINING_LINES = (
    "The weft goes over and under the warp, and the shuttle carries it from side to side.",
    "A loom holds the warp threads in place so that the weft can be woven through them.",
    "Once upon a time a weaver made a cloth of many colours, and nobody knew where a thread began.",
    "Übung macht den Meister; čtyři tkadleny tkaly čtyři plátna; 織物は経糸と緯糸でできている。",
    "def weave(warp, weft):\n    return [over + under for over, under in zip(warp, weft)]  # 0123456789",
)


def make_tiny_checkpoint(folder: Path, family: str = "llama", *, dtype: str = "float32", indexed: bool = False,
                         older: bool = False, seed: int = 0, **config_changes: Any) -> Path:
    """Write a checkpoint below `folder`, unless the same one exists, and return its path.

    `config_changes` are fields of the family's config: sizes, biases, `tie_word_embeddings`, `rope_parameters`. With
    `indexed` the weights are in several files with an index. With `older` config.json has the field names of
    transformers 4 (`rope_theta`, `rope_scaling`, `torch_dtype`), as in most published checkpoints.
    """
    cache_key = json.dumps([family, dtype, indexed, older, seed, config_changes], sort_keys=True)
    target = folder / f"{family}-{hashlib.sha256(cache_key.encode()).hexdigest()[:12]}"
    if not target.exists():
        model = make_random_model(family, getattr(torch, dtype), seed, config_changes)
        size = sum(tensor.nbytes for tensor in model.state_dict().values())
        model.save_pretrained(target, max_shard_size=size // 3 if indexed else size)
        if older:
            rewrite_as_old_config(target / "config.json")
        write_tokenizer(target)
    return target


def make_random_model(family: str, dtype: torch.dtype, seed: int, config_changes: dict[str, Any]) -> PreTrainedModel:
    config_class, model_class, defaults = (MODEL_FAMILIES | FALLBACK_FAMILIES)[family]
    config: PretrainedConfig = config_class(**DECODER_SIZES | defaults | config_changes)
    model = model_class(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            mean, deviation = get_weight_distribution(name, parameter.shape)
            if family in TIED_FAMILIES:
                mean, deviation = adjust_for_tied_embeddings(name, mean, deviation)
            parameter.normal_(mean - (family in NORM_PLUS_ONE_FAMILIES and "norm" in name), deviation,
                              generator=generator)
        model.get_output_embeddings().weight[END_TOKEN] = 0
    return model.to(dtype)


def make_tiny_encoder(folder: Path, family: str = "bert", *, dtype: str = "float32", labels: bool = False,
                      seed: int = 0, **config_changes: Any) -> Path:
    """Write an encoder as `make_tiny_checkpoint` writes a decoder; with `labels`, a token classifier for
    TOKEN_LABELS."""
    cache_key = json.dumps([family, dtype, labels, seed, config_changes], sort_keys=True)
    target = folder / f"{family}-{hashlib.sha256(cache_key.encode()).hexdigest()[:12]}"
    if not target.exists():
        make_random_encoder(family, getattr(torch, dtype), seed, config_changes, labels=labels).save_pretrained(target)
        write_tokenizer(target)
    return target


def make_random_encoder(family: str, dtype: torch.dtype, seed: int, config_changes: dict[str, Any], *,
                        labels: bool) -> PreTrainedModel:
    config_class, model_class, labelling_class = ENCODER_FAMILIES[family]
    intermediate_size_key = "hidden_dim" if family == "distilbert" else "intermediate_size"
    label_config = {"id2label": dict(enumerate(TOKEN_LABELS)),
                    "label2id": {name: i for i, name in enumerate(TOKEN_LABELS)}}
    config: PretrainedConfig = config_class(**ENCODER_SIZES | {intermediate_size_key: 128}
                                            | (label_config if labels else {}) | config_changes)
    model = (labelling_class if labels else model_class)(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(*get_weight_distribution(name.lower(), parameter.shape), generator=generator)
    return model.to(dtype)


def get_weight_distribution(name: str, shape: Iterable[int]) -> tuple[float, float]:
    """Return the mean and standard deviation of a parameter's values."""
    *_, width = shape
    if name.endswith("bias"):
        return 0.0, 0.5
    if "norm" in name or ".ln_" in name:
        return 1.0, 0.25
    if any(part in name for part in EMBEDDING_NAMES):
        return 0.0, 0.5
    return 0.0, (4.0 if "lm_head" in name else 1.5) / math.sqrt(width)


def adjust_for_tied_embeddings(name: str, mean: float, deviation: float) -> tuple[float, float]:
    """Return the mean and standard deviation for a model with tied embeddings.

    Tied embeddings would make every token predict itself. So they are small compared with what the layers add, and the
    last norm makes the logits large.
    """
    if "embed_tokens" in name:
        return mean, deviation / 8
    return {"model.norm.weight": 6.0}.get(name, 2.0 if ".post_" in name else mean), deviation


def rewrite_as_old_config(path: Path) -> None:
    config = json.loads(path.read_text())
    if rope := config.pop("rope_parameters", None):
        if "sliding_attention" in rope:  # one set of parameters per layer type
            config["rope_local_base_freq"], rope = rope["sliding_attention"]["rope_theta"], rope["full_attention"]
        config |= {name: rope.pop(name) for name in ("rope_theta", "partial_rotary_factor") if name in rope}
        config["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    config["torch_dtype"] = config.pop("dtype")
    config["transformers_version"] = "4.46.0"
    path.write_text(json.dumps(config, indent=2))


def write_tokenizer(folder: Path, vocabulary_size: int = TOKENIZER_SIZE) -> None:
    """Write tokenizer.json, a byte-level BPE that begins every text with BEGIN_TOKEN, and tokenizer_config.json."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size, min_frequency=1, show_progress=False,
        special_tokens=[AddedToken("<|begin|>", special=True), AddedToken("<|end|>", special=True)],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(TOKENIZER_TRAINING_LINES, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|begin|> $A", pair="<|begin|> $A $B", special_tokens=[("<|begin|>", BEGIN_TOKEN)])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|begin|>", "eos_token": "<|end|>"}))
