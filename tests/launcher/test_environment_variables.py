"""Tests of the settings read from the environment, and of the variables set for shards."""

from pathlib import Path

import pytest

from launcher.environment_variables import (
    HubAccess,
    find_offline_variable,
    find_token_source,
    get_machine_probes_path,
    has_gpu,
    hub_cache_folder,
    hub_home_folder,
    huge_page_variables,
    read_hub_access,
    recordings_folder,
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
def test_hub_cache_is_where_other_clients_keep_it(
        monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], folder: str) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert hub_cache_folder(environment) == Path(folder)


@pytest.mark.parametrize(("environment", "access"), [
    ({}, HubAccess("https://huggingface.co", "", "", hides_progress=False)),
    ({"HF_ENDPOINT": "http://mirror:8080/hub/"}, HubAccess("http://mirror:8080/hub")),
    ({"HF_TOKEN": "hf_a", "HUGGING_FACE_HUB_TOKEN": "hf_b"}, HubAccess(token="hf_a")),
    ({"HF_TOKEN": "", "HUGGING_FACE_HUB_TOKEN": "hf_b\n"}, HubAccess(token="hf_b")),
    ({"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}, HubAccess(offline_variable="HF_HUB_OFFLINE")),
    ({"HF_HUB_OFFLINE": "0", "TRANSFORMERS_OFFLINE": "yes"}, HubAccess(offline_variable="TRANSFORMERS_OFFLINE")),
    ({"HF_HUB_OFFLINE": "no"}, HubAccess()),
    ({"HF_HUB_DISABLE_PROGRESS_BARS": "True"}, HubAccess(hides_progress=True)),
])
def test_hub_access_follows_the_usual_variables(
        tmp_path: Path, environment: dict[str, str], access: HubAccess) -> None:
    assert read_hub_access({"HF_HOME": str(tmp_path)} | environment) == access


def test_token_may_be_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("hf_home\n")
    (tmp_path / "other").write_text("hf_other\n")
    environment = {"HF_HOME": str(tmp_path)}
    assert read_hub_access(environment).token == "hf_home"
    assert read_hub_access(environment | {"HF_TOKEN_PATH": str(tmp_path / "other")}).token == "hf_other"
    assert read_hub_access(environment | {"HF_TOKEN": "hf_given"}).token == "hf_given"


@pytest.mark.parametrize(("environment", "line"), [
    ({"HF_TOKEN": "hf\r\nX-Evil: 1"}, "HF_TOKEN holds characters that no token has"),
    ({"HF_TOKEN_PATH": "TOKENS"}, "TOKENS holds characters that no token has"),
    ({"HF_ENDPOINT": "ftp://hub"}, "HF_ENDPOINT must be an address that begins with https:// or http://, got ftp://"),
    ({"HF_ENDPOINT": "hub.example.org"}, "HF_ENDPOINT must be an address that begins with https:// or http://, got h"),
])
def test_invalid_variables_are_named_without_showing_tokens(
        monkeypatch: pytest.MonkeyPatch, tmp_path: Path, environment: dict[str, str], line: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("TOKENS").write_bytes(b"hf_one\nhf_two\xff")
    with pytest.raises(ValueError, match=f"^{line}") as error:
        read_hub_access({"HF_HOME": str(tmp_path)} | environment)
    assert "hf_" not in str(error.value)
    assert "Evil" not in str(error.value)


def test_token_is_not_shown_in_repr() -> None:
    assert "hf_" not in repr(HubAccess(token="hf_secret"))


def test_machine_file_depends_on_release_and_library_settings() -> None:
    environment = {"HOME": "/home/weaver", "XDG_CACHE_HOME": "/cache"}
    files = [get_machine_probes_path(environment, "1"), get_machine_probes_path(environment, "2"),
             get_machine_probes_path(environment | {"ONEDNN_MAX_CPU_ISA": "AVX2"}, "1")]
    assert len(set(files)) == 3
    assert get_machine_probes_path(environment | {"OTHER": "x"}, "1") == files[0]
    assert files[0].parent == Path("/cache/weft")


def test_without_a_home_folder_nothing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home(_: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", no_home)
    assert get_machine_probes_path({}, "1").parts[:3] == ("/", "dev", "null")
    assert hub_cache_folder({}) == Path("/dev/null/huggingface/hub")


@pytest.mark.parametrize(("environment", "tunables"), [
    ({}, {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}),
    ({"GLIBC_TUNABLES": "glibc.malloc.check=3"}, {"GLIBC_TUNABLES": "glibc.malloc.check=3:glibc.malloc.hugetlb=1"}),
    ({"GLIBC_TUNABLES": "glibc.malloc.hugetlb=0"}, {}),
])
def test_shards_use_large_pages_unless_the_user_decided(environment: dict[str, str], tunables: dict[str, str]) -> None:
    assert huge_page_variables(environment) == tunables


def test_recordings_are_kept_in_the_cache_folder() -> None:
    assert recordings_folder({"XDG_CACHE_HOME": "/x"}) == Path("/x/weft/recordings")


@pytest.mark.parametrize(("environment", "variable"), [
    ({}, ""),
    ({"HF_HUB_OFFLINE": "0"}, ""),
    ({"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE"),
    ({"TRANSFORMERS_OFFLINE": "true"}, "TRANSFORMERS_OFFLINE"),
])
def test_either_offline_variable_counts(environment: dict[str, str], variable: str) -> None:
    assert find_offline_variable(environment) == variable


def test_token_is_found_where_hub_clients_keep_it(tmp_path: Path) -> None:
    environment, other = {"HF_HOME": str(tmp_path)}, {"HF_TOKEN_PATH": str(tmp_path / "other")}
    assert hub_home_folder(environment) == tmp_path
    assert find_token_source(environment) == ""
    (tmp_path / "token").touch()
    (tmp_path / "other").touch()
    assert find_token_source(environment) == str(tmp_path / "token")
    assert find_token_source(environment | other) == str(tmp_path / "other")
    assert find_token_source(environment | other | {"HF_TOKEN": "hf_x"}) == "HF_TOKEN"


@pytest.mark.parametrize("name", ["nvidiactl", "nvidia0", "kfd", "dxg"])
def test_gpu_is_recognized_by_its_device_file(tmp_path: Path, name: str) -> None:
    assert not has_gpu(tmp_path)
    (tmp_path / name).touch()
    assert has_gpu(tmp_path)
