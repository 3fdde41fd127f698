"""Fallback for architectures without a file here: modules of transformers with our cache, attention and weight loading.

Only code of the installed package runs, never code from a model's folder. Before weights are read, the model is run
once on torch's meta device to find out what attention its layers need; anything that our backends do not support is
rejected by name. Whether outputs depend on other sequences of a batch is tested by the exactness gate at startup. This
is the only module of a shard that imports transformers, and it does so only when such a model is read.
"""

import importlib
import json
from dataclasses import dataclass
from typing import Any

from torch import nn

from shard.checkpoint.reader import CheckpointReader
from shard.json_config import JsonConfig
from shard.models.config import ModelConfig, parse_dtype
from shard.models.decoder import ModelLoader
from shard.models.hf_fallback.attention_probe import (
    META_DEVICE,
    UnsupportedModel,
    find_layer_attention_specs,
    find_layers_path,
    list_sliding_windows,
    make_probe_mask,
)
from shard.models.hf_fallback.model import (
    FallbackModel,
    IdentityDecoder,
    replace_linears,
    split_linears,
    weft_attention_forward,
)
from shard.parallel.group import RankGroup

ATTENTION_NAME = "weft"  # name under which our attention is registered in transformers
PROBE_ATTENTION_NAME = "weft_looked_at"  # the same for the run on the meta device
NON_TEXT_CONFIG_PREFIXES = ("vision", "image", "audio", "speech", "video")
# rope types that do not depend on other tokens of a step
SUPPORTED_ROPE_TYPES = {"default", "linear", "llama3", "yarn"}
SUPPORTED_LAYER_TYPES = {"full_attention", "sliding_attention"}


@dataclass(frozen=True, slots=True, kw_only=True)
class FallbackConfig(ModelConfig):
    """Model config of a model that runs through transformers."""

    config_json: str  # content of config.json, for the config class of transformers
    layers_path: tuple[str, ...]  # to the list of layers


def import_transformers() -> Any:
    """Import transformers and register our attention. The import takes seconds, so other architectures avoid it."""
    transformers = importlib.import_module("transformers")
    # its warnings about files are errors in `load_pretrained_weights`
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    transformers.AttentionInterface.register(ATTENTION_NAME, weft_attention_forward)
    transformers.AttentionInterface.register(PROBE_ATTENTION_NAME, weft_attention_forward)
    transformers.AttentionMaskInterface.register(PROBE_ATTENTION_NAME, make_probe_mask)
    return transformers


def parse_fallback_config(hf_config: JsonConfig) -> FallbackConfig:
    """Return the config. Raises UnsupportedModel if our attention does not support the model."""
    reject_unsupported_settings(hf_config)
    name, config_json = (hf_config.get("architectures") or ["none"])[0], json.dumps(hf_config.values)
    config, layers, head = build_meta_model(config_json, name)
    layer_attentions, width = find_layer_attention_specs(layers, head)
    first = layer_attentions[0]
    # the config class maps the family's own name to this attribute
    known = {"max_position_embeddings": getattr(config, "max_position_embeddings", None)}
    return FallbackConfig(
        architecture=name, vocabulary_size=config.vocab_size, hidden_size=width, intermediate_size=0,
        num_layers=len(layer_attentions), num_heads=first.num_heads, num_kv_heads=first.num_kv_heads,
        head_dim=first.head_dim, norm_epsilon=0.0,
        max_positions=JsonConfig(known, hf_config.source).get_positive_int("max_position_embeddings"),
        dtype=parse_dtype(hf_config), sliding_windows=list_sliding_windows(layer_attentions),
        attention_scale=first.scale, attention_softcap=first.softcap, config_json=config_json,
        layers_path=find_layers_path(layers, first.module))


def reject_unsupported_settings(hf_config: JsonConfig) -> None:
    """Reject models that are not text decoders, and quantized weights, by the settings in config.json."""
    for name in hf_config.values:
        if name.endswith("_config") and name.startswith(NON_TEXT_CONFIG_PREFIXES):
            raise UnsupportedModel(f"it takes other input than text ({name})")
    if hf_config.get_bool("is_encoder_decoder", default=False):
        raise UnsupportedModel("it is an encoder-decoder")
    if (quantization := hf_config.get("quantization_config")) is not None:
        raise UnsupportedModel(
            f"its weights are quantized as {quantization.get('quant_method')}, which is supported for "
            f"weft's own architectures only")


def find_transformers_classes(config_json: str, architecture: str) -> tuple[Any, Any]:
    """Return the classes of transformers for config and model."""
    transformers, values = import_transformers(), json.loads(config_json)
    causal_lm_classes = importlib.import_module(
        "transformers.models.auto.modeling_auto").MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    types = [kind for kind, model in causal_lm_classes.items() if model == architecture]
    if not types:
        own = "; code that comes with a model is never run" if values.get("auto_map") else ""
        raise UnsupportedModel(f"transformers {transformers.__version__} has no language model of this name{own}")
    model_type = values.get("model_type")
    config_classes = importlib.import_module("transformers.models.auto.configuration_auto").CONFIG_MAPPING
    return config_classes[model_type if model_type in types else types[0]], getattr(transformers, architecture)


def make_transformers_config(config_json: str, architecture: str) -> tuple[Any, Any]:
    """Return the config as an object of transformers, and the class of the model."""
    config_class, model_class = find_transformers_classes(config_json, architecture)
    try:
        config = config_class.from_dict(json.loads(config_json))
    except Exception as error:  # whatever its checks raise
        raise UnsupportedModel(
            f"transformers does not understand its config.json ({format_error_on_one_line(error)})") from error
    if model_class._is_stateful:
        raise UnsupportedModel("it keeps a state other than keys and values")
    if not model_class._supports_attention_backend:
        raise UnsupportedModel("its attention in transformers cannot be replaced")
    if unknown := set(getattr(config, "layer_types", None) or ()) - SUPPORTED_LAYER_TYPES:
        raise UnsupportedModel(f"it has layers of the type {', '.join(sorted(map(str, unknown)))}")
    rope_parameters = getattr(config, "rope_parameters", None) or {}
    by_layer_type = [value for value in rope_parameters.values() if isinstance(value, dict)]
    rope_types = {str(values.get("rope_type") or "default") for values in by_layer_type or [rope_parameters]}
    if unknown := rope_types - SUPPORTED_ROPE_TYPES:
        raise UnsupportedModel(f"its positions are of the type {', '.join(sorted(unknown))}")
    return config, model_class


def build_meta_model(config_json: str, architecture: str) -> tuple[Any, nn.Module, nn.Module]:
    """Return config, layers and head of the model on the meta device."""
    config, model_class = make_transformers_config(config_json, architecture)
    config._attn_implementation, config._experts_implementation = PROBE_ATTENTION_NAME, "batched_mm"
    try:
        with META_DEVICE:
            return config, *separate_layers_from_head(model_class(config).eval())
    except Exception as error:  # whatever its own checks raise
        raise UnsupportedModel(f"transformers cannot make it ({format_error_on_one_line(error)})") from error


def format_error_on_one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def separate_layers_from_head(model: Any) -> tuple[nn.Module, nn.Module]:
    """Return the model's layers, and the model with an `IdentityDecoder` instead of them, which serves as the head."""
    layers = model.get_decoder()
    model.set_submodule(next(name for name, module in model.named_modules() if module is layers), IdentityDecoder())
    return layers, model


# ---------------------------------------------------------------------------------------------------------------------
# Weights


def load_fallback_model(source: ModelLoader[FallbackConfig]) -> FallbackModel:
    """Load the model, one rank after the other, because each rank holds the whole model for a while."""
    group = source.group
    for _ in range(group.rank):
        group.all_reduce_min(0)
    try:
        return load_rank_part(source)
    finally:
        for _ in range(group.rank, group.size):
            group.all_reduce_min(0)


def load_rank_part(source: ModelLoader[FallbackConfig]) -> FallbackModel:
    config, weights, group = source.config, source.weights, source.group
    if group.size > 1:
        try:  # on the meta device, without the other ranks
            check_tensor_parallel_split(config, group)
        except (UnsupportedModel, ValueError) as error:
            raise ValueError(f"{config.architecture} runs through transformers and cannot be shared by {group.size} "
                             f"shards: {error}; use --num-shard 1") from error
    transformers_config, model_class = make_transformers_config(config.config_json, config.architecture)
    transformers_config._attn_implementation = ATTENTION_NAME
    layers, head = separate_layers_from_head(
        load_pretrained_weights(model_class, transformers_config, weights).requires_grad_(False))
    if group.size > 1:
        split_linears(layers, transformers_config.base_model_tp_plan or {}, group, group.all_reduce_sum)
    for part in (layers, head):
        replace_linears(part.to(weights.device))
    return FallbackModel(config, group, layers, head, config.layers_path)


def check_tensor_parallel_split(config: FallbackConfig, group: RankGroup) -> None:
    if config.num_heads % group.size or config.num_kv_heads % group.size:
        raise ValueError(f"it has {config.num_heads} attention heads and {config.num_kv_heads} key/value heads")
    transformers_config, layers, head = build_meta_model(config.config_json, config.architecture)
    if not transformers_config.base_model_tp_plan:
        raise ValueError("transformers has no plan for it")
    split_linears(layers, transformers_config.base_model_tp_plan, group, lambda x: x)
    first = find_layer_attention_specs(layers, head)[0][0]
    if first.num_heads * group.size != config.num_heads or first.num_kv_heads * group.size != config.num_kv_heads:
        raise ValueError("the plan of transformers does not share its attention heads")


def load_pretrained_weights(model_class: Any, transformers_config: Any, weights: CheckpointReader) -> nn.Module:
    """Return the model with its weights. transformers converts names and shapes of tensors to those of the class."""
    tensors = {name: weights.read_tensor(name, weights.stored_shape(name)) for name in weights.list_unclaimed_names()}
    try:
        model, loading_info = model_class.from_pretrained(
            None, config=transformers_config, state_dict=tensors, dtype=weights.dtype, ignore_mismatched_sizes=True,
            output_loading_info=True)
    except RuntimeError as error:
        raise ValueError(
            f"{model_class.__name__} cannot take these weights ({format_error_on_one_line(error)})") from error
    differing = [f"{tensor} ({list(stored)} instead of {list(expected)})"
                 for tensor, stored, expected in loading_info["mismatched_keys"]]
    for problem, names in (("lacks", loading_info["missing_keys"]), ("has no use for", loading_info["unexpected_keys"]),
                           ("has another shape for", differing)):
        if names:
            first = sorted(names)[:3]
            raise ValueError(f"{model_class.__name__} {problem} {', '.join(first)}"
                             f"{' and others' if len(names) > 3 else ''}; is config.json the one of this model?")
    loaded_model: nn.Module = model
    return loaded_model
