"""OTLP trace collector that runs in the test process and records all spans.

Test modules that import this are skipped if the extra `otel` is not installed.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import pytest

messages = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
services = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc")
pytest.importorskip("opentelemetry.exporter.otlp.proto.grpc.trace_exporter")
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"  # the example in W3C's specification
ERROR, SERVER = 2, 2  # a span's status code and a span's kind


@dataclass
class Collected:
    """A received span and the resource attributes of the process that sent it."""

    span: Any
    resource: dict[str, Any]

    @property
    def trace(self) -> str:
        return str(self.span.trace_id.hex())

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace}-{self.span.span_id.hex()}-01"

    @property
    def parent(self) -> str:
        return f"00-{self.trace}-{self.span.parent_span_id.hex()}-01" if self.span.parent_span_id else ""

    @property
    def attributes(self) -> dict[str, Any]:
        return plain(self.span.attributes)

    @property
    def times(self) -> tuple[int, int]:
        return self.span.start_time_unix_nano, self.span.end_time_unix_nano

    def holds(self, other: "Collected") -> bool:
        return self.times[0] <= other.times[0] <= other.times[1] <= self.times[1]


class Collector:
    def __init__(self, refusal: Any = None) -> None:
        """Record all spans; with `refusal`, a gRPC status code, reject every call instead."""
        self.spans: list[Collected] = []
        self.num_calls = 0
        self.refusal = refusal

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
        self.num_calls += 1
        if self.refusal is not None:
            context.abort(self.refusal, "told to refuse")
        for group in request.resource_spans:
            about = plain(group.resource.attributes)
            self.spans += [Collected(span, about) for scope in group.scope_spans for span in scope.spans]
        return messages.ExportTraceServiceResponse()

    def named(self, name: str) -> list[Collected]:
        return [found for found in self.spans if found.span.name == name]

    def one(self, name: str) -> Collected:
        (found,) = self.named(name)
        return found

    def below(self, parent: Collected) -> list[Collected]:
        """Return the children of a span in the order of their start times."""
        found = [span for span in self.spans if span.parent == parent.traceparent]
        return sorted(found, key=lambda span: span.times)


def plain(pairs: Any) -> dict[str, Any]:
    return {pair.key: value_of(pair.value) for pair in pairs}


def value_of(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return [value_of(item) for item in value.array_value.values] if kind == "array_value" else getattr(value, kind)


@contextmanager
def collecting(refusal: Any = None) -> Iterator[tuple[Collector, str]]:
    """Start a collector; yield the collector and its address."""
    collector = Collector(refusal)
    with ThreadPoolExecutor(1) as threads:
        server = grpc.server(threads)
        services.add_TraceServiceServicer_to_server(collector, server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield collector, f"http://127.0.0.1:{port}"
        finally:
            server.stop(None).wait()
