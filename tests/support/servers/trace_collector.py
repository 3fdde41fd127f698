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
PARENT_TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"  # the example in W3C's specification
STATUS_CODE_ERROR, SPAN_KIND_SERVER = 2, 2  # a span's status code and a span's kind


@dataclass
class CollectedSpan:
    """A received span and the resource attributes of the process that sent it."""

    span: Any
    resource_attributes: dict[str, Any]

    @property
    def trace_id(self) -> str:
        return str(self.span.trace_id.hex())

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id}-{self.span.span_id.hex()}-01"

    @property
    def parent_traceparent(self) -> str:
        return f"00-{self.trace_id}-{self.span.parent_span_id.hex()}-01" if self.span.parent_span_id else ""

    @property
    def attributes(self) -> dict[str, Any]:
        return to_attribute_dict(self.span.attributes)

    @property
    def start_and_end_ns(self) -> tuple[int, int]:
        return self.span.start_time_unix_nano, self.span.end_time_unix_nano

    def contains(self, other: "CollectedSpan") -> bool:
        return (self.start_and_end_ns[0] <= other.start_and_end_ns[0] <= other.start_and_end_ns[1]
                <= self.start_and_end_ns[1])


class TraceCollector:
    def __init__(self, rejection_code: Any = None) -> None:
        """Record all spans; with `rejection_code`, a gRPC status code, reject every call instead."""
        self.spans: list[CollectedSpan] = []
        self.num_calls = 0
        self.rejection_code = rejection_code

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
        self.num_calls += 1
        if self.rejection_code is not None:
            context.abort(self.rejection_code, "told to refuse")
        for group in request.resource_spans:
            resource_attributes = to_attribute_dict(group.resource.attributes)
            self.spans += [CollectedSpan(span, resource_attributes) for scope in group.scope_spans
                           for span in scope.spans]
        return messages.ExportTraceServiceResponse()

    def find_spans(self, name: str) -> list[CollectedSpan]:
        return [span for span in self.spans if span.span.name == name]

    def find_single_span(self, name: str) -> CollectedSpan:
        (span,) = self.find_spans(name)
        return span

    def find_child_spans(self, parent: CollectedSpan) -> list[CollectedSpan]:
        """Return the children of a span in the order of their start times."""
        children = [span for span in self.spans if span.parent_traceparent == parent.traceparent]
        return sorted(children, key=lambda span: span.start_and_end_ns)


def to_attribute_dict(pairs: Any) -> dict[str, Any]:
    return {pair.key: get_attribute_value(pair.value) for pair in pairs}


def get_attribute_value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return [get_attribute_value(item)
            for item in value.array_value.values] if kind == "array_value" else getattr(value, kind)


@contextmanager
def run_collector(rejection_code: Any = None) -> Iterator[tuple[TraceCollector, str]]:
    """Start a collector; yield the collector and its address."""
    collector = TraceCollector(rejection_code)
    with ThreadPoolExecutor(1) as threads:
        server = grpc.server(threads)
        services.add_TraceServiceServicer_to_server(collector, server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield collector, f"http://127.0.0.1:{port}"
        finally:
            server.stop(None).wait()
