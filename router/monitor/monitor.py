"""Monitor of the engine: states and frames for those who watch. While nobody does it has no observer, and the engine
makes no call for it."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby, islice
from json import dumps
from typing import Any

from router.errors import MonitorBusy
from router.monitor.observed_steps import ObservedSequence, ObservedStep, StepEncoder, round_seconds
from router.monitor.rates import describe_rates_since_start
from router.monitor.step_observer import StepObserver
from router.monitor.viewer import SequenceRenderer, Viewer
from router.scheduler.block_pool import SHARED_BLOCK
from router.scheduler.cost_model import CostTerms
from router.scheduler.messages import StepPlan
from router.scheduler.scheduler import Scheduler
from router.scheduler.sequence import RequestPhase, Sequence, SequenceState
from router.scheduler.settings import SchedulerSettings
from router.telemetry.server_metrics import ServerMetrics

MAX_FRAMES_PER_SECOND = 20
MAX_SECONDS_WITHOUT_FRAME = 1.0
SECONDS_BETWEEN_RATES = 0.5  # also between two maps of the cache's blocks, or more if they take long
MAP_COST_FRACTION = 0.005  # of the time, that maps may take
MAX_BUFFERED_STEPS = 2000
BUFFER_SECONDS = 300.0  # for which steps are kept after the last viewer has left
MAX_VIEWERS = 16
MAX_SHOWN_WAITING = 100  # waiting sequences of a frame or state
MAX_TEXT_CHARACTERS = 200  # of a running sequence's text, with --ui-show-text

logger = logging.getLogger(__name__)
clock = time.monotonic


@dataclass(frozen=True, slots=True)
class BufferedStep:
    number: int
    json_text: str


@dataclass(frozen=True, slots=True)
class BufferedStretch:
    """Consecutive buffered steps and facts about their sequences."""

    steps: list[BufferedStep]
    sequences: dict[int, ObservedSequence]


class ViewerFeed:
    """Events of one viewer. A frame that comes while the viewer has not read the one before is lost to it, and a state
    follows instead."""

    def __init__(self, viewer: Viewer, render_state: Callable[[], bytes], history: Callable[[], bytes | None]) -> None:
        self.viewer = viewer
        self.is_new = True  # it has got no frame since its last state
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

    def skip_frame(self) -> None:
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


class BlockMap:
    """Map of the cache's blocks, made anew at most every SECONDS_BETWEEN_RATES and for MAP_COST_FRACTION of the
    time."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._next_at = 0.0
        self._num_shared = 0
        self._runs: list[tuple[int, int]] = []

    def describe_counts(self) -> dict[str, Any]:
        blocks = self._scheduler.running.block_pool
        return {"total": blocks.num_blocks, "used": blocks.num_blocks - blocks.num_free, "cached": blocks.num_evictable,
                "free": blocks.num_free - blocks.num_evictable, "shared": self._num_shared}

    def describe(self) -> dict[str, Any]:
        """Return the counts and the map as it is now."""
        started_at, running = clock(), self._scheduler.running
        holders = running.block_pool.list_holders(running.list_block_tables())
        self._runs = [(holder, len([*blocks])) for holder, blocks in groupby(holders)]
        self._num_shared = sum(length for holder, length in self._runs if holder == SHARED_BLOCK)
        now = clock()
        self._next_at = now + max(SECONDS_BETWEEN_RATES, (now - started_at) / MAP_COST_FRACTION)
        return self.describe_counts() | {"map": self._runs}

    def describe_if_due(self, now: float) -> dict[str, Any]:
        """Return the counts, with the map if it is due and has changed."""
        if now < self._next_at:
            return self.describe_counts()
        runs_before = self._runs
        described = self.describe()
        return self.describe_counts() if described["map"] == runs_before else described


class EngineMonitor:
    """The engine as viewers see it. The engine notes answers in `observer` if there is one."""

    def __init__(self, scheduler: Scheduler, metrics: ServerMetrics, list_plans_in_flight: Callable[[], list[StepPlan]],
                 get_text: Callable[[int], str]) -> None:
        """`get_text` returns the text that a sequence has generated so far."""
        self.observer: StepObserver | None = None
        self._scheduler, self._metrics = scheduler, metrics
        self._list_plans_in_flight, self._get_text = list_plans_in_flight, get_text
        self.clock_offset = time.time() - clock()
        self._renderer, self._step_encoder = SequenceRenderer(self.clock_offset), StepEncoder(self.clock_offset)
        self._block_map = BlockMap(scheduler)
        self._feeds: set[ViewerFeed] = set()
        self._frame_task: asyncio.Task[None] | None = None
        self._buffered_steps: deque[BufferedStep] = deque(maxlen=MAX_BUFFERED_STEPS)
        self._sequences: dict[int, ObservedSequence] = {}  # of the buffered steps, while there is no observer
        self._buffer_timer: asyncio.TimerHandle | None = None
        self._shown_ids: set[int] = set()  # sequences that were in a frame
        self._last_queue: list[tuple[int, RequestPhase]] = []
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
        if len(self._feeds) >= MAX_VIEWERS:
            raise MonitorBusy(f"{MAX_VIEWERS} viewers watch the engine already, as many as may at once; try again "
                                 "when one has left, or poll /v1/engine/state")
        feed = ViewerFeed(viewer, render_state, lambda: None if since is None else self._render_history(viewer, since))
        self._feeds.add(feed)
        if self._frame_task is None:
            self._start_observing()
        try:
            yield feed
        finally:
            self._feeds.discard(feed)
            if not self._feeds:
                self._stop_observing()

    def close(self) -> None:
        """End the events of all viewers."""
        for feed in self._feeds:
            feed.close()

    def _start_observing(self) -> None:
        if self._buffer_timer is not None:
            self._buffer_timer.cancel()
        self.observer = StepObserver(self._scheduler, self._list_plans_in_flight(), now=clock(),
                                     num_steps=self._metrics.steps.num_answered, known_sequences=self._sequences)
        self._last_queue = []
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
        now, steps = clock(), self.observer.observe_pending()
        queue = [(sequence.id, sequence.timeline.phase) for sequence in islice(self._scheduler.waiting,
                                                                               MAX_SHOWN_WAITING)]
        has_queue_changed = queue != self._last_queue
        if not steps and not has_queue_changed and now < self._last_frame_at + MAX_SECONDS_WITHOUT_FRAME:
            return
        self._last_queue, self._last_frame_at = queue, now
        texts = self._buffer_steps(steps)
        step_ids = {sequence_id for step in steps for _, sequence_id, _, _ in step.rows}
        new_ids = step_ids - self._shown_ids
        self._shown_ids |= new_ids
        head = f'{{"t":{round_seconds(now + self.clock_offset)},"step":{self.observer.num_steps},"steps":['
        head += ",".join(texts) + "]"
        tail = self._render_common_parts(now)
        rendered: dict[tuple[Viewer, bool], bytes] = {}
        for feed in self._feeds:
            if not feed.is_waiting:
                feed.skip_frame()
                continue
            key = (feed.viewer, feed.is_new)
            if key not in rendered:
                shown_ids = step_ids if feed.is_new else new_ids
                own_parts: dict[str, Any] = {"sequences": self._describe_sequences(shown_ids, feed.viewer)}
                if has_queue_changed or feed.is_new:
                    own_parts["queue"] = self._describe_queue(feed.viewer)
                frame = f"{head},{dump_members(own_parts)},{tail}}}"
                rendered[key] = render_event("frame", frame, self.observer.num_steps)
            feed.put(rendered[key])

    def _render_common_parts(self, now: float) -> str:
        assert self.observer is not None
        parts: dict[str, Any] = {"blocks": self._block_map.describe_if_due(now)}
        if now >= self._next_rates_at:
            self._next_rates_at = now + SECONDS_BETWEEN_RATES
            parts["rates"] = self.observer.rates.describe(now)
        return dump_members(parts)

    def _buffer_steps(self, steps: Iterable[ObservedStep]) -> list[str]:
        """Keep the steps and return their JSON."""
        texts = []
        for step in steps:
            texts.append(text := self._step_encoder.encode(step))
            self._buffered_steps.append(BufferedStep(step.number, text))
        observer = self.observer
        if observer is not None and len(observer.sequences) > self._max_sequences:
            observer.drop_sequences_before(self._buffered_steps[0].number if self._buffered_steps else 0)
            self._shown_ids &= observer.sequences.keys()
            self._max_sequences = max(MAX_BUFFERED_STEPS, 2 * len(observer.sequences))
        return texts

    def _render_history(self, viewer: Viewer, since: int) -> bytes | None:
        stretch = self.get_buffered_stretch(since)
        if not stretch.steps:
            return None
        steps = ",".join(step.json_text for step in stretch.steps)
        sequences = dumps(self._renderer.describe_all(stretch.sequences.values(), viewer), separators=(",", ":"))
        now = round_seconds(clock() + self.clock_offset)
        return render_event("frame", f'{{"t":{now},"step":{stretch.steps[-1].number},"steps":[{steps}],'
                                     f'"sequences":{sequences}}}', stretch.steps[-1].number)

    def _describe_sequences(self, sequence_ids: Iterable[int], viewer: Viewer) -> list[dict[str, Any]]:
        assert self.observer is not None
        known = self.observer.sequences
        return self._renderer.describe_all([known[sequence_id] for sequence_id in sorted(sequence_ids)
                                            if sequence_id in known], viewer)

    # -- state

    def get_buffered_stretch(self, since: int = 0, until: int | None = None) -> BufferedStretch:
        """Return the buffered steps with numbers above `since`, up to `until`, and their sequences."""
        steps = [step for step in self._buffered_steps
                 if step.number > since and (until is None or step.number <= until)]
        sequences = self._sequences if self.observer is None else self.observer.sequences
        return BufferedStretch(steps, {} if not steps else {
            sequence_id: sequence for sequence_id, sequence in sequences.items()
            if sequence.first_step is not None and sequence.first_step <= steps[-1].number
            and sequence.last_step >= steps[0].number})

    def describe_sequences(self, sequences: Iterable[ObservedSequence], viewer: Viewer) -> list[dict[str, Any]]:
        return self._renderer.describe_all(sequences, viewer)

    def describe_state(self, viewer: Viewer) -> dict[str, Any]:
        """Return the JSON of the state, without what the HTTP layer adds."""
        now, observer = clock(), self.observer
        running = [sequence for sequence in self._scheduler.sequences if sequence.state is not SequenceState.WAITING]
        return {
            "t": round_seconds(now + self.clock_offset),
            "step": self._metrics.steps.num_answered if observer is None else observer.num_steps,
            "running": [self._describe_running(place, sequence, viewer) for place, sequence in enumerate(running)],
            "queue": self._describe_queue(viewer), "blocks": self._block_map.describe(),
            "rates": (describe_rates_since_start(self._metrics, now + self.clock_offset) if observer is None
                      else observer.rates.describe(now)),
            "watch": {"viewers": len(self._feeds), "max_viewers": MAX_VIEWERS,
                      "first_step": self._buffered_steps[0].number if self._buffered_steps else None,
                      "last_step": self._buffered_steps[-1].number if self._buffered_steps else None,
                      "max_steps": MAX_BUFFERED_STEPS}}

    def _describe_running(self, place: int, sequence: Sequence, viewer: Viewer) -> dict[str, Any]:
        observed = ObservedSequence.from_request(sequence.id, sequence.request, sequence.submitted_at)
        state = ("preempted" if sequence.state is SequenceState.PREEMPTED
                 else "prefill" if sequence.timeline.phase is RequestPhase.PREFILL else "decode")
        text = ({"text": self._get_text(sequence.id)[-MAX_TEXT_CHARACTERS:]} if viewer.may_read_text(observed) else {})
        return {**self._renderer.describe(observed, viewer), **text,
                "lane": place if self.observer is None else self.observer.get_lane(sequence.id), "state": state,
                "cached_tokens": sequence.timeline.num_prefix_hit_tokens,
                "prefilled_tokens": min(sequence.num_scheduled_tokens, observed.num_prompt_tokens),
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


def dump_members(members: Mapping[str, Any]) -> str:
    """Return the members of an object as JSON, without its braces."""
    return dumps(members, separators=(",", ":"))[1:-1]


def render_event(name: str, json_text: str, event_id: int | None = None) -> bytes:
    """Return a server-sent event."""
    id_line = "" if event_id is None else f"id: {event_id}\n"
    return f"event: {name}\n{id_line}data: {json_text}\n\n".encode()
