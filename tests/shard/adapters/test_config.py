"""Every field of an adapter_config.json is honoured, or rejected by name."""

import json
from pathlib import Path
from typing import Any

import pytest
from peft import LoraConfig

from shard.adapters.config import (
    IGNORED_SETTINGS,
    SUPPORTED_SETTINGS,
    UNSUPPORTED_SETTINGS,
    AdapterConfig,
    load_adapter_config,
    parse_adapter_config,
)
from shard.json_config import JsonConfig

VALID_CONFIG = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj"]}


def parse_changed_config(**changes: Any) -> AdapterConfig:
    return parse_adapter_config(JsonConfig(VALID_CONFIG | changes, "adapter_config.json"))


def test_every_field_that_peft_writes_is_known() -> None:
    assert set(LoraConfig().to_dict()) <= SUPPORTED_SETTINGS | IGNORED_SETTINGS | UNSUPPORTED_SETTINGS.keys()


def test_default_peft_config_is_accepted() -> None:
    written = LoraConfig(r=8, target_modules=["q_proj"], task_type="CAUSAL_LM").to_dict()
    assert parse_adapter_config(JsonConfig(written | {"target_modules": ["q_proj"], "peft_type": "LORA"},
                                           "file")).rank == 8


@pytest.mark.parametrize(("module", "rank", "scale"), [
    ("model.layers.0.self_attn.q_proj", 4, 4.0),
    ("model.layers.0.self_attn.k_proj", 8, 2.0),
    ("model.layers.1.mlp.up_proj", 2, 3 / 2),
    ("model.layers.0.mlp.up_proj", 8, 3 / 8),
    ("layers.0.mlp.q_projection", 8, 2.0),
])
def test_rank_and_scale_may_depend_on_the_module(module: str, rank: int, scale: float) -> None:
    config = parse_changed_config(rank_pattern={"q_proj": 4, r"layers\.1\.mlp\.up_proj": 2},
                                  alpha_pattern={"mlp.up_proj": 3})
    assert (config.rank_for_module(module), config.scale_for_module(module)) == (rank, scale)


def test_rslora_divides_alpha_by_the_root_of_the_rank() -> None:
    assert parse_changed_config(r=16, lora_alpha=8, use_rslora=True).scale_for_module("q_proj") == 2.0


@pytest.mark.parametrize(("changes", "reason"), [
    ({"peft_type": "IA3"}, "peft_type must be LORA, got 'IA3'"),
    ({"peft_type": None}, "peft_type must be LORA, got None"),
    ({"r": 0}, "r must be a whole number of at least 1, got 0"),
    ({"r": 1025}, "r must be a whole number from 1 to 1024, got 1025"),
    ({"r": True}, "r must be a whole number"),
    ({"lora_alpha": 0}, "lora_alpha must be a number above 0, got 0"),
    ({"lora_alpha": 10**400}, "lora_alpha must be a number above 0, got 1000"),
    ({"lora_alpha": "16"}, "lora_alpha must be a number above 0, got 16"),
    ({"bias": "all"}, "bias must be none, got 'all'"),
    ({"bias": ["all"]}, r"bias must be none, got \['all'\]"),
    ({"use_dora": True}, "use_dora is not supported: .*DoRA"),
    ({"lora_bias": True}, "lora_bias is not supported"),
    ({"layer_replication": [[0, 4]]}, "layer_replication is not supported"),
    ({"alora_invocation_tokens": [1, 2]}, "alora_invocation_tokens is not supported"),
    ({"target_parameters": ["mlp.experts.gate_up_proj"]}, "target_parameters is not supported"),
    ({"trainable_token_indices": [5]}, "trainable_token_indices is not supported"),
    ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights 'pissa_niter_4' is not supported"),
    ({"modules_to_save": ["score"]}, "modules_to_save holds 'score'"),
    ({"modules_to_save": 5}, "modules_to_save must be a list, got 5"),
    ({"use_brand_new": {"x": 1}}, r"use_brand_new is \{'x': 1\}, and what it does to the adapter is not known here"),
    ({"rank_pattern": ["q_proj"]}, "rank_pattern must be an object"),
    ({"rank_pattern": {"q_proj": -1}}, "rank_pattern for 'q_proj' must be a whole number from 1 to 1024, got -1"),
    ({"alpha_pattern": {"q_proj": "x"}}, "alpha_pattern for 'q_proj' must be a number above 0, got 'x'"),
    ({"alpha_pattern": {"q_proj": 10**400}}, "alpha_pattern for 'q_proj' must be a number above 0, got 1000"),
    ({"rank_pattern": {"(q_proj": 4}}, ".*which is no regular expression"),
    ({"rank_pattern": {"(.*)*x": 4}}, ".*a pattern may have 256 characters"),
    ({"rank_pattern": {".*.*.*x": 4}}, ".*a pattern may have 256 characters, repeat 2 of them"),
])
def test_unsupported_settings_are_rejected_by_name(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=f"adapter_config.json: {reason}"):
        parse_changed_config(**changes)


@pytest.mark.parametrize("start", [True, False, "gaussian", "orthogonal", "eva"])
def test_initializations_that_keep_the_base_weights_are_accepted(start: object) -> None:
    assert parse_changed_config(init_lora_weights=start).rank == 8


@pytest.mark.parametrize(("text", "reason"), [
    ("{", "is not JSON"),
    ("[1]", r"must be a JSON object, it is \[1\]"),
    ("[" * 100_000, "is not JSON"),
    (json.dumps(VALID_CONFIG) + " " * 2**20, "has more than 1048576 bytes"),
])
def test_invalid_config_file_is_rejected(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "adapter_config.json").write_text(text)
    with pytest.raises(ValueError, match=reason):
        load_adapter_config(tmp_path)


def test_folder_without_config_file_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"adapter_config.json cannot be read: No such file or directory"):
        load_adapter_config(tmp_path)
