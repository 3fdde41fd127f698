"""Tests of the plots. Their legibility was checked by eye."""

import re
import sys
from collections.abc import Callable, Sequence
from xml.etree import ElementTree

import pytest
from support.fake_bench_results import answer, refusal, result, run, whole

from benchmarks.bench.report import plots
from benchmarks.bench.report.result import Result

ALL = (plots.first_tokens, plots.gaps, plots.latencies, plots.latency_by_tokens, plots.throughput, plots.in_flight,
       plots.latency_over_time)
Plot = Callable[[Sequence[Result]], str]
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("fonts")]


def texts(svg: str) -> set[str]:
    return {"".join(part.itertext()) for part in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")}


@pytest.mark.parametrize(("plot", "right", "up"), [
    (plots.first_tokens, "time to the first token, ms", "answers, %"),
    (plots.gaps, "time between tokens, ms", "pauses, %"),
    (plots.latencies, "time to the end, s", "answers, %"),
    (plots.latency_by_tokens, "tokens asked for", "time to the end, s"),
    (plots.throughput, "time, s", "tokens/s, means of 0.1 s"),
    (plots.in_flight, "time, s", "requests"),
    (plots.latency_over_time, "time at which it was sent, s", "time to the end, s")])
def test_axes_have_names_and_units_and_runs_have_theirs(plot: Plot, right: str, up: str) -> None:
    assert {right, up, "A", "B"} <= texts(plot([run("A"), run("B", gap=0.02)]))


@pytest.mark.parametrize("plot", ALL)
def test_the_same_requests_give_the_same_bytes(plot: Plot) -> None:
    results = [run("A"), run("B", gap=0.02)]
    assert plot(results) == plot(results)


@pytest.mark.parametrize("plot", ALL)
def test_a_plot_leads_nowhere_else(plot: Plot) -> None:
    svg = plot([run()])
    assert svg.startswith("<svg role=")
    assert set(re.findall(r'(?:href="|url\()(.)', svg)) == {"#"}


def test_nothing_that_is_referred_to_is_in_two_plots() -> None:
    names = [name for plot in ALL for name in re.findall(r' id="([^"]*)"', plot([run("A"), run("B")]))]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("plot", [plots.first_tokens, plots.gaps])
def test_what_was_not_streamed_has_no_plot_of_its_tokens(plot: Plot) -> None:
    assert plot([result([whole()])]) == ""
    assert {"A", "B"} <= texts(plot([run("A"), result([whole()], "B")]))


@pytest.mark.parametrize("plot", ALL)
def test_a_run_in_which_all_failed_can_be_drawn(plot: Plot) -> None:
    assert plot([result([refusal()])]).startswith("<svg") == (plot is plots.in_flight)
    assert plot([result([])]).startswith("<svg") == (plot is plots.in_flight)


def test_runs_of_one_name_look_alike_and_are_named_once() -> None:
    first, second, third, fourth = plots.styles(["A", "B", "A", "B"])
    assert first | {"label": ""} == third | {"label": ""}
    assert [first["label"], second["label"], third["label"], fourth["label"]] == ["A", "B", "_", "_"]
    assert all(first[name] != second[name] for name in ("color", "linestyle", "marker"))


def test_what_is_a_hundred_times_longer_is_told_apart_from_what_is_short() -> None:
    records = [*[answer(sent=number / 10, first=0.01) for number in range(50)], answer(sent=6.0, first=1.0)]
    assert {"10", "100", "1000"} <= texts(plots.first_tokens([result(records)]))


def test_names_are_text_whatever_is_in_them() -> None:
    assert "$x^2$ <b> & $" in texts(plots.latencies([run("$x^2$ <b> & $")]))


def test_without_matplotlib_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ValueError, match=re.escape("pip install 'weft[bench]'")):
        plots.latencies([run()])
