"""Tests of benchmarks/harness/results.py."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from benchmarks.harness import results


def test_results_are_named_by_date_hardware_and_question() -> None:
    name = results.file_name("2025-01-31", "AMD EPYC(TM) 9V, 2 cores", "qwen2.5 step")
    assert name == "2025-01-31-amd-epyc-tm-9v-2-cores-qwen2-5-step"


def test_hardware_names_the_cores() -> None:
    assert results.hardware().endswith(f", {os.cpu_count()} cores")


def test_where_results_and_models_lie_is_not_part_of_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["--parts", "compat", "--folder", "/here", "--seeds", "5", "--models=/there", "a b"]
    monkeypatch.setattr(sys, "argv", ["study", *words])
    assert results.made("weft study")["command"] == "weft study --parts compat --seeds 5 'a b'"


@pytest.mark.parametrize(("name", "told"), [
    ("benchmarks.questions.decode_step", "python -P -m benchmarks.questions.decode_step"),
    ("benchmarks.gpu.__main__", "python -P -m benchmarks.gpu"),
    (None, "text-generation-benchmark")])
def test_a_program_is_told_as_it_was_started(name: str | None, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    main = ModuleType("__main__")
    main.__spec__ = name and SimpleNamespace(name=name)  # type: ignore[assignment]  # only the name is used
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setattr(sys, "argv", ["/usr/bin/text-generation-benchmark", "--seconds", "2"])
    assert results.made()["command"] == f"{told} --seconds 2"


@pytest.mark.slow
def test_a_checkout_tells_its_commit_and_whether_something_was_changed(tmp_path: Path) -> None:
    git = shutil.which("git")
    if git is None:
        pytest.skip("there is no git")
    (tmp_path / "file").write_text("before")
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    for words in (("init", "-q"), ("add", "file"), (*who, "commit", "-q", "-m", "first")):
        subprocess.run([git, *words], cwd=tmp_path, check=True)
    commit = results.commit(tmp_path)
    assert re.fullmatch("[0-9a-f]{7,}", commit)
    (tmp_path / "file").write_text("after")
    assert results.commit(tmp_path) == f"{commit}+"


def test_where_there_is_no_checkout_or_no_git_no_commit_is_told(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert results.commit(tmp_path) == ""
    (tmp_path / ".git").mkdir()
    assert results.commit(tmp_path) == ""
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert results.commit() == ""
    monkeypatch.setattr(sys, "argv", ["step"])
    assert list(results.made("weft bench")["versions"]) == ["weft", "Python", "torch"]


@pytest.mark.parametrize("keep", [False, True])
def test_a_run_ends_with_what_it_found_and_how_and_keeps_it_only_if_asked(
        monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], keep: bool) -> None:
    monkeypatch.setattr(results, "RESULTS", tmp_path / "results")
    results.tell("router", "table", {"found": 3}, keep=keep)
    said = capsys.readouterr().out
    text, last = said.splitlines()
    told = json.loads(last)
    assert (text, told["found"], told["hardware"]) == ("table", 3, results.hardware())
    assert {"date", "versions", "command"} < told.keys()
    kept = [*(tmp_path / "results").glob("*")]
    assert [path.read_text() for path in kept] == [said] * keep
    assert all(path.name.endswith("-router.txt") for path in kept)
