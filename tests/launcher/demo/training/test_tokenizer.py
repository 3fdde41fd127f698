from pathlib import Path

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from launcher.demo.training.tokenizer import save_tokenizer, train_tokenizer

TEXTS = ["The cat has 12 hats.", "the dog\n\nand   the fox", "caf\u00e9 \U0001f600"]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(TEXTS * 3, 300)


def test_any_text_is_decoded_as_encoded(tokenizer: Tokenizer) -> None:
    for text in [*TEXTS, "\x00 \u4f60\u597d  tab\t"]:
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_numbers_are_split_into_digits(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("1234").tokens == ["1", "2", "3", "4"]


def test_control_tokens_are_hidden_but_calls_and_thoughts_shown(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("<think>a</think><tool_call>b</tool_call><|im_end|>").ids
    assert len(ids) == 7
    assert tokenizer.decode(ids) == "<think>a</think><tool_call>b</tool_call>"


def test_transformers_reads_the_saved_tokenizer(tokenizer: Tokenizer, tmp_path: Path) -> None:
    save_tokenizer(tokenizer, tmp_path)
    read = AutoTokenizer.from_pretrained(tmp_path)
    assert read.eos_token == "<|im_end|>"
    assert read("The cat")["input_ids"] == tokenizer.encode("The cat").ids
