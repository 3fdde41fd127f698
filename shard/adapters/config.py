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

from shard.adapters.slots import MOST_SIZE
from shard.json_config import MOST, Given

FILE = "adapter_config.json"
MOST_BYTES = 2**20
MOST_PATTERN, MOST_REPEATED = 256, 2
REPEATED, GROUP_REPEATED = re.compile(r"[*+?{]"), re.compile(r"\)[*+{]")
SAVED = ("lm_head", "embed_tokens", "wte", "embed_in", "embed_out", "word_embeddings")  # last parts of module names
# Settings that have no effect on a trained adapter, or only together with another setting.
IDLE = frozenset((
    "task_type", "auto_mapping", "peft_version", "revision", "inference_mode", "lora_dropout", "megatron_config",
    "megatron_core", "loftq_config", "eva_config", "corda_config", "lora_ga_config", "velora_config",
    "qalora_group_size", "runtime_config", "layers_pattern"))
HONOURED = frozenset((
    "peft_type", "base_model_name_or_path", "r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern",
    "target_modules", "exclude_modules", "layers_to_transform", "fan_in_fan_out", "modules_to_save", "bias",
    "init_lora_weights"))
REFUSED = {  # unsupported settings, with the reason for the error message
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
CHANGED_BASES = ("pissa", "olora", "corda", "loftq", "lora_ga")


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    rank: int
    alpha: float
    rank_stabilised: bool = False
    ranks: Mapping[str, int] = field(default_factory=dict)  # by suffix or pattern of the module's name
    alphas: Mapping[str, float] = field(default_factory=dict)

    def rank_of(self, module: str) -> int:
        return self.ranks.get(pattern_of(module, self.ranks), self.rank)

    def scale_of(self, module: str) -> float:
        """Return the factor applied to the product of the module's two matrices."""
        rank = self.rank_of(module)
        alpha = self.alphas.get(pattern_of(module, self.alphas), self.alpha)
        return float(alpha / rank ** 0.5 if self.rank_stabilised else alpha / rank)


def pattern_of(module: str, patterns: Mapping[str, Any]) -> str:
    """Return the first pattern that the name matches, by peft's rule, or an empty string."""
    return next((pattern for pattern in patterns if re.match(rf"(.*\.)?({pattern})$", module)), "")


def read_adapter_config(folder: Path) -> AdapterConfig:
    path = folder / FILE
    return described(Given(read_object(path), str(path)))


def read_object(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    if len(content) > MOST_BYTES:
        raise ValueError(f"{path} has more than {MOST_BYTES} bytes, so it is no such file")
    try:
        values = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {shown(str(error))}") from None
    if not isinstance(values, dict):
        raise ValueError(f"{path} must be a JSON object, it is {shown(values)}")
    return values


def described(given: Given) -> AdapterConfig:
    values, source = given.values, given.source
    if values.get("peft_type") != "LORA":
        raise ValueError(f"{source}: peft_type must be LORA, got {shown(values.get('peft_type'))}")
    refuse_others(values, source)
    rank = given.count("r")
    check_rank(source, "r", rank)
    return AdapterConfig(
        rank=rank, alpha=given.number("lora_alpha", 8),
        rank_stabilised=given.flag("use_rslora", default=False),
        ranks=read_patterns(given, "rank_pattern", whole=True), alphas=read_patterns(given, "alpha_pattern"))


def check_rank(source: str, name: str, rank: object) -> None:
    if not isinstance(rank, int) or isinstance(rank, bool) or not 1 <= rank <= MOST_SIZE:
        raise ValueError(f"{source}: {name} must be a whole number from 1 to {MOST_SIZE}, got {shown(rank)}")


def refuse_others(values: Mapping[str, Any], source: str) -> None:
    for name, reason in REFUSED.items():
        if values.get(name):
            raise ValueError(f"{source}: {name} is not supported: {reason}")
    if values.get("bias") not in (None, "none"):
        raise ValueError(f"{source}: bias must be none, got {shown(values['bias'])}: biases of the base that were "
                         f"trained are not supported")
    start = values.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(CHANGED_BASES):
        raise ValueError(f"{source}: init_lora_weights {shown(start)} is not supported: it changes the base's own "
                         f"weights; convert the adapter to an ordinary one with peft")
    check_saved(values.get("modules_to_save") or [], source)
    for name, value in values.items():
        if value and name not in HONOURED | IDLE | REFUSED.keys():
            raise ValueError(f"{source}: {name} is {shown(value)}, and what it does to the adapter is not known here")


def check_saved(names: object, source: str) -> None:
    if not isinstance(names, list):
        raise ValueError(f"{source}: modules_to_save must be a list, got {shown(names)}")
    for name in names:
        if str(name).rsplit(".", maxsplit=1)[-1] not in SAVED:
            raise ValueError(f"{source}: modules_to_save holds {shown(name)}; only the embedding and the head can be "
                             f"replaced as a whole")


def check_pattern(source: str, name: str, pattern: str) -> None:
    """Reject a pattern that may take long to match: no other Python code runs meanwhile."""
    if len(pattern) > MOST_PATTERN or len(REPEATED.findall(pattern)) > MOST_REPEATED or GROUP_REPEATED.search(pattern):
        raise ValueError(f"{source}: {name} holds {shown(pattern)}; a pattern may have {MOST_PATTERN} characters, "
                         f"repeat {MOST_REPEATED} of them and no group")
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{source}: {name} holds {shown(pattern)}, which is no regular expression: "
                         f"{error}") from None


def read_patterns(given: Given, name: str, *, whole: bool = False) -> dict[str, Any]:
    patterns = given.get(name) or {}
    if not isinstance(patterns, dict):
        raise ValueError(f"{given.source}: {name} must be an object, got {shown(patterns)}")
    for pattern, value in patterns.items():
        check_pattern(given.source, name, pattern)
        if whole:
            check_rank(given.source, f"{name} for {shown(pattern)}", value)
        elif not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= MOST:
            raise ValueError(f"{given.source}: {name} for {shown(pattern)} must be a number above 0, "
                             f"got {shown(value)}")
    return patterns
