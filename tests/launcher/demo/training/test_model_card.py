"""Tests of the demo model's card, written with a fake model."""

from hashlib import sha256
from pathlib import Path

import pytest

from launcher.demo.training import model_card
from launcher.demo.training.corpus.arithmetic import make_arithmetic_document
from launcher.demo.training.model_card import (
    CARD_PROMPTS,
    CARD_TEMPLATE_FILE,
    MAIL_TOOL,
    CardPrompt,
    generate_counting_cases,
    generate_exact_match_cases,
)


class EchoModel:
    """Fake model that repeats its prompt, and counts to eleven for a prompt with 11."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tokenizer = self

    def apply_chat_template(self, messages: list[dict[str, str]], **_: object) -> str:
        return messages[-1]["content"]

    def generate_answer(self, prompt: str) -> str:
        return "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11." if "11" in prompt else f"I heard {prompt}"

    def count_passed_cases(self, cases: list[model_card.EvaluationCase]) -> int:
        return sum(case.accepts_answer(self.generate_answer(str(case.messages[-1]["content"]))) for case in cases)


def test_card_contains_prompts_answers_and_figures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(model_card, "GreedyModel", EchoModel)
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    text = model_card.make_model_card(tmp_path, (1.25, 1.5), 97, CARD_TEMPLATE_FILE.read_text())
    assert sha256(b"weights").hexdigest() in text
    assert "$" not in text
    assert all(figure in text for figure in ("1.250", "1.500", "97 minutes"))
    assert "| counts right, up to twenty and down from eleven | 1 |" in text
    assert "**Count to twenty.**\n\n```\nI heard Count to twenty.\n```\n" in text


def test_card_has_twenty_prompts() -> None:
    assert len({prompt.text for prompt in CARD_PROMPTS}) == 20


def test_entry_names_the_offered_tools() -> None:
    assert (CardPrompt("Write!", (MAIL_TOOL,)).format_card_entry(" x\n")
            == "**Write!** (with the tools `send_mail`)\n\n```\nx\n```\n")


def test_trials_reject_wrong_answers() -> None:
    for cases in (list(generate_counting_cases()), list(generate_exact_match_cases(make_arithmetic_document))):
        assert len(cases) == 20
        assert not any(case.accepts_answer("no") for case in cases)


def test_counting_trials_go_up_and_down() -> None:
    up, down, *_ = generate_counting_cases()
    assert up.accepts_answer("1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11.")
    assert down.accepts_answer("2, 1.")
