"""Tests of parsing the list of `--lora-adapters`."""

from pathlib import Path

import pytest

from launcher.compat.lora_adapters_flag import parse_lora_adapters


@pytest.mark.parametrize(("listed", "adapters"), [
    ("org/one", ["org/one"]),
    ("org/one, org/two,", ["org/one", "org/two"]),
    ("org/one@refs/pr/1", ["org/one=org/one@refs/pr/1"]),
    ("short=org/one", ["short=org/one"]),
    ("short=org/one@v2", ["short=org/one@v2"]),
])
def test_hub_adapters_keep_their_request_names(listed: str, adapters: list[str]) -> None:
    assert parse_lora_adapters(listed) == ("hub", adapters)


@pytest.mark.parametrize(("listed", "adapters"), [
    ("one=/adapters/one,two=/adapters/two", ["one=/adapters/one", "two=/adapters/two"]),
    ("/adapters/one", ["/adapters/one"]),
    ("one=/adapters/../one", ["one=/one"]),
])
def test_folder_adapter_may_have_an_alias(listed: str, adapters: list[str]) -> None:
    assert parse_lora_adapters(listed) == ("local", adapters)


def test_ambiguous_name_is_a_folder_if_it_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "org/one").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert parse_lora_adapters("short=org/one") == ("local", [f"short={tmp_path}/org/one"])
    assert parse_lora_adapters("short=org/two") == ("hub", ["short=org/two"])


@pytest.mark.parametrize(("listed", "text"), [
    ("a=b=c", "adapters are listed as NAME, NAME@REVISION and NAME=FOLDER, .* got a=b=c$"),
    ("org/one,@v2", "got @v2$"),
    (" , ", "got ' , '$"),
    ("one=/adapters/one@v2", "/adapters/one is a folder, which has no revision, got v2"),
    ("org/one,two=/adapters/two", "comes from one source, and these are at the Hub and in folders; list one kind"),
])
def test_invalid_adapter_lists_are_rejected(listed: str, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        parse_lora_adapters(listed)
