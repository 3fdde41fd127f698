"""Tests that transformers and safetensors accept the checkpoints with random weights."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.harness.random_checkpoints import (
    MODEL_CONFIGS,
    iter_tensor_shapes,
    make_byte_tokenizer,
    write_random_safetensors,
)


@pytest.mark.parametrize("shape", MODEL_CONFIGS)
def test_tensor_names_and_shapes_match_transformers(shape: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(MODEL_CONFIGS[shape]))
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(tmp_path))
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    if MODEL_CONFIGS[shape]["tie_word_embeddings"]:
        del expected["lm_head.weight"]
    assert dict(iter_tensor_shapes(MODEL_CONFIGS[shape])) == expected


def test_written_tensors_are_read_by_safetensors(tmp_path: Path) -> None:
    write_random_safetensors(tmp_path / "model.safetensors", {"a.weight": (300, 70), "norm.weight": (70,)})
    read = load_file(tmp_path / "model.safetensors")
    assert read["a.weight"].shape == (300, 70)
    assert 0.015 < float(read["a.weight"].float().std()) < 0.025
    assert torch.equal(read["norm.weight"], torch.ones(70, dtype=torch.bfloat16))


def test_tokenizer_accepts_any_text() -> None:
    tokenizer = make_byte_tokenizer()
    assert tokenizer.decode(tokenizer.encode("Übung, 織物").ids) == "Übung, 織物"
