from itertools import repeat

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from launcher.demo.training.sequence_packing import PackedRows
from launcher.demo.training.training_loop import (
    MAX_GRADIENT_NORM,
    compute_loss,
    compute_mean_loss,
    learning_rate_factor,
    make_optimizers,
    train_model,
    train_on_batch,
)


def make_tiny_model() -> LlamaForCausalLM:
    torch.manual_seed(1)
    return LlamaForCausalLM(LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
                                        num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=True))


def test_loss_is_that_of_transformers_over_learnt_tokens() -> None:
    model, ids = make_tiny_model(), torch.arange(20).view(2, 10)
    loss_mask = torch.zeros(2, 10, dtype=torch.bool)
    loss_mask[:, 5:] = True
    labels = torch.where(loss_mask, ids, -100)
    torch.testing.assert_close(compute_loss(model, PackedRows(ids, loss_mask)), model(ids, labels=labels).loss)


@pytest.mark.parametrize("part", [1, 20, 1000])
def test_gradient_accumulation_equals_one_step(monkeypatch: pytest.MonkeyPatch, part: int) -> None:
    ids = torch.arange(30).view(3, 10)
    rows = PackedRows(ids, torch.tensor([[False] * 10, [True] * 10, [False] * 7 + [True] * 3]))
    reference_model, model = make_tiny_model(), make_tiny_model()
    expected_loss = compute_loss(reference_model, rows)
    expected_loss.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(reference_model.parameters(), MAX_GRADIENT_NORM)
    monkeypatch.setattr("launcher.demo.training.training_loop.MAX_TOKENS_PER_FORWARD", part)
    assert train_on_batch(model, rows, []) == pytest.approx(float(expected_loss.detach()))
    for one, other in zip(reference_model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_constant_rows_are_learnt() -> None:
    model, rows = make_tiny_model(), PackedRows(torch.arange(20).view(2, 10), torch.ones(2, 10, dtype=torch.bool))
    before, log_lines = compute_mean_loss(model, [rows]), list[str]()
    train_model(model, repeat(rows), 60, make_optimizers(model, 1e-2), log_lines.append)
    assert compute_mean_loss(model, [rows]) < before / 3
    assert [line.split(":")[0] for line in log_lines] == ["step 50 of 60", "step 60 of 60"]


def test_learning_rate_rises_and_falls() -> None:
    shares = [learning_rate_factor(step, 1000) for step in range(1000)]
    assert (shares[0], shares[19]) == (1 / 20, 1.0)
    assert shares[20:] == sorted(shares[20:], reverse=True)
    assert 0.05 <= shares[-1] < 0.051
