"""Validation of the OTLP endpoint and of the packages that tracing needs."""

import sys

import pytest

from shard.telemetry.span_export_interface import TraceSettings, check_otlp_installed, make_span_sender

COLLECTOR_ADDRESS = "http://127.0.0.1:4317"


@pytest.mark.parametrize("address", [COLLECTOR_ADDRESS, f"{COLLECTOR_ADDRESS}/", "https://traces.example.org",
                                     "collector:4317", "[::1]:4317", "unix-like.host"])
def test_valid_addresses_are_accepted(address: str) -> None:
    assert TraceSettings(address).endpoint == address


@pytest.mark.parametrize("address", ["http://", "grpc://a:4317", "http://a:port", "http://a:70000", "http://a:0",
                                     f"{COLLECTOR_ADDRESS}/v1/traces", "a b:4317", "http://me:secret@a",
                                     f"{COLLECTOR_ADDRESS}?a", ":4317", "http://[::1", "a\n"])
def test_invalid_addresses_are_rejected(address: str) -> None:
    with pytest.raises(ValueError, match=r"--otlp-endpoint must be .* such as http://127\.0\.0\.1:4317, got "):
        TraceSettings(address)


def test_no_sender_and_no_packages_are_needed_without_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    check_otlp_installed(TraceSettings())
    assert make_span_sender(TraceSettings(), "router", print) is None


@pytest.mark.parametrize("package", ["opentelemetry", "opentelemetry.sdk", "opentelemetry.exporter.otlp"])
def test_missing_packages_are_reported_with_the_install_command(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    loaded = [name for name in sys.modules if name.startswith(f"{package}.")]
    for name in (package, *loaded):
        monkeypatch.setitem(sys.modules, name, None)
    for attempt in (check_otlp_installed, lambda traces: make_span_sender(traces, "router", print)):
        with pytest.raises(ValueError, match=r"^--otlp-endpoint needs .* pip install 'weft\[otel\]'$"):
            attempt(TraceSettings(COLLECTOR_ADDRESS))
