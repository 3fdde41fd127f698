"""The small checkpoints that tests load have their documented properties."""

import json
from pathlib import Path

import pytest
import torch
from support.small_checkpoints import END, LLAMA3, TOKENIZER_SIZE, tiny_checkpoint
from transformers import AutoModelForCausalLM, AutoTokenizer

pytestmark = pytest.mark.slow

FAMILIES = ("llama", "qwen2", "qwen3")
IDS = torch.tensor([[0, 72, 300, 479, 511]])


def logits(folder: Path) -> torch.Tensor:
    with torch.no_grad():
        return AutoModelForCausalLM.from_pretrained(folder)(IDS).logits[0]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_call_makes_the_same_model_once(tmp_path: Path, family: str) -> None:
    folder = tiny_checkpoint(tmp_path, family)
    assert tiny_checkpoint(tmp_path, family) == folder
    assert tiny_checkpoint(tmp_path, family, seed=1) != folder
    again = tiny_checkpoint(tmp_path / "again", family)
    assert torch.equal(logits(folder), logits(again))


@pytest.mark.parametrize("form", [{"indexed": True}, {"older": True}, {"older": True, "indexed": True}])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_form_on_disk_changes_no_logit(tmp_path: Path, family: str, form: dict[str, bool]) -> None:
    plain, other = (tiny_checkpoint(tmp_path, family, rope_parameters=LLAMA3, **given) for given in ({}, form))
    assert torch.equal(logits(plain), logits(other))
    assert (other / "model.safetensors.index.json").exists() == form.get("indexed", False)
    assert ("rope_scaling" in json.loads((other / "config.json").read_text())) == form.get("older", False)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_output_is_lively_and_does_not_end(tmp_path: Path, family: str, tied: bool) -> None:
    oracle = AutoModelForCausalLM.from_pretrained(tiny_checkpoint(tmp_path, family, tie_word_embeddings=tied))
    output = oracle.generate(IDS, do_sample=False, max_new_tokens=32, pad_token_id=END)[0, IDS.shape[1]:].tolist()
    assert len(output) == 32
    assert len(set(output)) > 6


def test_the_tokenizer_begins_every_text_and_is_narrower_than_the_logits(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path, "llama")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert len(tokenizer) == TOKENIZER_SIZE < logits(folder).shape[-1]
    assert tokenizer.decode(tokenizer("a weft")["input_ids"]) == "<|begin|>a weft"
