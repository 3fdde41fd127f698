import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaForCausalLM

from launcher.demo.training.train import make_model
from launcher.demo.training.train_adapter import LORA_ALPHA, LORA_RANK, TARGET_MODULES, add_lora_layers, save_adapter


@pytest.fixture
def model() -> LlamaForCausalLM:
    return make_model(1)


def test_untrained_adapter_changes_nothing(model: LlamaForCausalLM) -> None:
    ids = torch.arange(20)[None]
    with torch.inference_mode():
        before = model(ids).logits
        adapted = add_lora_layers(model)
        assert torch.equal(model(ids).logits, before)
    assert len(adapted) == 5 * len(TARGET_MODULES)
    assert [name for name, weight in model.named_parameters() if weight.requires_grad and "lora" not in name] == []


def test_saved_adapter_equals_the_trained_one(model: LlamaForCausalLM, tmp_path: Path) -> None:
    """PEFT adds `lora_alpha / r` times B A to a weight."""
    ids, plain = torch.arange(20)[None], make_model(1)
    adapted = add_lora_layers(model)
    for module in adapted.values():
        torch.nn.init.normal_(module.lora_B, std=0.1)
    save_adapter(adapted, tmp_path)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    saved = load_file(tmp_path / "adapter_model.safetensors")
    assert (config["r"], config["lora_alpha"], len(saved)) == (LORA_RANK, LORA_ALPHA, 2 * len(adapted))
    assert all(tensor.dtype == torch.bfloat16 for tensor in saved.values())
    for name in adapted:
        a, b = (saved[f"base_model.model.{name}.{part}.weight"].float() for part in ("lora_A", "lora_B"))
        plain.get_submodule(name).weight.data += LORA_ALPHA / LORA_RANK * b @ a  # type: ignore[operator]
    with torch.inference_mode():
        torch.testing.assert_close(plain(ids).logits, model(ids).logits, rtol=0.1, atol=0.1)
