from array import array
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.bench.load.request_records import PlannedRequest, RequestRecord
from benchmarks.study.plan import StudyRun
from benchmarks.study.request_timeline_plot import (
    TIME_AXIS_MARGIN,
    assign_timeline_rows,
    list_streaming_intervals,
    plot_timeline,
)
from benchmarks.study.run_record_store import RunRecords

RANDOM_STAYS = st.lists(st.tuples(st.integers(0, 50),
                                  st.integers(1, 20)).map(lambda stay: (stay[0], stay[0] + stay[1])))


def make_run_records(policy: str, seed: int, *stays: tuple[float, float]) -> RunRecords:
    records = [RequestRecord(PlannedRequest(0, "", 2), 0.0, end, array("d", [begin, end]), 2) for begin, end in stays]
    return RunRecords(StudyRun("workload", "simulated", "figure", policy, seed), {}, {}, records)


def test_first_seed_is_drawn_with_a_bar_per_request() -> None:
    all_records = [make_run_records("mixed", 0, (0.0, 2.0), (1.0, 3.0)), make_run_records("none", 0, (0.0, 2.0)),
                   make_run_records("mixed", 1, (0.0, 9.0))]
    [none, mixed] = plot_timeline(all_records).axes
    assert [axes.get_title() for axes in (none, mixed)] == ["no batching", "continuous, mixed steps"]
    assert (len(none.patches), len(mixed.patches)) == (1, 2)
    assert none.get_xlim() == mixed.get_xlim() == pytest.approx((0.0, 3.0 * TIME_AXIS_MARGIN))


def test_panel_without_batching_is_cut_and_shows_its_end() -> None:
    """The run without batching took so long that the bars of the other policies were too small to see."""
    figure = plot_timeline([make_run_records("mixed", 0, (0.0, 2.0)),
                            make_run_records("none", 0, (0.0, 2.0), (2.0, 100.0))])
    [none, mixed] = figure.axes
    assert none.get_xlim()[1] == pytest.approx(2.0 * TIME_AXIS_MARGIN)
    assert [[words.get_text() for words in axes.texts] for axes in (none, mixed)] == [["until 100 s"], []]


def test_unmeasured_policies_have_no_panel() -> None:
    figure = plot_timeline([make_run_records("static-4", 0, (0.0, 2.0))])
    assert [axes.get_title() for axes in figure.axes] == ["static, window 4 of a request"]


@given(RANDOM_STAYS)
def test_stays_in_a_slot_do_not_overlap_and_slots_are_minimal(stays: list[tuple[float, float]]) -> None:
    rows = assign_timeline_rows(stays)
    assert sorted((row.start, row.end) for row in rows) == sorted(stays)
    for one, other in combinations(rows, 2):
        assert one.slot != other.slot or one.end <= other.start or other.end <= one.start
    max_overlap = max((sum(begin <= at < end for begin, end in stays) for at, _ in stays), default=0)
    assert len({row.slot for row in rows}) == max_overlap


def test_stay_is_from_the_first_to_the_last_token() -> None:
    streamed = RequestRecord(PlannedRequest(0, "", 2), 0.0, 3.0, array("d", [1.0, 2.0]))
    assert list_streaming_intervals([streamed, RequestRecord(PlannedRequest(0, "", 1), 0.0, 3.0)]) == [(1.0, 2.0)]
