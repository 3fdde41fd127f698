"""`GET /v1/requests/{id}/explain`: what a request spent its time on, without gaps. Only its own tenant may see it."""

from collections.abc import Iterator
from time import monotonic as clock
from typing import Any, Protocol

from aiohttp import web

from router.http.transport.auth import TENANT
from router.http.transport.body import json_answer
from router.scheduler.timeline import Cause
from router.telemetry.request_log import KEPT, Account

VALIDATION = "validation"
# Times are rounded to eighths of a millisecond: binary fractions, so that clients can sum them exactly.
PARTS = 8
SENTENCES = {
    VALIDATION: "The body was read, checked and tokenised.",
    Cause.QUEUE: "Others were served first.",
    Cause.TENANT: "Its tenant had had its share, and requests of others were served first.",
    Cause.GROUP: "A group that came before it was running, or its own was not complete (--batching static).",
    Cause.BATCH: "As many requests were running as may run at once (--max-batch-size).",
    Cause.BLOCKS: "The cache had no room for its prompt.",
    Cause.BUDGET: "The prompt tokens of the step were spent, or would have kept running requests waiting for too long.",
    Cause.PREFIX: "A running request was computing the beginning of its prompt, which it then found in the cache.",
    Cause.ADAPTER: "Its adapter was being loaded.",
    Cause.GRAMMAR: "Its grammar was being prepared.",
    Cause.TRIAL: "A step had failed, and those who took part were tried before others.",
    Cause.READER: "Its client did not read what it was sent.",
    Cause.YIELDED: "It gave its place in the cache to others and waited to start again.",
    Cause.SHARDS: "The processes of the model were not there.",
    Cause.PREFILL: "Its prompt was computed.",
    Cause.DECODE: "Tokens were generated.",
}


class Engine(Protocol):
    def account(self, request_id: str) -> Account | None: ...


class Requests:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def routes(self) -> list[web.RouteDef]:
        return [web.get(r"/v1/requests/{id:[^/]+}/explain", self.explain)]

    async def explain(self, request: web.Request) -> web.Response:
        account = self._engine.account(request.match_info["id"])
        if account is None or account.tenant != request[TENANT].name:
            raise web.HTTPNotFound(text=f"no request of this id is served, or was one of the last {KEPT}")
        return json_answer(explained(account, clock()))


def explained(account: Account, now: float) -> dict[str, Any]:
    intervals = list(intervals_of(account, now))
    by_cause: dict[str, float] = {}
    for interval in intervals:
        by_cause[interval["cause"]] = by_cause.get(interval["cause"], 0.0) + interval["ms"]
    return {
        "id": account.id,
        "tenant": account.tenant,
        "state": account.state,
        "prompt_tokens": account.num_prompt_tokens,
        "cached_tokens": account.story.cached_tokens,
        "generated_tokens": account.num_generated,
        "total_ms": intervals[-1]["start_ms"] + intervals[-1]["ms"],
        "intervals": intervals,
        "by_cause": by_cause,
        "causes": {cause: SENTENCES[cause] for cause in by_cause},
    }


def intervals_of(account: Account, now: float) -> Iterator[dict[str, Any]]:
    """Yield the intervals without gaps: points in time are rounded, and lengths are their differences."""
    spent = [(VALIDATION, account.came, account.story.began), *account.story.intervals(now)]
    for cause, start, end in spent:
        first, last = since(account.came, start), since(account.came, end)
        yield {"cause": cause, "start_ms": first, "ms": last - first}


def since(came: float, moment: float) -> float:
    return round((moment - came) * 1000 * PARTS) / PARTS
