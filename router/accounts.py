"""What can be told of requests by their ids: of those that are served, and of the last ones that are over.

Keeps no text and no tokens. Knows nothing of HTTP; who may ask is the dialects' affair.
"""

from collections import OrderedDict
from dataclasses import dataclass

from router.request import FinishReason, Tenant
from router.story import RUNNING, Story

KEPT = 1000  # of those that are over


@dataclass(slots=True, eq=False)
class Account:
    """The story is the core's, which goes on with it; `came` is when the client began to ask."""

    id: str
    tenant: str
    num_prompt_tokens: int
    came: float
    story: Story
    num_generated: int = 0  # tokens that the client was told of
    finish_reason: FinishReason | None = None  # if it came to an end of its own
    adapter: str | None = None  # what its adapter is counted as, if it has one
    traceparent: str = ""  # names the span that what shards tell of it belongs to; empty: they tell nothing

    @property
    def state(self) -> str:
        if self.story.ended is not None:
            return "over"
        return "running" if self.story.cause in RUNNING else "waiting"


class Accounts:
    """When two share an id, which clients may bring about, the later one is told of."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._served: dict[str, Account] = {}
        self._over: OrderedDict[str, Account] = OrderedDict()

    def open(self, account: Account) -> None:
        self._over.pop(account.id, None)
        self._served[account.id] = account

    def close(self, account: Account, now: float) -> None:
        """It is over, if the core did not say so already."""
        account.story.end(now)
        if self._served.get(account.id) is not account:
            return
        self._over[account.id] = self._served.pop(account.id)
        if len(self._over) > self._kept:
            self._over.popitem(last=False)

    def get(self, request_id: str) -> Account | None:
        return self._served.get(request_id) or self._over.get(request_id)

    def may_use(self, request_id: str, tenant: Tenant) -> bool:
        """Whether a new request may have this id: nobody else is, or was of late, known by it."""
        known = self.get(request_id)
        return known is None or (request_id not in self._served and known.tenant == tenant.name)
