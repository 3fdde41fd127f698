"""Training of the demo model and of its adapters: loss, optimizers, learning rate and training loop, in float32."""

import math
import time
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaForCausalLM

from launcher.demo.training.muon import Muon
from launcher.demo.training.rows import Rows

WARM = 0.02  # share of all steps with a rising rate, before it falls to LAST
LAST = 0.05
CLIP = 1.0
PART = 4096  # tokens per forward pass
SAY_EVERY = 50  # steps

Say = Callable[[str], None]


def loss(model: LlamaForCausalLM, rows: Rows, number: Tensor | None = None) -> Tensor:
    """Return the loss in nats per learnt token. `number` is their count in the batch if the rows are a part of it."""
    hidden = model.model(input_ids=rows.ids[:, :-1]).last_hidden_state
    learnt = rows.learnt[:, 1:]
    losses = functional.cross_entropy(model.lm_head(hidden[learnt]), rows.ids[:, 1:][learnt], reduction="sum")
    return losses / (learnt.sum() if number is None else number)


@torch.inference_mode()
def mean_loss(model: LlamaForCausalLM, batches: Iterable[Rows]) -> float:
    losses = [float(loss(model, rows)) for rows in batches]
    return sum(losses) / len(losses)


def optimizers(model: nn.Module, rate: float) -> list[torch.optim.Optimizer]:
    """Return Muon for the weight matrices of linear layers, and AdamW for all other weights."""
    named = [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]
    products = [weight for name, weight in named if weight.ndim == 2 and "embed" not in name]
    others = [weight for name, weight in named if weight.ndim != 2 or "embed" in name]
    return [Muon(products, rate), torch.optim.AdamW(others, lr=rate, betas=(0.9, 0.95), weight_decay=0.0)]


def share_of_rate(step: int, steps: int) -> float:
    warm = max(1, int(WARM * steps))
    if step < warm:
        return (step + 1) / warm
    done = (step - warm) / max(1, steps - warm)
    return LAST + (1 - LAST) * 0.5 * (1 + math.cos(math.pi * done))


def learn(model: LlamaForCausalLM, batches: Iterator[Rows], steps: int, optimizing: list[torch.optim.Optimizer],
          say: Say) -> None:
    schedules = [torch.optim.lr_scheduler.LambdaLR(one, lambda step: share_of_rate(step, steps)) for one in optimizing]
    began, tokens, recent = time.monotonic(), 0, 0.0
    for step in range(1, steps + 1):
        rows = next(batches)
        recent += take_step(model, rows, optimizing)
        tokens += rows.ids.numel()
        for schedule in schedules:
            schedule.step()
        if step % SAY_EVERY == 0 or step == steps:
            seconds = time.monotonic() - began
            say(f"step {step} of {steps}: loss {recent / (step % SAY_EVERY or SAY_EVERY):.3f}, {tokens:,} tokens, "
                f"{tokens / seconds:,.0f} a second, {seconds / step * (steps - step) / 60:.0f} min to go")
            recent = 0.0


def take_step(model: LlamaForCausalLM, rows: Rows, optimizing: list[torch.optim.Optimizer]) -> float:
    """Train on one batch and return its loss. Gradients are accumulated over parts that fit into the CPU's caches."""
    number, mean = rows.learnt[:, 1:].sum(), 0.0
    for part in rows.parts(PART):
        share = loss(model, part, number)
        share.backward()  # type: ignore[no-untyped-call]
        mean += float(share.detach())
    nn.utils.clip_grad_norm_([weight for weight in model.parameters() if weight.requires_grad], CLIP)
    for one in optimizing:
        one.step()
        one.zero_grad()
    return mean
