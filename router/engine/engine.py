"""Main loop of the router: plan a step, send it, read the answer, deliver its tokens.

The scheduler plans, `shards/encode.py` decodes answers, `clients.py` delivers. Up to `--look-ahead` plans are in
flight; their answers are processed in order. When the shards are lost the loop informs the scheduler, and continues
after the next handshake with shards.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from router.config import RouterConfig
from router.engine.clients import Clients
from router.engine.health import LEAVING, Health
from router.engine.in_flight import Awaited, Sent
from router.engine.resources import Supply
from router.engine.stream import Stream
from router.engine.timer import Alarm
from router.errors import NotReady, Overloaded
from router.recording.recorder import Recorder, new_core
from router.recording.shelf import Shelf
from router.request import Request, Tenant
from router.scheduler.events import Entered, Event, Refused
from router.scheduler.fault_isolation import Loss
from router.scheduler.plan import Answer, Plan
from router.scheduler.settings import Policy, without_effect
from router.shards import decode, encode
from router.shards.failures import ShardsLost
from router.shards.handshake import meet
from router.shards.shard_group import Shards
from router.telemetry.counters import Tally
from router.telemetry.request_log import Account
from router.text.prompts import Limits
from router.text.tokenizer import Tokenizer
from shard.pb import shard_pb2 as pb

LEAST_STEP_TIMEOUT = 30.0
PAUSE = 0.1  # seconds before the next attempt to connect to the shards
DEFECTS, DEFECT_WINDOW = 3, 60.0

log = logging.getLogger(__name__)
now = time.monotonic


class Engine:
    """Main loop around the scheduler, with the interface that the HTTP layer uses."""

    def __init__(self, config: RouterConfig, shards: Shards, tokenizer: Tokenizer,
                 on_broken: Callable[[str], None] = log.error, shelf: Shelf | None = None) -> None:
        """`on_broken` is called with the reason when the shard processes should be replaced.

        With a `shelf`, the calls of the scheduler are recorded.
        """
        self.config = config
        self.is_ready = False
        self.health = Health()
        self._wake = asyncio.Event()
        self.supply = Supply(shards, self._happened, self._wake.set)
        self._shards = shards
        self._tokenizer = tokenizer
        self._on_broken = on_broken
        self._shelf = shelf
        self._under_way = Awaited(self._wake.set)
        shards.on_gone = self._wake.set
        self._epoch = 0
        self._defects: deque[float] = deque(maxlen=DEFECTS)
        self._events: list[Event] = []  # not dispatched to clients yet
        self._alarm = Alarm(self._expire)

    # -- for the HTTP layer

    async def start(self) -> None:
        """Connect to the shards, set `facts` from what they report, and start the loop.

        Dead shards are waited for, hung ones reported to `on_broken`. Every other loss, such as a rejected warm-up,
        raises ShardsLost; limits that the model or the cache cannot hold raise ValueError.
        """
        try:
            while not await self._meet(Loss.DEATH):
                pass
            limits = Limits.of(self.config, self.facts)
        except BaseException:
            await self.supply.resources.close()
            await self._shards.close()
            raise
        policy = Policy.of(self.config, self.facts)
        for why in without_effect(self.config, policy):
            log.warning("%s", why)
        seconds = 60 * self.config.record_minutes if self._shelf is not None else 0.0
        self._core = new_core(policy, self.facts, seconds, now())
        self.tally = Tally(self._core, limits, self.facts.tokens_per_step, adapters=self.facts.adapters,
                           lorax=self.config.compat == "lorax")
        self._clients = Clients(self.config, self._tokenizer, self._core, self._wake.set, tally=self.tally)
        self.supply.start(self._core, self.tally)
        self._clients.tell(self._core.shards_ready(self.facts, self._epoch, now()))
        self._loop = asyncio.create_task(self._run(), name="engine")
        self._loop.add_done_callback(self._ended)

    async def stop(self) -> None:
        """Stop the loop, fail all unfinished requests, and close the connections to the shards."""
        self._loop.cancel()
        await asyncio.gather(self._loop, return_exceptions=True)
        self._tell()  # events that are still queued may finish requests, which then must not fail
        self._alarm.cancel()
        self._under_way.forget()
        await self.supply.resources.close()
        self.health.leave(LEAVING)
        self._fail_everyone(LEAVING)
        await self._shards.close()

    def submit(self, request: Request, came: float | None = None, traceparent: str = "") -> Stream:
        """Submit a request and return the stream of its events. Raises Overloaded or NotReady.

        `came` is when the HTTP request arrived, by default now; `traceparent` is the parent of the shards' spans.
        """
        if self._loop.done():
            raise NotReady(LEAVING)
        events = self._core.submit(request, now())
        first = events[0]
        if isinstance(first, Refused):
            raise Overloaded(first.reason, first.retry_after)
        assert isinstance(first, Entered)
        try:
            stream = self._clients.open(request, first.sequence, came, traceparent)
        except Exception:
            self._core.cancel(first.sequence, now())  # its tokens would have no stream
            raise
        self._clients.tell(events[1:])
        self._alarm.set(self._core.wake_at)
        self._wake.set()
        return stream

    def ailment(self) -> str:
        """Return why the router should get no requests now, or an empty string."""
        return self.health.ailment(now())

    def metrics(self) -> str:
        """Return the page of metrics for Prometheus."""
        return self.tally.page(is_ready=not self.ailment(), has_shards=self.is_ready)

    def account(self, request_id: str) -> Account | None:
        """Return the record of an unfinished or recently finished request."""
        return self._clients.accounts.get(request_id)

    def may_use(self, request_id: str, tenant: Tenant) -> bool:
        """Return whether a new request of this tenant may have this id."""
        return self._clients.accounts.may_use(request_id, tenant)

    def write_recording(self, why: str, *, asked: bool = True) -> None:
        """Write the scheduler's last minutes to a file, if they are recorded.

        Recordings that the user has not `asked` for are written at most every ten minutes.
        """
        if self._shelf is not None and isinstance(self._core, Recorder):
            put = self._shelf.put if asked else self._shelf.put_unasked
            put(self._core.segments(), self.facts, why)
        elif asked:
            log.warning("nothing is recorded (--record-minutes %g)", self.config.record_minutes)

    @property
    def num_unfinished(self) -> int:
        return len(self._clients)

    async def drained(self) -> None:
        await self._clients.gone()

    async def crashed(self) -> None:
        """Wait until the loop ends by itself, which only a bug can cause."""
        await asyncio.wait([self._loop])

    # -- the loop

    async def _run(self) -> None:
        while True:
            try:
                await self._serve()
            except ShardsLost as lost:
                await self._recover(lost)

    async def _serve(self) -> None:
        self._send_plans()
        while True:
            while self._under_way.has_answer:
                self._events += self._receive(self._under_way.oldest)
                self._send_plans()
                # Send the next messages before this answer's tokens are rendered, so that the shards do not idle.
                await asyncio.sleep(0)
                self._tell()
            if self._shards.is_gone and not self._under_way:
                raise ShardsLost(Loss.DEATH, "a shard went away while there was nothing to do")
            await self._wake.wait()
            self._wake.clear()
            self._send_plans()

    def _send_plans(self) -> None:
        while (plan := self._core.plan(now())) is not None:
            self._send(plan)
        self.supply.carry_out()
        self._alarm.set(self._core.wake_at)

    def _tell(self) -> None:
        events, self._events = self._events, []
        self._clients.tell(events)
        self._alarm.set(self._core.wake_at)

    def _expire(self) -> None:
        """Expire requests whose time has run out. Called by the timer, whatever the loop is waiting for."""
        self._happened(self._core.expire(now()))

    def _happened(self, events: list[Event]) -> None:
        """Dispatch events that do not come from an answer, after the events that are already queued."""
        self._events += events
        self._tell()
        self._wake.set()

    def _send(self, plan: Plan) -> None:
        timeout = self._under_way.seconds + self._step_timeout(plan)
        messages = encode.encode(plan, self._clients.traceparent)
        self._under_way.add(plan, self._shards.send(messages, timeout), now())
        self.health.progress.sent(plan.seconds, now())
        self.tally.steps.sent(plan)

    def _receive(self, done: Sent) -> list[Event]:
        answer, came = self._decode(done.answer.result(), done.plan), now()
        self._under_way.drop_oldest()
        took = self.health.progress.ended(came)
        stopped, read = self._clients.read(answer), now()
        self.tally.steps.answered(done.plan, answer, took, read - came)
        return self._core.complete(done.plan.order, answer, stopped, read)

    def _decode(self, message: Any, plan: Plan) -> Answer:
        try:
            if isinstance(message, pb.Acknowledgement):
                return encode.acknowledged(message, plan)
            if isinstance(message, pb.EmbedAnswer):
                return decode.decode(message, plan, self.facts)
            return encode.decode(message, plan, self.facts)
        except encode.Defect as defect:
            raise ShardsLost(Loss.DEFECT, f"an answer makes no sense: {defect}") from None

    def _ended(self, loop: "asyncio.Task[None]") -> None:
        if not loop.cancelled():
            log.critical("the engine's loop failed", exc_info=loop.exception())
            self.health.leave("the server failed")
            self._alarm.cancel()
            self.write_recording("the engine's loop failed")
            self._fail_everyone("the server failed")

    def _fail_everyone(self, reason: str) -> None:
        self._clients.fail_everyone(reason)
        self.supply.give_up(reason)

    # -- shards

    async def _meet(self, *expected: Loss) -> bool:
        """Try to connect to the shards and begin an epoch; return whether that succeeded.

        A loss that is not `expected` is raised.
        """
        try:
            meeting = await meet(self._shards, self.config, self._epoch)
        except ShardsLost as lost:
            if lost.loss not in expected:
                raise
            log.warning("the shards are not there: %s", lost)
            self._judge(lost)
            await asyncio.sleep(PAUSE)
            return False
        self.facts, self._epoch = meeting.facts, meeting.epoch
        await self.supply.resources.met(meeting)
        self.is_ready = True
        self.health.well()
        return True

    async def _recover(self, lost: ShardsLost) -> None:
        log.warning("the shards are lost (%s): %s", lost.loss.name.lower(), lost)
        self.is_ready = False
        self.health.ill(f"the shards are lost ({lost.loss.name.lower()}) and not back yet")
        self.tally.steps.lost(lost.loss, [sent.plan for sent in self._under_way])
        self._events += self._core.shards_lost(now(), lost.loss)
        self.supply.resources.lost(everything=lost.loss is Loss.DEATH)
        self._tell()
        if lost.loss is Loss.MEMORY:
            log.warning("steps have at most %d tokens from now on", self._core.policy.max_prefill_tokens)
        self._judge(lost)
        await self._under_way.settle()
        while not await self._meet(*Loss):
            pass
        self._clients.tell(self._core.shards_ready(self.facts, self._epoch, now()))
        self.supply.look_for_arrivals()
        log.info("the shards are back, epoch %d", self._epoch)

    def _judge(self, lost: ShardsLost) -> None:
        """Have the shard processes replaced if they hang, or after DEFECTS defects within DEFECT_WINDOW seconds."""
        if lost.loss is Loss.DEFECT:
            self._defects.append(now())
            self.write_recording("router and shards disagree", asked=False)
        repeated = len(self._defects) == DEFECTS and self._defects[-1] - self._defects[0] < DEFECT_WINDOW
        if lost.broken or repeated:
            self._defects.clear()
            self._on_broken(str(lost))

    def _step_timeout(self, plan: Plan) -> float:
        given = self.config.step_timeout
        return max(LEAST_STEP_TIMEOUT, 10.0 * plan.seconds) if given is None else given
