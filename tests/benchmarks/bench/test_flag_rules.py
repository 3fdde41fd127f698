"""Tests of benchmarks/bench/flag_rules.py. `test_settings.py` tests the settings made from the flags."""

import pytest

from benchmarks.bench.flag_rules import (
    EXCLUSIVE_GROUPS,
    REQUIRED_BASE_SETTINGS,
    UNSUPPORTED_BY_DIALECT,
    drop_settings,
    format_masked_command,
    setting_to_flag,
)
from benchmarks.bench.settings import DEFAULT_VALUES


def test_every_listed_name_is_a_setting() -> None:
    assert {name for group in (*REQUIRED_BASE_SETTINGS, *EXCLUSIVE_GROUPS, UNSUPPORTED_BY_DIALECT)
            for name in group} <= DEFAULT_VALUES.keys()


def test_flag_is_removed_with_all_its_values() -> None:
    words = ["--adapters", "a", "b", "--versus", "--rate 3", "--rate=4", "--seed", "1"]
    assert drop_settings(words, {"adapters", "rate"}) == ["--versus", "--rate 3", "--seed", "1"]
    assert drop_settings(words, {"versus"}) == ["--adapters", "a", "b", "--rate=4", "--seed", "1"]
    assert drop_settings(["--prompt_tokens", "9", "--versus=--rate 3"], {"prompt_tokens", "versus"}) == []


def test_flags_are_spelled_as_documented() -> None:
    assert [setting_to_flag(name)
            for name in ("prompt_tokens", "numtokens_range")] == ["--prompt-tokens", "--numtokens_range"]


@pytest.mark.parametrize("words", [
    ["--api-key", "s&cret"], ["--api_key=s&cret"], ["--versus", "--api-key 's&cret' --rate 2"],
    ["--versus=--api_key='s&cret'"]])
def test_api_keys_are_not_shown(words: list[str]) -> None:
    text = format_masked_command(["weft", "bench", *words, "--rate", "4"])
    assert "cret" not in text
    assert text.endswith("--rate 4")
