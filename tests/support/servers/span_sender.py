"""Fake `shard.telemetry.span_export_interface.SpanSender` that records spans and sends nothing."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from shard.telemetry.span_export_interface import SpanAttributes


@dataclass
class RecordedSpan:
    name: str
    parent: str  # traceparent of the parent span, possibly from request headers
    traceparent: str
    started_ns: int
    ended_ns: int = 0
    attributes: SpanAttributes = field(default_factory=dict)
    has_failed: bool = False
    children: list["RecordedSpan"] = field(default_factory=list)

    def add_child(self, name: str, started_ns: int, ended_ns: int, attributes: SpanAttributes) -> None:
        self.children.append(RecordedSpan(name, self.traceparent, "", started_ns, ended_ns, attributes))

    def end(self, ended_ns: int, attributes: SpanAttributes, *, failed: bool) -> None:
        assert not self.ended_ns, "it ends twice"
        self.ended_ns, self.attributes, self.has_failed = ended_ns, attributes, failed


class RecordingSpanSender:
    def __init__(self) -> None:
        self.spans: list[RecordedSpan] = []
        self.is_closed = False

    def start_server_span(self, name: str, headers: Mapping[str, str], started_ns: int) -> RecordedSpan:
        return self._record_span(name, headers.get("traceparent", ""), started_ns)

    def add_remote_child(self, traceparent: str, name: str, started_ns: int, ended_ns: int, attributes: SpanAttributes,
                         *, failed: bool) -> None:
        self._record_span(name, traceparent, started_ns).end(ended_ns, attributes, failed=failed)

    def close(self) -> None:
        self.is_closed = True

    def _record_span(self, name: str, parent: str, began: int) -> RecordedSpan:
        number = len(self.spans) + 1
        self.spans.append(RecordedSpan(name, parent, f"00-{number:032x}-{number:016x}-01", began))
        return self.spans[-1]
