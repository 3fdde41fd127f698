"""Tests of benchmarks/saved.py."""

import os
from pathlib import Path

import pytest

from benchmarks import saved


def test_results_are_named_by_date_hardware_and_question() -> None:
    name = saved.file_name("2025-01-31", "AMD EPYC(TM) 9V, 2 cores", "qwen2.5 step")
    assert name == "2025-01-31-amd-epyc-tm-9v-2-cores-qwen2-5-step"


def test_hardware_names_the_cores() -> None:
    assert saved.hardware().endswith(f", {os.cpu_count()} cores")


def test_a_result_is_kept_as_it_was_printed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(saved, "RESULTS", tmp_path / "results")
    saved.save("2025-01-31", "router", "figures\n")
    [path] = (tmp_path / "results").iterdir()
    assert path.name.endswith("-router.txt")
    assert path.read_text() == "figures\n"


@pytest.mark.parametrize("keep", [False, True])
def test_a_run_ends_with_what_it_found_and_keeps_it_only_if_asked(
        monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], keep: bool) -> None:
    monkeypatch.setattr(saved, "RESULTS", tmp_path / "results")
    saved.tell(saved.today(), "router", "table\n{}", keep=keep)
    assert capsys.readouterr().out == "table\n{}\n"
    assert [path.read_text() for path in (tmp_path / "results").glob("*")] == ["table\n{}\n"] * keep
