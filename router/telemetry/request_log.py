"""Records of unfinished and recently finished requests, by request id.

They hold no text and no tokens. The HTTP layer checks which tenant may see a record.
"""

from collections import OrderedDict
from dataclasses import dataclass

from router.request import FinishReason, Tenant
from router.scheduler.timeline import RUNNING, Story

KEPT = 1000  # records of finished requests


@dataclass(slots=True, eq=False)
class Account:
    """Record of one request. The scheduler keeps updating `story`; `came` is when the HTTP request arrived."""

    id: str
    tenant: str
    num_prompt_tokens: int
    came: float
    story: Story
    num_generated: int = 0  # tokens delivered to the client's stream
    finish_reason: FinishReason | None = None  # of a generated text; None if unfinished, failed or cancelled
    adapter: str | None = None  # name of its adapter in metrics, empty for a private one; None without an adapter
    traceparent: str = ""  # parent of the spans that shards send for it; empty: shards send none

    @property
    def state(self) -> str:
        if self.story.ended is not None:
            return "over"
        return "running" if self.story.cause in RUNNING else "waiting"


class Accounts:
    """Records by request id. Clients choose ids, so two requests may have the same one; the later one is kept."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._served: dict[str, Account] = {}
        self._over: OrderedDict[str, Account] = OrderedDict()

    def open(self, account: Account) -> None:
        self._over.pop(account.id, None)
        self._served[account.id] = account

    def close(self, account: Account, now: float) -> None:
        """Move a record to the finished ones, and end its story unless the scheduler has done so."""
        account.story.end(now)
        if self._served.get(account.id) is not account:
            return
        self._over[account.id] = self._served.pop(account.id)
        if len(self._over) > self._kept:
            self._over.popitem(last=False)

    def get(self, request_id: str) -> Account | None:
        return self._served.get(request_id) or self._over.get(request_id)

    def may_use(self, request_id: str, tenant: Tenant) -> bool:
        """Return whether a new request of `tenant` may have this id.

        An id is allowed if it is unknown, or if it belongs to a finished request of the same tenant.
        """
        known = self.get(request_id)
        return known is None or (request_id not in self._served and known.tenant == tenant.name)
