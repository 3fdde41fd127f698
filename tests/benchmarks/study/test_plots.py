from pathlib import Path

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from support.fake_study import SCOPE, study

from benchmarks.study import plots
from benchmarks.study.arithmetic import Band
from benchmarks.study.figures import summary
from benchmarks.study.policies import CACHED, VARIANTS, windows
from benchmarks.study.style import LEAST, LOOKS, curve, ends_of, logarithmic, look_of, shade, sheet

pytestmark = pytest.mark.usefixtures("fonts")
SHOWN = (*CACHED, *VARIANTS, *windows((0.25, 1.0, 4.0)))


@pytest.fixture
def drawings(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Collect the figures instead of writing them to files."""
    found: list[Figure] = []

    def keep(drawn: Figure, path: Path) -> Path:
        found.append(drawn)
        return path
    for module in ("plots", "timeline"):
        monkeypatch.setattr(f"benchmarks.study.{module}.write", keep)
    return found


@pytest.mark.slow
def test_axes_have_names_and_lines_are_told_apart(drawings: list[Figure], tmp_path: Path) -> None:
    takens = study(SCOPE)
    paths = plots.draw(tmp_path, "simulated", summary(takens)["shapes"]["simulated"], takens)
    assert len(paths) == len(set(paths)) == len(drawings) == 10
    for drawing in drawings:
        assert all(axes.get_ylabel() for axes in drawing.axes)
        assert any(axes.get_xlabel() or axes.get_xticklabels() for axes in drawing.axes)
        legends = [*drawing.legends, *(axes.get_legend() for axes in drawing.axes)]
        assert any(legends) or all(axes.patches for axes in drawing.axes)


@pytest.mark.slow
def test_the_studys_plots_say_what_they_said_there(drawings: list[Figure], tmp_path: Path) -> None:
    takens = study(SCOPE)
    plots.draw(tmp_path, "simulated", summary(takens)["shapes"]["simulated"], takens)
    for drawing, lines in zip(drawings[:4], (3, 1, 1, 1), strict=True):
        [axes] = drawing.axes
        assert (axes.get_xlabel(), axes.get_ylabel()) == ("# tokens requested", "request latency (s)")
        assert (axes.get_title(), len(axes.lines)) == ("Latency vs Requested Tokens", lines)


@pytest.mark.slow
def test_only_lines_that_end_since_a_policy_is_full_are_marked(drawings: list[Figure], tmp_path: Path) -> None:
    told = summary(study(SCOPE))["shapes"]["simulated"]["sweep"]
    plots.rates(tmp_path, told, "simulated")
    shown = [policy for policy in told["policies"] if policy not in VARIANTS]
    full = {policy for policy in shown if told["saturation"][policy]["is_full"]}
    assert full
    assert "mixed" not in full
    for axes in drawings[0].axes:
        marks = [line for line in axes.lines if line.get_markerfacecolor() == "none"]
        assert {look_of(policy, shown).marker for policy in full} == {line.get_marker() for line in marks}
    assert "large open marker" in drawings[0].get_suptitle()


def band(mean: float, reach: float) -> Band:
    return Band(mean, mean - reach, mean + reach, (mean,) * 3)


def test_a_band_breaks_where_too_few_seeds_know_it() -> None:
    _, [axes] = sheet()
    wide = {1.0: band(2, 1), 2.0: band(2, 1), 3.0: Band.of([1.0, 2.0]), 4.0: band(2, 1), 5.0: band(2, 1)}
    shade(axes, wide, "mixed", ["mixed"])
    assert len(axes.collections[0].get_paths()) == 2


def test_a_band_that_reaches_below_zero_ends_above_it() -> None:
    assert ends_of(band(2, 3)) == (2 * LEAST, 5)
    assert ends_of(band(2, 1)) == (1, 3)


def test_users_stand_where_they_are_interpolated(drawings: list[Figure], tmp_path: Path) -> None:
    one = {1.0: {"by_alone": band(1, 0)}, 8.0: {"by_alone": band(3, 0)}}
    plots.users(tmp_path, {"policies": {"mixed": one}}, "simulated")
    assert drawings[0].axes[0].get_xscale() == "linear"


def test_policies_differ_in_more_than_colour() -> None:
    """Variants of one setting may share a look: their values are written beside the lines."""
    looks = {look_of(policy, SHOWN)[1:3] for policy in SHOWN if policy not in VARIANTS}
    assert len(looks) == len(SHOWN) - len(VARIANTS)
    assert not looks & {look_of(policy, SHOWN)[1:3] for policy in VARIANTS}
    assert len({look.hatch for name, look in LOOKS.items() if name in CACHED}) == len(CACHED)


def test_a_window_looks_the_same_beside_whichever_others() -> None:
    alone, beside = (look_of("static-1", shown) for shown in (["static-1"], ["static-0.25", "static-1", "static-4"]))
    assert alone == beside
    unusual = [look_of(policy, ["static-1", "static-2", "static-3"]) for policy in ("static-1", "static-2", "static-3")]
    assert len(set(unusual)) == 3


def test_a_logarithmic_axis_shows_all_lines_and_plain_numbers() -> None:
    _, [axes] = sheet()
    curve(axes, [(0.5, 3.0), (20.0, 400.0)], "mixed", ["mixed"])
    logarithmic(axes, "x", "y")
    assert axes.get_xlim() == pytest.approx((0.5 / 1.4, 28.0))
    assert axes.yaxis.get_major_formatter()(200.0, 0) == "200"


def test_a_plot_is_a_file_in_a_folder_that_is_made(tmp_path: Path) -> None:
    drawing, [axes] = sheet()
    assert isinstance(axes, Axes)
    path = plots.write(drawing, tmp_path / "plots" / "one.png")
    assert path.read_bytes().startswith(b"\x89PNG")
