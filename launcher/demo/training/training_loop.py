"""Training of the demo model and of its adapters: loss, optimizers, learning rate and training loop, in float32."""

import math
import time
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaForCausalLM

from launcher.demo.training.muon import Muon
from launcher.demo.training.sequence_packing import PackedRows

WARMUP_SHARE = 0.02  # share of all steps with a rising rate, before it falls to FINAL_RATE_SHARE
FINAL_RATE_SHARE = 0.05
MAX_GRADIENT_NORM = 1.0
MAX_TOKENS_PER_FORWARD = 4096  # tokens per forward pass
LOG_INTERVAL_STEPS = 50  # steps

LogFunction = Callable[[str], None]


def compute_loss(model: LlamaForCausalLM, rows: PackedRows, num_learnt_tokens: Tensor | None = None) -> Tensor:
    """Return the loss in nats per learnt token. `num_learnt_tokens` is their count in the batch if the rows are a part
    of it."""
    hidden = model.model(input_ids=rows.token_ids[:, :-1]).last_hidden_state
    loss_mask = rows.loss_mask[:, 1:]
    loss_sum = functional.cross_entropy(model.lm_head(hidden[loss_mask]), rows.token_ids[:, 1:][loss_mask],
                                        reduction="sum")
    return loss_sum / (loss_mask.sum() if num_learnt_tokens is None else num_learnt_tokens)


@torch.inference_mode()
def compute_mean_loss(model: LlamaForCausalLM, batches: Iterable[PackedRows]) -> float:
    losses = [float(compute_loss(model, rows)) for rows in batches]
    return sum(losses) / len(losses)


def make_optimizers(model: nn.Module, learning_rate: float) -> list[torch.optim.Optimizer]:
    """Return Muon for the weight matrices of linear layers, and AdamW for all other weights."""
    named = [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]
    matrix_weights = [weight for name, weight in named if weight.ndim == 2 and "embed" not in name]
    other_weights = [weight for name, weight in named if weight.ndim != 2 or "embed" in name]
    return [Muon(matrix_weights, learning_rate),
            torch.optim.AdamW(other_weights, lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.0)]


def learning_rate_factor(step: int, num_steps: int) -> float:
    num_warmup_steps = max(1, int(WARMUP_SHARE * num_steps))
    if step < num_warmup_steps:
        return (step + 1) / num_warmup_steps
    decay_progress = (step - num_warmup_steps) / max(1, num_steps - num_warmup_steps)
    return FINAL_RATE_SHARE + (1 - FINAL_RATE_SHARE) * 0.5 * (1 + math.cos(math.pi * decay_progress))


def train_model(model: LlamaForCausalLM, batches: Iterator[PackedRows], num_steps: int,
                all_optimizers: list[torch.optim.Optimizer], log: LogFunction) -> None:
    schedules = [torch.optim.lr_scheduler.LambdaLR(one, lambda step: learning_rate_factor(step, num_steps))
                 for one in all_optimizers]
    started_at, tokens, recent_loss = time.monotonic(), 0, 0.0
    for step in range(1, num_steps + 1):
        rows = next(batches)
        recent_loss += train_on_batch(model, rows, all_optimizers)
        tokens += rows.token_ids.numel()
        for schedule in schedules:
            schedule.step()
        if step % LOG_INTERVAL_STEPS == 0 or step == num_steps:
            seconds = time.monotonic() - started_at
            log(f"step {step} of {num_steps}: loss "
                f"{recent_loss / (step % LOG_INTERVAL_STEPS or LOG_INTERVAL_STEPS):.3f}, {tokens:,} tokens, "
                f"{tokens / seconds:,.0f} a second, {seconds / step * (num_steps - step) / 60:.0f} min to go")
            recent_loss = 0.0


def train_on_batch(model: LlamaForCausalLM, rows: PackedRows, all_optimizers: list[torch.optim.Optimizer]) -> float:
    """Train on one batch and return its loss. Gradients are accumulated over parts that fit into the CPU's caches."""
    num_learnt_tokens, batch_loss = rows.loss_mask[:, 1:].sum(), 0.0
    for part in rows.split_by_tokens(MAX_TOKENS_PER_FORWARD):
        part_loss = compute_loss(model, part, num_learnt_tokens)
        part_loss.backward()  # type: ignore[no-untyped-call]
        batch_loss += float(part_loss.detach())
    nn.utils.clip_grad_norm_([weight for weight in model.parameters() if weight.requires_grad], MAX_GRADIENT_NORM)
    for one in all_optimizers:
        one.step()
        one.zero_grad()
    return batch_loss
