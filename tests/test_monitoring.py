"""The dashboard and alerts in deploy/ use metrics and labels that exist, and each alert has its tests."""

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
import yaml
from support.promtool import DEPLOY_FOLDER, FAMILIES_BY_NAME, check_page_with_promtool, run_promtool
from support.servers.weft_process import SIMULATED_MODEL, run_weft_process

from router.model_info import ModelInfo
from router.scheduler.scheduler import Scheduler
from router.scheduler.settings import SchedulerSettings
from router.telemetry.instruments import MetricType
from router.telemetry.server_metrics import ServerMetrics
from router.text.prompt_encoder import TokenLimits

LIMITS = TokenLimits(max_input_tokens=1000, max_total_tokens=4000)
HISTOGRAM_SUFFIXES = ("_bucket", "_sum", "_count")
PROMETHEUS_LABELS = {"instance", "job", "le"}  # labels that Prometheus adds, and the label of buckets


@cache
def load_dashboard_panels() -> list[dict[str, Any]]:
    return list(json.loads((DEPLOY_FOLDER / "grafana.json").read_text())["panels"])


@cache
def load_alert_rules() -> dict[str, dict[str, Any]]:
    [group] = yaml.safe_load((DEPLOY_FOLDER / "alerts.yml").read_text())["groups"]
    return {rule["alert"]: rule for rule in group["rules"]}


@cache
def load_alert_cases() -> list[tuple[str, list[str], bool]]:
    """Return each check in the rules' tests: the alert, its input series, and whether the alert fires."""
    return list(iter_alert_cases())


def iter_alert_cases() -> Iterator[tuple[str, list[str], bool]]:
    for test in yaml.safe_load((DEPLOY_FOLDER / "alerts_test.yml").read_text())["tests"]:
        series = [item["series"] for item in test["input_series"]]
        for check in test["alert_rule_test"]:
            yield check["alertname"], series, bool(check["exp_alerts"])


def list_queried_expressions() -> list[str]:
    """Return the expressions of all panels and rules."""
    panels = [target["expr"] for panel in load_dashboard_panels() for target in panel.get("targets", ())]
    return panels + [rule["expr"] for rule in load_alert_rules().values()]


def list_all_expressions() -> list[str]:
    """Return all expressions, and the series of the rules' tests."""
    return list_queried_expressions() + [series for _, inputs, _ in load_alert_cases() for series in inputs]


def find_family_name(name: str) -> str:
    """Return the metric family of a name in an expression; histograms are queried by bucket, sum or count."""
    if name in FAMILIES_BY_NAME:
        assert FAMILIES_BY_NAME[name].metric_type is not MetricType.HISTOGRAM, f"{name} has no line of its own"
        return name
    base = next((name.removesuffix(part) for part in HISTOGRAM_SUFFIXES if name.endswith(part)), name)
    assert base in FAMILIES_BY_NAME, f"there is no {name}"
    assert FAMILIES_BY_NAME[base].metric_type is MetricType.HISTOGRAM, f"{base} has no {name}"
    return base


def find_metric_names(expression: str) -> set[str]:
    return set(re.findall(r"\b((?:tgi_|vllm:|weft_)\w+)", expression))


def test_every_queried_metric_exists() -> None:
    assert len(list_all_expressions()) > 60
    for expression in list_all_expressions():
        named = find_metric_names(expression)
        assert {find_family_name(name) for name in named} or "up{" in expression, expression


def test_queried_labels_and_values_exist() -> None:
    for expression in list_all_expressions():
        for name, inside in re.findall(r"\b((?:tgi_|vllm:|weft_)\w+)\{([^}]*)\}", expression):
            family = FAMILIES_BY_NAME[find_family_name(name)]
            for label, value in re.findall(r'(\w+)=~?"([^"]*)"', inside):
                assert label in {*family.label_names, *PROMETHEUS_LABELS}, expression
                assert label in PROMETHEUS_LABELS or set(value.split("|")) <= set(family.label_values), expression
        for label in re.findall(r"\b(?:by|without) \(([^)]*)\)", expression):
            known = {label for name in find_metric_names(expression)
                     for label in FAMILIES_BY_NAME[find_family_name(name)].label_names}
            assert set(label.split(", ")) <= known | PROMETHEUS_LABELS, expression


def test_rates_are_taken_of_counters_only() -> None:
    for expression in list_queried_expressions():
        grown = set(re.findall(r"\b(?:rate|increase)\(((?:tgi_|vllm:|weft_)\w+)", expression))
        growing = {name for name in find_metric_names(expression)
                   if FAMILIES_BY_NAME[find_family_name(name)].metric_type is not MetricType.GAUGE}
        assert grown == growing, expression


def test_dashboard_shows_all_histograms_and_failures() -> None:
    shown = {find_family_name(name) for panel in load_dashboard_panels() for target in panel.get("targets", ())
             for name in find_metric_names(target["expr"])}
    without_panel = {"tgi_batch_filter_duration", "tgi_batch_concat_duration", "tgi_request_skipped_tokens"}
    histograms = {name for name, family in FAMILIES_BY_NAME.items() if family.metric_type is MetricType.HISTOGRAM}
    assert histograms - without_panel <= shown
    assert {"tgi_ready", "tgi_request_failure", "tgi_shard_lost", "tgi_request_yields", "tgi_cache_blocks"} <= shown


def test_dashboard_panels_do_not_overlap() -> None:
    panels = load_dashboard_panels()
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [(x, y) for panel in panels for at in [panel["gridPos"]]
              for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])]
    assert len(places) == len(set(places))
    assert max(x for x, _ in places) < 24


def test_each_alert_has_firing_and_silent_test_cases() -> None:
    seen = {alert: {fires for name, _, fires in load_alert_cases() if name == alert} for alert in load_alert_rules()}
    assert seen == {alert: {True, False} for alert in load_alert_rules()}
    assert {name for name, _, _ in load_alert_cases()} == set(load_alert_rules())


def test_each_alert_has_a_severity_and_an_instance() -> None:
    for name, rule in load_alert_rules().items():
        assert rule["labels"]["severity"] in {"critical", "warning"}, name
        assert "$labels.instance" in rule["annotations"]["summary"], name


def test_each_alert_is_described_on_the_monitoring_page() -> None:
    page = (DEPLOY_FOLDER.parent / "docs/guides/monitoring.md").read_text()
    rows = re.findall(r"^\| (Weft[\w, ]+) \|", page, re.MULTILINE)
    assert sorted(name for row in rows for name in row.split(", ")) == sorted(load_alert_rules())


@pytest.mark.slow
@pytest.mark.parametrize("words", [("check", "rules", "alerts.yml"), ("test", "rules", "alerts_test.yml")])
def test_promtool_accepts_the_rules_and_their_tests(words: tuple[str, ...]) -> None:
    code, output = run_promtool(*words)
    assert code == 0, output


@pytest.mark.slow
def test_promtool_accepts_the_metrics_page() -> None:
    model_info = ModelInfo("simulated", "cpu", "float32", 512, 4096, 16, 64)
    check_page_with_promtool(ServerMetrics(Scheduler(SchedulerSettings(), model_info), LIMITS, 1,
                                           with_adapters=True).render(is_ready=True, has_shards=True))


@pytest.mark.long
def test_promtool_accepts_the_metrics_page_of_a_used_server(tmp_path: Path) -> None:
    with run_weft_process(tmp_path, SIMULATED_MODEL, "--simulated-time-scale", "0") as weft:
        for number in range(5):
            weft.generate(20, f"{number}")
        with pytest.raises(HTTPError):
            weft.post_prompt("/generate", 0)
        with urlopen(f"{weft.url}/metrics") as answer:
            page = answer.read().decode()
    assert "tgi_request_success 5" in page
    check_page_with_promtool(page)
