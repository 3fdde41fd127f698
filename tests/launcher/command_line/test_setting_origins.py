"""Where the settings of a server came from."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from launcher import cli
from launcher.command_line.setting_origins import DEFAULT, DERIVED
from launcher.settings import SETTINGS_BY_NAME


@pytest.fixture
def describe_server(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that returns the settings of a server by their flags, instead of running it."""
    def describe(*arguments: str, **variables: str) -> dict[str, Mapping[str, Any]]:
        described = list[Mapping[str, Any]]()
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

        def record_settings(_: object, __: object, ___: object, ____: object,
                            settings: Sequence[Mapping[str, Any]]) -> None:
            described.extend(settings)

        monkeypatch.setattr(cli, "run_server", record_settings)
        cli.run_command_line(["serve", *arguments])
        return {setting["name"]: setting for setting in described}
    return describe


def test_setting_names_its_flag_variable_file_or_default(describe_server: Any, tmp_path: Path) -> None:
    file = tmp_path / "weft.yaml"
    file.write_text("look-ahead: 1\nmax-batch-size: 9\nhost: 0.0.0.0\nui: false\n")
    settings = describe_server("weft/demo", "-p", "8", "--max-num-seqs=3", "--no-request-log", "--config", str(file),
                               WEFT_HOSTNAME="127.0.0.1", WEFT_DTYPE="bfloat16", MAX_CONCURRENT_REQUESTS="7",
                               WEFT_MAX_BATCH_SIZE="5")
    assert {name: (setting["value"], setting["source"]) for name, setting in settings.items()
            if setting["source"] not in {DEFAULT, DERIVED}} == {
        "--model-id": ("weft/demo", "flag"), "--port": (8, "flag"), "--max-batch-size": (3, "flag"),
        "--request-log": (False, "flag"), "--look-ahead": (1, f"file {file}"), "--ui": (False, f"file {file}"),
        "--hostname": ("127.0.0.1", "variable WEFT_HOSTNAME"), "--dtype": ("bfloat16", "variable WEFT_DTYPE"),
        "--max-concurrent-requests": (7, "variable MAX_CONCURRENT_REQUESTS")}
    assert settings["--max-batch-total-tokens"] == {  # of the demo model
        "group": "Batching and cache", "name": "--max-batch-total-tokens", "value": 32_768, "source": DERIVED}


def test_secrets_are_not_shown_and_a_missing_one_is(describe_server: Any) -> None:
    settings = describe_server(WEFT_API_KEY="sk-loom")
    assert (settings["--api-key"]["value"], settings["--api-key"]["source"]) == ("(secret)", "variable WEFT_API_KEY")
    assert "sk-loom" not in json.dumps([*settings.values()])


def test_settings_of_the_simulated_model_are_those_of_its_servers(describe_server: Any) -> None:
    assert describe_server("weft/simulated", "--simulated-seed", "3")["--simulated-seed"]["source"] == "flag"
    settings = describe_server("weft/demo")
    assert not [name for name in settings if name.startswith("--simulated")]
    assert {setting.flags[0] for setting in SETTINGS_BY_NAME.values()
            if not setting.name.startswith("simulated_")} == settings.keys()
    json.dumps([*settings.values()], allow_nan=False)
