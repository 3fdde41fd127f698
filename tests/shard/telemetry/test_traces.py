"""Validation of the OTLP endpoint and of the packages that tracing needs."""

import sys

import pytest

from shard.telemetry.traces import Traces, check_installed, make_sender

ADDRESS = "http://127.0.0.1:4317"


@pytest.mark.parametrize("address", [
    ADDRESS, f"{ADDRESS}/", "https://traces.example.org", "collector:4317", "[::1]:4317", "unix-like.host"])
def test_addresses_are_taken(address: str) -> None:
    assert Traces(address).endpoint == address


@pytest.mark.parametrize("address", [
    "http://", "grpc://a:4317", "http://a:port", "http://a:70000", "http://a:0", f"{ADDRESS}/v1/traces", "a b:4317",
    "http://me:secret@a", f"{ADDRESS}?a", ":4317", "http://[::1", "a\n"])
def test_what_is_no_address_of_a_collector_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match=r"--otlp-endpoint must be .* such as http://127\.0\.0\.1:4317, got "):
        Traces(address)


def test_without_an_address_there_is_no_sender_and_nothing_need_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    check_installed(Traces())
    assert make_sender(Traces(), "router", print) is None


@pytest.mark.parametrize("package", ["opentelemetry", "opentelemetry.sdk", "opentelemetry.exporter.otlp"])
def test_where_the_packages_are_not_installed_the_error_names_the_cure(
        monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    loaded = [name for name in sys.modules if name.startswith(f"{package}.")]
    for name in (package, *loaded):
        monkeypatch.setitem(sys.modules, name, None)
    for attempt in (check_installed, lambda traces: make_sender(traces, "router", print)):
        with pytest.raises(ValueError, match=r"^--otlp-endpoint needs .* pip install 'weft\[otel\]'$"):
            attempt(Traces(ADDRESS))
