"""Tests of launcher/command_line/start_checks.py."""

from pathlib import Path
from typing import Any

import pytest

from launcher.command_line.start_checks import check_adapter_root, list_start_warnings
from launcher.settings import LaunchConfig
from launcher.supervisor.supervisor import ConfigurationError
from router.config import RouterConfig


@pytest.mark.parametrize(("settings", "root"), [
    ({"preloaded_adapter_ids": ("one=/srv/loras/one", "/srv/loras/more/two")}, "/srv/loras"),
    ({"preloaded_adapter_ids": ("one",)}, "FOLDER"),
    ({"adapter_id": "/srv/one/", "preloaded_adapter_source": "hub"}, "/srv"),
    ({"adapter_source": "hub", "preloaded_adapter_ids": ("one=/srv/my loras/one",)}, "'/srv/my loras'"),
    ({"adapter_source": "hub", "preloaded_adapter_ids": ("one=./one",)}, "FOLDER"),
    ({"preloaded_adapter_ids": ("one=/adapters/one", "two=/data/two")}, "FOLDER"),
])
def test_local_adapters_at_start_need_the_folder_that_contains_them(settings: dict[str, Any], root: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"to load the adapter .*: --adapter-root {root}$"):
        check_adapter_root(LaunchConfig(), RouterConfig(**{"adapter_source": "local"} | settings))


@pytest.mark.parametrize("settings", [
    {"adapter_source": "local"},
    {"adapter_source": "local", "preloaded_adapter_source": "hub", "preloaded_adapter_ids": ("org/one",)},
    {"adapter_id": "org/one", "preloaded_adapter_ids": ("org/two",)},
])
def test_other_adapters_need_no_folder(settings: dict[str, Any]) -> None:
    check_adapter_root(LaunchConfig(), RouterConfig(**settings))


def test_source_without_its_folder_is_warned_of() -> None:
    config = RouterConfig(adapter_source="local")
    assert list_start_warnings(LaunchConfig(), config) == [
        "--adapter-source local needs --adapter-root FOLDER; without it requests for such adapters are refused"]
    assert list_start_warnings(LaunchConfig(adapter_root="/srv"), config) == []
    assert list_start_warnings(LaunchConfig(), RouterConfig()) == []


def test_adapter_itself_is_no_folder_of_adapters(tmp_path: Path) -> None:
    folder = tmp_path / "my loras/one"
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text("{}")
    with pytest.raises(ConfigurationError, match="one .* is an adapter itself; .*: --adapter-root "
                                                 f"'{folder.parent}', and requests may name one$"):
        check_adapter_root(LaunchConfig(adapter_root=str(folder)), RouterConfig())
    check_adapter_root(LaunchConfig(adapter_root=str(folder.parent)), RouterConfig())
    (folder / "two").mkdir()
    (folder / "two/adapter_config.json").write_text("{}")
    check_adapter_root(LaunchConfig(adapter_root=str(folder)), RouterConfig())
