"""The scheduler: plans steps from the waiting and running sequences and applies the shards' results. Pure state.

No clock, randomness, I/O or asyncio: time is an argument, messages and events are return values, and the engine does
the I/O. `plan` may be called before earlier steps are answered (`look_ahead`): a step in flight counts as done as far
as its result is predictable. An end that is not predictable (an end token, a stop string, a client that disconnects)
wastes at most the tokens in flight, which are discarded.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import replace

from router.model_info import ModelInfo
from router.request import LoadableResource, Request, RequestKind, hash_blocks
from router.scheduler.admission_control import AdmissionControl, WaitPredictor
from router.scheduler.baseline_policies import RecomputePolicy, StaticPolicy
from router.scheduler.batching_policies import MixedPolicy, PausePolicy, PoolingPolicy, StepPolicy
from router.scheduler.cost_model import CostModel, StepLoad
from router.scheduler.events import RequestAccepted, SchedulerEvent
from router.scheduler.fault_isolation import FaultIsolation, ShardLossReason
from router.scheduler.loadable_resource_cache import LoadableResourceCache
from router.scheduler.running_sequences import BlockHasher, RunningSequences
from router.scheduler.sequence import RequestPhase, RequestTimeline, Sequence, SequenceState
from router.scheduler.sequence_table import SequenceTable
from router.scheduler.settings import SchedulerSettings
from router.scheduler.shard_messages import ResourceCommand, StepPlan, StepResult
from router.scheduler.step import StepDraft, UnansweredPlan
from router.scheduler.waiting_queue import FairShares, WaitingQueue
from router.scheduler.waiting_sequence_selector import WaitingSequenceSelector

POLICIES: dict[str, type[StepPolicy]] = {"mixed": MixedPolicy, "pause": PausePolicy, "recompute": RecomputePolicy}


class Scheduler:
    """Public interface of the scheduler. No method blocks.

    The engine's calls come first: `plan` and `take_resource_commands` return messages, every other call that changes
    the state takes `now` and returns events, even if it never has any, so that the recorder can treat all alike. The
    section "for the policies" has what the policy calls while `plan` drafts a step; the selector asks the policy
    (`admits`).
    """

    __slots__ = ("_admission", "_answered_at", "_epoch", "_fair_shares", "_fault_isolation", "_last_message_number",
                 "_model_info", "_pooling_policy", "_unanswered_plans", "_wait_forecast", "cost_model", "policy",
                 "resource_cache", "running", "selector", "sequences", "settings", "waiting")

    def __init__(self, settings: SchedulerSettings, model_info: ModelInfo, hasher: BlockHasher = hash_blocks) -> None:
        """`hasher` is replaced by the recorder, which notes every hash."""
        self.settings = settings
        self.cost_model = CostModel.from_measurements(model_info.measurements)
        available_resources = set[LoadableResource]()
        self.waiting = waiting = WaitingQueue(available_resources)
        self.running = running = RunningSequences(settings, model_info, hasher,
                                                  reuses_cache=POLICIES[settings.policy_name].reuses_cache)
        self._fault_isolation = FaultIsolation()
        self._fair_shares = FairShares()
        self._wait_forecast = WaitPredictor(settings, model_info.num_blocks * model_info.block_size, self.cost_model)
        self._admission = AdmissionControl(settings, waiting, running, self._fair_shares, self._wait_forecast)
        self.selector = WaitingSequenceSelector(settings, waiting, running, self._fault_isolation, self._fair_shares)
        self.resource_cache = LoadableResourceCache(settings, waiting, self._fair_shares, available_resources)
        self.sequences = SequenceTable(waiting, running, self._fault_isolation, self._fair_shares, self._wait_forecast,
                                       self.resource_cache)
        self._epoch: int | None = None
        self._model_info = model_info
        self._reset_shard_state()

    def _reset_shard_state(self) -> None:
        """Reset the state that mirrors the shards, besides `running`: no step is in flight. The queue is kept."""
        settings = self.settings
        policy = POLICIES[settings.policy_name](self)
        self.policy: StepPolicy = StaticPolicy(policy) if settings.static else policy
        self._pooling_policy = PoolingPolicy(self)
        self.selector.policy, self.selector.preempted = self.policy, []
        self._unanswered_plans: deque[UnansweredPlan] = deque()
        self.resource_cache.max_adapter_bytes = self._model_info.adapter_bytes
        self._last_message_number = 0
        self._answered_at: float | None = None  # time of the last answer, if other steps were in flight then

    @property
    def num_unfinished(self) -> int:
        return len(self.sequences)

    # -- requests

    def submit(self, request: Request, now: float) -> list[SchedulerEvent]:
        raw_wait = self._admission.predict_raw_wait(request.tenant)
        rejection = self._admission.find_rejection(request, len(self.sequences), raw_wait)
        if rejection is not None:
            return [rejection]
        sequence = self.sequences.create_sequence(request, now)
        sequence.predicted_raw_wait = raw_wait
        self.waiting.push(sequence)
        sequence.timeline.enter_phase(RequestPhase.NO_SHARDS if self._epoch is None else sequence.waiting_phase, now)
        return [RequestAccepted(sequence.id), *self._fail_never_fitting([sequence], now)]

    @property
    def last_step_load(self) -> StepLoad:
        """Load of the step planned last; a simulation computes the step's duration from it."""
        return (self._unanswered_plans[-1].load if self._unanswered_plans else None) or StepLoad()

    def get_request_timeline(self, sequence_id: int) -> RequestTimeline:
        """Return the timeline of an unfinished sequence; it is updated until the sequence ends."""
        return self.sequences[sequence_id].timeline

    def cancel(self, sequence_id: int, now: float) -> list[SchedulerEvent]:
        """End a sequence in any state, without an event. Its blocks are free at once: what removes it from its batch is
        sent before any message that uses them again, or with it."""
        if (sequence := self.sequences.get(sequence_id)) is not None:
            self.sequences.end_sequence(sequence, now)
        return []

    @property
    def wake_at(self) -> float | None:
        """Time at which `on_timer` must be called if nothing else happens before; None if no timer runs."""
        times = (self.sequences.deadlines.earliest_deadline(), self.resource_cache.wake_at, self.policy.wake_at)
        return min([moment for moment in times if moment is not None], default=None)

    def on_timer(self, now: float) -> list[SchedulerEvent]:
        """End sequences whose deadline has passed, plan loads and unloads, and form the next static group."""
        events = list[SchedulerEvent](self.sequences.expire_sequences(now))
        if self._epoch is not None:
            self.resource_cache.plan_loads_and_unloads(now, self._find_resources_in_use)
            self.policy.prepare(now)
        return events

    def suspend(self, sequence_id: int, now: float) -> list[SchedulerEvent]:
        """Suspend a sequence whose client does not read: it frees its blocks and waits until `resume`."""
        if (sequence := self.sequences.get(sequence_id)) is not None:
            self.sequences.set_suspended(sequence, is_suspended=True)
            sequence.timeline.enter_phase(RequestPhase.SLOW_CLIENT, now)
            if sequence.state is SequenceState.RUNNING:
                self.running.remove_sequence(sequence, SequenceState.PREEMPTED)
                self.sequences.requeue_if_answered(sequence)
        return []

    def resume(self, sequence_id: int, now: float) -> list[SchedulerEvent]:
        if (sequence := self.sequences.get(sequence_id)) is not None:
            self.sequences.set_suspended(sequence, is_suspended=False)
            sequence.timeline.enter_phase(RequestPhase.NO_SHARDS if self._epoch is None
                                          else sequence.waiting_phase, now)
        return []

    # -- adapters and grammars

    def on_resource_loaded(self, resource: LoadableResource, now: float) -> list[SchedulerEvent]:
        """Record that every rank has loaded the resource: requests that need it may start."""
        self.resource_cache.record_loaded(resource, now)
        return []

    def on_resource_failed(self, resource: LoadableResource, reason: str, now: float) -> list[SchedulerEvent]:
        """Record that the resource cannot be loaded: all requests that need it fail."""
        self.resource_cache.record_unloaded(resource, now)
        failed: list[SchedulerEvent] = [self.sequences.fail(sequence, reason, now) for sequence in list(self.sequences)
                                        if resource in sequence.request.needed_resources]
        self.waiting.cancel_load_request(resource)
        return failed

    def on_resource_unloaded(self, resource: LoadableResource, now: float) -> list[SchedulerEvent]:
        """Record that every rank has unloaded the resource, after an `UnloadResource`."""
        self.resource_cache.record_unloaded(resource, now)
        return []

    def request_resource_load(self, resource: LoadableResource, now: float) -> list[SchedulerEvent]:  # noqa: ARG002
        """Load the resource even if no request needs it."""
        self.resource_cache.request_resource_load(resource)
        return []

    def request_resource_unload(self, resource: LoadableResource, now: float) -> list[SchedulerEvent]:  # noqa: ARG002
        """Unload the resource once no unfinished request needs it, unless a request comes before that, or
        `request_resource_load` is called."""
        self.resource_cache.request_resource_unload(resource)
        return []

    def take_resource_commands(self, now: float) -> list[ResourceCommand]:  # noqa: ARG002
        """Return the loads and unloads that the shards should do; each is returned once."""
        commands, self.resource_cache.pending_commands = self.resource_cache.pending_commands, []
        return commands

    def _find_resources_in_use(self) -> set[LoadableResource]:
        """Return the resources needed by running sequences and by steps in flight."""
        members = [*self.running, *(sequence for plan in self._unanswered_plans for sequence in plan.members)]
        return {resource for sequence in members for resource in sequence.request.needed_resources}

    # -- steps

    def plan(self, now: float) -> StepPlan | None:
        """Return the next plan: Filters and Concats to send, mostly with a step.

        Return None if there is nothing to do or enough steps are in flight.
        """
        if self._epoch is None:
            return None
        if self.resource_cache.was_ever_needed:
            self.resource_cache.plan_loads_and_unloads(now, self._find_resources_in_use)
        if len(self._unanswered_plans) >= self.settings.look_ahead:
            return None
        if self.selector.preempted:
            self.selector.add_preempted()
        if not self.running.batches and not self.waiting.demand.num_sequences:
            self._admission.num_left_waiting = 0
            self.policy.wake_at = None
            return None
        self.selector.now = now
        draft = self._draft_step(now)
        num_waiting = self.waiting.demand.num_sequences
        self._admission.num_left_waiting = num_waiting - self.waiting.num_set_aside if num_waiting else 0
        # In this order: messages say where chunks begin, then sequences advance; charging reads where they are then.
        messages = draft.build_messages()
        if not messages:
            return None
        self._last_message_number += len(messages)
        unanswered = draft.advance_sequences(self._last_message_number)
        for sequence, length in draft.chunks:
            self._fair_shares.charge_prompt(sequence, length)
        self._unanswered_plans.append(unanswered)
        seconds = self.cost_model.predict(unanswered.load) if unanswered.load is not None else 0.0
        member_ids = output_ids = tuple([sequence.id for sequence in unanswered.members])
        if unanswered.members_with_output is not unanswered.members:
            output_ids = tuple([sequence.id for sequence in unanswered.members_with_output])
        return StepPlan(self._epoch, self._last_message_number, tuple(messages), member_ids, output_ids, seconds)

    def _draft_step(self, now: float) -> StepDraft:
        # Those that reach their length limit with the tokens in flight leave.
        for sequence in [s for batch in self.running.batches for s in batch.sequences.values()
                         if s.request.max_length - s.length - s.num_outputs_in_flight <= 0]:
            self.running.remove_finishing_sequence(sequence)
        self.policy.prepare(now)
        if self._fair_shares.has_several_tenants and (preempted := self.selector.find_fair_preemptions()):
            for sequence in preempted:
                self.running.preempt(sequence)
            self.requeue_preempted(preempted)
        may_pool = self.waiting.num_pooling or self._pooling_policy.is_active
        draft = (self._pooling_policy.draft_step() if may_pool else None) or self.policy.draft_step()
        self.policy.after_step_drafted()
        return draft

    def complete_step(self, last_message_number: int, result: StepResult, stop_token_counts: Mapping[int, int],
                      now: float) -> list[SchedulerEvent]:
        """Apply the answer to the oldest plan in flight, also to one without a step; ignore an answer to any other.

        `stop_token_counts` maps the sequences whose text has just reached a stop string to the number of this answer's
        tokens that count.
        """
        if (result.epoch != self._epoch or not self._unanswered_plans
            or self._unanswered_plans[0].last_message_number != last_message_number):
            return []
        plan = self._unanswered_plans.popleft()
        if plan.load is not None:
            slowdown = self.cost_model.observe(plan.load, result.seconds)
            if slowdown != 1.0:
                self._wait_forecast.scale_step_times(slowdown)
            if self._answered_at is not None:  # a step was in flight all the time since then
                self._wait_forecast.record_step(now - self._answered_at, plan.load.chunk_tokens,
                                                has_turned_new_sequence_away=plan.has_turned_new_sequence_away)
            has_step_in_flight = any(unanswered.load is not None for unanswered in self._unanswered_plans)
            self._answered_at = now if has_step_in_flight else None
        return self.sequences.apply_result(plan, result, stop_token_counts, now)

    # -- shards

    def on_shards_lost(self, loss_reason: ShardLossReason, now: float) -> list[SchedulerEvent]:
        """Requeue all sequences with their tokens, since the shards lost their state, and fail those to blame."""
        lost_plans = list(self._unanswered_plans)
        self._epoch = None
        self.running.reset(self._model_info)
        self._reset_shard_state()
        for sequence in self.sequences:
            sequence.timeline.enter_phase(RequestPhase.NO_SHARDS, now)
            sequence.cached_prefix_version = None
            if sequence.state is not SequenceState.WAITING:
                sequence.reset_cache_state()
                sequence.num_outputs_in_flight = 0
                self.sequences.requeue(sequence)
        self.resource_cache.record_shard_loss(now, lost_all=loss_reason is ShardLossReason.DEATH)
        if loss_reason is ShardLossReason.MEMORY:
            # Halve the token limit of steps, or less: a block of a prompt must fit beside a full batch of decodes.
            limit = self.settings.max_prefill_tokens
            new_limit = min(max(limit // 2, self.settings.max_batch_size + self._model_info.block_size), limit)
            self.settings = replace(self.settings, max_prefill_tokens=new_limit)
            if new_limit == limit:
                loss_reason = ShardLossReason.STEP_ERROR
        culprits = self._fault_isolation.assign_blame(loss_reason, [plan.members for plan in lost_plans])
        return [self.sequences.fail(sequence, why, now) for sequence, why in culprits]

    def on_shards_ready(self, model_info: ModelInfo, epoch: int, now: float) -> list[SchedulerEvent]:
        """Start an epoch: the shards are empty and wait for its first message."""
        self._model_info, self._epoch = model_info, epoch
        self.running.reset(model_info)
        self._reset_shard_state()
        for sequence in self.waiting:
            sequence.timeline.enter_phase(sequence.waiting_phase, now)
        return self._fail_never_fitting(list(self.waiting), now)

    # -- for the policies

    def num_waiting_for_room(self) -> int:
        """Return how many text sequences wait for nothing but room in the batch."""
        return sum(sequence.request.kind is RequestKind.GENERATE
                   for tenant in self.waiting.tenants for sequence in self.waiting.get_runnable_sequences(tenant))

    def num_fitting(self) -> int:
        """Return how many of the waiting sequences that could start fit into the batch and the cache, estimated from
        the mean length of all."""
        demand, block_pool = self.waiting.demand, self.running.block_pool
        if not demand.num_sequences:
            return 0
        num_in_cache = block_pool.num_free * block_pool.block_size * demand.num_sequences // max(demand.num_tokens, 1)
        return max(0, min(self.selector.count_startable(), num_in_cache,
                          self.settings.max_batch_size - len(self.running)))

    def start_sequence(self, candidate: Sequence) -> None:
        """Start a waiting sequence: take it off the queue and record its wait. The caller adds it to the step."""
        self.waiting.remove(candidate)
        if candidate.request.needed_resources:
            self.resource_cache.mark_used(candidate)
        self.policy.on_sequence_started(candidate)
        if candidate.predicted_raw_wait is not None:
            self._wait_forecast.record_wait(candidate.predicted_raw_wait, self.selector.now - candidate.submitted_at)
            candidate.predicted_raw_wait = None
            candidate.timeline.num_prefix_hit_tokens = self.running.count_prefix_hit_tokens(candidate)
        candidate.timeline.enter_phase(RequestPhase.PREFILL, self.selector.now)

    def requeue_preempted(self, preempted: list[Sequence]) -> None:
        for sequence in preempted:
            sequence.timeline.enter_phase(RequestPhase.PREEMPTED, self.selector.now)
            self.sequences.requeue_if_answered(sequence)
        self.selector.add_preempted(preempted)

    # -- internals

    def _fail_never_fitting(self, sequences: list[Sequence], now: float) -> list[SchedulerEvent]:
        return [self.sequences.fail(s, why, now) for s in sequences if (why := self._why_sequence_never_fits(s))]

    def _why_sequence_never_fits(self, sequence: Sequence) -> str:
        """Return why the sequence can never run, or an empty string if it can."""
        length, max_step_tokens = sequence.request.max_length, self.settings.max_prefill_tokens
        if sequence.request.kind is not RequestKind.GENERATE:
            if length > max_step_tokens:
                return f"{length} tokens do not fit a step of {max_step_tokens} (--max-batch-prefill-tokens)"
        elif (num_blocks := self.running.max_blocks_of(sequence)) > (limit := self.running.block_pool.num_blocks):
            return (f"{length} tokens need {num_blocks} blocks of the cache, which has {limit} "
                    "(--max-batch-total-tokens)")
        return next(filter(None, map(self.resource_cache.why_never_fits, sequence.request.needed_resources)), "")
