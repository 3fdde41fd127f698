import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cyclopts import App, CycloptsError
from support.fake_study import SMALL_SCOPE, FakeStudyServers

from benchmarks.harness.reporting import collect_run_metadata
from benchmarks.study import __main__ as study
from benchmarks.study.__main__ import (
    DEFAULT_SCOPE,
    QUICK_SCOPE,
    StudySettings,
    choose_results_folder,
    make_scope,
    run_batching_study,
)
from benchmarks.study.model_settings import make_simulated_model
from benchmarks.study.plan import SoloCalibration, StudyPlan
from benchmarks.study.run_record_store import RunRecordStore
from benchmarks.study.runner import AllRequestsFailed, StudyRunner

DEFAULT_SETTINGS = StudySettings()


def parse_settings(*arguments: str) -> Any:
    app = App(result_action="return_value")
    app.default(return_settings)
    return app(arguments, exit_on_error=False, print_error=False)


def return_settings(settings: StudySettings = DEFAULT_SETTINGS) -> StudySettings:
    return settings


def test_defaults_measure_everything_on_a_simulated_shard() -> None:
    settings = parse_settings()
    assert settings == DEFAULT_SETTINGS
    assert make_scope(settings) == DEFAULT_SCOPE
    assert settings.shapes == ("simulated",)


@pytest.mark.parametrize("folder_flags",
                         [["--folder", "/here"], ["--models=/there"], ["--models", "a b", "--folder=c"]])
def test_command_omits_local_folders(folder_flags: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["study", "batching", "--parts", "compat", *folder_flags, "--seeds", "5"])
    assert collect_run_metadata("weft study")["command"] == "weft study batching --parts compat --seeds 5"


def test_parts_shapes_and_sizes_can_be_chosen() -> None:
    settings = parse_settings("--parts", "compat", "sweep", "--shapes", "gpt2-medium", "--seeds", "3", "--windows", "2",
                              "--levels", "1", "4", "--users", "1", "8")
    assert (settings.parts, settings.shapes) == (("compat", "sweep"), ("gpt2-medium",))
    scope = make_scope(settings)
    assert (scope.seeds, scope.windows, scope.levels, scope.users) == (3, (2.0,), (1.0, 4.0), (1, 8))


@pytest.mark.parametrize("wrong", ["--parts=all", "--shapes=gpt5", "--seeds=0", "--levels=0", "--policies=best"])
def test_invalid_arguments_are_rejected(wrong: str) -> None:
    with pytest.raises(CycloptsError, match=wrong.partition("=")[2]):
        parse_settings(wrong)


def test_results_folder_is_named_by_date_and_hardware() -> None:
    metadata = {"date": "2025-01-31", "hardware": "Some CPU, 2 cores"}
    assert (choose_results_folder(DEFAULT_SETTINGS, metadata)
            == Path("results/batching-2025-01-31-some-cpu-2-cores").resolve())
    assert choose_results_folder(StudySettings(folder=Path("here")), metadata) == Path("here").resolve()


def test_quick_excludes_size_settings() -> None:
    with pytest.raises(ValueError, match=r"^--quick sets how much is measured: leave out --seeds$"):
        make_scope(StudySettings(quick=True, seeds=2))
    with pytest.raises(ValueError, match="leave out --pace"):
        make_scope(StudySettings(quick=True, pace=3.0))


def test_flags_that_exclude_each_other_end_with_exit_code_2(
        monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["study", "batching", "--quick", "--seeds", "2"])
    with pytest.raises(SystemExit) as ended:
        study.main()
    assert (ended.value.code, capsys.readouterr().err) == (
        2, "benchmarks.study: --quick sets how much is measured: leave out --seeds\n")


def test_missing_matplotlib_is_reported_before_measuring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "find_spec", lambda _: None)
    with pytest.raises(ValueError, match=r"pip install 'weft\[bench\]'"):
        run_batching_study(StudySettings(folder=tmp_path))
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("fonts")
def test_results_measured_before_a_failure_are_kept_and_reported(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail_after_speed(_: StudySettings, experiments: StudyRunner) -> None:
        FakeStudyServers().make_study_runner(experiments.folder).measure_server_speed(
            StudyPlan(make_simulated_model(1.0), SMALL_SCOPE))
        raise AllRequestsFailed("users: every request failed")
    monkeypatch.setattr(study, "measure_parts", fail_after_speed)
    monkeypatch.setattr(sys, "argv", ["study", "batching", "--folder", str(tmp_path)])
    with pytest.raises(SystemExit, match=r"^benchmarks\.study: users: every request failed$"):
        study.main()
    assert (tmp_path / "summary.json").exists()


def measure_speed_of_fake_servers(runner: StudyRunner, plan: StudyPlan, parts: Sequence[str]) -> SoloCalibration:
    fake = FakeStudyServers().make_study_runner(runner.folder)
    return measure_server_speed(replace(fake, metadata=runner.metadata), plan, parts)


measure_server_speed = StudyRunner.measure_server_speed


@pytest.mark.slow
@pytest.mark.usefixtures("fonts")
@pytest.mark.parametrize("measure_speed", [
    measure_speed_of_fake_servers, pytest.param(measure_server_speed, marks=pytest.mark.long)])
def test_quick_study_writes_records_summary_plots_and_a_page(
        measure_speed: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch) -> None:
    """The three servers that show how fast weft is are fake ones, unless the test is long."""
    monkeypatch.setattr(StudyRunner, "measure_server_speed", measure_speed)
    monkeypatch.setattr(study, "QUICK_SCOPE", replace(QUICK_SCOPE, seeds=1))
    settings = StudySettings(quick=True, parts=("compat",), folder=tmp_path)
    run_batching_study(settings)
    printed_summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert printed_summary["folder"] == str(tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert [one["command"] for one in summary["made"]] == [summary["command"]]
    assert summary["continuous_latency_correlation"] == printed_summary["continuous_latency_correlation"]
    assert len(list((tmp_path / "raw" / "compat").iterdir())) == 3
    csv = (tmp_path / "csv" / "simulated-compat-seed0" / "data" / "token_data_dynamic.csv").read_text()
    lengths = summary["shapes"]["simulated"]["compat"]["policies"]["dynamic"]["latency_by_tokens"]
    assert len(csv.splitlines()) <= len(lengths) <= QUICK_SCOPE.requests
    assert "study-all.png" in (tmp_path / "README.md").read_text()
    for run_records in RunRecordStore(tmp_path).read_all():
        if run_records.run.part == "compat":
            seconds = [record.told_seconds or 0.0 for record in run_records.records]
            assert min(seconds) > 0
            assert sum(seconds) == pytest.approx(run_records.server_stats["total-elapsed-time"], abs=1e-3)
