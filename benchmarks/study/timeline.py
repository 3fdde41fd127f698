"""Timeline of a batch: which request ran in which slot when, with a panel for each policy with the same requests."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from benchmarks.study.policies import words
from benchmarks.study.records import Taken
from benchmarks.study.seats import seats, stays
from benchmarks.study.style import name_axes, sheet, write

ALONE = ("none", "nobatch")  # take much longer: only the beginning is shown
SHOWN = ("none", "static", "pause", "mixed")
ROOM = 1.03
GREYS = "#c6dbef", "#6baed6", "#2171b5", "#9ecae1"  # neighbours differ in grey as well


def timeline(path: Path, takens: Sequence[Taken]) -> Path:
    """Plot the timelines of the first seed."""
    first = min(taken.run.seed for taken in takens)
    found = {taken.run.policy: taken for taken in takens if taken.run.seed == first}
    shown = [found[policy] for policy in SHOWN if policy in found] or list(found.values())
    drawing, axes = sheet(len(shown), 1, 10.0, 1.0 + 1.7 * len(shown))
    ends = [max(record.ended for record in taken.records) for taken in shown]
    batching = [end for taken, end in zip(shown, ends, strict=True) if taken.run.policy not in ALONE]
    last = ROOM * max(batching or ends)
    for place, taken, end in zip(axes, shown, ends, strict=True):
        panel(place, taken)
        place.set_xlim(0, last)
        if end > last:
            place.annotate(f"until {end:.3g} s", (1.0, 1.0), xycoords="axes fraction", textcoords="offset points",
                           xytext=(0, 4), ha="right", fontsize=9)
    axes[-1].set_xlabel("time (s)")
    drawing.suptitle(f"{shown[0].run.shape}, workload {shown[0].run.workload}, seed {first}: a bar is a request, from "
                     "its first token to its last")
    return write(drawing, path)


def panel(axes: Axes, taken: Taken) -> None:
    for number, seat in enumerate(seats(stays(taken.records))):
        axes.barh(seat.slot, seat.end - seat.begin, left=seat.begin, height=0.86, color=GREYS[number % len(GREYS)],
                  edgecolor="black", linewidth=0.4)
    name_axes(axes, "", "slot", words(taken.run.policy))
    axes.set_ylim(max(3.6, *axes.get_ylim()), -0.6)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
