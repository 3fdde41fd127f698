"""Train an adapter in PEFT's format: `python -P -m launcher.demo.training.train_adapter STYLE --out FOLDER`.

The weights of the base model do not change: only the LoRA matrices of its linear layers are trained.
"""

import argparse
import json
from itertools import islice
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from launcher.demo.training.corpus.answer_styles import REWRITERS_BY_STYLE
from launcher.demo.training.corpus.mixture import make_styled_document_shares
from launcher.demo.training.train import (
    DEFAULT_SEED,
    HELD_OUT_SEED,
    NUM_MEASURED_BATCHES,
    ROWS_PER_BATCH,
    generate_batches,
    log_line,
)
from launcher.demo.training.training_loop import compute_mean_loss, train_model

BASE_MODEL_NAME = "weft/demo"
LORA_RANK, LORA_ALPHA = 8, 16
TARGET_MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
LEARNING_RATE = 2e-3
ROW_LENGTH = 256


class LoraLinear(nn.Module):
    """Linear layer with a LoRA update, which is zero before training."""

    def __init__(self, base_linear: nn.Linear) -> None:
        super().__init__()
        self.base_linear = base_linear
        self.lora_A = nn.Parameter(torch.empty(LORA_RANK, base_linear.in_features))
        self.lora_B = nn.Parameter(torch.zeros(base_linear.out_features, LORA_RANK))
        nn.init.kaiming_uniform_(self.lora_A, a=5 ** 0.5)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.base_linear(x)
        return y + LORA_ALPHA / LORA_RANK * (x @ self.lora_A.T @ self.lora_B.T)


def add_lora_layers(model: LlamaForCausalLM) -> dict[str, LoraLinear]:
    """Replace the model's target layers by adapted ones, and return these by name."""
    model.requires_grad_(requires_grad=False)
    named = [(name, module) for name, module in model.named_modules() if name.rpartition(".")[2] in TARGET_MODULES]
    lora_layers = {name: LoraLinear(module) for name, module in named if isinstance(module, nn.Linear)}
    for name, module in lora_layers.items():
        parent_name, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(parent_name), attribute, module)
    return lora_layers


def collect_lora_tensors(lora_layers: dict[str, LoraLinear]) -> dict[str, Tensor]:
    return {f"base_model.model.{name}.{part}.weight": getattr(module, part).data.to(torch.bfloat16).contiguous()
            for name, module in lora_layers.items() for part in ("lora_A", "lora_B")}


def make_adapter_config(base_model_name: str) -> dict[str, object]:
    return {"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": base_model_name, "r": LORA_RANK,
            "lora_alpha": LORA_ALPHA, "lora_dropout": 0.0, "bias": "none", "target_modules": sorted(TARGET_MODULES),
            "use_rslora": False, "use_dora": False, "fan_in_fan_out": False, "modules_to_save": None,
            "inference_mode": True}


def main() -> None:
    argument_parser = argparse.ArgumentParser(description=__doc__)
    argument_parser.add_argument("style", choices=REWRITERS_BY_STYLE)
    argument_parser.add_argument("--base", type=Path, required=True)
    argument_parser.add_argument("--bible", type=Path, default=Path("/usr/lib/bible.data"))
    argument_parser.add_argument("--out", type=Path, required=True)
    argument_parser.add_argument("--steps", type=int, default=130)
    argument_parser.add_argument("--rate", type=float, default=LEARNING_RATE)
    argument_parser.add_argument("--seed", type=int, default=DEFAULT_SEED)
    arguments = argument_parser.parse_args()
    torch.manual_seed(arguments.seed)
    model = LlamaForCausalLM.from_pretrained(arguments.base, dtype=torch.float32)
    lora_layers = add_lora_layers(model)
    shares, tokenizer = make_styled_document_shares(arguments.style,
                                          arguments.bible), Tokenizer.from_file(str(arguments.base / "tokenizer.json"))
    weights = [weight for module in lora_layers.values() for weight in (module.lora_A, module.lora_B)]
    train_model(model, generate_batches(tokenizer, shares, arguments.seed, ROWS_PER_BATCH, ROW_LENGTH), arguments.steps,
                [torch.optim.AdamW(weights, lr=arguments.rate, weight_decay=0.0)], log_line)
    held_out_loss = compute_mean_loss(model, islice(generate_batches(tokenizer, shares, HELD_OUT_SEED, ROWS_PER_BATCH,
                                                                     ROW_LENGTH), NUM_MEASURED_BATCHES))
    log_line(f"loss on text that was not seen {held_out_loss:.4f}")
    save_adapter(lora_layers, arguments.out)


def save_adapter(lora_layers: dict[str, LoraLinear], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(collect_lora_tensors(lora_layers), folder / "adapter_model.safetensors", metadata={"format": "pt"})
    (folder / "adapter_config.json").write_text(json.dumps(make_adapter_config(BASE_MODEL_NAME), indent=2) + "\n")


if __name__ == "__main__":
    main()
