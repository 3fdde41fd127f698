"""What the environment tells, and what shards are told by it."""

from pathlib import Path

import pytest

from launcher.environment import hub_cache, large_pages, machine_file, record_folder


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
