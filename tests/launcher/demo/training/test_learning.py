from itertools import repeat

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from launcher.demo.training.learning import CLIP, learn, loss, mean_loss, optimizers, share_of_rate, take_step
from launcher.demo.training.rows import Rows


def tiny() -> LlamaForCausalLM:
    torch.manual_seed(1)
    return LlamaForCausalLM(LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
                                        num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=True))


def test_the_loss_is_transformers_over_what_is_learnt() -> None:
    model, ids = tiny(), torch.arange(20).view(2, 10)
    learnt = torch.zeros(2, 10, dtype=torch.bool)
    learnt[:, 5:] = True
    labels = torch.where(learnt, ids, -100)
    torch.testing.assert_close(loss(model, Rows(ids, learnt)), model(ids, labels=labels).loss)


@pytest.mark.parametrize("part", [1, 20, 1000])
def test_parts_of_a_step_are_one_step(monkeypatch: pytest.MonkeyPatch, part: int) -> None:
    ids = torch.arange(30).view(3, 10)
    rows = Rows(ids, torch.tensor([[False] * 10, [True] * 10, [False] * 7 + [True] * 3]))
    whole, model = tiny(), tiny()
    told = loss(whole, rows)
    told.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(whole.parameters(), CLIP)
    monkeypatch.setattr("launcher.demo.training.learning.PART", part)
    assert take_step(model, rows, []) == pytest.approx(float(told.detach()))
    for one, other in zip(whole.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_what_is_always_the_same_is_learnt() -> None:
    model, rows = tiny(), Rows(torch.arange(20).view(2, 10), torch.ones(2, 10, dtype=torch.bool))
    before, said = mean_loss(model, [rows]), list[str]()
    learn(model, repeat(rows), 60, optimizers(model, 1e-2), said.append)
    assert mean_loss(model, [rows]) < before / 3
    assert [line.split(":")[0] for line in said] == ["step 50 of 60", "step 60 of 60"]


def test_the_rate_rises_and_falls() -> None:
    shares = [share_of_rate(step, 1000) for step in range(1000)]
    assert (shares[0], shares[19]) == (1 / 20, 1.0)
    assert shares[20:] == sorted(shares[20:], reverse=True)
    assert 0.05 <= shares[-1] < 0.051
