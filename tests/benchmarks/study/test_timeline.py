from array import array
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from benchmarks.bench.load.request_records import PlannedRequest, RequestRecord
from benchmarks.study.plan import StudyRun
from benchmarks.study.records import RunRecords
from benchmarks.study.timeline import TIME_AXIS_MARGIN, plot_timeline


def make_run_records(policy: str, seed: int, *stays: tuple[float, float]) -> RunRecords:
    records = [RequestRecord(PlannedRequest(0, "", 2), 0.0, end, array("d", [begin, end]), 2) for begin, end in stays]
    return RunRecords(StudyRun("workload", "simulated", "figure", policy, seed), {}, {}, records)


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    saved_figures: list[Figure] = []
    monkeypatch.setattr("benchmarks.study.timeline.save_figure",
                        lambda figure, path: saved_figures.append(figure) or path)
    return saved_figures


def test_first_seed_is_drawn_with_a_bar_per_request(figures: list[Figure]) -> None:
    all_records = [make_run_records("mixed", 0, (0.0, 2.0), (1.0, 3.0)), make_run_records("none", 0, (0.0, 2.0)),
                   make_run_records("mixed", 1, (0.0, 9.0))]
    plot_timeline(Path("x"), all_records)
    [none, mixed] = figures[0].axes
    assert [axes.get_title() for axes in (none, mixed)] == ["no batching", "continuous, mixed steps"]
    assert (len(none.patches), len(mixed.patches)) == (1, 2)
    assert none.get_xlim() == mixed.get_xlim() == pytest.approx((0.0, 3.0 * TIME_AXIS_MARGIN))


def test_panel_without_batching_is_cut_and_shows_its_end(figures: list[Figure]) -> None:
    """The run without batching took so long that the bars of the other policies were too small to see."""
    plot_timeline(Path("x"),
                  [make_run_records("mixed", 0, (0.0, 2.0)), make_run_records("none", 0, (0.0, 2.0), (2.0, 100.0))])
    [none, mixed] = figures[0].axes
    assert none.get_xlim()[1] == pytest.approx(2.0 * TIME_AXIS_MARGIN)
    assert [[words.get_text() for words in axes.texts] for axes in (none, mixed)] == [["until 100 s"], []]


def test_unmeasured_policies_have_no_panel(figures: list[Figure]) -> None:
    plot_timeline(Path("x"), [make_run_records("static-4", 0, (0.0, 2.0))])
    assert [axes.get_title() for axes in figures[0].axes] == ["static, window 4 of a request"]
