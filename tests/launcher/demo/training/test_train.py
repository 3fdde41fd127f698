from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, GenerationConfig

from launcher.demo.training.corpus.counting import counting
from launcher.demo.training.train import made_tokenizer, make_model, save_model, teach
from launcher.demo.training.vocabulary import save_tokenizer
from shard.models.read_config import read_config

SHARES = {counting: 1.0}


@pytest.mark.slow
def test_a_model_is_taught_and_saved_as_servers_read_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, model = made_tokenizer(SHARES, 1, 50), make_model(1)
    monkeypatch.setattr("launcher.demo.training.train.ROWS", 2)
    monkeypatch.setattr("launcher.demo.training.train.LENGTH", 64)
    monkeypatch.setattr("launcher.demo.training.train.CONTEXT", 64)
    teach(model, tokenizer, SHARES, 1, 3 * 2 * 64)
    save_tokenizer(tokenizer, tmp_path)
    save_model(model, tokenizer, tmp_path)
    read = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert read.dtype == torch.bfloat16
    torch.testing.assert_close(read.lm_head.weight.float(), model.lm_head.weight, rtol=1e-2, atol=1e-3)
    assert GenerationConfig.from_pretrained(tmp_path).eos_token_id == [2, 0]
    config = read_config(tmp_path)
    assert (config.architecture, config.tied, config.max_positions) == ("LlamaForCausalLM", True, 2048)


def test_the_model_fits_in_ten_megabytes() -> None:
    numbers = sum(weight.numel() for weight in make_model(1).parameters())
    assert 3_000_000 < numbers < 5_000_000
