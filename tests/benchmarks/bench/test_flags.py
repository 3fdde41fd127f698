"""Tests of benchmarks/bench/flags.py. `test_settings.py` tests the settings made from the flags."""

import pytest

from benchmarks.bench.flags import BELONGS, EXCLUDED, UNHEARD, flag_of, shown, without
from benchmarks.bench.settings import DEFAULTS


def test_every_name_is_one_of_a_setting() -> None:
    assert {name for group in (*BELONGS, *EXCLUDED, UNHEARD) for name in group} <= DEFAULTS.keys()


def test_a_flag_is_left_out_with_all_its_values() -> None:
    words = ["--adapters", "a", "b", "--versus", "--rate 3", "--rate=4", "--seed", "1"]
    assert without(words, {"adapters", "rate"}) == ["--versus", "--rate 3", "--seed", "1"]
    assert without(words, {"versus"}) == ["--adapters", "a", "b", "--rate=4", "--seed", "1"]
    assert without(["--prompt_tokens", "9", "--versus=--rate 3"], {"prompt_tokens", "versus"}) == []


def test_flags_are_spelt_as_they_are_documented() -> None:
    assert [flag_of(name) for name in ("prompt_tokens", "numtokens_range")] == ["--prompt-tokens", "--numtokens_range"]


@pytest.mark.parametrize("words", [
    ["--api-key", "s&cret"], ["--api_key=s&cret"], ["--versus", "--api-key 's&cret' --rate 2"],
    ["--versus=--api_key='s&cret'"]])
def test_keys_are_not_shown(words: list[str]) -> None:
    text = shown(["weft", "bench", *words, "--rate", "4"])
    assert "cret" not in text
    assert text.endswith("--rate 4")
