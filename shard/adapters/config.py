"""Reader of an adapter's adapter_config.json, as written by peft.

Unsupported settings are rejected. So is an unknown setting with a truthy value, because it might change what the
adapter computes.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from reprlib import repr as shown
from typing import Any

from shard.json_config import MAX_FLOAT, JsonConfig
from shard.lora.routing import MAX_PADDED_RANK

CONFIG_FILE = "adapter_config.json"
MAX_CONFIG_BYTES = 2**20
MAX_PATTERN_LENGTH, MAX_PATTERN_REPEATS = 256, 2
REPEAT_REGEX, GROUP_REPEAT_REGEX = re.compile(r"[*+?{]"), re.compile(r"\)[*+{]")
# last parts of module names
REPLACEABLE_MODULES = ("lm_head", "embed_tokens", "wte", "embed_in", "embed_out", "word_embeddings")
# Settings that have no effect on a trained adapter, or only together with another setting.
IGNORED_SETTINGS = frozenset((
    "task_type", "auto_mapping", "peft_version", "revision", "inference_mode", "lora_dropout", "megatron_config",
    "megatron_core", "loftq_config", "eva_config", "corda_config", "lora_ga_config", "velora_config",
    "qalora_group_size", "runtime_config", "layers_pattern"))
SUPPORTED_SETTINGS = frozenset((
    "peft_type", "base_model_name_or_path", "r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern",
    "target_modules", "exclude_modules", "layers_to_transform", "fan_in_fan_out", "modules_to_save", "bias",
    "init_lora_weights"))
UNSUPPORTED_SETTINGS = {  # unsupported settings, with the reason for the error message
    "use_dora": "its columns are scaled by what the base's weights are (DoRA); merge it into the base",
    "lora_bias": "its products have biases of their own; train it without",
    "layer_replication": "it uses layers of the base several times",
    "alora_invocation_tokens": "it begins only behind certain tokens (aLoRA)",
    "use_bdlora": "its matrices are block-diagonal (BD-LoRA)",
    "use_qalora": "its inputs are pooled in groups (QA-LoRA)",
    "target_parameters": "it changes parameters that belong to no linear, such as those of fused experts",
    "trainable_token_indices": "it replaces single rows of the embedding; train it with modules_to_save",
    "ensure_weight_tying": "what it changes of the embedding is meant for the head as well; train it with both in "
                           "modules_to_save",
    "arrow_config": "it routes tokens between adapters (Arrow)",
    "kasa_config": "its singular values are scaled (KaSA)",
    "monteclora_config": "its weights are drawn (MonteCLoRA)",
}
# Values of init_lora_weights that modify the base's weights: the adapter is only valid with the modified weights.
BASE_CHANGING_INITS = ("pissa", "olora", "corda", "loftq", "lora_ga")


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """Settings of a LoRA adapter that determine ranks and scales, by module."""

    rank: int
    alpha: float
    use_rslora: bool = False
    rank_pattern: Mapping[str, int] = field(default_factory=dict)  # by suffix or pattern of the module's name
    alpha_pattern: Mapping[str, float] = field(default_factory=dict)

    def rank_for_module(self, module: str) -> int:
        return self.rank_pattern.get(find_matching_pattern(module, self.rank_pattern), self.rank)

    def scale_for_module(self, module: str) -> float:
        """Return the factor applied to the product of the module's two matrices."""
        rank = self.rank_for_module(module)
        alpha = self.alpha_pattern.get(find_matching_pattern(module, self.alpha_pattern), self.alpha)
        return float(alpha / rank ** 0.5 if self.use_rslora else alpha / rank)


def find_matching_pattern(module: str, patterns: Mapping[str, Any]) -> str:
    """Return the first pattern that the name matches, by peft's rule, or an empty string."""
    return next((pattern for pattern in patterns if re.match(rf"(.*\.)?({pattern})$", module)), "")


def load_adapter_config(folder: Path) -> AdapterConfig:
    path = folder / CONFIG_FILE
    return parse_adapter_config(JsonConfig(load_json_object(path), str(path)))


def load_json_object(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_CONFIG_BYTES + 1)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    if len(content) > MAX_CONFIG_BYTES:
        raise ValueError(f"{path} has more than {MAX_CONFIG_BYTES} bytes, so it is no such file")
    try:
        values = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {shown(str(error))}") from None
    if not isinstance(values, dict):
        raise ValueError(f"{path} must be a JSON object, it is {shown(values)}")
    return values


def parse_adapter_config(json_config: JsonConfig) -> AdapterConfig:
    values, source = json_config.values, json_config.source
    if values.get("peft_type") != "LORA":
        raise ValueError(f"{source}: peft_type must be LORA, got {shown(values.get('peft_type'))}")
    reject_unsupported_settings(values, source)
    rank = json_config.get_positive_int("r")
    check_rank(source, "r", rank)
    return AdapterConfig(rank=rank, alpha=json_config.get_positive_number("lora_alpha", 8),
                         use_rslora=json_config.get_bool("use_rslora", default=False),
                         rank_pattern=read_patterns(json_config, "rank_pattern", are_ranks=True),
                         alpha_pattern=read_patterns(json_config, "alpha_pattern"))


def check_rank(source: str, setting_name: str, rank: object) -> None:
    if not isinstance(rank, int) or isinstance(rank, bool) or not 1 <= rank <= MAX_PADDED_RANK:
        raise ValueError(
            f"{source}: {setting_name} must be a whole number from 1 to {MAX_PADDED_RANK}, got {shown(rank)}")


def reject_unsupported_settings(values: Mapping[str, Any], source: str) -> None:
    for name, reason in UNSUPPORTED_SETTINGS.items():
        if values.get(name):
            raise ValueError(f"{source}: {name} is not supported: {reason}")
    if values.get("bias") not in (None, "none"):
        raise ValueError(f"{source}: bias must be none, got {shown(values['bias'])}: biases of the base that were "
                         f"trained are not supported")
    start = values.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(BASE_CHANGING_INITS):
        raise ValueError(f"{source}: init_lora_weights {shown(start)} is not supported: it changes the base's own "
                         f"weights; convert the adapter to an ordinary one with peft")
    modules_to_save = values.get("modules_to_save") or []
    if not isinstance(modules_to_save, list):
        raise ValueError(f"{source}: modules_to_save must be a list, got {shown(modules_to_save)}")
    for name in modules_to_save:
        if str(name).rsplit(".", maxsplit=1)[-1] not in REPLACEABLE_MODULES:
            raise ValueError(f"{source}: modules_to_save holds {shown(name)}; only the embedding and the head can be "
                             f"replaced as a whole")
    for name, value in values.items():
        if value and name not in SUPPORTED_SETTINGS | IGNORED_SETTINGS | UNSUPPORTED_SETTINGS.keys():
            raise ValueError(f"{source}: {name} is {shown(value)}, and what it does to the adapter is not known here")


def read_patterns(json_config: JsonConfig, setting_name: str, *, are_ranks: bool = False) -> dict[str, Any]:
    patterns, source = json_config.get(setting_name) or {}, json_config.source
    if not isinstance(patterns, dict):
        raise ValueError(f"{source}: {setting_name} must be an object, got {shown(patterns)}")
    for pattern, value in patterns.items():
        # A pattern must not take long to match: no other Python code runs meanwhile.
        if (len(pattern) > MAX_PATTERN_LENGTH or len(REPEAT_REGEX.findall(pattern)) > MAX_PATTERN_REPEATS
            or GROUP_REPEAT_REGEX.search(pattern)):
            raise ValueError(
                f"{source}: {setting_name} holds {shown(pattern)}; a pattern may have {MAX_PATTERN_LENGTH} characters, "
                f"repeat {MAX_PATTERN_REPEATS} of them and no group")
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"{source}: {setting_name} holds {shown(pattern)}, which is no regular expression: "
                             f"{error}") from None
        if are_ranks:
            check_rank(source, f"{setting_name} for {shown(pattern)}", value)
        elif not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= MAX_FLOAT:
            raise ValueError(f"{source}: {setting_name} for {shown(pattern)} must be a number above 0, "
                             f"got {shown(value)}")
    return patterns
