"""Deliveries of the unfinished requests, by sequence number.

Passes the scheduler's events and the shards' answers to the clients' streams, and what clients do (leave, stop
reading) to the scheduler.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from router.config import RouterConfig
from router.engine.delivery import Delivery
from router.engine.stream import FailedEvent, Stream
from router.errors import (
    Cancelled,
    ClassificationFailed,
    EmbeddingFailed,
    GenerationFailed,
    NotReady,
    RequestError,
    TimedOut,
)
from router.request import Request, Wish
from router.scheduler.events import Event, Expired, Failed, Finished, Produced
from router.scheduler.plan import Answer
from router.scheduler.scheduler import Scheduler
from router.scheduler.timeline import Story
from router.telemetry.counters import Tally
from router.telemetry.request_log import Account, Accounts
from router.text.tokenizer import Tokenizer

FAILURES = {Wish.TEXT: GenerationFailed, Wish.VECTOR: EmbeddingFailed, Wish.LABELS: ClassificationFailed}

log = logging.getLogger(__name__)
now = time.monotonic


class Clients:
    """Streams of all unfinished requests."""

    def __init__(self, config: RouterConfig, tokenizer: Tokenizer, core: Scheduler, wake: Callable[[], None],
                 *, tally: Tally) -> None:
        """`wake` is called when the scheduler may have something new to plan."""
        self._config = config
        self._tokenizer = tokenizer
        self._core = core
        self._wake = wake
        self._tally = tally
        self.accounts = Accounts()
        self._deliveries: dict[int, Delivery] = {}
        self._patience: dict[int, asyncio.TimerHandle] = {}  # timeouts of clients that do not read
        self._nobody = asyncio.Event()
        self._nobody.set()

    def __len__(self) -> int:
        return len(self._deliveries)

    async def gone(self) -> None:
        """Wait until no request is unfinished."""
        await self._nobody.wait()

    def open(self, request: Request, number: int, came: float | None = None, traceparent: str = "") -> Stream:
        stream = Stream(
            request, self._config.slow_client_buffer, on_full=lambda: self._hold(number),
            on_drained=lambda: self._resume(number), on_leave=lambda: self._leave(number))
        story = self._story(number)
        account = Account(request.id, request.tenant.name, len(request.prompt),
                          story.began if came is None else came, story, traceparent=traceparent,
                          adapter=None if request.adapter is None else request.adapter_name)
        self._deliveries[number] = Delivery(request, stream, self._tokenizer, account)
        self.accounts.open(account)
        self._nobody.clear()
        self._tally.requests.entered(request)
        return stream

    def _story(self, number: int) -> Story:
        """Return the scheduler's story; a new one if the request can never fit and the scheduler has dropped it."""
        with suppress(KeyError):
            return self._core.story(number)
        return Story(now())

    def traceparent(self, number: int) -> str:
        """Return the parent span of the sequence's chunks, or an empty string."""
        delivery = self._deliveries.get(number)
        return "" if delivery is None else delivery.account.traceparent

    # -- from the shards and the core

    def read(self, answer: Answer) -> dict[int, int]:
        """Detokenise an answer. Returns, for each sequence that reached a stop string, how many of its tokens count."""
        for logprobs in answer.prompt_logprobs:
            if (delivery := self._deliveries.get(logprobs.sequence)) is not None:
                delivery.deliver_prompt(logprobs)
        for number, told in answer.told.items():
            if (delivery := self._deliveries.get(number)) is not None:
                delivery.hear(told)
        stopped = {}
        deliveries = self._deliveries
        for number, row in answer.rows.items():
            if (delivery := deliveries.get(number)) is not None:
                try:
                    stop = delivery.read(row)
                except Exception:  # an error in the text of one request must fail only that request
                    self._unreadable(number)
                    continue
                if stop is not None:
                    stopped[number] = stop
        return stopped

    def _unreadable(self, number: int) -> None:
        log.exception("the text of a request could not be made")
        self._core.cancel(number, now())
        self.fail(number, GenerationFailed("the text could not be made"))

    def tell(self, events: Iterable[Event]) -> None:
        """Dispatch the scheduler's events. Events of requests that are already closed are dropped."""
        for event in events:
            if isinstance(event, Produced):
                self._deliver(event.counts)
            elif isinstance(event, Expired):
                self.fail(event.sequence, TimedOut(event.reason))
            elif isinstance(event, Failed):
                self._failed(event)
            elif isinstance(event, Finished):
                self._finished(event)

    def _finished(self, event: Finished) -> None:
        if (delivery := self._deliveries.get(event.sequence)) is None:
            return
        try:
            delivery.finish(event.reason)
        except Exception:  # fails only this request, as in `read`
            self._unreadable(event.sequence)
            return
        self._close(event.sequence)
        self._tally.requests.finished(delivery.account)

    def _failed(self, event: Failed) -> None:
        if (delivery := self._deliveries.get(event.sequence)) is not None:
            self.fail(event.sequence, FAILURES[delivery.request.wish](event.reason))

    def _deliver(self, counts: Mapping[int, int]) -> None:
        moment = now()
        for number in self._tally.requests.delivered(counts.keys(), self._deliveries, moment):
            if (delivery := self._deliveries.get(number)) is not None:
                self._tally.requests.began(delivery.account, moment)
        self._tally.steps.delivered(counts)
        for number in counts:
            if (delivery := self._deliveries.get(number)) is not None:
                delivery.deliver()

    def fail(self, number: int, error: RequestError) -> None:
        if (delivery := self._deliveries.get(number)) is not None:
            self._close(number)
            delivery.stream.put(FailedEvent(error))

    def fail_everyone(self, reason: str) -> None:
        for number in list(self._deliveries):
            self.fail(number, NotReady(reason))

    # -- from the clients

    def _hold(self, number: int) -> None:
        """Pause the sequence of a client that does not read; cancel it after --slow-client-timeout."""
        self._core.hold(number, now())
        self._patience[number] = asyncio.get_running_loop().call_later(
            self._config.slow_client_timeout, self._give_up, number)

    def _resume(self, number: int) -> None:
        if (patience := self._patience.pop(number, None)) is not None:
            patience.cancel()
        self._core.resume(number, now())
        self._wake()

    def _give_up(self, number: int) -> None:
        self._core.cancel(number, now())
        self.fail(number, Cancelled(f"the client did not read for {self._config.slow_client_timeout} seconds"))

    def _leave(self, number: int) -> None:
        self._core.cancel(number, now())
        self._close(number)

    def _close(self, number: int) -> None:
        if (delivery := self._deliveries.pop(number, None)) is not None:
            self.accounts.close(delivery.account, now())
            self._tally.requests.closed(number, delivery.account)
        if (patience := self._patience.pop(number, None)) is not None:
            patience.cancel()
        if not self._deliveries:
            self._nobody.set()
        self._wake()
