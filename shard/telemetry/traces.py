"""Settings and interfaces of the export of trace spans, and a check of whether it is installed.

Router and launcher use this module, too. The exporter is imported only if an endpoint is set.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Protocol
from urllib.parse import urlsplit

SENDER = "shard.telemetry.otlp"  # loads opentelemetry
NEEDED = ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.grpc.trace_exporter")

Attributes = Mapping[str, str | bool | int | float | Sequence[str]]
OnTrouble = Callable[[str], None]  # called with the reason why spans are lost, from another thread


@dataclass(frozen=True, slots=True)
class Traces:
    endpoint: str = ""  # of a collector that takes OTLP over gRPC; empty: nothing is sent
    service: str = "weft"

    def __post_init__(self) -> None:
        if self.endpoint and not is_address(self.endpoint):
            raise ValueError("--otlp-endpoint must be the address of a collector that takes OTLP over gRPC, without a "
                             f"path, such as http://127.0.0.1:4317, got {self.endpoint}")


class Span(Protocol):
    """Span that has begun. Times are nanoseconds since the Unix epoch."""

    @property
    def traceparent(self) -> str:
        """The W3C traceparent by which children name this span; empty if the trace is not sampled."""

    def child(self, name: str, began: int, ended: int, attributes: Attributes) -> None: ...

    def end(self, ended: int, attributes: Attributes, *, failed: bool) -> None: ...


class Sender(Protocol):
    """Exporter that takes spans at once and sends them later, in a separate thread."""

    def serve(self, name: str, headers: Mapping[str, str], began: int) -> Span:
        """Begin the span of a request, as a child of the span that its headers name, if any."""

    def beneath(self, traceparent: str, name: str, began: int, ended: int, attributes: Attributes, *,
                failed: bool) -> None:
        """Add a span that has ended and whose parent is in another process."""

    def close(self) -> None:
        """Send the remaining spans; wait for that, but not for long."""


def make_sender(traces: Traces, process: str, on_trouble: OnTrouble) -> Sender | None:
    """Make the exporter; None if no endpoint is set. `process` names the process that sends, such as `shard 0`."""
    if not traces.endpoint:
        return None
    check_installed(traces)
    sender: Sender = import_module(SENDER).OtlpSender(traces, process, on_trouble)
    return sender


def check_installed(traces: Traces) -> None:
    if traces.endpoint and not all(map(is_installed, NEEDED)):
        raise ValueError("--otlp-endpoint needs packages that are not installed: pip install 'weft[otel]'")


def is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # its package is missing, too
        return False


def is_address(text: str) -> bool:
    """Whether the text has the form `http://host:4317`, `https://host`, or `host:4317`."""
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        named = bool(parts.hostname) and parts.port != 0  # an invalid port raises
    except ValueError:
        return False
    return named and parts.scheme in {"http", "https"} and text.isprintable() and " " not in text and not (
        parts.path.strip("/") or parts.query or parts.fragment or parts.username)
