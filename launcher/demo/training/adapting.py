"""Train an adapter in PEFT's format: `python -P -m launcher.demo.training.adapting VOICE --out FOLDER`.

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

from launcher.demo.training.corpus.mixture import voiced
from launcher.demo.training.corpus.voices import VOICES
from launcher.demo.training.learning import learn, mean_loss
from launcher.demo.training.train import MEASURED, ROWS, SEED, UNSEEN, batches, say

BASE = "weft/demo"
RANK, ALPHA = 8, 16
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
RATE = 2e-3
LENGTH = 256


class Adapted(nn.Module):
    """Linear layer with a LoRA update, which is zero before training."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.lora_A = nn.Parameter(torch.empty(RANK, base.in_features))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, RANK))
        nn.init.kaiming_uniform_(self.lora_A, a=5 ** 0.5)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.base(x)
        return y + ALPHA / RANK * (x @ self.lora_A.T @ self.lora_B.T)


def adapt(model: LlamaForCausalLM) -> dict[str, Adapted]:
    """Replace the model's target layers by adapted ones, and return these by name."""
    model.requires_grad_(requires_grad=False)
    named = [(name, module) for name, module in model.named_modules() if name.rpartition(".")[2] in TARGETS]
    adapted = {name: Adapted(module) for name, module in named if isinstance(module, nn.Linear)}
    for name, module in adapted.items():
        holder, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(holder), attribute, module)
    return adapted


def tensors(adapted: dict[str, Adapted]) -> dict[str, Tensor]:
    return {f"base_model.model.{name}.{part}.weight": getattr(module, part).data.to(torch.bfloat16).contiguous()
            for name, module in adapted.items() for part in ("lora_A", "lora_B")}


def described(base: str) -> dict[str, object]:
    return {"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": base, "r": RANK,
            "lora_alpha": ALPHA, "lora_dropout": 0.0, "bias": "none", "target_modules": sorted(TARGETS),
            "use_rslora": False, "use_dora": False, "fan_in_fan_out": False, "modules_to_save": None,
            "inference_mode": True}


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("voice", choices=VOICES)
    asked.add_argument("--base", type=Path, required=True)
    asked.add_argument("--bible", type=Path, default=Path("/usr/lib/bible.data"))
    asked.add_argument("--out", type=Path, required=True)
    asked.add_argument("--steps", type=int, default=130)
    asked.add_argument("--rate", type=float, default=RATE)
    asked.add_argument("--seed", type=int, default=SEED)
    given = asked.parse_args()
    torch.manual_seed(given.seed)
    model = LlamaForCausalLM.from_pretrained(given.base, dtype=torch.float32)
    adapted = adapt(model)
    shares, tokenizer = voiced(given.voice, given.bible), Tokenizer.from_file(str(given.base / "tokenizer.json"))
    weights = [weight for module in adapted.values() for weight in (module.lora_A, module.lora_B)]
    learn(model, batches(tokenizer, shares, given.seed, ROWS, LENGTH), given.steps,
          [torch.optim.AdamW(weights, lr=given.rate, weight_decay=0.0)], say)
    unseen = mean_loss(model, islice(batches(tokenizer, shares, UNSEEN, ROWS, LENGTH), MEASURED))
    say(f"loss on text that was not seen {unseen:.4f}")
    save_adapter(adapted, given.out)


def save_adapter(adapted: dict[str, Adapted], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors(adapted), folder / "adapter_model.safetensors", metadata={"format": "pt"})
    (folder / "adapter_config.json").write_text(json.dumps(described(BASE), indent=2) + "\n")


if __name__ == "__main__":
    main()
