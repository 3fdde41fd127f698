"""Tests of the HTML report of runs."""

import re
from functools import cache
from html import unescape
from html.parser import HTMLParser

import pytest
from support.fake_bench_results import (
    make_bench_result,
    make_rejected_record,
    make_sample_result,
    make_streamed_record,
    make_unstreamed_record,
)

from benchmarks.bench.report.html import PLOTS, render_failures, render_html, render_plot
from benchmarks.bench.report.result import BenchResult
from benchmarks.bench.report.server_comparison import MetricComparison, compare_metrics, make_ratio_rows
from benchmarks.bench.report.table import make_table_rows

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("fonts")]
HOSTILE_TEXT = '<script>alert("1")</script>'
VOID_TAGS = {"meta", "br"}


class TagNestingParser(HTMLParser):
    """Parser that holds the open elements and checks that each is closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open_tags: list[str] = []
        self.seen_tags: set[str] = set()

    def handle_starttag(self, tag: str, _: object) -> None:
        self.seen_tags.add(tag)
        if tag not in VOID_TAGS:
            self.open_tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open_tags.pop() == tag


def get_table_cells(page: str) -> set[str]:
    return {unescape(cell) for cell in re.findall(r"<t[dh][^>]*>([^<]*)</t[dh]>", page)}


@cache
def make_two_run_report() -> tuple[list[BenchResult], list[MetricComparison], str]:
    results = [make_sample_result("http://127.0.0.1:3000"), make_sample_result("https://weft.example", gap=0.02)]
    ratios = compare_metrics([(results[0].summary, results[1].summary)])
    return results, ratios, render_html(results, ratios)


def test_report_contains_every_figure_and_ratio() -> None:
    results, ratios, page = make_two_run_report()
    assert {cell for row in [*make_table_rows(results), *make_ratio_rows(ratios)]
            for cell in row} <= get_table_cells(page)


def test_every_plot_has_a_title_and_a_caption() -> None:
    *_, page = make_two_run_report()
    assert page.count("<svg ") == page.count("<figcaption>") == len(PLOTS)
    assert all(f"<h3>{title}</h3>" in page and caption in page for title, (_, caption) in PLOTS.items())


def test_headlines_and_three_plots_come_before_any_table() -> None:
    *_, page = make_two_run_report()
    before_table = page.partition("<table")[0]
    assert before_table.count("tokens/s; first token") == 2
    assert before_table.count("<svg ") == 3


def test_page_has_no_external_references_or_scripts() -> None:
    *_, page = make_two_run_report()
    assert set(re.findall(r'(?:href="|src="|url\()(.)', page)) == {"#"}
    assert not re.search(r"@import|<script|<link|<img|<iframe| on\w+=", page)


def test_all_tags_are_closed() -> None:
    reader = TagNestingParser()
    reader.feed(make_two_run_report()[-1])
    reader.close()
    assert reader.open_tags == []
    assert {"table", "figure", "svg", "style"} <= reader.seen_tags


def test_report_states_the_conditions_of_each_run() -> None:
    other = make_bench_result([], "B", versions={"weft": "0.2.0"}, settings={"rate": 9.5})
    page = render_html([make_bench_result([], "A"), other])
    assert {"2025-01-31", "a loom, 2 cores", "0.1.0", "0.2.0", "8.0", "9.5"} <= get_table_cells(page)
    assert page.count("<pre>weft bench</pre>") == 1
    assert page.count('<td colspan="2">2025-01-31</td>') == 1


def test_unstreamed_run_has_no_token_plot() -> None:
    assert render_plot("Time to the first token", [make_bench_result([make_unstreamed_record()])]) == ""


def test_failure_reasons_are_listed() -> None:
    assert {"A", "2", "429 overloaded"} <= get_table_cells(
        render_failures([make_bench_result([make_streamed_record(), make_rejected_record(), make_rejected_record()])]))


def test_empty_sections_are_left_out() -> None:
    assert re.findall("<h2>(.*)</h2>", render_html([make_bench_result([])])) == ["Figures", "Runs"]


def test_hostile_text_is_escaped() -> None:
    result = make_bench_result([make_rejected_record(error=HOSTILE_TEXT)], HOSTILE_TEXT, command=HOSTILE_TEXT,
                               settings={HOSTILE_TEXT: HOSTILE_TEXT}, hardware=HOSTILE_TEXT, date=HOSTILE_TEXT,
                               versions={HOSTILE_TEXT: HOSTILE_TEXT}, overhead={HOSTILE_TEXT: 1.0})
    page = render_html([result])
    assert "<script" not in page
    assert HOSTILE_TEXT in get_table_cells(page)
