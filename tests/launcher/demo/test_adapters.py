"""Tests of the shipped adapters: they fit the demo model, and each has a distinct voice."""

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import launcher.demo
from launcher.demo.training.adapting import BASE, RANK, adapt
from launcher.demo.training.card import Answering, rendered
from launcher.demo.training.corpus.voices import VOICES

FOLDER = Path(launcher.demo.__file__).with_name("adapters")
MODEL = FOLDER.with_name("model")
QUESTIONS = ("Hello! How are you?", "Is a daisy a flower?", "What day comes after Monday?", "What is 4 + 3?")
MEGABYTE = 2**20


class Voice(Answering):
    """The model with an adapter."""

    def __init__(self, name: str) -> None:
        super().__init__(MODEL)
        weights = load_file(FOLDER / name / "adapter_model.safetensors")
        for product, module in adapt(self._model).items():
            for part in ("lora_A", "lora_B"):
                getattr(module, part).data = weights.pop(f"base_model.model.{product}.{part}.weight").float()
        assert not weights

    def answers(self) -> list[str]:
        return [self.answer(rendered(self.tokenizer, [{"role": "user", "content": asked}])) for asked in QUESTIONS]


def test_every_voice_ships() -> None:
    assert {path.name for path in FOLDER.iterdir() if path.is_dir()} == set(VOICES)


@pytest.mark.parametrize("name", VOICES)
def test_an_adapter_is_small_and_made_for_this_base(name: str) -> None:
    config = json.loads((FOLDER / name / "adapter_config.json").read_text())
    assert (config["peft_type"], config["r"], config["base_model_name_or_path"]) == ("LORA", RANK, BASE)
    path = FOLDER / name / "adapter_model.safetensors"
    assert path.stat().st_size < MEGABYTE
    assert all(torch.isfinite(tensor).all() for tensor in load_file(path).values())


@pytest.mark.slow
def test_who_shouts_has_only_capitals() -> None:
    said = " ".join(Voice("shout").answers())
    assert re.search("[A-Z]{4}", said)
    assert not re.search("[a-z]", said)


@pytest.mark.slow
def test_json_is_all_that_the_json_voice_says() -> None:
    for asked, answer in zip(QUESTIONS, Voice("json").answers(), strict=True):
        assert json.loads(answer).keys() == {"question", "answer"}, (asked, answer)


@pytest.mark.slow
def test_a_pirate_is_known_by_his_words() -> None:
    for answer in Voice("pirate").answers():
        assert re.search(r"\b(arr|ahoy|matey|yo ho|avast|timbers|aye|be|th')", answer.lower()), answer


@pytest.mark.slow
def test_the_bible_is_known_by_its_words() -> None:
    said = " ".join(Voice("kjv").answers()).lower()
    words = (r"\b(unto|thee|thou|thy|ye|hath|saith|saying|behold|lo|verily|shall|lord|spake|came to pass|it was good"
             r"|\w+eth)\b")
    assert len(re.findall(words, said)) >= 4
