from pathlib import Path

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from support.fake_study import SMALL_SCOPE, run_fake_study

from benchmarks.study import plots
from benchmarks.study.compared_policies import CACHE_POLICIES, MIXED_VARIANTS, make_window_policies
from benchmarks.study.plot_style import (
    MIN_BAND_SHARE,
    POLICY_STYLES,
    draw_bands,
    draw_curve,
    get_band_ends,
    get_policy_style,
    make_axes_logarithmic,
    make_figure,
)
from benchmarks.study.statistics import ConfidenceBand
from benchmarks.study.study_summary import summarize_study

pytestmark = pytest.mark.usefixtures("fonts")
SHOWN_POLICIES = (*CACHE_POLICIES, *MIXED_VARIANTS, *make_window_policies((0.25, 1.0, 4.0)))


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Collect the figures instead of writing them to files."""
    saved_figures: list[Figure] = []

    def collect(figure: Figure, path: Path, caption: str) -> Path:
        assert caption == "machine, date"
        saved_figures.append(figure)
        return path
    monkeypatch.setattr("benchmarks.study.plots.save_figure", collect)
    return saved_figures


@pytest.mark.slow
def test_axes_are_labelled_and_lines_distinguishable(figures: list[Figure], tmp_path: Path) -> None:
    all_records = run_fake_study(SMALL_SCOPE)
    paths = plots.draw_plots(tmp_path, "simulated", summarize_study(all_records)["shapes"]["simulated"], all_records,
                             "machine, date")
    assert len(paths) == len(set(paths)) == len(figures) == 10
    for figure in figures:
        assert all(axes.get_ylabel() for axes in figure.axes)
        assert any(axes.get_xlabel() or axes.get_xticklabels() for axes in figure.axes)
        legends = [*figure.legends, *(axes.get_legend() for axes in figure.axes)]
        assert any(legends) or all(axes.patches for axes in figure.axes)


@pytest.mark.slow
def test_study_plots_have_the_original_labels(figures: list[Figure], tmp_path: Path) -> None:
    all_records = run_fake_study(SMALL_SCOPE)
    plots.draw_plots(tmp_path, "simulated", summarize_study(all_records)["shapes"]["simulated"], all_records,
                             "machine, date")
    for figure, lines in zip(figures[:4], (3, 1, 1, 1), strict=True):
        [axes] = figure.axes
        assert (axes.get_xlabel(), axes.get_ylabel()) == ("# tokens requested", "request latency (s)")
        assert (axes.get_title(), len(axes.lines)) == ("Latency vs Requested Tokens", lines)


@pytest.mark.slow
def test_only_lines_of_saturated_policies_are_marked() -> None:
    sweep_figures = summarize_study(run_fake_study(SMALL_SCOPE))["shapes"]["simulated"]["sweep"]
    figure = plots.plot_arrival_rates(sweep_figures, "simulated")
    shown_policies = [policy for policy in sweep_figures["policies"] if policy not in MIXED_VARIANTS]
    full = {policy for policy in shown_policies if sweep_figures["saturation"][policy]["is_full"]}
    assert full
    assert "mixed" not in full
    for axes in figure.axes:
        marks = [line for line in axes.lines if line.get_markerfacecolor() == "none"]
        assert {get_policy_style(policy, shown_policies).marker
                for policy in full} == {line.get_marker() for line in marks}
    assert "large open marker" in figure.get_suptitle()


def make_band(mean: float, half_width: float) -> ConfidenceBand:
    return ConfidenceBand(mean, mean - half_width, mean + half_width, (mean,) * 3)


def test_band_breaks_where_too_few_seeds_have_values() -> None:
    _, [axes] = make_figure()
    bands = {1.0: make_band(2, 1), 2.0: make_band(2, 1), 3.0: ConfidenceBand.from_values([1.0, 2.0]),
             4.0: make_band(2, 1), 5.0: make_band(2, 1)}
    draw_bands(axes, bands, "mixed", ["mixed"])
    assert len(axes.collections[0].get_paths()) == 2


def test_band_reaching_below_zero_ends_above_it() -> None:
    assert get_band_ends(make_band(2, 3)) == (2 * MIN_BAND_SHARE, 5)
    assert get_band_ends(make_band(2, 1)) == (1, 3)


def test_users_axis_is_linear_where_users_are_interpolated() -> None:
    one = {1.0: {"by_alone": make_band(1, 0)}, 8.0: {"by_alone": make_band(3, 0)}}
    figure = plots.plot_users({"policies": {"mixed": one}}, "simulated")
    assert figure.axes[0].get_xscale() == "linear"


def test_policies_differ_in_more_than_color() -> None:
    """Variants of one setting may share a look: their values are written beside the lines."""
    styles = {get_policy_style(policy, SHOWN_POLICIES)[1:3] for policy in SHOWN_POLICIES
              if policy not in MIXED_VARIANTS}
    assert len(styles) == len(SHOWN_POLICIES) - len(MIXED_VARIANTS)
    assert not styles & {get_policy_style(policy, SHOWN_POLICIES)[1:3] for policy in MIXED_VARIANTS}
    assert len({style.hatch for name, style in POLICY_STYLES.items() if name in CACHE_POLICIES}) == len(CACHE_POLICIES)


def test_window_style_does_not_depend_on_other_windows() -> None:
    alone, beside = (get_policy_style("static-1", shown)
                     for shown in (["static-1"], ["static-0.25", "static-1", "static-4"]))
    assert alone == beside
    unusual = [get_policy_style(policy, ["static-1", "static-2", "static-3"])
               for policy in ("static-1", "static-2", "static-3")]
    assert len(set(unusual)) == 3


def test_logarithmic_axis_shows_all_lines_and_plain_numbers() -> None:
    _, [axes] = make_figure()
    draw_curve(axes, [(0.5, 3.0), (20.0, 400.0)], "mixed", ["mixed"])
    make_axes_logarithmic(axes, "x", "y")
    assert axes.get_xlim() == pytest.approx((0.5 / 1.4, 28.0))
    assert axes.yaxis.get_major_formatter()(200.0, 0) == "200"


def test_plot_file_is_written_into_a_new_folder(tmp_path: Path) -> None:
    figure, [axes] = make_figure()
    assert isinstance(axes, Axes)
    path = plots.save_figure(figure, tmp_path / "plots" / "one.png", "machine, date")
    assert figure.get_supxlabel() == "machine, date"
    assert path.read_bytes().startswith(b"\x89PNG")
