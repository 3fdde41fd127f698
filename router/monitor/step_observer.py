"""Observer of a scheduler's answered plans. While steps run it only notes what each call returned; what happened in
them is found out later, many at once (`take_observed_steps`), so that a watched engine is hardly slower."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from router.monitor.batch_lanes import BatchLanes, LaneAndSequence
from router.monitor.observed_steps import (
    CHUNK_ROW,
    DECODE_ROW,
    DECODE_STEP,
    FAILED,
    FINAL_CHUNK_ROW,
    IDLE_STEP,
    LOST_STEP,
    MIXED_STEP,
    POOLING_ROW,
    POOLING_STEP,
    PREFILL_STEP,
    ObservedSequence,
    ObservedStep,
    Row,
)
from router.monitor.rates import RateWindow
from router.scheduler.events import SchedulerEvent, SequenceFailed, SequenceFinished, TokensGenerated
from router.scheduler.scheduler import Scheduler
from router.scheduler.sequence import RUNNING_PHASES, Sequence, SequenceState
from router.scheduler.shard_messages import Decode, NewSequence, PoolingStep, Prefill, StepPlan


@dataclass(frozen=True, slots=True)
class AnsweredPlan:
    """A plan with its answer, as it was noted; without a plan, the loss of the shards."""

    plan: StepPlan | None
    events: list[SchedulerEvent]
    answered_at: float
    seconds: float
    wall_seconds: float
    new_sequences: Mapping[int, Sequence]
    num_waiting: int
    num_blocks_used: int


@dataclass(frozen=True, slots=True)
class SteadyBatch:
    """Batch whose last step gave each member one token. If the next one does, too, only times and counts change."""

    member_ids: tuple[int, ...]
    rows: list[Row]
    sequences: list[ObservedSequence]

    def is_continued_by(self, answered: AnsweredPlan, plan: StepPlan) -> bool:
        """Return whether a plan decoded the same members, none of which left or entered, and each got one token."""
        match plan.messages:
            case [Decode(keep=None)] if plan.member_ids == self.member_ids:
                token_counts = get_token_counts(answered.events)
                return len(token_counts) == len(self.member_ids) and {*token_counts.values()} == {1}
        return False


class StepObserver:
    """Observer of one scheduler, from the time at which it is made."""

    def __init__(self, scheduler: Scheduler, plans_in_flight: Iterable[StepPlan] = (), *, num_steps: int = 0,
                 now: float = 0.0, known_sequences: Mapping[int, ObservedSequence] | None = None) -> None:
        """`plans_in_flight` are those that the scheduler has made and whose answers will be noted; `num_steps` is the
        number of steps answered before, and `known_sequences` are those of an earlier observer."""
        self.num_steps = num_steps
        self.rates = RateWindow(now)
        # Seen in a step; whoever keeps steps drops the others.
        self.sequences: dict[int, ObservedSequence] = dict(known_sequences or {})
        self._scheduler = scheduler
        self._lanes = BatchLanes()
        self._live_sequences: dict[int, Sequence] = {}  # the scheduler's own, of those with a lane
        self._ended_ids: set[int] = set()  # of those with a lane
        self._steady_batch: SteadyBatch | None = None
        self._pending: list[AnsweredPlan] = []
        self._add_unfinished([*plans_in_flight])

    def _add_unfinished(self, plans_in_flight: list[StepPlan]) -> None:
        """Begin with the batches as they were before the plans in flight."""
        members = {sequence_id for plan in plans_in_flight for sequence_id in plan.member_ids}
        entering = {sequence_id for plan in plans_in_flight for sequence_id in get_new_sequences(plan)}
        for sequence_id in members:
            if (sequence := self._scheduler.sequences.get(sequence_id)) is not None:
                self._add_live_sequence(sequence)
        for batch in self._scheduler.running.batches:
            for sequence in batch:
                self._add_live_sequence(sequence)
                if sequence.id not in entering:
                    self._lanes.enter(sequence.id, batch.id)

    def _add_live_sequence(self, sequence: Sequence) -> None:
        self._live_sequences[sequence.id] = sequence
        observed = self.sequences.setdefault(
            sequence.id, ObservedSequence.from_request(sequence.id, sequence.request, sequence.submitted_at))
        observed.num_cached_tokens = sequence.timeline.num_prefix_hit_tokens
        observed.num_output_tokens = len(sequence.generated)
        observed.last_token_at = None

    def get_lane(self, sequence_id: int) -> int | None:
        return self._lanes.lane_by_id.get(sequence_id)

    # -- notes, while steps run

    def record_answered_step(self, plan: StepPlan, events: list[SchedulerEvent], *, answered_at: float, seconds: float,
                             wall_seconds: float) -> None:
        """Note an answered plan: what `Scheduler.complete_step` returned, the seconds that the shards computed, and
        those since the plan was sent or the answer before."""
        step = plan.messages[-1]
        new_ids = get_new_sequences(plan) if isinstance(step, Prefill | PoolingStep) and step.new_sequences else ()
        blocks = self._scheduler.running.block_pool
        self._pending.append(AnsweredPlan(
            plan, events, answered_at, seconds, wall_seconds,
            {sequence_id: sequence for sequence_id in new_ids
             if (sequence := self._scheduler.sequences.get(sequence_id)) is not None},
            len(self._scheduler.waiting), blocks.num_blocks - blocks.num_free))

    def record_shard_loss(self, failures: list[SchedulerEvent], lost_at: float) -> None:
        """Note that the shards are lost: every batch is empty, and plans in flight are not answered."""
        self._pending.append(AnsweredPlan(None, failures, lost_at, 0.0, 0.0, {}, len(self._scheduler.waiting), 0))

    # -- what happened

    def take_observed_steps(self) -> list[ObservedStep]:
        """Return the steps noted since the last call."""
        pending, self._pending = self._pending, []
        steps = [self._observe_loss(answered) if answered.plan is None else self._observe_plan(answered, answered.plan)
                 for answered in pending]
        return [step for step in steps if step is not None]

    def _observe_loss(self, answered: AnsweredPlan) -> ObservedStep:
        failed_ids = {event.sequence_id for event in answered.events if isinstance(event, SequenceFailed)}
        step = ObservedStep(self.num_steps, LOST_STEP, answered.answered_at, num_waiting=answered.num_waiting)
        for sequence_id, lane in sorted(self._lanes.lane_by_id.items(), key=lambda item: item[1]):
            if sequence_id in failed_ids:
                step.finished.append((lane, sequence_id, FAILED))
            elif sequence_id not in self._ended_ids:
                step.preempted.append((lane, sequence_id))
        self._lanes.reset()
        self._steady_batch = None
        self._live_sequences.clear()
        self._ended_ids.clear()
        return step

    def _observe_plan(self, answered: AnsweredPlan, plan: StepPlan) -> ObservedStep | None:
        """Return the step; None if nothing was computed and no unfinished sequence has left."""
        if (steady := self._steady_batch) is not None and steady.is_continued_by(answered, plan):
            self.num_steps += 1
            step = self._make_step(answered, plan, steady.rows)
            self._continue_steady_batch(step, steady)
            return step
        self._steady_batch = None
        for sequence_id, new_sequence in get_new_sequences(plan).items():
            self._add_new_sequence(new_sequence, answered.new_sequences.get(sequence_id), answered.answered_at)
        changes = self._lanes.apply(plan)
        preempted, cancelled = self._classify_left(changes.left)
        if not plan.member_ids and not preempted and not cancelled:
            return None
        self.num_steps += bool(plan.member_ids)
        token_counts = get_token_counts(answered.events)
        step = self._make_step(answered, plan, self._make_rows(plan, token_counts))
        step.admitted, step.preempted, step.cancelled = changes.entered, preempted, cancelled
        self._update_sequences(step, token_counts)
        if step.kind == DECODE_STEP and all(count == 1 for _, _, count, _ in step.rows):
            self._steady_batch = SteadyBatch(plan.member_ids, step.rows, [self.sequences[sequence_id]
                                                                         for _, sequence_id, _, _ in step.rows])
        return step

    def _make_step(self, answered: AnsweredPlan, plan: StepPlan, rows: list[Row]) -> ObservedStep:
        return ObservedStep(
            self.num_steps, get_step_kind(plan), answered.answered_at, answered.seconds, answered.wall_seconds,
            plan.epoch, plan.last_message_number, rows, finished=self._collect_finished(answered.events),
            num_running=len(self._lanes), num_waiting=answered.num_waiting, num_blocks_used=answered.num_blocks_used)

    def _add_new_sequence(self, new_sequence: NewSequence, live_sequence: Sequence | None, now: float) -> None:
        sequence_id = new_sequence.sequence_id
        if live_sequence is not None:
            self._live_sequences[sequence_id] = live_sequence
        if sequence_id not in self.sequences:
            observed = ObservedSequence.from_request(
                sequence_id, new_sequence.request, now if live_sequence is None else live_sequence.submitted_at)
            observed.num_cached_tokens = new_sequence.num_cached_tokens
            observed.num_output_tokens = len(new_sequence.generated)
            self.sequences[sequence_id] = observed

    def _classify_left(self, left: list[LaneAndSequence]) -> tuple[list[LaneAndSequence], list[LaneAndSequence]]:
        """Return those of the sequences that were preempted, and that were cancelled; the others have ended."""
        preempted: list[LaneAndSequence] = []
        cancelled: list[LaneAndSequence] = []
        for lane, sequence_id in left:
            sequence = self._live_sequences.pop(sequence_id, None)
            if sequence_id in self._ended_ids:
                self._ended_ids.remove(sequence_id)
            elif sequence is not None and was_preempted(sequence):
                preempted.append((lane, sequence_id))
            else:
                cancelled.append((lane, sequence_id))
        return preempted, cancelled

    def _make_rows(self, plan: StepPlan, token_counts: Mapping[int, int]) -> list[Row]:
        """Return the rows in the order of the plan's members."""
        step, lane_by_id = plan.messages[-1], self._lanes.lane_by_id
        for sequence_id in plan.member_ids:
            # The scheduler had removed it from the batch before it was observed; a Filter follows.
            if sequence_id not in lane_by_id and isinstance(step, Prefill | Decode):
                self._lanes.enter(sequence_id, step.batch)
        if isinstance(step, PoolingStep):
            return [(lane_by_id[new.sequence_id], new.sequence_id, len(new.request.prompt), POOLING_ROW)
                    for new in step.new_sequences]
        if not isinstance(step, Prefill):
            return [(lane_by_id[sequence_id], sequence_id, token_counts.get(sequence_id, 0), DECODE_ROW)
                    for sequence_id in plan.member_ids]
        lengths, output_ids = {chunk.sequence_id: chunk.length for chunk in step.chunks}, {*plan.output_ids}
        return [(lane_by_id[sequence_id], sequence_id, length,
                 FINAL_CHUNK_ROW if sequence_id in output_ids else CHUNK_ROW)
                if (length := lengths.get(sequence_id)) is not None
                else (lane_by_id[sequence_id], sequence_id, token_counts.get(sequence_id, 0), DECODE_ROW)
                for sequence_id in plan.member_ids]

    def _collect_finished(self, events: list[SchedulerEvent]) -> list[tuple[int, int, str]]:
        finished = [(event.sequence_id, str(event.reason) if isinstance(event, SequenceFinished) else FAILED)
                    for event in events if isinstance(event, SequenceFinished | SequenceFailed)]
        with_lane = [(self._lanes.lane_by_id[sequence_id], sequence_id, reason) for sequence_id, reason in finished
                     if sequence_id in self._lanes.lane_by_id]
        self._ended_ids.update(sequence_id for _, sequence_id, _ in with_lane)
        return with_lane

    def _update_sequences(self, step: ObservedStep, token_counts: Mapping[int, int]) -> None:
        """Note when each sequence was seen and got tokens; what follows for the rates."""
        gaps: dict[float, int] = {}
        first_token_seconds: list[float] = []
        now = step.answered_at
        for _, sequence_id, _, _ in step.rows:
            sequence = self.sequences.get(sequence_id)
            if sequence is None:
                sequence = self.sequences[sequence_id] = ObservedSequence.unknown(sequence_id, now)
            if sequence.first_step is None:
                sequence.first_step = step.number
            sequence.last_step = step.number
            if num_tokens := token_counts.get(sequence_id):
                if sequence.last_token_at is not None:
                    gap = now - sequence.last_token_at
                    gaps[gap] = gaps.get(gap, 0) + 1
                elif not sequence.num_output_tokens:
                    first_token_seconds.append(now - sequence.submitted_at)
                sequence.num_output_tokens += num_tokens
                sequence.last_token_at = now
        self.rates.add_step(step, sum(token_counts.values()), gaps, first_token_seconds)

    def _continue_steady_batch(self, step: ObservedStep, steady: SteadyBatch) -> None:
        """Do what `_update_sequences` does, for sequences that all got a token in the step before and in this one."""
        now, last_token_at = step.answered_at, steady.sequences[0].last_token_at
        for sequence in steady.sequences:
            sequence.num_output_tokens += 1
            sequence.last_token_at, sequence.last_step = now, step.number
        assert last_token_at is not None
        self.rates.add_step(step, len(step.rows), {now - last_token_at: len(step.rows)}, [])

    def drop_sequences_before(self, first_step: int) -> None:
        """Drop the sequences that hold no lane and were not seen since that step."""
        self.sequences = {sequence_id: sequence for sequence_id, sequence in self.sequences.items()
                          if sequence_id in self._lanes.lane_by_id or sequence.last_step >= first_step}


def get_new_sequences(plan: StepPlan) -> dict[int, NewSequence]:
    """Return the sequences that enter with a plan, by id."""
    return {new.sequence_id: new for message in plan.messages if isinstance(message, Prefill | PoolingStep)
            for new in message.new_sequences}


def get_token_counts(events: Iterable[SchedulerEvent]) -> Mapping[int, int]:
    """Return the number of tokens that each sequence got."""
    return next((event.token_counts for event in events if isinstance(event, TokensGenerated)), {})


def get_step_kind(plan: StepPlan) -> str:
    match plan.messages[-1]:
        case Prefill(includes_decodes=includes_decodes):
            return MIXED_STEP if includes_decodes else PREFILL_STEP
        case Decode():
            return DECODE_STEP
        case PoolingStep():
            return POOLING_STEP
    return IDLE_STEP


def was_preempted(sequence: Sequence) -> bool:
    """Return whether a sequence that left its batch without an end was preempted, also if it was cancelled since."""
    return sequence.state is not SequenceState.FINISHED or sequence.timeline.phase not in RUNNING_PHASES
