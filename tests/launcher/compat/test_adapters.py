"""Tests of parsing the list of `--lora-adapters`."""

from pathlib import Path

import pytest

from launcher.compat.adapters import preloaded


@pytest.mark.parametrize(("listed", "adapters"), [
    ("org/one", ["org/one"]),
    ("org/one, org/two,", ["org/one", "org/two"]),
    ("org/one@refs/pr/1", ["org/one=org/one@refs/pr/1"]),
    ("short=org/one", ["short=org/one"]),
    ("short=org/one@v2", ["short=org/one@v2"]),
])
def test_adapters_of_the_hub_keep_the_names_that_requests_say(listed: str, adapters: list[str]) -> None:
    assert preloaded(listed) == ("hub", adapters)


@pytest.mark.parametrize(("listed", "adapters"), [
    ("one=/adapters/one,two=/adapters/two", ["one=/adapters/one", "two=/adapters/two"]),
    ("/adapters/one", ["/adapters/one"]),
    ("one=/adapters/../one", ["one=/one"]),
])
def test_a_folder_may_have_a_name(listed: str, adapters: list[str]) -> None:
    assert preloaded(listed) == ("local", adapters)


def test_what_could_be_either_is_a_folder_if_there_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "org/one").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert preloaded("short=org/one") == ("local", [f"short={tmp_path}/org/one"])
    assert preloaded("short=org/two") == ("hub", ["short=org/two"])


@pytest.mark.parametrize(("listed", "text"), [
    ("a=b=c", "adapters are listed as NAME, NAME@REVISION and NAME=FOLDER, .* got a=b=c$"),
    ("org/one,@v2", "got @v2$"),
    (" , ", "got ' , '$"),
    ("one=/adapters/one@v2", "/adapters/one is a folder, which has no revision, got v2"),
    ("org/one,two=/adapters/two", "comes from one source, and these are at the Hub and in folders; list one kind"),
])
def test_another_list_is_not_understood(listed: str, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        preloaded(listed)
