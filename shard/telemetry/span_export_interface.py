"""Settings and interfaces of the export of trace spans, and a check of whether it is installed.

Router and launcher use this module, too. The exporter is imported only if an endpoint is set.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Protocol
from urllib.parse import urlsplit

SENDER_MODULE = "shard.telemetry.otlp"  # loads opentelemetry
OTLP_MODULES = ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.grpc.trace_exporter")

SpanAttributes = Mapping[str, str | bool | int | float | Sequence[str]]
OnSpansLost = Callable[[str], None]  # called with the reason why spans are lost, from another thread


@dataclass(frozen=True, slots=True)
class TraceSettings:
    """Collector that spans are sent to, and the service name that they carry."""

    endpoint: str = ""  # of a collector that takes OTLP over gRPC; empty: nothing is sent
    service: str = "weft"

    def __post_init__(self) -> None:
        if self.endpoint and not is_collector_address(self.endpoint):
            raise ValueError("--otlp-endpoint must be the address of a collector that takes OTLP over gRPC, without a "
                             f"path, such as http://127.0.0.1:4317, got {self.endpoint}")


class OpenSpan(Protocol):
    """Span that has begun. Times are nanoseconds since the Unix epoch."""

    @property
    def traceparent(self) -> str:
        """The W3C traceparent by which children name this span; empty if the trace is not sampled."""

    def add_child(self, name: str, started_ns: int, ended_ns: int, attributes: SpanAttributes) -> None: ...

    def end(self, ended_ns: int, attributes: SpanAttributes, *, failed: bool) -> None: ...


class SpanSender(Protocol):
    """Exporter that takes spans at once and sends them later, in a separate thread."""

    def start_server_span(self, name: str, headers: Mapping[str, str], started_ns: int) -> OpenSpan:
        """Begin the span of a request, as a child of the span that its headers name, if any."""

    def add_remote_child(self, traceparent: str, name: str, started_ns: int, ended_ns: int, attributes: SpanAttributes,
                         *, failed: bool) -> None:
        """Add a span that has ended and whose parent is in another process."""

    def close(self) -> None:
        """Send the remaining spans; wait for that, but not for long."""


def make_span_sender(settings: TraceSettings, process_name: str, on_spans_lost: OnSpansLost) -> SpanSender | None:
    """Make the exporter; None if no endpoint is set. `process_name` names the process that sends, such as `shard 0`."""
    if not settings.endpoint:
        return None
    check_otlp_installed(settings)
    sender: SpanSender = import_module(SENDER_MODULE).OtlpSpanSender(settings, process_name, on_spans_lost)
    return sender


def check_otlp_installed(settings: TraceSettings) -> None:
    try:
        is_installed = not settings.endpoint or all(map(find_spec, OTLP_MODULES))
    except ModuleNotFoundError:  # the package of such a module is missing, too
        is_installed = False
    if not is_installed:
        raise ValueError("--otlp-endpoint needs packages that are not installed: pip install 'weft[otel]'")


def is_collector_address(text: str) -> bool:
    """Whether the text has the form `http://host:4317`, `https://host`, or `host:4317`."""
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        has_host = bool(parts.hostname) and parts.port != 0  # an invalid port raises
    except ValueError:
        return False
    return (has_host and parts.scheme in {"http", "https"} and text.isprintable() and " " not in text
            and not (parts.path.strip("/") or parts.query or parts.fragment or parts.username))
