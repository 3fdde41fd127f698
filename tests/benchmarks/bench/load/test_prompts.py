"""Tests of benchmarks/bench/load/prompts.py."""

import asyncio
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.bench.load.http import NoAnswer
from benchmarks.bench.load.prompts import TooLong, count_words, counted_by_tokenizer, fit, length, read_prompts
from benchmarks.harness.checkpoints import byte_tokenizer


async def count_pieces(text: str) -> int:
    """Count like a tokenizer: a long word is several tokens, and one more token begins the text."""
    return 1 + sum(1 + len(word) // 4 for word in text.split())


async def count_bytes(text: str) -> int:
    return len(text.encode())


@settings(max_examples=50)
@given(st.integers(4, 400), st.integers(0, 1000), st.sampled_from([count_words, count_pieces, count_bytes]))
def test_a_prompt_has_as_many_tokens_as_it_should(wanted: int, seed: int, count) -> None:
    text = asyncio.run(fit("7", wanted, count, Random(seed)))
    assert asyncio.run(count(text)) == wanted
    assert text.startswith("7")


def at_most(limit: int):
    async def count(text: str) -> int:
        if (num_tokens := await count_pieces(text)) > limit:
            raise TooLong(f"at most {limit}, got {num_tokens}")
        return num_tokens
    return count


@pytest.mark.parametrize("wanted", [100, 60, 51, 20])
def test_a_server_may_count_no_more_than_its_model_reads(wanted: int) -> None:
    text = asyncio.run(fit("7", wanted, at_most(100), Random(0)))
    assert asyncio.run(count_pieces(text)) == wanted


def test_a_prompt_that_is_longer_than_that_is_said() -> None:
    with pytest.raises(NoAnswer, match="at most 100, got 1"):
        asyncio.run(fit("7", 101, at_most(100), Random(0)))


def test_a_prompt_is_no_shorter_than_its_beginning() -> None:
    assert asyncio.run(fit("this is shared by all", 2, count_words, Random(0))) == "this is shared by all"


def test_a_tokenizer_at_hand_counts(tmp_path: Path) -> None:
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    assert asyncio.run(counted_by_tokenizer(str(tmp_path))("abc")) == 3


def test_a_tokenizer_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"--tokenizer: cannot read .*nothing"):
        counted_by_tokenizer(str(tmp_path / "nothing"))


@pytest.mark.parametrize("answer", [[{"id": 1}, {"id": 2}], {"count": 2, "tokens": None}, {"tokens": [1, 2]}])
def test_servers_count_in_several_shapes(answer) -> None:
    assert length(answer) == 2


def test_prompts_are_read_as_text_strings_or_objects(tmp_path: Path) -> None:
    path = tmp_path / "prompts"
    path.write_text('Say {this}\n\n"two\\nlines"\n{"prompt": "three", "output_tokens": 5}\n'
                    '{"prompt": "four", "output_tokens": null}\n{not JSON\n')
    assert read_prompts(path) == [
        ("Say {this}", None), ("two\nlines", None), ("three", 5), ("four", None), ("{not JSON", None)]


@pytest.mark.parametrize(("text", "reason"), [
    ("", "holds no prompt"), ('{"text": 1}', "line 1: an object has no text as `prompt`"),
    *((f'first\n\n{{"prompt": "a", "output_tokens": {count}}}', f"line 3: `output_tokens` must .* got {count}$")
      for count in ('"10"', "0", "-1", "true", "1.5", "5.0"))])
def test_a_file_without_prompts_is_said(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "prompts"
    path.write_text(text)
    with pytest.raises(ValueError, match=reason):
        read_prompts(path)
