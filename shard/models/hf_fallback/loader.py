"""Fallback for architectures without a file here: modules of transformers with our cache, attention and weight loading.

Only code of the installed package runs, never code from a model's folder. Before weights are read, the model is run
once on torch's meta device to find out what attention its layers need; anything that our backends do not support is
rejected by name. Whether outputs depend on other sequences of a batch is tested by the exactness gate at startup. This
is the only module of a shard that imports transformers, and it does so only when such a model is read.
"""

import importlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from shard.checkpoint.reader import Weights
from shard.json_config import Given
from shard.models.config import ModelConfig
from shard.models.decoder import Source
from shard.models.hf_config import read_dtype
from shard.models.hf_fallback.model import Echo, ForeignModel, attend, replace_products
from shard.models.hf_fallback.probe import META, Unsuitable, look_at, path_of, stand_in, windows_of
from shard.models.hf_fallback.split import share_products
from shard.parallel.group import Group

OURS = "weft"  # name under which our attention is registered in transformers
LOOKED_AT = "weft_looked_at"  # the same for the run on the meta device
INPUTS = ("vision", "image", "audio", "speech", "video")
ROTARY_KINDS = {"default", "linear", "llama3", "yarn"}  # rope types that do not depend on other tokens of a step
LAYER_TYPES = {"full_attention", "sliding_attention"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignConfig(ModelConfig):
    text: str  # content of config.json, for the config class of transformers
    path: tuple[str, ...]  # to the list of layers


def library() -> Any:
    """Import transformers and register our attention. The import takes seconds, so other architectures avoid it."""
    transformers = importlib.import_module("transformers")
    transformers.utils.logging.set_verbosity_error()  # its warnings about files are errors in `refuse_loading`
    transformers.utils.logging.disable_progress_bar()
    transformers.AttentionInterface.register(OURS, attend)
    transformers.AttentionInterface.register(LOOKED_AT, attend)
    transformers.AttentionMaskInterface.register(LOOKED_AT, stand_in)
    return transformers


def describe_foreign(given: Given) -> ForeignConfig:
    """Return the config. Raises Unsuitable if our attention does not support the model."""
    refuse_parts(given)
    name, text = (given.get("architectures") or ["none"])[0], json.dumps(given.values)
    config, layers, head = build(text, name)
    asked, width = look_at(layers, head)
    first = asked[0]
    return ForeignConfig(
        architecture=name, vocabulary_size=config.vocab_size, hidden_size=width, intermediate_size=0,
        num_layers=len(asked), num_heads=first.num_heads, num_kv_heads=first.num_kv_heads, head_dim=first.head_dim,
        norm_epsilon=0.0, max_positions=reach_of(config, given.source), dtype=read_dtype(given),
        windows=windows_of(asked), scale=first.scale, softcap=first.softcap, text=text,
        path=path_of(layers, first.module))


def reach_of(config: Any, source: str) -> int:
    """Return the maximum number of positions. The config class maps the family's own name to this attribute."""
    known = {"max_position_embeddings": getattr(config, "max_position_embeddings", None)}
    return Given(known, source).count("max_position_embeddings")


def refuse_parts(given: Given) -> None:
    """Reject models that are not text decoders, and quantised weights, by the settings in config.json."""
    for name in given.values:
        if name.endswith("_config") and name.startswith(INPUTS):
            raise Unsuitable(f"it takes other input than text ({name})")
    if given.flag("is_encoder_decoder", default=False):
        raise Unsuitable("it is an encoder-decoder")
    if (quantization := given.get("quantization_config")) is not None:
        raise Unsuitable(f"its weights are quantised as {quantization.get('quant_method')}, which is supported for "
                         f"weft's own architectures only")


def class_of(text: str, name: str) -> tuple[Any, Any]:
    """Return the classes of transformers for config and model."""
    transformers, values = library(), json.loads(text)
    known = importlib.import_module("transformers.models.auto.modeling_auto").MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    types = [kind for kind, model in known.items() if model == name]
    if not types:
        own = "; code that comes with a model is never run" if values.get("auto_map") else ""
        raise Unsuitable(f"transformers {transformers.__version__} has no language model of this name{own}")
    given = values.get("model_type")
    kinds = importlib.import_module("transformers.models.auto.configuration_auto").CONFIG_MAPPING
    return kinds[given if given in types else types[0]], getattr(transformers, name)


def read_values(text: str, name: str) -> tuple[Any, Any]:
    """Return the config as an object of transformers, and the class of the model."""
    kind, model_class = class_of(text, name)
    try:
        config = kind.from_dict(json.loads(text))
    except Exception as error:  # whatever its checks raise
        raise Unsuitable(f"transformers does not understand its config.json ({in_a_line(error)})") from error
    refuse_config(config, model_class)
    return config, model_class


def refuse_config(config: Any, model_class: Any) -> None:
    if model_class._is_stateful:
        raise Unsuitable("it keeps a state other than keys and values")
    if not model_class._supports_attention_backend:
        raise Unsuitable("its attention in transformers cannot be replaced")
    if unknown := set(getattr(config, "layer_types", None) or ()) - LAYER_TYPES:
        raise Unsuitable(f"it has layers of the type {', '.join(sorted(map(str, unknown)))}")
    if unknown := set(rotary_kinds(getattr(config, "rope_parameters", None) or {})) - ROTARY_KINDS:
        raise Unsuitable(f"its positions are of the type {', '.join(sorted(unknown))}")


def rotary_kinds(parameters: dict[str, Any]) -> Iterator[str]:
    """Yield the rope types, which may differ by type of layer."""
    inner = [value for value in parameters.values() if isinstance(value, dict)]
    for values in inner or [parameters]:
        yield str(values.get("rope_type") or "default")


def build(text: str, name: str) -> tuple[Any, nn.Module, nn.Module]:
    """Return config, layers and head of the model on the meta device."""
    config, model_class = read_values(text, name)
    config._attn_implementation, config._experts_implementation = LOOKED_AT, "batched_mm"
    try:
        with META:
            return config, *parted(model_class(config).eval())
    except Exception as error:  # whatever its own checks raise
        raise Unsuitable(f"transformers cannot make it ({in_a_line(error)})") from error


def in_a_line(error: Exception) -> str:
    return " ".join(str(error).split())


def parted(model: Any) -> tuple[nn.Module, nn.Module]:
    """Return the model's layers, and the model with an `Echo` instead of them, which serves as the head."""
    layers = model.get_decoder()
    model.set_submodule(next(name for name, module in model.named_modules() if module is layers), Echo())
    return layers, model


# ---------------------------------------------------------------------------------------------------------------------
# Weights


def read_foreign(source: Source[ForeignConfig]) -> ForeignModel:
    """Read the model, one rank after the other, because each rank holds the whole model for a while."""
    group = source.group
    for _ in range(group.rank):
        group.minimum(0)
    try:
        return read_alone(source)
    finally:
        for _ in range(group.rank, group.size):
            group.minimum(0)


def read_alone(source: Source[ForeignConfig]) -> ForeignModel:
    config, weights, group = source.config, source.weights, source.group
    if group.size > 1:
        refuse_sharing(config, group)
    values, model_class = read_values(config.text, config.architecture)
    values._attn_implementation = OURS
    layers, head = parted(filled(model_class, values, weights).requires_grad_(False))
    if group.size > 1:
        share_products(layers, plan_of(values), group, group.sum)
    for part in (layers, head):
        replace_products(part.to(weights.device))
    return ForeignModel(config, group, layers, head, config.path)


def plan_of(config: Any) -> dict[str, str]:
    return config.base_model_tp_plan or {}


def refuse_sharing(config: ForeignConfig, group: Group) -> None:
    """Reject a model that cannot be split over the ranks. Checked on the meta device, without the other ranks."""
    size = group.size
    try:
        check_shares(config, group)
    except (Unsuitable, ValueError) as error:
        raise ValueError(f"{config.architecture} runs through transformers and cannot be shared by {size} shards: "
                         f"{error}; use --num-shard 1") from error


def check_shares(config: ForeignConfig, group: Group) -> None:
    if config.num_heads % group.size or config.num_kv_heads % group.size:
        raise ValueError(f"it has {config.num_heads} attention heads and {config.num_kv_heads} key/value heads")
    values, layers, head = build(config.text, config.architecture)
    if not plan_of(values):
        raise ValueError("transformers has no plan for it")
    share_products(layers, plan_of(values), group, lambda x: x)
    first = look_at(layers, head)[0][0]
    if first.num_heads * group.size != config.num_heads or first.num_kv_heads * group.size != config.num_kv_heads:
        raise ValueError("the plan of transformers does not share its attention heads")


def filled(model_class: Any, config: Any, weights: Weights) -> nn.Module:
    """Return the model with its weights. transformers converts names and shapes of tensors to those of the class."""
    tensors = {name: weights.whole(name, weights.shape_of(name)) for name in weights.unclaimed()}
    try:
        model, told = model_class.from_pretrained(
            None, config=config, state_dict=tensors, dtype=weights.dtype, ignore_mismatched_sizes=True,
            output_loading_info=True)
    except RuntimeError as error:
        raise ValueError(f"{model_class.__name__} cannot take these weights ({in_a_line(error)})") from error
    refuse_loading(model_class.__name__, told)
    filled: nn.Module = model
    return filled


def refuse_loading(name: str, told: dict[str, Any]) -> None:
    differing = [f"{tensor} ({list(stored)} instead of {list(wanted)})"
                 for tensor, stored, wanted in told["mismatched_keys"]]
    for what, names in (("lacks", told["missing_keys"]), ("has no use for", told["unexpected_keys"]),
                        ("has another shape for", differing)):
        if names:
            first = sorted(names)[:3]
            raise ValueError(f"{name} {what} {', '.join(first)}{' and others' if len(names) > 3 else ''}; is "
                             f"config.json the one of this model?")
