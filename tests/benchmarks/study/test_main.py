import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cyclopts import App, CycloptsError
from support.fake_study import SCOPE, House

from benchmarks.harness.results import made
from benchmarks.study import __main__ as study
from benchmarks.study.__main__ import DEFAULT, QUICK, Settings, batching, folder_of, scope_of
from benchmarks.study.experiments import Experiments, Failed
from benchmarks.study.plan import Plan
from benchmarks.study.records import Raw
from benchmarks.study.shapes import simulated

EVERYTHING = Settings()


def parse(*arguments: str) -> Any:
    app = App(result_action="return_value")
    app.default(keep)
    return app(arguments, exit_on_error=False, print_error=False)


def keep(settings: Settings = EVERYTHING) -> Settings:
    return settings


def test_without_arguments_everything_is_measured_on_a_simulated_shard() -> None:
    settings = parse()
    assert settings == EVERYTHING
    assert scope_of(settings) == DEFAULT
    assert settings.shapes == ("simulated",)


@pytest.mark.parametrize("places", [["--folder", "/here"], ["--models=/there"], ["--models", "a b", "--folder=c"]])
def test_a_result_does_not_tell_where_things_lie_here(places: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["study", "batching", "--parts", "compat", *places, "--seeds", "5"])
    assert made("weft study")["command"] == "weft study batching --parts compat --seeds 5"


def test_parts_shapes_and_sizes_can_be_chosen() -> None:
    settings = parse("--parts", "compat", "sweep", "--shapes", "gpt2-medium", "--seeds", "3", "--windows", "2",
                     "--levels", "1", "4", "--users", "1", "8")
    assert (settings.parts, settings.shapes) == (("compat", "sweep"), ("gpt2-medium",))
    scope = scope_of(settings)
    assert (scope.seeds, scope.windows, scope.levels, scope.users) == (3, (2.0,), (1.0, 4.0), (1, 8))


@pytest.mark.parametrize("wrong", ["--parts=all", "--shapes=gpt5", "--seeds=0", "--levels=0", "--policies=best"])
def test_what_makes_no_sense_is_refused(wrong: str) -> None:
    with pytest.raises(CycloptsError, match=wrong.partition("=")[2]):
        parse(wrong)


def test_results_go_where_date_and_hardware_say() -> None:
    this = {"date": "2025-01-31", "hardware": "Some CPU, 2 cores"}
    assert folder_of(EVERYTHING, this) == Path("results/batching-2025-01-31-some-cpu-2-cores").resolve()
    assert folder_of(Settings(folder=Path("here")), this) == Path("here").resolve()


def test_a_quick_one_sets_how_much_is_measured() -> None:
    with pytest.raises(ValueError, match=r"^--quick sets how much is measured: leave out --seeds$"):
        scope_of(Settings(quick=True, seeds=2))
    with pytest.raises(ValueError, match="leave out --pace"):
        scope_of(Settings(quick=True, pace=3.0))


def test_without_matplotlib_nothing_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "find_spec", lambda _: None)
    with pytest.raises(ValueError, match=r"pip install 'weft\[bench\]'"):
        batching(Settings(folder=tmp_path))
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("fonts")
def test_what_was_measured_before_a_run_told_nothing_is_kept_and_told(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def measure(_: Settings, experiments: Experiments) -> None:
        House().experiments(experiments.folder).pace(Plan(simulated(1.0), SCOPE))
        raise Failed("users: every request failed")
    monkeypatch.setattr(study, "measure", measure)
    monkeypatch.setattr(sys, "argv", ["study", "batching", "--folder", str(tmp_path)])
    with pytest.raises(SystemExit, match=r"^benchmarks\.study: users: every request failed$"):
        study.main()
    assert (tmp_path / "summary.json").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("fonts")
def test_a_quick_study_leaves_records_summary_plots_and_a_page(
        tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "QUICK", replace(QUICK, seeds=1))
    settings = Settings(quick=True, parts=("compat",), folder=tmp_path)
    batching(settings)
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last["folder"] == str(tmp_path)
    told = json.loads((tmp_path / "summary.json").read_text())
    assert [one["command"] for one in told["made"]] == [told["command"]]
    assert told["continuous_latency_correlation"] == last["continuous_latency_correlation"]
    assert len(list((tmp_path / "raw" / "compat").iterdir())) == 3
    csv = (tmp_path / "csv" / "simulated-compat-seed0" / "data" / "token_data_dynamic.csv").read_text()
    lengths = told["shapes"]["simulated"]["compat"]["policies"]["dynamic"]["latency_by_tokens"]
    assert len(csv.splitlines()) <= len(lengths) <= QUICK.requests
    assert "study-all.png" in (tmp_path / "README.md").read_text()
    for taken in Raw(tmp_path).all():
        if taken.run.part == "compat":
            seconds = [record.told_seconds or 0.0 for record in taken.records]
            assert min(seconds) > 0
            assert sum(seconds) == pytest.approx(taken.stats["total-elapsed-time"], abs=1e-3)
