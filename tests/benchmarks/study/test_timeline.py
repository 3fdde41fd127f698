from array import array
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from benchmarks.bench.load.record import Ask, Record
from benchmarks.study.plan import Run
from benchmarks.study.records import Taken
from benchmarks.study.timeline import ROOM, timeline


def taken(policy: str, seed: int, *stays: tuple[float, float]) -> Taken:
    records = [Record(Ask(0, "", 2), 0.0, end, array("d", [begin, end]), 2) for begin, end in stays]
    return Taken(Run("workload", "simulated", "figure", policy, seed), {}, {}, records)


@pytest.fixture
def drawings(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    found: list[Figure] = []
    monkeypatch.setattr("benchmarks.study.timeline.write", lambda drawn, path: found.append(drawn) or path)
    return found


def test_the_first_seed_is_shown_with_a_bar_for_every_request(drawings: list[Figure]) -> None:
    takens = [taken("mixed", 0, (0.0, 2.0), (1.0, 3.0)), taken("none", 0, (0.0, 2.0)), taken("mixed", 1, (0.0, 9.0))]
    timeline(Path("x"), takens)
    [none, mixed] = drawings[0].axes
    assert [axes.get_title() for axes in (none, mixed)] == ["no batching", "continuous, mixed steps"]
    assert (len(none.patches), len(mixed.patches)) == (1, 2)
    assert none.get_xlim() == mixed.get_xlim() == pytest.approx((0.0, 3.0 * ROOM))


def test_no_batching_is_cut_where_the_others_end_and_says_when_it_does(drawings: list[Figure]) -> None:
    """The run without batching took so long that the bars of the other policies were too small to see."""
    timeline(Path("x"), [taken("mixed", 0, (0.0, 2.0)), taken("none", 0, (0.0, 2.0), (2.0, 100.0))])
    [none, mixed] = drawings[0].axes
    assert none.get_xlim()[1] == pytest.approx(2.0 * ROOM)
    assert [[words.get_text() for words in axes.texts] for axes in (none, mixed)] == [["until 100 s"], []]


def test_policies_that_were_not_measured_have_no_panel(drawings: list[Figure]) -> None:
    timeline(Path("x"), [taken("static-4", 0, (0.0, 2.0))])
    assert [axes.get_title() for axes in drawings[0].axes] == ["static, window 4 of a request"]
