from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, GenerationConfig

from launcher.demo.training.corpus.counting import make_counting_document
from launcher.demo.training.tokenizer import save_tokenizer
from launcher.demo.training.train import make_model, save_model, train_corpus_tokenizer, train_demo_model
from shard.models.registry import load_model_config

DOCUMENT_SHARES = {make_counting_document: 1.0}


@pytest.mark.slow
def test_trained_model_is_saved_in_servable_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, model = train_corpus_tokenizer(DOCUMENT_SHARES, 1, 50), make_model(1)
    monkeypatch.setattr("launcher.demo.training.train.ROWS_PER_BATCH", 2)
    monkeypatch.setattr("launcher.demo.training.train.ROW_LENGTH", 64)
    monkeypatch.setattr("launcher.demo.training.train.CONTEXT_LENGTH", 64)
    train_demo_model(model, tokenizer, DOCUMENT_SHARES, 1, 3 * 2 * 64)
    save_tokenizer(tokenizer, tmp_path)
    save_model(model, tokenizer, tmp_path)
    read = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert read.dtype == torch.bfloat16
    torch.testing.assert_close(read.lm_head.weight.float(), model.lm_head.weight, rtol=1e-2, atol=1e-3)
    assert GenerationConfig.from_pretrained(tmp_path).eos_token_id == [2, 0]
    config = load_model_config(tmp_path)
    assert (config.architecture, config.tie_word_embeddings, config.max_positions) == ("LlamaForCausalLM", True, 2048)


def test_model_fits_in_ten_megabytes() -> None:
    numbers = sum(weight.numel() for weight in make_model(1).parameters())
    assert 3_000_000 < numbers < 5_000_000
