"""Where spans of traces are sent, what sends them, and whether this installation can.

Router and launcher use this too. What sends them is loaded only by those who send; knows nothing of what spans tell.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Protocol
from urllib.parse import urlsplit

SENDER = "shard.otlp"  # loads opentelemetry
NEEDED = ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.grpc.trace_exporter")

Attributes = Mapping[str, str | bool | int | float | Sequence[str]]
OnTrouble = Callable[[str], None]  # hears why spans are lost, from another thread


@dataclass(frozen=True, slots=True)
class Traces:
    endpoint: str = ""  # of a collector that takes OTLP over gRPC; empty: nothing is sent
    service: str = "weft"

    def __post_init__(self) -> None:
        if self.endpoint and not is_address(self.endpoint):
            raise ValueError("--otlp-endpoint must be the address of a collector that takes OTLP over gRPC, without a "
                             f"path, such as http://127.0.0.1:4317, got {self.endpoint}")


class Span(Protocol):
    """One that has begun. Moments are nanoseconds of the epoch."""

    @property
    def traceparent(self) -> str:
        """By which others name it as their parent; empty if nobody wants to hear of this trace."""

    def child(self, name: str, began: int, ended: int, attributes: Attributes) -> None: ...

    def end(self, ended: int, attributes: Attributes, *, failed: bool) -> None: ...


class Sender(Protocol):
    """Takes spans at once and sends them later, in a thread of its own."""

    def serve(self, name: str, headers: Mapping[str, str], began: int) -> Span:
        """Begins the span of a request, beneath the one that its headers name, if they do."""

    def beneath(self, traceparent: str, name: str, began: int, ended: int, attributes: Attributes, *,
                failed: bool) -> None:
        """A span whose parent is in another process."""

    def close(self) -> None:
        """Sends what is left; waits for that, but not for long."""


def make_sender(traces: Traces, process: str, on_trouble: OnTrouble) -> Sender | None:
    """None if nothing is to be sent. `process` is who sends, as `shard 0`."""
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
    except ModuleNotFoundError:  # nor is the package that it would be in
        return False


def is_address(text: str) -> bool:
    """`http://host:4317`, `https://host`, or `host:4317`."""
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        named = bool(parts.hostname) and parts.port != 0  # a port that is none raises
    except ValueError:
        return False
    return named and parts.scheme in {"http", "https"} and text.isprintable() and " " not in text and not (
        parts.path.strip("/") or parts.query or parts.fragment or parts.username)
