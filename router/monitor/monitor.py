"""Monitor of the engine: states and frames for those who watch. While nobody does it has no observer, and the engine
makes no call for it."""

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from json import dumps
from typing import Any, TypedDict

from router.errors import MonitorBusy
from router.monitor.block_map import BlockMap
from router.monitor.observed_steps import ObservedSequence, ObservedStep, StepJsonEncoder, round_seconds
from router.monitor.rates import describe_rates_since_start
from router.monitor.step_observer import StepObserver
from router.monitor.viewer_rights import SequenceRedactor, Viewer
from router.scheduler.cost_model import CostTerms
from router.scheduler.scheduler import Scheduler
from router.scheduler.sequence import RequestPhase, Sequence, SequenceState
from router.scheduler.settings import SchedulerSettings
from router.scheduler.shard_messages import Prefill, StepPlan
from router.telemetry.server_metrics import ServerMetrics

MAX_FRAMES_PER_SECOND = 20
MAX_SECONDS_WITHOUT_FRAME = 1.0
SECONDS_BETWEEN_RATES = 0.5  # of frames
MAX_BUFFERED_STEPS = 2000
BUFFER_SECONDS = 300.0  # for which steps are kept after the last viewer has left
MAX_VIEWERS = 16
# Fewer for keys that are not an admin's, so that no tenant has all places and an admin key finds one.
MAX_USER_VIEWERS, MAX_TENANT_VIEWERS = 12, 8
MAX_SHOWN_WAITING = 100  # waiting sequences of a frame or state
MAX_TEXT_CHARACTERS = 200  # of a running sequence's text, with --ui-show-text

logger = logging.getLogger(__name__)
clock = time.monotonic


class Readiness(TypedDict):
    """Facts about the server that change while it runs."""

    ready: bool
    not_ready_reason: str | None
    has_shards: bool


@dataclass(frozen=True, slots=True)
class BufferedStep:
    number: int
    json_text: str


@dataclass(frozen=True, slots=True)
class BufferedStepRange:
    """Consecutive buffered steps and facts about their sequences."""

    steps: list[BufferedStep]
    sequences: dict[int, ObservedSequence]


class ViewerFeed:
    """Events of one viewer. A frame that comes while the viewer has not read the one before is lost to it, and a state
    follows instead."""

    def __init__(self, viewer: Viewer, render_state: Callable[[], bytes], history: Callable[[], bytes | None]) -> None:
        self.viewer = viewer
        self.is_new = True  # it has got no frame since its last state
        self.num_steps_in_state = 0  # of the steps that no frame has had yet: those that its last state counts
        self.readiness: Readiness | None = None  # that it was told last
        self._render_state, self._render_history = render_state, history
        self._needs_state = True
        self._is_closed = False
        self._next_frame: asyncio.Future[bytes] | None = None  # None: the viewer does not wait for it

    @property
    def is_waiting(self) -> bool:
        return self._next_frame is not None and not self._next_frame.done()

    def put(self, frame: bytes) -> None:
        assert self._next_frame is not None
        self._next_frame.set_result(frame)
        self.is_new = False

    def require_full_state(self) -> None:
        self._needs_state = True

    def close(self) -> None:
        self._is_closed = True
        if self.is_waiting:
            self.put(b"")

    async def iterate_events(self) -> AsyncIterator[bytes]:
        """Yield states and frames until the monitor is closed."""
        history = self._render_history()
        while not self._is_closed:
            if self._needs_state:
                self._needs_state, self.is_new = False, True
                yield self._render_state()
                if history is not None:
                    yield history
                    history = None
                continue
            self._next_frame = asyncio.get_running_loop().create_future()
            if frame := await self._next_frame:
                self._next_frame = None
                yield frame


class EngineMonitor:
    """The engine as viewers see it. The engine notes answers in `observer` if there is one."""

    def __init__(self, scheduler: Scheduler, metrics: ServerMetrics, list_plans_in_flight: Callable[[], list[StepPlan]],
                 get_text: Callable[[int], str], get_readiness: Callable[[], Readiness]) -> None:
        """`get_text` returns the text that a sequence has generated so far."""
        self.observer: StepObserver | None = None
        self._scheduler, self._metrics = scheduler, metrics
        self._list_plans_in_flight, self._get_text = list_plans_in_flight, get_text
        self._get_readiness = get_readiness
        self.clock_offset = time.time() - clock()
        self._renderer, self._step_encoder = SequenceRedactor(self.clock_offset), StepJsonEncoder(self.clock_offset)
        self._block_map = BlockMap(scheduler)
        self._feeds: set[ViewerFeed] = set()
        self._frame_task: asyncio.Task[None] | None = None
        self._buffered_steps: deque[BufferedStep] = deque(maxlen=MAX_BUFFERED_STEPS)
        self._sequences: dict[int, ObservedSequence] = {}  # of the buffered steps, while there is no observer
        self._buffer_timer: asyncio.TimerHandle | None = None
        self._shown_ids: set[int] = set()  # sequences that were in a frame
        self._unsent_steps: list[tuple[ObservedStep, str]] = []  # each with its JSON; observed since the last frame
        self._last_queue: tuple[object, ...] = ()
        self._last_frame_at = self._next_rates_at = 0.0
        self._max_sequences = MAX_BUFFERED_STEPS  # beyond, those that no buffered step names are dropped

    @property
    def settings(self) -> SchedulerSettings:
        return self._scheduler.settings

    @property
    def cost_coefficients(self) -> CostTerms:
        """Costs of a step as the scheduler has learned them."""
        return self._scheduler.cost_model.coefficients

    # -- viewers

    @contextmanager
    def watch(self, viewer: Viewer, render_state: Callable[[], bytes],
              since: int | None = None) -> Iterator[ViewerFeed]:
        """Watch the engine while the block runs. The first event is what `render_state` returns; the next one has the
        buffered steps after number `since`. Raises MonitorBusy."""
        self._check_place(viewer)
        feed = ViewerFeed(viewer, lambda: self._render_state(feed, render_state),
                          lambda: None if since is None else self._render_history(viewer, since))
        self._feeds.add(feed)
        if self._frame_task is None:
            self._start_observing()
        try:
            yield feed
        finally:
            self._feeds.discard(feed)
            if not self._feeds:
                self._stop_observing()

    def _check_place(self, viewer: Viewer) -> None:
        """Raises MonitorBusy if there is no place for another viewer with these rights."""
        watching = [feed.viewer for feed in self._feeds]
        users = [other for other in watching if not other.is_admin]
        tenant_users = [other for other in users if other.tenant_name == viewer.tenant_name]
        limits = [(watching, MAX_VIEWERS, "viewers")]
        if not viewer.is_admin:
            limits += [(tenant_users, MAX_TENANT_VIEWERS, "viewers of this tenant"),
                       (users, MAX_USER_VIEWERS, "viewers without an admin key")]
        for others, most, name in limits:
            if len(others) >= most:
                raise MonitorBusy(f"{most} {name} watch the engine already, as many as may at once; try again when one "
                                  "has left, or poll /v1/engine/state")

    def _render_state(self, feed: ViewerFeed, render_state: Callable[[], bytes]) -> bytes:
        self._observe_steps()
        feed.num_steps_in_state, feed.readiness = len(self._unsent_steps), self._get_readiness()
        return render_state()

    def close(self) -> None:
        """End the events of all viewers."""
        for feed in self._feeds:
            feed.close()

    def _start_observing(self) -> None:
        if self._buffer_timer is not None:
            self._buffer_timer.cancel()
        self.observer = StepObserver(self._scheduler, self._list_plans_in_flight(), now=clock(),
                                     num_steps=self._metrics.steps.num_answered, known_sequences=self._sequences)
        self._last_queue, self._unsent_steps = (), []
        self._frame_task = asyncio.create_task(self._send_frames(), name="frames")
        self._frame_task.add_done_callback(self._on_frames_ended)

    def _stop_observing(self) -> None:
        if self._frame_task is None or self.observer is None:
            return
        self._frame_task.cancel()
        self._sequences, self.observer, self._frame_task = self.observer.sequences, None, None
        self._buffer_timer = asyncio.get_running_loop().call_later(BUFFER_SECONDS, self._clear_buffer)

    def _clear_buffer(self) -> None:
        self._buffered_steps.clear()
        self._sequences, self._buffer_timer = {}, None
        self._shown_ids.clear()

    def _on_frames_ended(self, frame_task: "asyncio.Task[None]") -> None:
        """Give up watching after an error, which must not harm the engine."""
        if not frame_task.cancelled() and (error := frame_task.exception()) is not None:
            logger.error("the engine can no longer be watched", exc_info=error)
            self._stop_observing()
            self.close()

    # -- frames

    async def _send_frames(self) -> None:
        while True:
            await asyncio.sleep(1 / MAX_FRAMES_PER_SECOND)
            self.send_frame()

    def send_frame(self) -> None:
        """Send what has happened since the last frame to the viewers that wait for it, if anything has."""
        assert self.observer is not None
        self._observe_steps()
        now, queue, readiness = clock(), self._get_queue_key(), self._get_readiness()
        has_queue_changed = queue != self._last_queue
        if (not self._unsent_steps and not has_queue_changed and now < self._last_frame_at + MAX_SECONDS_WITHOUT_FRAME
                and not any(feed.is_waiting and feed.readiness != readiness for feed in self._feeds)):
            return
        self._last_queue, self._last_frame_at = queue, now
        steps, self._unsent_steps = self._unsent_steps, []
        new_ids = list_sequence_ids(steps) - self._shown_ids
        self._shown_ids |= new_ids
        head = f'{{"t":{round_seconds(now + self.clock_offset)},"step":{self.observer.num_steps},"steps":['
        tail = self._render_common_parts(now)
        rendered: dict[tuple[Viewer, bool, int, bool], bytes] = {}
        for feed in self._feeds:
            if not feed.is_waiting:
                feed.require_full_state()
                continue
            has_readiness_changed = feed.readiness != readiness
            key = (feed.viewer, feed.is_new, feed.num_steps_in_state, has_readiness_changed)
            if key not in rendered:
                feed_steps = steps[feed.num_steps_in_state:]
                shown_ids = list_sequence_ids(feed_steps) if feed.is_new else new_ids
                own_parts: dict[str, Any] = {"sequences": self._describe_sequences(shown_ids, feed.viewer)}
                if has_queue_changed or feed.is_new:
                    own_parts["queue"] = self._describe_queue(feed.viewer)
                if has_readiness_changed:
                    own_parts["server"] = readiness
                texts = ",".join([text for _, text in feed_steps])
                rendered[key] = render_event("frame", f"{head}{texts}],{dump_without_braces(own_parts)},{tail}}}",
                                             self.observer.num_steps)
            feed.num_steps_in_state, feed.readiness = 0, readiness
            feed.put(rendered[key])

    def _get_queue_key(self) -> tuple[object, ...]:
        """Return what changes with the shown queue."""
        waiting = self._scheduler.waiting
        return (len(waiting), waiting.demand.num_tokens, [(sequence.id, sequence.timeline.phase) for sequence in
                                                          islice(waiting, MAX_SHOWN_WAITING)])

    def _render_common_parts(self, now: float) -> str:
        assert self.observer is not None
        parts: dict[str, Any] = {"blocks": self._block_map.describe_for_frame(now)}
        if now >= self._next_rates_at:
            self._next_rates_at = now + SECONDS_BETWEEN_RATES
            parts["rates"] = self.observer.rates.describe(now)
        return dump_without_braces(parts)

    def _observe_steps(self) -> None:
        """Buffer the steps that were noted since the last call."""
        if (observer := self.observer) is None:
            return
        for step in observer.take_observed_steps():
            text = self._step_encoder.encode(step)
            self._unsent_steps.append((step, text))
            self._buffered_steps.append(BufferedStep(step.number, text))
        if len(observer.sequences) > self._max_sequences:
            observer.drop_sequences_before(self._buffered_steps[0].number if self._buffered_steps else 0)
            self._shown_ids &= observer.sequences.keys()
            self._max_sequences = max(MAX_BUFFERED_STEPS, 2 * len(observer.sequences))

    def _render_history(self, viewer: Viewer, since: int) -> bytes | None:
        self._observe_steps()
        step_range = self.get_buffered_step_range(since)
        if not step_range.steps:
            return None
        steps = ",".join(step.json_text for step in step_range.steps)
        sequences = dumps(self._renderer.describe_all(step_range.sequences.values(), viewer), separators=(",", ":"))
        now = round_seconds(clock() + self.clock_offset)
        return render_event("frame", f'{{"t":{now},"step":{step_range.steps[-1].number},"steps":[{steps}],'
                                     f'"sequences":{sequences}}}', step_range.steps[-1].number)

    def _describe_sequences(self, sequence_ids: Iterable[int], viewer: Viewer) -> list[dict[str, Any]]:
        assert self.observer is not None
        known = self.observer.sequences
        return self._renderer.describe_all([known[sequence_id] for sequence_id in sorted(sequence_ids)
                                            if sequence_id in known], viewer)

    # -- state

    def get_buffered_step_range(self, since: int = 0, until: int | None = None) -> BufferedStepRange:
        """Return the buffered steps with numbers above `since`, up to `until`, and their sequences."""
        steps = [step for step in self._buffered_steps
                 if step.number > since and (until is None or step.number <= until)]
        sequences = self._sequences if self.observer is None else self.observer.sequences
        return BufferedStepRange(steps, {} if not steps else {
            sequence_id: sequence for sequence_id, sequence in sequences.items()
            if sequence.first_step is not None and sequence.first_step <= steps[-1].number
            and sequence.last_step >= steps[0].number})

    def describe_sequences(self, sequences: Iterable[ObservedSequence], viewer: Viewer) -> list[dict[str, Any]]:
        return self._renderer.describe_all(sequences, viewer)

    def describe_state(self, viewer: Viewer) -> dict[str, Any]:
        """Return the JSON of the state, without what the HTTP layer adds."""
        self._observe_steps()
        now, observer, num_sent_tokens = clock(), self.observer, self._count_prompt_tokens_in_flight()
        running = [sequence for sequence in self._scheduler.sequences if sequence.state is not SequenceState.WAITING]
        return {
            "t": round_seconds(now + self.clock_offset),
            "step": self._metrics.steps.num_answered if observer is None else observer.num_steps,
            "running": [self._describe_running(place, sequence, num_sent_tokens[sequence.id], viewer)
                        for place, sequence in enumerate(running)],
            "queue": self._describe_queue(viewer), "blocks": self._block_map.describe(now),
            "rates": (describe_rates_since_start(self._metrics, now + self.clock_offset) if observer is None
                      else observer.rates.describe(now)),
            "watch": {"viewers": len(self._feeds), "max_viewers": MAX_VIEWERS,
                      "first_step": self._buffered_steps[0].number if self._buffered_steps else None,
                      "last_step": self._buffered_steps[-1].number if self._buffered_steps else None,
                      "max_steps": MAX_BUFFERED_STEPS}}

    def _count_prompt_tokens_in_flight(self) -> Counter[int]:
        """Return the prompt tokens, by sequence, of steps that are not answered: frames will count them."""
        counts = Counter[int]()
        for plan in self._list_plans_in_flight():
            if isinstance(step := plan.messages[-1], Prefill):
                counts.update({chunk.sequence_id: chunk.length for chunk in step.chunks})
        return counts

    def _describe_running(self, place: int, sequence: Sequence, num_tokens_in_flight: int,
                          viewer: Viewer) -> dict[str, Any]:
        observed = ObservedSequence.from_request(sequence.id, sequence.request, sequence.submitted_at)
        state = ("preempted" if sequence.state is SequenceState.PREEMPTED
                 else "prefill" if sequence.timeline.phase is RequestPhase.PREFILL else "decode")
        num_prefilled = min(sequence.num_scheduled_tokens, sequence.num_tokens_to_prefill) - num_tokens_in_flight
        text = ({"text": self._get_text(sequence.id)[-MAX_TEXT_CHARACTERS:]} if viewer.may_read_text(observed) else {})
        return {**self._renderer.describe(observed, viewer), **text,
                "lane": place if self.observer is None else self.observer.get_lane(sequence.id), "state": state,
                "cached_tokens": sequence.timeline.num_prefix_hit_tokens,
                "prefilled_tokens": min(num_prefilled, observed.num_prompt_tokens),
                "generated_tokens": len(sequence.generated), "blocks": len(sequence.blocks),
                "preemptions": sequence.num_preemptions}

    def _describe_queue(self, viewer: Viewer) -> dict[str, Any]:
        waiting = self._scheduler.waiting
        return {"length": len(waiting), "tokens": waiting.demand.num_tokens,
                "waiting": [self._describe_waiting(sequence, viewer) for sequence in islice(waiting,
                                                                                            MAX_SHOWN_WAITING)]}

    def _describe_waiting(self, sequence: Sequence, viewer: Viewer) -> dict[str, Any]:
        observed = ObservedSequence.from_request(sequence.id, sequence.request, sequence.submitted_at)
        return {**self._renderer.describe(observed, viewer), "generated_tokens": len(sequence.generated),
                "preemptions": sequence.num_preemptions, "cause": str(sequence.timeline.phase)}


def list_sequence_ids(steps: Iterable[tuple[ObservedStep, str]]) -> set[int]:
    """Return the ids of the sequences that have a row in steps."""
    rows_by_list = {id(step.rows): step.rows for step, _ in steps}  # consecutive steps may have the same list
    return {sequence_id for rows in rows_by_list.values() for _, sequence_id, _, _ in rows}


def dump_without_braces(members: Mapping[str, Any]) -> str:
    """Return the members of an object as JSON, without its braces."""
    return dumps(members, separators=(",", ":"))[1:-1]


def render_event(name: str, json_text: str, event_id: int | None = None) -> bytes:
    """Return a server-sent event."""
    id_line = "" if event_id is None else f"id: {event_id}\n"
    return f"event: {name}\n{id_line}data: {json_text}\n\n".encode()
