"""The dashboard and alerts in deploy/ use metrics and labels that exist, and each alert has its tests."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
import yaml
from support.weft_process import SIMULATED, serving

from router.scheduler.plan import ModelFacts
from router.scheduler.scheduler import Scheduler
from router.scheduler.settings import Policy
from router.telemetry.counters import Tally
from router.telemetry.families import families
from router.telemetry.instruments import Kind
from router.text.prompts import Limits

DEPLOY = Path(__file__).parents[1] / "deploy"
LIMITS = Limits(max_input_tokens=1000, max_total_tokens=4000)
FAMILIES = {family.name: family for family in families(LIMITS, 1, adapters=True)}
PARTS = ("_bucket", "_sum", "_count")
ADDED = {"instance", "job", "le"}  # labels that Prometheus adds, and the label of buckets


@cache
def dashboard() -> list[dict[str, Any]]:
    return list(json.loads((DEPLOY / "grafana.json").read_text())["panels"])


@cache
def rules() -> dict[str, dict[str, Any]]:
    [group] = yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"]
    return {rule["alert"]: rule for rule in group["rules"]}


@cache
def cases() -> list[tuple[str, list[str], bool]]:
    """Return each check in the rules' tests: the alert, its input series, and whether the alert fires."""
    return list(all_cases())


def all_cases() -> Iterator[tuple[str, list[str], bool]]:
    for test in yaml.safe_load((DEPLOY / "alerts_test.yml").read_text())["tests"]:
        series = [given["series"] for given in test["input_series"]]
        for check in test["alert_rule_test"]:
            yield check["alertname"], series, bool(check["exp_alerts"])


def asked() -> list[str]:
    """Return the expressions of all panels and rules."""
    panels = [target["expr"] for panel in dashboard() for target in panel.get("targets", ())]
    return panels + [rule["expr"] for rule in rules().values()]


def expressions() -> list[str]:
    """Return all expressions, and the series of the rules' tests."""
    return asked() + [series for _, given, _ in cases() for series in given]


def family_of(name: str) -> str:
    """Return the metric family of a name in an expression; histograms are queried by bucket, sum or count."""
    if name in FAMILIES:
        assert FAMILIES[name].kind is not Kind.HISTOGRAM, f"{name} has no line of its own"
        return name
    base = next((name.removesuffix(part) for part in PARTS if name.endswith(part)), name)
    assert base in FAMILIES, f"there is no {name}"
    assert FAMILIES[base].kind is Kind.HISTOGRAM, f"{base} has no {name}"
    return base


def names_in(expression: str) -> set[str]:
    return set(re.findall(r"\b((?:tgi_|vllm:|weft_)\w+)", expression))


def test_everything_that_is_asked_for_exists() -> None:
    assert len(expressions()) > 60
    for expression in expressions():
        named = names_in(expression)
        assert {family_of(name) for name in named} or "up{" in expression, expression


def test_labels_that_are_asked_for_exist_and_have_those_values() -> None:
    for expression in expressions():
        for name, inside in re.findall(r"\b((?:tgi_|vllm:|weft_)\w+)\{([^}]*)\}", expression):
            family = FAMILIES[family_of(name)]
            for label, value in re.findall(r'(\w+)=~?"([^"]*)"', inside):
                assert label in {*family.labels, *ADDED}, expression
                assert label in ADDED or set(value.split("|")) <= set(family.values), expression
        for label in re.findall(r"\b(?:by|without) \(([^)]*)\)", expression):
            known = {label for name in names_in(expression) for label in FAMILIES[family_of(name)].labels}
            assert set(label.split(", ")) <= known | ADDED, expression


def test_rates_are_of_what_only_grows_and_gauges_are_taken_as_they_are() -> None:
    for expression in asked():
        grown = set(re.findall(r"\b(?:rate|increase)\(((?:tgi_|vllm:|weft_)\w+)", expression))
        growing = {name for name in names_in(expression) if FAMILIES[family_of(name)].kind is not Kind.GAUGE}
        assert grown == growing, expression


def test_the_dashboard_shows_each_of_our_histograms_and_what_goes_wrong() -> None:
    shown = {family_of(name) for panel in dashboard() for target in panel.get("targets", ())
             for name in names_in(target["expr"])}
    riding = {"tgi_batch_filter_duration", "tgi_batch_concat_duration", "tgi_request_skipped_tokens"}
    assert {name for name, family in FAMILIES.items() if family.kind is Kind.HISTOGRAM} - riding <= shown
    assert {"tgi_ready", "tgi_request_failure", "tgi_shard_lost", "tgi_request_yields", "tgi_cache_blocks"} <= shown


def test_panels_do_not_lie_on_each_other() -> None:
    panels = dashboard()
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [(x, y) for panel in panels for at in [panel["gridPos"]]
              for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])]
    assert len(places) == len(set(places))
    assert max(x for x, _ in places) < 24


def test_each_alert_is_seen_to_fire_and_to_be_silent() -> None:
    seen = {alert: {fires for name, _, fires in cases() if name == alert} for alert in rules()}
    assert seen == {alert: {True, False} for alert in rules()}
    assert {name for name, _, _ in cases()} == set(rules())


def test_each_alert_says_where_and_how_bad() -> None:
    for name, rule in rules().items():
        assert rule["labels"]["severity"] in {"critical", "warning"}, name
        assert "$labels.instance" in rule["annotations"]["summary"], name


def test_each_alert_has_a_line_that_says_what_to_look_at() -> None:
    page = (DEPLOY.parent / "docs/operations.md").read_text()
    rows = re.findall(r"^\| (Weft[\w, ]+) \|", page, re.MULTILINE)
    assert sorted(name for row in rows for name in row.split(", ")) == sorted(rules())


def promtool(*words: str, given: str = "") -> tuple[int, set[str]]:
    """Run promtool; return its exit code and its output lines."""
    found = os.environ.get("PROMTOOL") or shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is not installed (Debian, Ubuntu: apt install prometheus; or PROMTOOL=/path/to/promtool)")
    done = subprocess.run([found, *words], cwd=DEPLOY, input=given, capture_output=True, text=True, check=False)
    return done.returncode, {line.strip() for line in (done.stdout + done.stderr).splitlines()}


@pytest.mark.slow
@pytest.mark.parametrize("words", [("check", "rules", "alerts.yml"), ("test", "rules", "alerts_test.yml")])
def test_promtool_finds_that_the_rules_do_what_their_tests_say(words: tuple[str, ...]) -> None:
    code, told = promtool(*words)
    assert code == 0, told


def accepted() -> set[str]:
    """Return the complaints of promtool that are accepted: they are about names that we did not choose.

    Counters have the names of text-generation-inference, without `_total` and two of them with `_count`; our own
    counters follow that style. Names with a colon are those that the Kubernetes gateway queries.
    """
    counters = [name for name, family in FAMILIES.items() if family.kind is Kind.COUNTER]
    return {
        *(f'{name} counter metrics should have "_total" suffix' for name in counters),
        *(f'{name} non-histogram and non-summary metrics should not have "_count" suffix'
          for name in ("tgi_request_count", "tgi_batch_inference_count")),
        *(f"{name} metric names should not contain ':'" for name in FAMILIES if ":" in name)}


def check_page(page: str) -> None:
    """Assert that promtool accepts the page; with exit code 3 promtool complains about names only."""
    code, told = promtool("check", "metrics", given=page)
    assert told <= accepted()
    assert code == (3 if told else 0)


@pytest.mark.slow
def test_promtool_reads_the_page() -> None:
    facts = ModelFacts("simulated", "cpu", "float32", 512, 4096, 16, 64)
    check_page(Tally(Scheduler(Policy(), facts), LIMITS, 1, adapters=True).page(is_ready=True, has_shards=True))


@pytest.mark.long
def test_promtool_reads_what_a_server_says_after_some_requests(tmp_path: Path) -> None:
    with serving(tmp_path, SIMULATED, "--simulated-time-scale", "0") as weft:
        for number in range(5):
            weft.generate(20, f"{number}")
        with pytest.raises(HTTPError):
            weft.post("/generate", 0)
        with urlopen(f"{weft.url}/metrics") as answer:
            page = answer.read().decode()
    assert "tgi_request_success 5" in page
    check_page(page)
