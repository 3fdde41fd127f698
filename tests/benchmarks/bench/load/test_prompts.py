"""Tests of benchmarks/bench/load/prompts.py."""

import asyncio
import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.bench.load.dialects import DIALECTS, RequestOptions
from benchmarks.bench.load.http import RequestFailedError
from benchmarks.bench.load.prompts import (
    TokenizeLimitExceededError,
    choose_token_counter,
    count_words,
    load_prompts,
    make_local_token_counter,
    make_prompt_of_length,
    parse_token_count,
)
from benchmarks.harness.random_checkpoints import make_byte_tokenizer


async def count_subwords(text: str) -> int:
    """Count like a tokenizer: a long word is several tokens, and one more token begins the text."""
    return 1 + sum(1 + len(word) // 4 for word in text.split())


async def count_bytes(text: str) -> int:
    return len(text.encode())


@settings(max_examples=50)
@given(st.integers(4, 400), st.integers(0, 1000), st.sampled_from([count_words, count_subwords, count_bytes]))
def test_prompt_has_the_requested_number_of_tokens(num_tokens: int, seed: int, count) -> None:
    text = asyncio.run(make_prompt_of_length("7", num_tokens, count, Random(seed)))
    assert asyncio.run(count(text)) == num_tokens
    assert text.startswith("7")


def make_limited_counter(limit: int):
    async def count(text: str) -> int:
        if (num_tokens := await count_subwords(text)) > limit:
            raise TokenizeLimitExceededError(f"at most {limit}, got {num_tokens}")
        return num_tokens
    return count


@pytest.mark.parametrize("num_tokens", [100, 60, 51, 20])
def test_prompt_fits_though_the_counter_has_a_limit(num_tokens: int) -> None:
    text = asyncio.run(make_prompt_of_length("7", num_tokens, make_limited_counter(100), Random(0)))
    assert asyncio.run(count_subwords(text)) == num_tokens


def test_prompt_above_the_counter_limit_is_an_error() -> None:
    with pytest.raises(RequestFailedError, match="at most 100, got 1"):
        asyncio.run(make_prompt_of_length("7", 101, make_limited_counter(100), Random(0)))


def test_prompt_is_never_shorter_than_its_beginning() -> None:
    assert asyncio.run(make_prompt_of_length("this is shared by all", 2, count_words,
                                             Random(0))) == "this is shared by all"


def test_local_tokenizer_counts_tokens(tmp_path: Path) -> None:
    make_byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    assert asyncio.run(make_local_token_counter(str(tmp_path))("abc")) == 3


class FakeTokenizingServer:
    """Server whose /tokenize counts the words of one field of the body."""

    def __init__(self, field: str) -> None:
        self._field = field

    def build_request(self, method: str, path: str, header_lines: str, body: bytes) -> bytes:
        return body

    async def fetch(self, body: bytes) -> tuple[int, bytes]:
        return 200, json.dumps({"tokens": json.loads(body).get(self._field, "").split()}).encode()


@pytest.mark.parametrize(("dialect", "field", "unit"), [
    ("openai", "content", "tokens"), ("openai", "prompt", "tokens"), ("tgi", "inputs", "tokens"),
    ("tgi", "content", "words")])
def test_server_counts_tokens_only_if_it_reads_the_text(dialect: str, field: str, unit: str) -> None:
    server: Any = FakeTokenizingServer(field)
    assert asyncio.run(choose_token_counter(server, DIALECTS[dialect], RequestOptions(), "", ""))[1] == unit


def test_unreadable_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"--tokenizer: cannot read .*nothing"):
        make_local_token_counter(str(tmp_path / "nothing"))


@pytest.mark.parametrize("answer", [[{"id": 1}, {"id": 2}], {"count": 2, "tokens": None}, {"tokens": [1, 2]}])
def test_token_counts_are_read_in_several_shapes(answer) -> None:
    assert parse_token_count(answer) == 2


def test_prompts_are_read_as_text_strings_or_objects(tmp_path: Path) -> None:
    path = tmp_path / "prompts"
    path.write_text('Say {this}\n\n"two\\nlines"\n{"prompt": "three", "output_tokens": 5}\n'
                    '{"prompt": "four", "output_tokens": null}\n{not JSON\n')
    assert load_prompts(path) == [
        ("Say {this}", None), ("two\nlines", None), ("three", 5), ("four", None), ("{not JSON", None)]


@pytest.mark.parametrize(("text", "reason"), [
    ("", "holds no prompt"), ('{"text": 1}', "line 1: an object has no text as `prompt`"),
    *((f'first\n\n{{"prompt": "a", "output_tokens": {count}}}', f"line 3: `output_tokens` must .* got {count}$")
      for count in ('"10"', "0", "-1", "true", "1.5", "5.0"))])
def test_invalid_prompts_file_is_reported(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "prompts"
    path.write_text(text)
    with pytest.raises(ValueError, match=reason):
        load_prompts(path)
