"""Tests of the HTML report of runs."""

import re
from functools import cache
from html import unescape
from html.parser import HTMLParser

import pytest
from support.fake_bench_results import answer, refusal, result, run, whole

from benchmarks.bench.report.html import PLOTS, failures, html, plotted
from benchmarks.bench.report.result import Result
from benchmarks.bench.report.table import rows
from benchmarks.bench.report.versus import Ratio, compared, ratio_rows

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("fonts")]
EVIL = '<script>alert("1")</script>'
VOID = {"meta", "br"}


class Nesting(HTMLParser):
    """Parser that holds the open elements and checks that each is closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, _: object) -> None:
        self.tags.add(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def cells(page: str) -> set[str]:
    return {unescape(cell) for cell in re.findall(r"<t[dh][^>]*>([^<]*)</t[dh]>", page)}


@cache
def two() -> tuple[list[Result], list[Ratio], str]:
    results = [run("http://127.0.0.1:3000"), run("https://weft.example", gap=0.02)]
    ratios = compared([(results[0].summary, results[1].summary)])
    return results, ratios, html(results, ratios)


def test_every_figure_and_every_ratio_is_there() -> None:
    results, ratios, page = two()
    assert {cell for row in [*rows(results), *ratio_rows(ratios)] for cell in row} <= cells(page)


def test_every_plot_says_how_to_read_it() -> None:
    *_, page = two()
    assert page.count("<svg ") == page.count("<figcaption>") == len(PLOTS)
    assert all(f"<h3>{title}</h3>" in page and caption in page for title, (_, caption) in PLOTS.items())


def test_the_page_needs_nobody_else_and_runs_nothing() -> None:
    *_, page = two()
    assert set(re.findall(r'(?:href="|src="|url\()(.)', page)) == {"#"}
    assert not re.search(r"@import|<script|<link|<img|<iframe| on\w+=", page)


def test_all_that_is_opened_is_closed() -> None:
    reader = Nesting()
    reader.feed(two()[-1])
    reader.close()
    assert reader.open == []
    assert {"table", "figure", "svg", "style"} <= reader.tags


def test_it_says_under_what_the_figures_came_about() -> None:
    other = result([], "B", versions={"weft": "0.2.0"}, settings={"rate": 9.5})
    page = html([result([], "A"), other])
    assert {"2025-01-31", "a loom, 2 cores", "0.1.0", "0.2.0", "8.0", "9.5"} <= cells(page)
    assert page.count("<pre>weft bench</pre>") == 1
    assert page.count('<td colspan="2">2025-01-31</td>') == 1


def test_what_was_not_streamed_has_no_plot_of_its_tokens() -> None:
    assert plotted("Time to the first token", [result([whole()])]) == ""


def test_why_requests_failed_is_told() -> None:
    assert {"A", "2", "429 overloaded"} <= cells(failures([result([answer(), refusal(), refusal()])]))


def test_what_there_is_nothing_of_has_no_section() -> None:
    assert re.findall("<h2>(.*)</h2>", html([result([])])) == ["Figures", "Runs"]


def test_foreign_text_is_text() -> None:
    made = result([refusal(error=EVIL)], EVIL, command=EVIL, settings={EVIL: EVIL}, hardware=EVIL, date=EVIL,
                  versions={EVIL: EVIL}, overhead={EVIL: 1.0})
    page = html([made])
    assert "<script" not in page
    assert EVIL in cells(page)
