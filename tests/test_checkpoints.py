"""The small checkpoints that tests load have their documented properties."""

import json
from pathlib import Path

import pytest
import torch
from support.checkpoints.small_checkpoints import END_TOKEN, LLAMA3_ROPE, TOKENIZER_SIZE, make_tiny_checkpoint
from transformers import AutoModelForCausalLM, AutoTokenizer

pytestmark = pytest.mark.slow

FAMILIES = ("llama", "qwen2", "qwen3")
TOKEN_IDS = torch.tensor([[0, 72, 300, 479, 511]])


def compute_logits(folder: Path) -> torch.Tensor:
    with torch.no_grad():
        return AutoModelForCausalLM.from_pretrained(folder)(TOKEN_IDS).logits[0]


@pytest.mark.parametrize("family", FAMILIES)
def test_same_arguments_give_the_same_checkpoint(tmp_path: Path, family: str) -> None:
    folder = make_tiny_checkpoint(tmp_path, family)
    assert make_tiny_checkpoint(tmp_path, family) == folder
    assert make_tiny_checkpoint(tmp_path, family, seed=1) != folder
    second_folder = make_tiny_checkpoint(tmp_path / "again", family)
    assert torch.equal(compute_logits(folder), compute_logits(second_folder))


@pytest.mark.parametrize("form", [{"indexed": True}, {"older": True}, {"older": True, "indexed": True}])
@pytest.mark.parametrize("family", FAMILIES)
def test_file_format_does_not_change_logits(tmp_path: Path, family: str, form: dict[str, bool]) -> None:
    plain, reformatted = (make_tiny_checkpoint(tmp_path, family, rope_parameters=LLAMA3_ROPE, **options)
                          for options in ({}, form))
    assert torch.equal(compute_logits(plain), compute_logits(reformatted))
    assert (reformatted / "model.safetensors.index.json").exists() == form.get("indexed", False)
    assert ("rope_scaling" in json.loads((reformatted / "config.json").read_text())) == form.get("older", False)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_output_is_varied_and_does_not_end(tmp_path: Path, family: str, tied: bool) -> None:
    oracle = AutoModelForCausalLM.from_pretrained(make_tiny_checkpoint(tmp_path, family, tie_word_embeddings=tied))
    output = oracle.generate(TOKEN_IDS, do_sample=False, max_new_tokens=32,
                             pad_token_id=END_TOKEN)[0, TOKEN_IDS.shape[1]:].tolist()
    assert len(output) == 32
    assert len(set(output)) > 6


def test_tokenizer_prepends_begin_token_and_is_smaller_than_the_logits(tmp_path: Path) -> None:
    folder = make_tiny_checkpoint(tmp_path, "llama")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert len(tokenizer) == TOKENIZER_SIZE < compute_logits(folder).shape[-1]
    assert tokenizer.decode(tokenizer("a weft")["input_ids"]) == "<|begin|>a weft"
