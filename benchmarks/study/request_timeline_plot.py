"""Plot of the requests of a run over time: which one ran in which slot when. Each policy has a panel, with the same
requests."""

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from benchmarks.bench.load.request_records import RequestRecord
from benchmarks.study.compared_policies import format_policy_label
from benchmarks.study.plot_style import label_axes, make_figure
from benchmarks.study.run_record_store import RunRecords

UNBATCHED_POLICIES = ("none", "nobatch")  # take much longer: only the beginning is shown
TIMELINE_POLICIES = ("none", "static", "pause", "mixed")
TIME_AXIS_MARGIN = 1.03
BAR_COLORS = "#c6dbef", "#6baed6", "#2171b5", "#9ecae1"  # neighbours differ in grey as well


class TimelineBar(NamedTuple):
    """Bar of a timeline: its row, and when it starts and ends."""

    slot: int
    start: float
    end: float


def assign_timeline_rows(intervals: Iterable[tuple[float, float]]) -> list[TimelineBar]:
    """Assign each request, in order of begin, the lowest free slot."""
    busy_slots: list[tuple[float, int]] = []
    free_slots: list[int] = []
    slot_stays = []
    for start, end in sorted(intervals):
        while busy_slots and busy_slots[0][0] <= start:
            heappush(free_slots, heappop(busy_slots)[1])
        slot = heappop(free_slots) if free_slots else len(busy_slots)
        heappush(busy_slots, (end, slot))
        slot_stays.append(TimelineBar(slot, start, end))
    return slot_stays


def list_streaming_intervals(records: Iterable[RequestRecord]) -> list[tuple[float, float]]:
    """Return the times of first and last token of each streamed request."""
    return [(record.times[0], record.times[-1]) for record in records if record.times]


def plot_timeline(all_records: Sequence[RunRecords]) -> Figure:
    """Plot the timelines of the first seed."""
    first_seed = min(run_records.run.seed for run_records in all_records)
    records_by_policy = {run_records.run.policy: run_records for run_records in all_records
                         if run_records.run.seed == first_seed}
    shown_records = [records_by_policy[policy] for policy in TIMELINE_POLICIES
                     if policy in records_by_policy] or list(records_by_policy.values())
    figure, axes = make_figure(len(shown_records), 1, 10.0, 1.0 + 1.7 * len(shown_records))
    ends = [max(record.ended for record in run_records.records) for run_records in shown_records]
    batching_ends = [end for run_records, end in zip(shown_records, ends, strict=True)
                     if run_records.run.policy not in UNBATCHED_POLICIES]
    time_limit = TIME_AXIS_MARGIN * max(batching_ends or ends)
    for panel, run_records, end in zip(axes, shown_records, ends, strict=True):
        draw_panel(panel, run_records)
        panel.set_xlim(0, time_limit)
        if end > time_limit:
            panel.annotate(f"until {end:.3g} s", (1.0, 1.0), xycoords="axes fraction", textcoords="offset points",
                           xytext=(0, 4), ha="right", fontsize=9)
    axes[-1].set_xlabel("time (s)")
    figure.suptitle(f"{shown_records[0].run.shape}, workload {shown_records[0].run.workload}, seed {first_seed}: a bar "
                    "is a request, from its first token to its last")
    return figure


def draw_panel(axes: Axes, run_records: RunRecords) -> None:
    for number, slot_stay in enumerate(assign_timeline_rows(list_streaming_intervals(run_records.records))):
        axes.barh(slot_stay.slot, slot_stay.end - slot_stay.start, left=slot_stay.start, height=0.86,
                  color=BAR_COLORS[number % len(BAR_COLORS)], edgecolor="black", linewidth=0.4)
    label_axes(axes, "", "slot", format_policy_label(run_records.run.policy))
    axes.set_ylim(max(3.6, *axes.get_ylim()), -0.6)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
