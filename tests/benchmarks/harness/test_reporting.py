"""Tests of benchmarks/harness/reporting.py."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from benchmarks.harness import reporting


def test_file_name_has_date_hardware_and_question() -> None:
    name = reporting.make_file_name("2025-01-31", "AMD EPYC(TM) 9V, 2 cores", "qwen2.5 step")
    assert name == "2025-01-31-amd-epyc-tm-9v-2-cores-qwen2-5-step"


def test_hardware_names_the_cores() -> None:
    assert reporting.describe_hardware().endswith(f", {os.cpu_count()} cores")


def test_command_omits_local_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["--parts", "compat", "--folder", "/here", "--seeds", "5", "--models=/there", "a b"]
    monkeypatch.setattr(sys, "argv", ["study", *words])
    assert reporting.collect_run_metadata("weft study")["command"] == "weft study --parts compat --seeds 5 'a b'"


@pytest.mark.parametrize(("name", "expected"), [
    ("benchmarks.experiments.lora_step", "python -P -m benchmarks.experiments.lora_step"),
    ("benchmarks.gpu.__main__", "python -P -m benchmarks.gpu"),
    (None, "text-generation-benchmark")])
def test_command_is_shown_as_started(name: str | None, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    main = ModuleType("__main__")
    main.__spec__ = name and SimpleNamespace(name=name)  # type: ignore[assignment]  # only the name is used
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setattr(sys, "argv", ["/usr/bin/text-generation-benchmark", "--seconds", "2"])
    assert reporting.collect_run_metadata()["command"] == f"{expected} --seconds 2"


@pytest.mark.slow
def test_commit_shows_uncommitted_changes(tmp_path: Path) -> None:
    git = shutil.which("git")
    if git is None:
        pytest.skip("there is no git")
    (tmp_path / "file").write_text("before")
    author_options = ("-c", "user.name=a", "-c", "user.email=a@b")
    for words in (("init", "-q"), ("add", "file"), (*author_options, "commit", "-q", "-m", "first")):
        subprocess.run([git, *words], cwd=tmp_path, check=True)
    commit = reporting.read_git_commit(tmp_path)
    assert re.fullmatch("[0-9a-f]{7,}", commit)
    (tmp_path / "file").write_text("after")
    assert reporting.read_git_commit(tmp_path) == f"{commit}+"


def test_commit_is_empty_without_git_or_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert reporting.read_git_commit(tmp_path) == ""
    (tmp_path / ".git").mkdir()
    assert reporting.read_git_commit(tmp_path) == ""
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert reporting.read_git_commit() == ""
    monkeypatch.setattr(sys, "argv", ["step"])
    assert list(reporting.collect_run_metadata("weft bench")["versions"]) == ["weft", "Python", "torch"]


@pytest.mark.parametrize("should_save", [False, True])
def test_results_are_printed_and_saved_only_on_request(
        monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], should_save: bool) -> None:
    monkeypatch.setattr(reporting, "RESULTS_FOLDER", tmp_path / "results")
    reporting.report_results("router", "table", {"found": 3}, should_save=should_save)
    output = capsys.readouterr().out
    text, last = output.splitlines()
    record = json.loads(last)
    assert (text, record["found"], record["hardware"]) == ("table", 3, reporting.describe_hardware())
    assert {"date", "versions", "command"} < record.keys()
    paths = [*(tmp_path / "results").glob("*")]
    assert [path.read_text() for path in paths] == [output] * should_save
    assert all(path.name.endswith("-router.txt") for path in paths)


def test_json_is_saved_by_date_and_hardware(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(reporting, "RESULTS_FOLDER", tmp_path / "results")
    reporting.save_json("peers", {"ratio": {4: 1.2}})
    [path] = (tmp_path / "results").iterdir()
    assert path.name.startswith(reporting.today())
    assert path.name.endswith("-peers.json")
    record = json.loads(path.read_text())
    assert record["ratio"] == {"4": 1.2}
    assert {"date", "hardware", "versions", "command"} < record.keys()
