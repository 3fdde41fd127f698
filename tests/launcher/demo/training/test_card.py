"""Tests of the demo model's card, written with a fake model."""

from hashlib import sha256
from pathlib import Path

import pytest

from launcher.demo.training import card
from launcher.demo.training.card import MAIL, PROMPTS, WORDS, Prompt, counting_trials, exact_trials
from launcher.demo.training.corpus.sums import sums


class Parrot:
    """Fake model that repeats its prompt, and counts to eleven for a prompt with 11."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tokenizer = self

    def apply_chat_template(self, messages: list[dict[str, str]], **_: object) -> str:
        return messages[-1]["content"]

    def answer(self, prompt: str) -> str:
        return "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11." if "11" in prompt else f"I heard {prompt}"

    def passed(self, trials: list[card.Trial]) -> int:
        return sum(trial.passes(self.answer(str(trial.messages[-1]["content"]))) for trial in trials)


def test_a_card_tells_prompts_answers_and_figures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(card, "Answering", Parrot)
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    text = card.card(tmp_path, (1.25, 1.5), 97, WORDS.read_text())
    assert sha256(b"weights").hexdigest() in text
    assert "$" not in text
    assert all(told in text for told in ("1.250", "1.500", "97 minutes"))
    assert "| counts right, up to twenty and down from eleven | 1 |" in text
    assert "**Count to twenty.**\n\n```\nI heard Count to twenty.\n```\n" in text


def test_there_are_twenty_prompts() -> None:
    assert len({prompt.said for prompt in PROMPTS}) == 20


def test_an_entry_names_the_tools_that_are_offered() -> None:
    assert Prompt("Write!", (MAIL,)).entry(" x\n") == "**Write!** (with the tools `send_mail`)\n\n```\nx\n```\n"


def test_trials_tell_right_from_wrong() -> None:
    for trials in (list(counting_trials()), list(exact_trials(sums))):
        assert len(trials) == 20
        assert not any(trial.passes("no") for trial in trials)


def test_counting_is_tried_up_and_down() -> None:
    up, down, *_ = counting_trials()
    assert up.passes("1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11.")
    assert down.passes("2, 1.")
