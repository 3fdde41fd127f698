"""Records of unfinished and recently finished requests, by request id.

They hold no text and no tokens. The HTTP layer checks which tenant may see a record.
"""

from collections import OrderedDict
from dataclasses import dataclass

from router.request import FinishReason, Tenant
from router.scheduler.sequence import RUNNING_PHASES, RequestTimeline

MAX_FINISHED_RECORDS = 1000  # records of finished requests


@dataclass(slots=True, eq=False)
class RequestRecord:
    """Record of one request. The scheduler keeps updating `timeline`; `arrived_at` is when the HTTP request arrived."""

    id: str
    tenant_name: str
    num_prompt_tokens: int
    arrived_at: float
    timeline: RequestTimeline
    num_generated: int = 0  # tokens delivered to the client's stream
    finish_reason: FinishReason | None = None  # of a generated text; None if unfinished, failed or cancelled
    adapter_name: str | None = None  # name of its adapter in metrics, empty for a private one; None without an adapter
    traceparent: str = ""  # parent of the spans that shards send for it; empty: shards send none

    @property
    def state(self) -> str:
        if self.timeline.ended_at is not None:
            return "over"
        return "running" if self.timeline.phase in RUNNING_PHASES else "waiting"


class RequestRecordStore:
    """Records by request id. Clients choose ids, so two requests may have the same one; the later one is kept."""

    def __init__(self, max_finished: int = MAX_FINISHED_RECORDS) -> None:
        self._max_finished = max_finished
        self._unfinished: dict[str, RequestRecord] = {}
        self._finished: OrderedDict[str, RequestRecord] = OrderedDict()

    def add_unfinished(self, record: RequestRecord) -> None:
        self._finished.pop(record.id, None)
        self._unfinished[record.id] = record

    def move_to_finished(self, record: RequestRecord, now: float) -> None:
        """Move a record to the finished ones, and end its timeline unless the scheduler has done so."""
        record.timeline.end(now)
        if self._unfinished.get(record.id) is not record:
            return
        self._finished[record.id] = self._unfinished.pop(record.id)
        if len(self._finished) > self._max_finished:
            self._finished.popitem(last=False)

    def get(self, request_id: str) -> RequestRecord | None:
        return self._unfinished.get(request_id) or self._finished.get(request_id)

    def can_use_request_id(self, request_id: str, tenant: Tenant) -> bool:
        """Return whether a new request of `tenant` may have this id.

        An id is allowed if it is unknown, or if it belongs to a finished request of the same tenant.
        """
        record = self.get(request_id)
        return record is None or (request_id not in self._unfinished and record.tenant_name == tenant.name)
