"""Tests of `weft doctor` as a whole: its subjects and its exit code."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.small_checkpoints import tiny_checkpoint

from launcher import cli
from launcher.doctor import command
from launcher.doctor.command import Order

FOUND = {"machine": {"torch": "2.13", "cuda": "", "instructions": [], "packs_bfloat16": True, "gpus": [], "cores": 2,
                     "processors": 2, "memory": 2**33, "memory_source": "that the system has available"}}


@pytest.fixture
def examined(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., dict[str, str]]:
    """Return a function that returns the state of every subject, given the findings of a child."""
    def run(found: dict[str, Any], **order: Any) -> dict[str, str]:
        monkeypatch.setattr(command, "survey", lambda _: found)
        order = {"port": 0, "model_id": "weft/simulated"} | order
        findings = command.examine(Order(**order), {"HF_HOME": str(tmp_path)})
        return {finding.subject: finding.state for finding in findings}
    return run


def test_it_looks_at_machine_installation_and_port(examined: Callable[..., Any]) -> None:
    assert [*examined(FOUND)] == [
        "python", "packages", "protobuf", "aiohttp", "torch", "gpu", "instructions", "cores", "memory", "shared memory",
        "model cache", "hub", "port"]


def test_a_torch_that_cannot_be_loaded_is_a_problem_and_the_rest_is_looked_at(examined: Callable[..., Any]) -> None:
    states = examined({"failed": "ModuleNotFoundError: No module named 'torch'"})
    assert (states["torch"], states["port"]) == ("problem", "ok")


def test_a_model_that_is_nowhere_is_a_problem(examined: Callable[..., Any]) -> None:
    assert examined(FOUND, model_id="/no/model")["model"] == "problem"


def test_a_model_that_is_not_on_this_machine_yet_is_no_problem(examined: Callable[..., Any]) -> None:
    assert examined(FOUND, model_id="org/name")["model"] == "warning"


@pytest.mark.parametrize(("program", "failed"), [
    ("import sys; sys.exit('one\\nno module named torch')", "no module named torch"),
    ("import sys; sys.exit(3)", "ended with exit code 3"),
    ("input()", "EOFError: EOF when reading a line"),
])
def test_of_a_child_that_fails_the_last_word_is_told(
        monkeypatch: pytest.MonkeyPatch, program: str, failed: str) -> None:
    monkeypatch.setattr(command, "SURVEY", (sys.executable, "-I", "-c", program))
    assert command.survey({}) == {"failed": failed}


def test_a_child_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "SURVEY", (sys.executable, "-I", "-c", "import signal; signal.pause()"))
    monkeypatch.setattr(command, "PATIENCE", 0.01)
    assert "did not load within" in command.survey({})["failed"]


@pytest.mark.slow
def test_from_the_command_line_a_model_is_looked_into(
        monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path_factory: pytest.TempPathFactory,
        ) -> None:
    folder = tiny_checkpoint(tmp_path_factory.getbasetemp(), "llama")
    monkeypatch.setattr("sys.argv", ["weft", "doctor", str(folder), "--port", "0", "--json"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    found = {finding["subject"]: finding for finding in json.loads(capfd.readouterr().out)}
    assert ended.value.code == 0
    assert "LlamaForCausalLM" in found["model"]["text"]
    assert found["fits"]["state"] == "ok"
