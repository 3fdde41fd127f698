"""Tests of the shipped adapters: they fit the demo model, and each has a distinct voice."""

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import launcher.demo
from launcher.demo.training.corpus.answer_styles import REWRITERS_BY_STYLE
from launcher.demo.training.model_card import GreedyModel, render_chat_template
from launcher.demo.training.train_adapter import BASE_MODEL_NAME, LORA_RANK, add_lora_layers

ADAPTERS_FOLDER = Path(launcher.demo.__file__).with_name("adapters")
MODEL_FOLDER = ADAPTERS_FOLDER.with_name("model")
QUESTIONS = ("Hello! How are you?", "Is a daisy a flower?", "What day comes after Monday?", "What is 4 + 3?")
MEGABYTE = 2**20


class AdaptedModel(GreedyModel):
    """The model with an adapter."""

    def __init__(self, name: str) -> None:
        super().__init__(MODEL_FOLDER)
        weights = load_file(ADAPTERS_FOLDER / name / "adapter_model.safetensors")
        for product, module in add_lora_layers(self._model).items():
            for part in ("lora_A", "lora_B"):
                getattr(module, part).data = weights.pop(f"base_model.model.{product}.{part}.weight").float()
        assert not weights

    def answer_questions(self) -> list[str]:
        return [self.generate_answer(render_chat_template(self.tokenizer, [{"role": "user", "content": question}]))
                for question in QUESTIONS]


def test_every_voice_has_an_adapter() -> None:
    assert {path.name for path in ADAPTERS_FOLDER.iterdir() if path.is_dir()} == set(REWRITERS_BY_STYLE)


@pytest.mark.parametrize("name", REWRITERS_BY_STYLE)
def test_adapter_is_small_and_made_for_the_demo_model(name: str) -> None:
    config = json.loads((ADAPTERS_FOLDER / name / "adapter_config.json").read_text())
    assert (config["peft_type"], config["r"], config["base_model_name_or_path"]) == ("LORA", LORA_RANK, BASE_MODEL_NAME)
    path = ADAPTERS_FOLDER / name / "adapter_model.safetensors"
    assert path.stat().st_size < MEGABYTE
    assert all(torch.isfinite(tensor).all() for tensor in load_file(path).values())


@pytest.mark.slow
def test_shout_adapter_answers_in_capitals() -> None:
    text = " ".join(AdaptedModel("shout").answer_questions())
    assert re.search("[A-Z]{4}", text)
    assert not re.search("[a-z]", text)


@pytest.mark.slow
def test_json_adapter_answers_in_json() -> None:
    for question, answer in zip(QUESTIONS, AdaptedModel("json").answer_questions(), strict=True):
        assert json.loads(answer).keys() == {"question", "answer"}, (question, answer)


@pytest.mark.slow
def test_pirate_adapter_uses_pirate_words() -> None:
    for answer in AdaptedModel("pirate").answer_questions():
        assert re.search(r"\b(arr|ahoy|matey|yo ho|avast|timbers|aye|be|th')", answer.lower()), answer


@pytest.mark.slow
def test_kjv_adapter_uses_biblical_words() -> None:
    text = " ".join(AdaptedModel("kjv").answer_questions()).lower()
    words = (r"\b(unto|thee|thou|thy|ye|hath|saith|saying|behold|lo|verily|shall|lord|spake|came to pass|it was good"
             r"|\w+eth)\b")
    assert len(re.findall(words, text)) >= 4
