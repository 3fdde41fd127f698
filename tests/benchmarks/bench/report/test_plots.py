"""Tests of the plots. Their legibility was checked by eye."""

import re
import sys
from collections.abc import Callable, Sequence
from xml.etree import ElementTree

import pytest
from support.fake_bench_results import (
    make_bench_result,
    make_rejected_record,
    make_sample_result,
    make_streamed_record,
    make_unstreamed_record,
)

from benchmarks.bench.report import plots
from benchmarks.bench.report.result import BenchResult

ALL_PLOTS = (plots.plot_time_to_first_token, plots.plot_inter_token_times, plots.plot_latency,
             plots.plot_latency_by_tokens, plots.plot_throughput, plots.plot_requests_in_flight,
             plots.plot_latency_over_time)
PlotFunction = Callable[[Sequence[BenchResult]], str]
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("fonts")]


def get_svg_texts(svg: str) -> set[str]:
    return {"".join(part.itertext()) for part in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")}


@pytest.mark.parametrize(("plot", "right", "up"), [
    (plots.plot_time_to_first_token, "time to the first token, ms", "answers, %"),
    (plots.plot_inter_token_times, "time between tokens, ms", "pauses, %"),
    (plots.plot_latency, "time to the end, s", "answers, %"),
    (plots.plot_latency_by_tokens, "tokens asked for", "time to the end, s"),
    (plots.plot_throughput, "time, s", "tokens/s, means of 0.1 s"),
    (plots.plot_requests_in_flight, "time, s", "requests"),
    (plots.plot_latency_over_time, "time at which it was sent, s", "time to the end, s")])
def test_axes_and_runs_are_labelled(plot: PlotFunction, right: str, up: str) -> None:
    assert {right, up, "A", "B"} <= get_svg_texts(plot([make_sample_result("A"), make_sample_result("B", gap=0.02)]))


@pytest.mark.parametrize("plot", ALL_PLOTS)
def test_same_results_give_the_same_bytes(plot: PlotFunction) -> None:
    results = [make_sample_result("A"), make_sample_result("B", gap=0.02)]
    assert plot(results) == plot(results)


@pytest.mark.parametrize("plot", ALL_PLOTS)
def test_plot_has_no_external_references(plot: PlotFunction) -> None:
    svg = plot([make_sample_result()])
    assert svg.startswith("<svg role=")
    assert set(re.findall(r'(?:href="|url\()(.)', svg)) == {"#"}


def test_element_ids_are_unique_across_plots() -> None:
    names = [name for plot in ALL_PLOTS
             for name in re.findall(r' id="([^"]*)"', plot([make_sample_result("A"), make_sample_result("B")]))]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("plot", [plots.plot_time_to_first_token, plots.plot_inter_token_times])
def test_unstreamed_run_has_no_token_plot(plot: PlotFunction) -> None:
    assert plot([make_bench_result([make_unstreamed_record()])]) == ""
    assert {"A", "B"} <= get_svg_texts(
        plot([make_sample_result("A"), make_bench_result([make_unstreamed_record()], "B")]))


@pytest.mark.parametrize("plot", ALL_PLOTS)
def test_run_with_only_failures_can_be_drawn(plot: PlotFunction) -> None:
    assert plot([make_bench_result([make_rejected_record()])]).startswith("<svg") == (
        plot is plots.plot_requests_in_flight)
    assert plot([make_bench_result([])]).startswith("<svg") == (plot is plots.plot_requests_in_flight)


def test_runs_of_one_name_share_a_style_and_a_label() -> None:
    first, second, third, fourth = plots.iter_series_styles(["A", "B", "A", "B"])
    assert first | {"label": ""} == third | {"label": ""}
    assert [first["label"], second["label"], third["label"], fourth["label"]] == ["A", "B", "_", "_"]
    assert all(first[name] != second[name] for name in ("color", "linestyle", "marker"))


def test_wide_range_has_logarithmic_ticks() -> None:
    records = [*[make_streamed_record(sent_at=number / 10, first_token_seconds=0.01) for number in range(50)],
               make_streamed_record(sent_at=6.0, first_token_seconds=1.0)]
    assert {"10", "100", "1000"} <= get_svg_texts(plots.plot_time_to_first_token([make_bench_result(records)]))


def test_run_names_are_shown_as_plain_text() -> None:
    assert "$x^2$ <b> & $" in get_svg_texts(plots.plot_latency([make_sample_result("$x^2$ <b> & $")]))


def test_missing_matplotlib_is_reported_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ValueError, match=re.escape("pip install 'weft[bench]'")):
        plots.plot_latency([make_sample_result()])
