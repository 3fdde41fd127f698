"""Tests of the settings read from the environment, and of the variables set for shards."""

from pathlib import Path

import pytest

from launcher.environment import (
    HubAccess,
    hub_access,
    hub_cache,
    hub_home,
    large_pages,
    machine_file,
    offline_by,
    record_folder,
    token_from,
)


@pytest.mark.parametrize(("environment", "folder"), [
    ({}, "/home/me/.cache/huggingface/hub"),
    ({"XDG_CACHE_HOME": "/x"}, "/x/huggingface/hub"),
    ({"HF_HOME": "/data", "XDG_CACHE_HOME": "/x"}, "/data/hub"),
    ({"HF_HOME": "~/data"}, "/home/me/data/hub"),
    ({"HUGGINGFACE_HUB_CACHE": "/old", "HF_HOME": "/data"}, "/old"),
    ({"HF_HUB_CACHE": "/hub", "HUGGINGFACE_HUB_CACHE": "/old", "HF_HOME": "/data"}, "/hub"),
    ({"HF_HUB_CACHE": "", "HF_HOME": ""}, "/home/me/.cache/huggingface/hub"),
])
def test_the_cache_is_where_other_clients_of_the_hub_keep_theirs(
        monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], folder: str) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert hub_cache(environment) == Path(folder)


@pytest.mark.parametrize(("environment", "access"), [
    ({}, HubAccess("https://huggingface.co", "", "", quiet=False)),
    ({"HF_ENDPOINT": "http://mirror:8080/hub/"}, HubAccess("http://mirror:8080/hub")),
    ({"HF_TOKEN": "hf_a", "HUGGING_FACE_HUB_TOKEN": "hf_b"}, HubAccess(token="hf_a")),
    ({"HF_TOKEN": "", "HUGGING_FACE_HUB_TOKEN": "hf_b\n"}, HubAccess(token="hf_b")),
    ({"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}, HubAccess(offline="HF_HUB_OFFLINE")),
    ({"HF_HUB_OFFLINE": "0", "TRANSFORMERS_OFFLINE": "yes"}, HubAccess(offline="TRANSFORMERS_OFFLINE")),
    ({"HF_HUB_OFFLINE": "no"}, HubAccess()),
    ({"HF_HUB_DISABLE_PROGRESS_BARS": "True"}, HubAccess(quiet=True)),
])
def test_the_hub_is_reached_as_other_clients_reach_it(
        tmp_path: Path, environment: dict[str, str], access: HubAccess) -> None:
    assert hub_access({"HF_HOME": str(tmp_path)} | environment) == access


def test_the_token_may_stand_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("hf_home\n")
    (tmp_path / "other").write_text("hf_other\n")
    home = {"HF_HOME": str(tmp_path)}
    assert hub_access(home).token == "hf_home"
    assert hub_access(home | {"HF_TOKEN_PATH": str(tmp_path / "other")}).token == "hf_other"
    assert hub_access(home | {"HF_TOKEN": "hf_given"}).token == "hf_given"


@pytest.mark.parametrize(("environment", "line"), [
    ({"HF_TOKEN": "hf\r\nX-Evil: 1"}, "HF_TOKEN holds characters that no token has"),
    ({"HF_TOKEN_PATH": "TOKENS"}, "TOKENS holds characters that no token has"),
    ({"HF_ENDPOINT": "ftp://hub"}, "HF_ENDPOINT must be an address that begins with https:// or http://, got ftp://"),
    ({"HF_ENDPOINT": "hub.example.org"}, "HF_ENDPOINT must be an address that begins with https:// or http://, got h"),
])
def test_what_makes_no_sense_is_named_and_no_token_shown(
        monkeypatch: pytest.MonkeyPatch, tmp_path: Path, environment: dict[str, str], line: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("TOKENS").write_bytes(b"hf_one\nhf_two\xff")
    with pytest.raises(ValueError, match=f"^{line}") as told:
        hub_access({"HF_HOME": str(tmp_path)} | environment)
    assert "hf_" not in str(told.value)
    assert "Evil" not in str(told.value)


def test_a_token_is_not_shown_with_the_rest() -> None:
    assert "hf_" not in repr(HubAccess(token="hf_secret"))


def test_what_is_known_of_a_machine_holds_for_a_release_and_for_how_libraries_are_set() -> None:
    home = {"HOME": "/home/weaver", "XDG_CACHE_HOME": "/cache"}
    files = [machine_file(home, "1"), machine_file(home, "2"), machine_file(home | {"ONEDNN_MAX_CPU_ISA": "AVX2"}, "1")]
    assert len(set(files)) == 3
    assert machine_file(home | {"OTHER": "x"}, "1") == files[0]
    assert files[0].parent == Path("/cache/weft")


def test_without_a_home_nothing_is_remembered_and_nothing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home(_: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", no_home)
    assert machine_file({}, "1").parts[:3] == ("/", "dev", "null")
    assert hub_cache({}) == Path("/dev/null/huggingface/hub")


@pytest.mark.parametrize(("told", "tunables"), [
    ({}, {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}),
    ({"GLIBC_TUNABLES": "glibc.malloc.check=3"}, {"GLIBC_TUNABLES": "glibc.malloc.check=3:glibc.malloc.hugetlb=1"}),
    ({"GLIBC_TUNABLES": "glibc.malloc.hugetlb=0"}, {}),
])
def test_shards_ask_for_large_pages_unless_the_user_decided(told: dict[str, str], tunables: dict[str, str]) -> None:
    assert large_pages(told) == tunables


def test_recordings_are_kept_with_what_can_be_made_anew() -> None:
    assert record_folder({"XDG_CACHE_HOME": "/x"}) == Path("/x/weft/recordings")


@pytest.mark.parametrize(("environment", "variable"), [
    ({}, ""),
    ({"HF_HUB_OFFLINE": "0"}, ""),
    ({"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE"),
    ({"TRANSFORMERS_OFFLINE": "true"}, "TRANSFORMERS_OFFLINE"),
])
def test_either_variable_forbids_to_ask_the_hub(environment: dict[str, str], variable: str) -> None:
    assert offline_by(environment) == variable


def test_a_token_is_looked_for_where_clients_of_the_hub_keep_it(tmp_path: Path) -> None:
    home, other = {"HF_HOME": str(tmp_path)}, {"HF_TOKEN_PATH": str(tmp_path / "other")}
    assert hub_home(home) == tmp_path
    assert token_from(home) == ""
    (tmp_path / "token").touch()
    (tmp_path / "other").touch()
    assert token_from(home) == str(tmp_path / "token")
    assert token_from(home | other) == str(tmp_path / "other")
    assert token_from(home | other | {"HF_TOKEN": "hf_x"}) == "HF_TOKEN"
