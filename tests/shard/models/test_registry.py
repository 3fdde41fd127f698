import json
from contextlib import suppress
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from support.checkpoints.small_checkpoints import (
    DYNAMIC_ROPE,
    LINEAR_ROPE,
    LLAMA3_ROPE,
    MODEL_FAMILIES,
    YARN_ROPE,
    make_tiny_checkpoint,
)
from support.model_runs.decoder_reference import load_decoder_model

from shard.json_config import JsonConfig
from shard.layers.rotary import RotaryConfig
from shard.models.config import ModelConfig
from shard.models.registry import DECODER_ARCHITECTURES, load_model_config, parse_model_config
from shard.parallel.group import SingleRankGroup

LLAMA_CONFIG = {
    "architectures": ["LlamaForCausalLM"], "vocab_size": 512, "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5}
EXPECTED_CONFIG = ModelConfig(
    architecture="LlamaForCausalLM", vocabulary_size=512, hidden_size=64, intermediate_size=128, num_layers=2,
    num_heads=4, num_kv_heads=2, head_dim=16, norm_epsilon=1e-5, rotary=RotaryConfig("default", 10000.0),
    max_positions=2048, tie_word_embeddings=False, attention_bias=False, mlp_bias=False, dtype=torch.float32)


def parse_config(**changes: Any) -> ModelConfig:
    return parse_model_config(JsonConfig(LLAMA_CONFIG | changes, "config.json"))


@pytest.mark.parametrize(("text", "complaint"), [
    (None, "there is no config.json"), ("{", "is not JSON"), ("[" * 100_000, "is not JSON"),
    ("[]", "is no JSON object")])
def test_folder_without_a_valid_config_is_rejected(tmp_path: Path, text: str | None, complaint: str) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(ValueError, match=complaint):
        load_model_config(tmp_path)


def test_config_is_parsed() -> None:
    assert parse_config() == EXPECTED_CONFIG


def test_settings_absent_from_old_files_have_defaults() -> None:
    shorter_config = {name: value for name, value in LLAMA_CONFIG.items()
                      if name not in {"num_key_value_heads", "rms_norm_eps"}}
    assert parse_model_config(JsonConfig(shorter_config, "")) == replace(EXPECTED_CONFIG, num_kv_heads=4,
                                                                                     norm_epsilon=1e-6)


def test_settings_of_the_file_override_defaults() -> None:
    config = parse_config(head_dim=32, tie_word_embeddings=True, attention_bias=True, mlp_bias=True,
                          torch_dtype="bfloat16")
    assert config == replace(EXPECTED_CONFIG, head_dim=32, tie_word_embeddings=True, attention_bias=True, mlp_bias=True,
                             dtype=torch.bfloat16)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("rope", [None, LINEAR_ROPE, DYNAMIC_ROPE, LLAMA3_ROPE, YARN_ROPE], ids=str)
def test_old_and_new_config_formats_are_equivalent(
        tmp_path_factory: pytest.TempPathFactory, family: str, rope: dict[str, Any] | None) -> None:
    changes = {"rope_parameters": rope} if rope else {}
    new, old = (load_model_config(make_tiny_checkpoint(tmp_path_factory.getbasetemp(), family, older=older, **changes))
                for older in (False, True))
    assert new == old
    assert new.rotary.rope_type == (rope or {"rope_type": "default"})["rope_type"]


@pytest.mark.parametrize(("scaling", "positions"), [
    ({"type": "default"}, 2048), (DYNAMIC_ROPE, 2048), (LLAMA3_ROPE, 2048), (LINEAR_ROPE, 8192), (YARN_ROPE, 2048),
    (YARN_ROPE | {"original_max_position_embeddings": 2048}, 8192)], ids=str)
def test_max_positions_follow_from_rope_scaling(scaling: dict[str, Any], positions: int) -> None:
    assert parse_config(rope_scaling=scaling).max_positions == positions


@pytest.mark.parametrize(("changes", "complaint"), [
    ({"architectures": ["HomeMadeModel"]}, "architecture HomeMadeModel .*Llama.*, Qwen2.*, Qwen3ForCausalLM"),
    ({"architectures": None}, "architecture none is not supported"),
    ({"architectures": 5}, "architectures must be a list of names, got 5"),
    ({"architectures": [["x"]]}, "architectures must be a list of names, got"),
    ({"rope_scaling": "linear"}, "rope_scaling must be an object, got 'linear'"),
    ({"rope_parameters": {"full_attention": 5}}, "full_attention must be an object, got 5"),
    ({"rope_scaling": {"rope_type": ["linear"]}}, r"rope_type \['linear'\] is not supported"),
    ({"hidden_act": "gelu"}, "hidden_act gelu is not supported; supported: silu"),
    ({"rope_scaling": {"type": "ntk"}}, "rope_type ntk .*default, linear, dynamic, llama3, yarn, longrope"),
    ({"rope_scaling": {"type": "linear"}}, "rope_parameters: factor must be a number above 0, got None"),
    ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types .*sliding_attention.* are not supported"),
    ({"quantization_config": {"quant_method": "hqq"}}, "quantized as hqq are not supported; supported: gptq, awq"),
    ({"torch_dtype": "float8"}, "dtype float8 is not supported; supported: float32, bfloat16, float16"),
    ({"hidden_size": None}, "hidden_size must be a whole number of at least 1, got None"),
    ({"num_hidden_layers": "2"}, "num_hidden_layers must be a whole number of at least 1, got 2"),
    ({"num_key_value_heads": 3}, r"num_attention_heads \(4\) must be a multiple of num_key_value_heads \(3\)"),
], ids=str)
def test_unsupported_settings_are_rejected(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        parse_config(**changes)


QWEN_WINDOW_CONFIG = {"architectures": ["Qwen2ForCausalLM"], "sliding_window": 64}
MIXED_LAYER_TYPES = ["full_attention", "sliding_attention"]


@pytest.mark.parametrize(("changes", "windows"), [
    ({"use_sliding_window": True, "max_window_layers": 2}, (0, 0)),
    ({"use_sliding_window": True, "max_window_layers": 1}, (0, 64)),
    ({"use_sliding_window": True}, (0, 0)),
    ({"use_sliding_window": False, "max_window_layers": 1}, ()),
    ({"use_sliding_window": True, "layer_types": MIXED_LAYER_TYPES}, (0, 64)),
    ({"layer_types": MIXED_LAYER_TYPES}, (0, 64)),
    ({"layer_types": MIXED_LAYER_TYPES, "sliding_window": None}, ())], ids=str)
def test_sliding_windows_are_read_per_layer(changes: dict[str, Any], windows: tuple[int, ...]) -> None:
    assert parse_config(**QWEN_WINDOW_CONFIG | changes).sliding_windows == windows


@pytest.mark.parametrize(("kinds", "complaint"), [
    (["full_attention"], "layer_types has 1 entries for num_hidden_layers 2"),
    (["full_attention", "chunked_attention"], "layer_types chunked_attention is not supported")])
def test_invalid_layer_types_are_rejected(kinds: list[str], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        parse_config(**QWEN_WINDOW_CONFIG | {"layer_types": kinds})


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "gemma3", "qwen3_moe", "gpt2"])
def test_any_setting_value_is_parsed_or_rejected_with_value_error(family: str, tmp_path: Path) -> None:
    """With any other exception the shard would end with a traceback and be restarted for ever."""
    folder = make_tiny_checkpoint(tmp_path, family)
    config = json.loads((folder / "config.json").read_text())
    for name, value in product(config, (5, -1, 0.5, True, "x", [], [[]], [5], {}, {"x": []}, 1e999)):
        (folder / "config.json").write_text(json.dumps(config | {name: value}))
        with suppress(ValueError):
            load_model_config(folder)


def test_an_error_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_CONFIG | {"vocab_size": 0}))
    with pytest.raises(ValueError, match=r"config.json: vocab_size must be a whole number of at least 1, got 0"):
        load_model_config(tmp_path)


# -- families

MULTIMODAL_ARCHITECTURES = {"Gemma3ForConditionalGeneration"}  # tested in tests/shard/models/test_gemma.py


def test_every_registered_architecture_has_a_test_family() -> None:
    assert DECODER_ARCHITECTURES.keys() - MULTIMODAL_ARCHITECTURES == {model_class.__name__
                                                                       for _, model_class, _ in MODEL_FAMILIES.values()}


@pytest.mark.parametrize("family", MODEL_FAMILIES)
@pytest.mark.parametrize("indexed", [False, True])
def test_all_weights_of_a_model_are_read(
        tmp_path_factory: pytest.TempPathFactory, family: str, indexed: bool) -> None:
    folder = make_tiny_checkpoint(tmp_path_factory.getbasetemp(), family, indexed=indexed, dtype="bfloat16")
    assert load_decoder_model(folder, torch.float32, SingleRankGroup()).num_layers == 2
