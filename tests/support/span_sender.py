"""Fake `shard.telemetry.traces.Sender` that records spans and sends nothing."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from shard.telemetry.traces import Attributes


@dataclass
class NotedSpan:
    name: str
    parent: str  # traceparent of the parent span, possibly from request headers
    traceparent: str
    began: int
    ended: int = 0
    attributes: Attributes = field(default_factory=dict)
    failed: bool = False
    children: list["NotedSpan"] = field(default_factory=list)

    def child(self, name: str, began: int, ended: int, attributes: Attributes) -> None:
        self.children.append(NotedSpan(name, self.traceparent, "", began, ended, attributes))

    def end(self, ended: int, attributes: Attributes, *, failed: bool) -> None:
        assert not self.ended, "it ends twice"
        self.ended, self.attributes, self.failed = ended, attributes, failed


class Notes:
    def __init__(self) -> None:
        self.spans: list[NotedSpan] = []
        self.is_closed = False

    def serve(self, name: str, headers: Mapping[str, str], began: int) -> NotedSpan:
        return self._note(name, headers.get("traceparent", ""), began)

    def beneath(self, traceparent: str, name: str, began: int, ended: int, attributes: Attributes, *,
                failed: bool) -> None:
        self._note(name, traceparent, began).end(ended, attributes, failed=failed)

    def close(self) -> None:
        self.is_closed = True

    def _note(self, name: str, parent: str, began: int) -> NotedSpan:
        number = len(self.spans) + 1
        self.spans.append(NotedSpan(name, parent, f"00-{number:032x}-{number:016x}-01", began))
        return self.spans[-1]
