"""Main loop of the router. In one turn it reads an answer, plans and sends what follows from it, and only then delivers
the answer's tokens, so that the shards do not wait for clients. Up to `--look-ahead` plans are in flight; their answers
are processed in order. When the shards are lost the loop informs the scheduler, and continues after the next handshake
with shards."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable

from router.config import RouterConfig
from router.engine.adapter_grammar_controller import AdapterGrammarController
from router.engine.client_streams import ClientStreams
from router.engine.crashing_prompts import CrashingPrompts
from router.engine.health import Health
from router.engine.output_stream import RequestStream
from router.engine.plans_in_flight import PlanInFlight, PlansInFlight
from router.errors import SHUTDOWN_REASON, NotReady, Overloaded, ShuttingDown
from router.model_info import ModelInfo
from router.monitor.monitor import EngineMonitor, Readiness
from router.recording.recording_file import RecordingFolder
from router.recording.recording_scheduler import RecordingScheduler, make_optionally_recorded_scheduler
from router.request import Request, Tenant
from router.scheduler.events import RequestAccepted, RequestRejected, SchedulerEvent, SequenceFailed
from router.scheduler.fault_isolation import DEATHS_BEFORE_FAILURE, ShardLossReason
from router.scheduler.scheduler import Scheduler
from router.scheduler.settings import SchedulerSettings, describe_unused_settings
from router.shards.failures import ShardsLost
from router.shards.handshake import perform_handshake
from router.shards.message_conversion import decode_answer, encode_plan
from router.shards.shard_group import ShardGroup
from router.telemetry.server_metrics import NO_ADAPTER_NAMES, AdapterNames, RequestRecord, ServerMetrics
from router.telemetry.stat_logger import StatLogger
from router.text.prompt_encoder import TokenLimits
from router.text.tokenizer import ResumedText, Tokenizer

MIN_STEP_TIMEOUT_SECONDS = 30.0
STEP_TIMEOUT_FACTOR = 10.0  # how many times its predicted duration a step may take
RECONNECT_DELAY = 0.1  # seconds before the next attempt to connect to the shards
SHARDS_LOST_REASON = "the shards are lost and not back yet (--on-shard-loss fail); try again"
# Pause after a step for which there was no memory; doubles while that happens again within the window. What other
# processes took often comes back soon, and until then the retries would fail one request after the other.
MIN_MEMORY_PAUSE, MAX_MEMORY_PAUSE, MEMORY_WINDOW_SECONDS = 0.1, 2.0, 10.0
MAX_DEFECTS = 3  # so many within DEFECT_WINDOW_SECONDS, and the shards are replaced
DEFECT_WINDOW_SECONDS = 60.0
TIMER_SLACK_SECONDS = 0.001  # the event loop counts in milliseconds and may call too early

logger = logging.getLogger(__name__)
now = time.monotonic


class Engine:
    """Main loop around the scheduler, with the interface that the HTTP layer uses."""

    # Set by `start`.
    model_info: ModelInfo
    server_metrics: ServerMetrics
    monitor: EngineMonitor
    _scheduler: Scheduler
    _client_streams: ClientStreams
    _loop_task: "asyncio.Task[None]"

    def __init__(self, config: RouterConfig, shards: ShardGroup, tokenizer: Tokenizer,
                 on_restart_needed: Callable[[str], None] = logger.error,
                 recording_folder: RecordingFolder | None = None, *,
                 on_culprit_found: Callable[[int], None] = lambda _: None) -> None:
        """`on_restart_needed` is called with the reason when the shard processes should be replaced,
        `on_culprit_found` with the number of deaths that a request was found to have caused. With a `recording_folder`,
        the calls of the scheduler are recorded."""
        self.config = config
        self.has_shards = False
        self._waits_for_new_shards = False  # shards have died or are replaced
        self._wake_event = asyncio.Event()
        self.adapter_grammar_controller = AdapterGrammarController(
            shards, self._queue_and_dispatch_events, self._wake_event.set)
        self._shards = shards
        self._tokenizer = tokenizer
        self._on_restart_needed, self._on_culprit_found = on_restart_needed, on_culprit_found
        self._crashing_prompts = CrashingPrompts()
        self._recording_folder = recording_folder
        self._plans_in_flight = PlansInFlight(self._wake_event.set)
        self.health = Health(self._plans_in_flight)
        shards.on_disconnect = self._wake_event.set
        self._epoch = 0
        self._defect_times: deque[float] = deque(maxlen=MAX_DEFECTS)
        self._memory_pause, self._memory_lost_at = 0.0, -MEMORY_WINDOW_SECONDS
        self._queued_events: list[SchedulerEvent] = []  # not dispatched to clients yet
        # Expires requests whose time has run out, whatever the loop is waiting for.
        self._wake_timer = MovableTimer(lambda: self._queue_and_dispatch_events(self._scheduler.on_timer(now())))

    # -- for the HTTP layer

    async def start(self) -> None:
        """Connect to the shards, set `model_info` from what they report, and start the loop. Dead shards are waited
        for, hung ones reported to `on_restart_needed`. Every other loss, such as a rejected warm-up, raises ShardsLost;
        limits that the model or the cache cannot hold raise ValueError."""
        try:
            while not await self._connect_shards(ShardLossReason.DEATH):
                pass
            limits = TokenLimits.from_config(self.config, self.model_info)
        except BaseException:
            await self.adapter_grammar_controller.loader.close()
            await self._shards.close()
            raise
        settings = SchedulerSettings.from_config(self.config, self.model_info)
        for warning in describe_unused_settings(self.config, settings):
            logger.warning("%s", warning)
        seconds = 60 * self.config.record_minutes if self._recording_folder is not None else 0.0
        self._scheduler = make_optionally_recorded_scheduler(settings, self.model_info, seconds, now())
        self.server_metrics = ServerMetrics(self._scheduler, limits, self.model_info.tokens_per_step,
                                            with_adapters=self.model_info.adapters,
                                            with_lorax_names=self.config.compat == "lorax")
        self._client_streams = ClientStreams(self.config, self._tokenizer, self._scheduler, self._wake_event.set,
                                             metrics=self.server_metrics)
        self.arriving_requests = self._client_streams.arriving_requests
        self.monitor = EngineMonitor(self._scheduler, self.server_metrics,
                                     lambda: [sent.plan for sent in self._plans_in_flight],
                                     self._client_streams.get_text, self.get_readiness)
        self.adapter_grammar_controller.attach_scheduler(self._scheduler, self.server_metrics)
        self._client_streams.dispatch_events(self._scheduler.on_shards_ready(self.model_info, self._epoch, now()))
        self._loop_task = asyncio.create_task(self._run_forever(), name="engine")
        self._loop_task.add_done_callback(self._on_loop_ended)
        self._stat_logger_task = asyncio.create_task(StatLogger(self._scheduler, self.server_metrics).run())

    async def stop(self) -> None:
        """Stop the loop, fail all unfinished requests, and close the connections to the shards."""
        self.monitor.close()
        self._loop_task.cancel()
        self._stat_logger_task.cancel()
        await asyncio.gather(self._loop_task, self._stat_logger_task, return_exceptions=True)
        self._flush_events()  # events that are still queued may finish requests, which then must not fail
        self._wake_timer.cancel()
        self._plans_in_flight.cancel_all()
        await self.adapter_grammar_controller.loader.close()
        self.health.set_unready_permanently(SHUTDOWN_REASON)
        self._fail_all_requests(SHUTDOWN_REASON)
        await self._shards.close()

    def submit(self, request: Request, arrived_at: float | None = None, traceparent: str = "",
               resumed_text: ResumedText | None = None) -> RequestStream:
        """Submit a request and return the stream of its events. Raises Overloaded, NotReady or InvalidRequest.
        `arrived_at` is when the HTTP request arrived, by default now; `traceparent` is the parent of the shards'
        spans; `resumed_text` is that of the request's resumed tokens, if it has any."""
        if self._loop_task.done():
            raise ShuttingDown(SHUTDOWN_REASON)
        if self._waits_for_new_shards and self.config.on_shard_loss == "fail":
            raise NotReady(SHARDS_LOST_REASON)
        if self._crashing_prompts.refused_until:
            self._crashing_prompts.check(request, now())
        events = self._scheduler.submit(request, now())
        first = events[0]
        if isinstance(first, RequestRejected):
            raise Overloaded(first.reason, first.retry_after)
        assert isinstance(first, RequestAccepted)
        try:
            stream = self._client_streams.open_stream(request, first.sequence_id, arrived_at, traceparent,
                                                      resumed_text)
        except Exception:
            self._scheduler.cancel(first.sequence_id, now())  # its tokens would have no stream
            raise
        self._client_streams.dispatch_events(events[1:])  # directly: a new sequence has no queued events
        if request.timeout is not None:  # even while the shards are lost; else the loop sets the timer before it waits
            self._wake_timer.set_deadline(self._scheduler.wake_at)
        self._wake_event.set()
        return stream

    def why_unavailable(self) -> str:
        """Return why the router should get no requests now, or an empty string."""
        return self.health.why_unavailable(now())

    def get_readiness(self) -> Readiness:
        reason = self.why_unavailable()
        return {"ready": not reason, "not_ready_reason": reason or None, "has_shards": self.has_shards}

    def render_metrics_page(self, adapter_names: AdapterNames = NO_ADAPTER_NAMES) -> str:
        return self.server_metrics.render(is_ready=not self.why_unavailable(), has_shards=self.has_shards,
                                          adapter_names=adapter_names)

    def get_request_record(self, request_id: str) -> RequestRecord | None:
        """Return the record of an unfinished or recently finished request."""
        return self._client_streams.request_records.get(request_id)

    def find_prompt_records(self, first: RequestRecord) -> list[list[RequestRecord]]:
        """Return the records of all prompts of a request, for each those of its choices."""
        return self._client_streams.request_records.find_records_by_prompt(first)

    def add_refused_request(self, record: RequestRecord) -> None:
        """Add the record of a request that ended before it was submitted."""
        self._client_streams.request_records.add_refused(record)

    def cancel_request(self, request_id: str, tenant_name: str) -> int:
        """Cancel a tenant's request, and return how many of its sequences were unfinished."""
        return self._client_streams.cancel_request(request_id, tenant_name)

    def find_latest_request_records(self, tenant_name: str, max_records: int) -> list[RequestRecord]:
        """Return a tenant's records: those of unfinished requests, the latest first, then those that ended last."""
        return self._client_streams.request_records.find_latest(tenant_name, max_records)

    def copy_request_records_except(self, record: RequestRecord) -> list[RequestRecord]:
        """Return copies of the records of all other unfinished and recently finished requests."""
        return self._client_streams.request_records.copy_records_except(record)

    def can_use_request_id(self, request_id: str, tenant: Tenant) -> bool:
        """Return whether a new request of this tenant may have this id."""
        return self._client_streams.request_records.can_use_request_id(request_id, tenant)

    def write_recording(self, reason: str, *, is_requested: bool = True) -> None:
        """Write the scheduler's last minutes to a file, if they are recorded; unless the user has asked for that
        (`is_requested`), at most every ten minutes."""
        if self._recording_folder is not None and isinstance(self._scheduler, RecordingScheduler):
            self._recording_folder.write_in_background(self._scheduler.copy_segments(), self.model_info, reason,
                                                       is_automatic=not is_requested)
        elif is_requested:
            logger.warning("nothing is recorded (--record-minutes %g)", self.config.record_minutes)

    async def wait_until_drained(self) -> None:
        """Wait until all requests have finished, those included that are not submitted yet."""
        streams = self._client_streams
        while not streams.arriving_requests.none_left.is_set() or not streams.all_finished.is_set():
            await streams.arriving_requests.none_left.wait()
            await streams.all_finished.wait()

    async def wait_until_crashed(self) -> None:
        """Wait until the loop ends by itself, which only a bug can cause."""
        await asyncio.wait([self._loop_task])

    # -- the loop

    async def _run_forever(self) -> None:
        while True:
            try:
                await self._run_steps()
            except ShardsLost as lost:
                await self._recover_shards(lost)

    async def _run_steps(self) -> None:
        was_woken = True  # whether something other than an answer may have changed what to plan
        while True:
            if (answered_plan := self._plans_in_flight.get_answered()) is not None:
                self._receive_answer(answered_plan)
                self._send_plans()
                # `_send_plans` only queued the messages. Yield once, so that `StepStreamClient._write_messages` sends
                # them before this answer's tokens are rendered: the shards do not idle meanwhile.
                await asyncio.sleep(0)
                self._flush_events()
                was_woken = False
            elif was_woken:
                self._send_plans()
                was_woken = False
            elif self._shards.is_disconnected and not self._plans_in_flight:
                raise self._shards.make_disconnect_loss()
            else:
                if (wake_at := self._scheduler.wake_at) != self._wake_timer.deadline:
                    self._wake_timer.set_deadline(wake_at)
                await self._wake_event.wait()
                self._wake_event.clear()
                was_woken = True

    def _send_plans(self) -> None:
        while (plan := self._scheduler.plan(now())) is not None:
            timeout = self._plans_in_flight.total_predicted_seconds + (
                max(MIN_STEP_TIMEOUT_SECONDS, STEP_TIMEOUT_FACTOR * plan.predicted_seconds)
                if self.config.step_timeout is None else self.config.step_timeout)
            messages = encode_plan(plan, self._client_streams.get_traceparent)
            self._plans_in_flight.add(plan, self._shards.send(messages, timeout), now())
            self.server_metrics.steps.count_sent(plan)
        if self._scheduler.resource_cache.was_ever_needed:
            self.adapter_grammar_controller.execute_loads_and_unloads()

    def _flush_events(self) -> None:
        events, self._queued_events = self._queued_events, []
        self._client_streams.dispatch_events(events)

    def _queue_and_dispatch_events(self, events: list[SchedulerEvent]) -> None:
        """Queue events that do not come from an answer, and dispatch them after those that are queued already."""
        self._queued_events += events
        self._flush_events()
        self._wake_timer.set_deadline(self._scheduler.wake_at)
        self._wake_event.set()

    def _receive_answer(self, answered_plan: PlanInFlight) -> None:
        """Detokenize an answer and apply it to the scheduler. Raises ShardsLost if a rank failed the plan or the answer
        is invalid; `_run_forever` then recovers."""
        plan = answered_plan.plan
        result = decode_answer(answered_plan.answer.result(), plan, self.model_info)
        answered_at = now()
        round_trip_seconds = self._plans_in_flight.drop_oldest(answered_at)
        stop_token_counts = self._client_streams.detokenize_result(result)
        detokenized_at = now()
        self.server_metrics.steps.observe_result(plan, result, round_trip_seconds, detokenized_at - answered_at)
        events = self._scheduler.complete_step(plan.last_message_number, result, stop_token_counts, detokenized_at)
        self._queued_events += events
        if (observer := self.monitor.observer) is not None:
            observer.record_answered_step(plan, events, answered_at=answered_at, seconds=result.seconds,
                                          wall_seconds=round_trip_seconds)

    def _on_loop_ended(self, loop_task: "asyncio.Task[None]") -> None:
        if not loop_task.cancelled():
            logger.critical("the engine's loop failed", exc_info=loop_task.exception())
            self.health.set_unready_permanently("the server failed")
            self._wake_timer.cancel()
            self.write_recording("the engine's loop failed")
            self._fail_all_requests("the server failed")

    def _fail_all_requests(self, reason: str) -> None:
        self._client_streams.fail_all(reason)
        self.adapter_grammar_controller.stop_loading(reason)

    # -- shards

    async def _connect_shards(self, *expected_loss_reasons: ShardLossReason) -> bool:
        """Try to connect to the shards and begin an epoch; return whether that succeeded. Raises other losses."""
        try:
            handshake = await perform_handshake(self._shards, self.config, self._epoch)
        except ShardsLost as lost:
            if lost.loss_reason not in expected_loss_reasons:
                raise
            logger.warning("the shards are not there: %s", lost)
            self._restart_shards_if_needed(lost)
            await asyncio.sleep(RECONNECT_DELAY)
            return False
        self._shards.watch_responsiveness()
        self.model_info, self._epoch = handshake.model_info, handshake.epoch
        await self.adapter_grammar_controller.loader.restore_after_handshake(handshake)
        self.has_shards, self._waits_for_new_shards = True, False
        self.health.set_ready()
        return True

    def _refuse_blamed_prompts(self, failures: list[SchedulerEvent]) -> None:
        """Refuse the prompts of the requests to blame for deaths from now on."""
        for failure in failures:
            if isinstance(failure, SequenceFailed):
                self._crashing_prompts.add(self._client_streams.get_request(failure.sequence_id), now())

    async def _recover_shards(self, lost: ShardsLost) -> None:
        logger.warning("the shards are lost (%s): %s", lost.loss_reason.name.lower(), lost)
        self.has_shards = False
        self.health.set_unready(f"the shards are lost ({lost.loss_reason.name.lower()}) and not back yet")
        self.server_metrics.steps.count_shard_loss(lost.loss_reason, [sent.plan for sent in self._plans_in_flight])
        failures = self._scheduler.on_shards_lost(lost.loss_reason, now())
        has_culprit = lost.loss_reason is ShardLossReason.DEATH and bool(failures)
        if has_culprit:
            self._refuse_blamed_prompts(failures)
        if self.monitor.observer is not None:
            self.monitor.observer.record_shard_loss(failures, now())
        self._queued_events += failures
        self.adapter_grammar_controller.loader.end_epoch(resources_lost=lost.loss_reason is ShardLossReason.DEATH)
        self._flush_events()
        self._wake_timer.set_deadline(self._scheduler.wake_at)  # requeued sequences may be past their deadline
        if lost.loss_reason is ShardLossReason.MEMORY:
            logger.warning("steps have at most %d tokens from now on", self._scheduler.settings.max_prefill_tokens)
        self._restart_shards_if_needed(lost)
        self._fail_requests_without_shards()
        await self._plans_in_flight.wait_and_clear()
        if lost.loss_reason is ShardLossReason.MEMORY:
            await asyncio.sleep(self._update_memory_pause())
        while not await self._connect_shards(*ShardLossReason):
            self._fail_requests_without_shards()
        if has_culprit:
            self._on_culprit_found(DEATHS_BEFORE_FAILURE)  # now that all of them have been counted
        # Directly: `_flush_events` has left no queued events, and without shards there are no answers.
        self._client_streams.dispatch_events(self._scheduler.on_shards_ready(self.model_info, self._epoch, now()))
        self.adapter_grammar_controller.settle_waiters_without_load()
        logger.info("the shards are back, epoch %d", self._epoch)

    def _update_memory_pause(self) -> float:
        is_repeated = now() - self._memory_lost_at < MEMORY_WINDOW_SECONDS
        self._memory_pause = min(2 * self._memory_pause, MAX_MEMORY_PAUSE) if is_repeated else MIN_MEMORY_PAUSE
        self._memory_lost_at = now()
        return self._memory_pause

    def _restart_shards_if_needed(self, lost: ShardsLost) -> None:
        """Have the shard processes replaced if they hang, or after MAX_DEFECTS within DEFECT_WINDOW_SECONDS. Those that
        have died are replaced anyway."""
        if lost.loss_reason is ShardLossReason.DEFECT:
            self._defect_times.append(now())
            self.write_recording("router and shards disagree", is_requested=False)
        has_repeated_defects = (len(self._defect_times) == MAX_DEFECTS
                                and self._defect_times[-1] - self._defect_times[0] < DEFECT_WINDOW_SECONDS)
        needs_restart = lost.needs_restart or has_repeated_defects
        if needs_restart:
            self._defect_times.clear()
            self._on_restart_needed(str(lost))
        if needs_restart or lost.loss_reason is ShardLossReason.DEATH:
            self._waits_for_new_shards = True

    def _fail_requests_without_shards(self) -> None:
        if self._waits_for_new_shards and self.config.on_shard_loss == "fail":
            self._client_streams.cancel_all(SHARDS_LOST_REASON)


class MovableTimer:
    """Timer with a movable deadline (`time.monotonic`), which replaces the loop's timer only when that changes."""

    def __init__(self, callback: Callable[[], object]) -> None:
        """`callback` is called at the deadline or soon after it; it must call `set_deadline` for the next deadline."""
        self._callback = callback
        self.deadline: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def set_deadline(self, deadline: float | None) -> None:
        if deadline == self.deadline:
            return
        self.cancel()
        if deadline is not None:
            self.deadline = deadline
            self._timer = asyncio.get_running_loop().call_later(max(deadline - now(), 0.0) + TIMER_SLACK_SECONDS,
                                                                self._fire)

    def cancel(self) -> None:
        self.deadline = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        self.cancel()
        self._callback()
