"""Tests of `weft doctor` as a whole: its subjects and its exit code."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.checkpoints.small_checkpoints import make_tiny_checkpoint

from launcher import cli
from launcher.command_line import start_checks
from launcher.doctor import command
from launcher.doctor.command import DoctorSettings
from launcher.settings import make_configs

SURVEY_RESULT = {"machine": {"torch": "2.13", "cuda": "", "instructions": [], "packs_bfloat16": True,
                             "missing_kernels": "", "gpus": [], "cores": 2, "processors": 2, "memory": 2**33,
                             "memory_source": "that the system has available"}}


@pytest.fixture
def get_states(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., dict[str, str]]:
    """Return a function that returns the state of every subject, given the findings of a child."""
    def run(survey_result: dict[str, Any], **settings: Any) -> dict[str, str]:
        monkeypatch.setattr(command, "run_survey", lambda _: survey_result)
        settings = {"port": 0, "model_id": "weft/simulated"} | settings
        findings = command.run_checks(DoctorSettings(*make_configs(settings)), {"HF_HOME": str(tmp_path)})
        return {finding.subject: finding.state for finding in findings}
    return run


def test_all_subjects_are_examined(get_states: Callable[..., Any]) -> None:
    assert [*get_states(SURVEY_RESULT)] == [
        "python", "packages", "protobuf", "aiohttp", "torch", "gpu", "instructions", "kernels", "cores", "memory",
        "shared memory", "model cache", "hub", "port"]


def test_torch_that_does_not_load_is_a_problem_and_the_rest_is_examined(get_states: Callable[..., Any]) -> None:
    states = get_states({"failed": "ModuleNotFoundError: No module named 'torch'"})
    assert (states["torch"], states["port"]) == ("problem", "ok")


def test_missing_model_folder_is_a_problem(get_states: Callable[..., Any]) -> None:
    assert get_states(SURVEY_RESULT, model_id="/no/model")["model"] == "problem"


def test_unsupported_architecture_is_a_problem(get_states: Callable[..., Any], tmp_path: Path) -> None:
    for name, text in (("config.json", '{"architectures": ["LoomForCausalLM"]}'), ("tokenizer.json", "{}"),
                       ("model.safetensors", "")):
        (tmp_path / name).write_text(text)
    assert get_states(SURVEY_RESULT, model_id=str(tmp_path))["model"] == "problem"


def test_model_not_downloaded_yet_is_only_a_warning(get_states: Callable[..., Any]) -> None:
    assert get_states(SURVEY_RESULT, model_id="org/name")["model"] == "warning"


@pytest.mark.parametrize("settings", [{"api_keys": "/no/file"}, {"adapter_root": "/no/folder"},
                                      {"device": "cuda", "model_id": "org/a"}])
def test_settings_that_a_server_would_refuse_are_a_problem(
        get_states: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, settings: dict[str, str]) -> None:
    monkeypatch.setattr(start_checks, "has_gpu", lambda: False)
    states = get_states(SURVEY_RESULT, **settings)
    assert (states["settings"], "adapters" in states) == ("problem", False)


def test_keys_are_examined(get_states: Callable[..., Any], tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    keys.write_text('{"sk-one": {"tenant": "a"}}')
    assert get_states(SURVEY_RESULT, api_keys=str(keys))["keys"] == "ok"
    keys.write_text('{"sk-one": "a"}')
    assert get_states(SURVEY_RESULT, api_keys=str(keys))["settings"] == "problem"


def test_adapters_are_examined(get_states: Callable[..., Any], tmp_path: Path) -> None:
    assert get_states(SURVEY_RESULT, adapter_root=str(tmp_path))["adapters"] == "ok"


@pytest.mark.parametrize(("program", "failed"), [
    ("import sys; sys.exit('one\\nno module named torch')", "no module named torch"),
    ("import sys; sys.exit(3)", "ended with exit code 3"),
    ("input()", "EOFError: EOF when reading a line"),
])
def test_last_line_of_a_failed_survey_is_reported(
        monkeypatch: pytest.MonkeyPatch, program: str, failed: str) -> None:
    monkeypatch.setattr(command, "SURVEY_COMMAND", (sys.executable, "-I", "-c", program))
    assert command.run_survey({}) == {"failed": failed}


def test_hanging_survey_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "SURVEY_COMMAND", (sys.executable, "-I", "-c", "import signal; signal.pause()"))
    monkeypatch.setattr(command, "SURVEY_TIMEOUT_SECONDS", 0.01)
    assert "did not load within" in command.run_survey({})["failed"]


@pytest.mark.slow
def test_doctor_command_examines_a_model(
        monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path_factory: pytest.TempPathFactory,
        ) -> None:
    folder = make_tiny_checkpoint(tmp_path_factory.getbasetemp(), "llama")
    monkeypatch.setattr("sys.argv", ["weft", "doctor", str(folder), "--port", "0", "--json"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    findings = {finding["subject"]: finding for finding in json.loads(capfd.readouterr().out)}
    assert ended.value.code == 0
    assert "LlamaForCausalLM" in findings["model"]["text"]
    assert findings["fits"]["state"] == "ok"
