"""The real scheduler and the simulated shard under a virtual clock, with seeded faults; all laws are checked after
every event. There is no asyncio, no gRPC, no real time: thousands of schedules run in a minute and a seed replays
exactly.
"""

import heapq
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from types import SimpleNamespace
from typing import Any

from support.scheduling.waiting_time_checks import WaitingTimeChecker

from router.config import RouterConfig
from router.model_info import ModelInfo
from router.request import (
    POOLING_KINDS,
    FinishReason,
    LoadableResource,
    PoolingOutput,
    Request,
    RequestKind,
    TokenClassificationOutput,
    hash_blocks,
    hash_namespace,
)
from router.scheduler.events import (
    RequestAccepted,
    RequestRejected,
    SequenceExpired,
    SequenceFailed,
    SequenceFinished,
    TokensGenerated,
)
from router.scheduler.fault_isolation import ShardLossReason
from router.scheduler.scheduler import Scheduler
from router.scheduler.sequence import SequenceState
from router.scheduler.settings import SchedulerSettings
from router.scheduler.shard_messages import LoadResource, PoolingStep, StepPlan, StepResult, UnloadResource
from router.shards.handshake import combine_rank_infos, make_warmup_request
from router.shards.message_conversion import InvalidShardAnswer, decode_answer, encode_plan
from shard.config import ShardConfig, SimulatedConfig
from shard.errors import MalformedMessage, StepOutOfMemory
from shard.errors import RejectedMessage as ShardRefused
from shard.fault_script import FaultScript
from shard.pb import shard_pb2 as pb
from shard.simulator.simulated_outputs import SimulatedTokens, make_embedding, make_labels
from shard.simulator.worker import MAX_SLEEP_SECONDS, SimulatedStepError, SimulatedWorker
from shard.state.sequence import PoolingText

HANG_TIMEOUT_SECONDS = 5.0
RESOURCE_KINDS = {"adapter": pb.KIND_ADAPTER, "grammar": pb.KIND_GRAMMAR}
WORKER_METHODS = {pb.PrefillRequest: "prefill", pb.DecodeRequest: "decode", pb.FilterRequest: "filter",
                  pb.ConcatRequest: "concat", pb.EmbedRequest: "embed"}


class ShardDied(Exception):
    pass


class ShardHung(Exception):
    pass


def raise_shard_died() -> None:
    raise ShardDied


def sleep_or_hang(seconds: float) -> None:
    if seconds == MAX_SLEEP_SECONDS:
        raise ShardHung


@dataclass(slots=True)
class SimulatedClient:
    """A request and the behaviour of its client."""

    request: Request
    arrives_at: float
    cancels_at: float | None = None
    tokens_until_stop: int | None = None  # tokens after which a stop string is found in the text
    is_held_forever: bool = False
    sequence_id: int | None = None
    tokens: list[int] = field(default_factory=list)
    pooled_result: PoolingOutput | None = None  # embedding or labels of a pooling request
    ended_at: float | None = None
    end_reason: str | None = None


def compute_expected_tokens(request: Request, num_tokens: int, model: SimulatedConfig) -> list[int]:
    """Return the tokens that the simulated model generates for this request, alone and undisturbed."""
    sequence = SimpleNamespace(sampling_key=request.sampling_key, adapter_id=request.adapter.id if request.adapter
                               else 0, grammar_id=request.grammar.id if request.grammar else 0,
                               tokens=list(request.prompt), num_prompt_tokens=len(request.prompt))
    simulated_text = SimulatedTokens(sequence, model.seed, model.mean_output_length)  # type: ignore[arg-type]
    return [simulated_text.get_token(index) for index in range(num_tokens)]


def compute_expected_pooled(request: Request, model: SimulatedConfig) -> PoolingOutput:
    """Return the embedding or the labels that the simulated model gives a pooling request."""
    text = PoolingText(list(request.prompt), request.adapter.id if request.adapter else 0)
    if request.kind is RequestKind.EMBED:
        return make_embedding(text, model.embedding_width, model.seed)
    return TokenClassificationOutput(*make_labels(text, model.num_labels, model.seed))


def add_block_hashes(request: Request, block_size: int) -> Request:
    """Return the request with block hashes as the validator makes them: prefixes are shared per tenant and adapter."""
    if request.kind in POOLING_KINDS:
        return request
    namespace_seed = hash_namespace(request.tenant.name, str(request.adapter and request.adapter.id), salt=b"")
    return replace(request, cache_namespace=namespace_seed,
                   block_hashes=hash_blocks(namespace_seed, request.prompt, block_size))


class SimulatedWorld:
    """One schedule: the core, a simulated shard, clients, the engine's part, and an agenda of timed events."""

    def __init__(self, config: RouterConfig, model: SimulatedConfig, seed: int = 0,
                 draw_noise: Callable[[random.Random], float] = lambda _: 1.0,
                 make_scheduler: Callable[[SchedulerSettings, ModelInfo], Scheduler] = Scheduler) -> None:
        self.random = random.Random(seed)
        self.config, self.model, self.draw_noise = config, model, draw_noise
        self.now = 0.0
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._event_numbers = count()
        self.clients: dict[int, SimulatedClient] = {}
        self.all_clients: list[SimulatedClient] = []
        self.resource_presence: dict[LoadableResource, bool] = {}
        self.move_seconds: float | None = None  # time that a load or unload takes; None: the core's moves are ignored
        self.fails_to_load: Callable[[LoadableResource], bool] = lambda _: False
        self._loaded_resources: dict[LoadableResource, None] = {}  # loaded on the shards, as far as the core knows
        self.scheduler_calls: list[tuple[str, tuple[Any, ...]]] = []
        self.scheduler_results: list[Any] = []
        self.sent_plans: list[tuple[float, StepPlan]] = []  # with the time of sending
        self.answered_plans: list[tuple[StepPlan, float]] = []  # with the seconds that the step took
        self.losses: list[ShardLossReason] = []
        self.timelines: list[Any] = []
        self.fired_faults: set[str] = set()
        self.epoch = 0
        self.worker = self._start_worker(model)
        self.model_info = combine_rank_infos([self.worker.info()])
        self.settings = SchedulerSettings.from_config(config, self.model_info)
        self.scheduler = make_scheduler(self.settings, self.model_info)
        self._waiting_time_checker = WaitingTimeChecker()
        self._waiting_answers: list[tuple[StepPlan, Any]] = []
        self._scheduled_wake_up: float | None = None  # last wake-up time of the core that is on the agenda
        self._busy_until = 0.0
        self._reset_shards()

    # -- the world's clock

    def schedule_at(self, time: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (max(time, self.now), next(self._event_numbers), action))

    def run(self, until: float = 1e9, max_events: int = 2_000_000) -> None:
        for _ in range(max_events):
            if not self._agenda or self._agenda[0][0] > until:
                return
            self.run_next_event()
        raise AssertionError("the world does not come to rest")

    def run_next_event(self) -> None:
        """Run the next event and the engine's part, and check the laws."""
        self.now, _, action = heapq.heappop(self._agenda)
        action()
        self.plan_and_check()

    def plan_and_check(self) -> None:
        self._send_plans_and_moves()
        self.check_laws()

    @property
    def has_no_events(self) -> bool:
        return not self._agenda

    # -- clients

    def add_client(self, client: SimulatedClient) -> SimulatedClient:
        self.all_clients.append(client)
        self.schedule_at(client.arrives_at, lambda: self._submit(client))
        return client

    def _submit(self, client: SimulatedClient) -> None:
        client.request = add_block_hashes(client.request, self.model_info.block_size)
        events = self._call_scheduler("submit", client.request, self.now)
        if isinstance(events[0], RequestRejected):
            client.end_reason, client.ended_at = "refused", self.now
            return
        assert isinstance(events[0], RequestAccepted)
        client.sequence_id = events[0].sequence_id
        self.clients[client.sequence_id] = client
        self.timelines.append(self.scheduler.get_request_timeline(client.sequence_id) if len(events) == 1 else None)
        self._apply_events(events[1:], None)
        for resource in client.request.needed_resources:
            if self.resource_presence.get(resource) is False:
                self.set_resource_present(resource, present=False)
        if client.cancels_at is not None:
            self.schedule_at(client.cancels_at, lambda: self._cancel(client))

    def _expire(self) -> None:
        """Call `expire`; an early call changes nothing, but `wake_at` may become earlier for a new static group."""
        wake_at = self.scheduler.wake_at
        self._apply_events(self._call_scheduler("on_timer", self.now), None)
        if wake_at is not None and wake_at > self.now:
            assert self.scheduler.wake_at is not None
            assert self.now < self.scheduler.wake_at <= wake_at

    def _cancel(self, client: SimulatedClient) -> None:
        if client.end_reason is None:
            client.end_reason, client.ended_at = "left", self.now
            self._call_scheduler("cancel", client.sequence_id, self.now)

    def pause_client(self, client: SimulatedClient, seconds: float | None) -> None:
        """Make the client stop reading for `seconds`, or for ever."""
        if client.end_reason is not None or client.sequence_id is None:
            return
        self._call_scheduler("suspend", client.sequence_id, self.now)
        client.is_held_forever = client.is_held_forever or seconds is None
        if seconds is not None:
            self.schedule_at(self.now + seconds, lambda: client.is_held_forever
                             or self._call_scheduler("resume", client.sequence_id, self.now))

    def set_resource_present(self, resource: LoadableResource, present: bool = True) -> None:
        self.resource_presence[resource] = present
        if not present:
            self._apply_events(self._call_scheduler("on_resource_failed", resource, "there is no such adapter",
                                                    self.now), None)
        elif self.is_scheduler_ready:
            self._load(resource)

    def _load(self, resource: LoadableResource) -> None:
        kind = RESOURCE_KINDS[resource.kind]
        try:
            self.worker.load_resource(pb.LoadRequest(epoch=self.epoch, kind=kind, id=resource.id))
        except ShardDied:
            self._lose_shards(ShardLossReason.DEATH)
        except (ShardHung, SimulatedStepError, ShardRefused) as trouble:
            if resource in self.resource_presence:
                self.resource_presence[resource] = False
            self._loaded_resources.pop(resource, None)
            self._apply_events(self._call_scheduler("on_resource_failed", resource, f"it was not loaded: {trouble}",
                                                    self.now), None)
        else:
            self._loaded_resources[resource] = None
            self._call_scheduler("on_resource_loaded", resource, self.now)

    # -- the engine's part

    @property
    def is_scheduler_ready(self) -> bool:
        return self.scheduler._epoch is not None

    def _call_scheduler(self, name: str, *args: Any) -> Any:
        """Call the core; record the call and its result for `check_replay`."""
        result = getattr(self.scheduler, name)(*args)
        self.scheduler_calls.append((name, args))
        self.scheduler_results.append(result)
        return result

    def _send_plans_and_moves(self) -> None:
        while (plan := self._call_scheduler("plan", self.now)) is not None:
            self._send(plan)
        if (wake_at := self.scheduler.wake_at) is not None and wake_at != self._scheduled_wake_up:
            self._scheduled_wake_up = wake_at
            self.schedule_at(max(wake_at, self.now), self._expire)
        for move in self._call_scheduler("take_resource_commands",
                                         self.now) if self.scheduler.resource_cache.pending_commands else ():
            if self.move_seconds is not None:
                self.schedule_at(self.now + self.move_seconds, partial(self._apply_move, move, self.epoch))

    def _apply_move(self, move: LoadResource | UnloadResource, epoch: int) -> None:
        resource = move.resource
        if epoch != self.epoch or not self.is_scheduler_ready:
            return
        if isinstance(move, UnloadResource):
            self._unload(resource)
        elif self.fails_to_load(resource):
            self._apply_events(self._call_scheduler("on_resource_failed", resource, "it cannot be loaded", self.now),
                               None)
        else:
            self._load(resource)

    def _unload(self, resource: LoadableResource) -> None:
        """Unload a resource; failures are ignored, since no request will use the resource."""
        del self._loaded_resources[resource]
        try:
            self.worker.unload_resource(pb.UnloadRequest(epoch=self.epoch, kind=pb.KIND_ADAPTER, id=resource.id))
        except ShardDied:
            self._lose_shards(ShardLossReason.DEATH)
            return
        except (ShardHung, SimulatedStepError, ShardRefused):
            pass
        self._call_scheduler("on_resource_unloaded", resource, self.now)

    def _send(self, plan: StepPlan) -> None:
        self._check_pooling_step(plan)
        self._waiting_time_checker.check_plan(self.scheduler, plan, self.now)
        self.sent_plans.append((self.now, plan))
        start = max(self.now, self._busy_until)
        try:
            for message in encode_plan(plan):
                answer = getattr(self.worker, WORKER_METHODS[type(message)])(message)
            # The first failure ends the epoch; messages that were sent before it are still answered.
        except (MalformedMessage, ShardRefused) as refused:
            self._check_rejection(refused)
            self._schedule_outcome(plan, start, ShardLossReason.DEFECT, 0.0)
        except ShardDied:
            self._schedule_outcome(plan, start, ShardLossReason.DEATH, 0.0)
        except ShardHung:
            self._schedule_outcome(plan, start, ShardLossReason.DEATH, HANG_TIMEOUT_SECONDS)
        except SimulatedStepError:
            self._schedule_outcome(plan, start, ShardLossReason.STEP_ERROR, 0.0)
        except StepOutOfMemory:
            self._schedule_outcome(plan, start, ShardLossReason.MEMORY, 0.0)
        else:
            is_step = isinstance(answer, pb.StepAnswer | pb.EmbedAnswer)
            seconds = answer.forward_seconds * self.draw_noise(self.random) if is_step else 0.0
            self._busy_until = start + seconds
            late = self.worker.pop_answer_delay(plan.epoch, plan.last_message_number)
            self._schedule_outcome(plan, self._busy_until + late, (answer, seconds), 0.0)
        self._note_faults()

    def _note_faults(self) -> None:
        for fault in self.worker.faults:
            if fault.has_fired:
                self.fired_faults |= {f"{fault.kind}@{fault.verb}", f"{fault.kind}:{fault.argument}"}

    def _check_pooling_step(self, plan: StepPlan) -> None:
        """Check L4: a pooling step keeps the limits, and generating sequences get a step between two pooling steps."""
        step, running = plan.messages[-1], list(self.scheduler.running)
        if not isinstance(step, PoolingStep):
            return
        requests = [newcomer.request for newcomer in step.new_sequences]
        assert len(plan.messages) == 1
        assert {request.kind for request in requests} == {step.kind}
        assert plan.member_ids == plan.output_ids == tuple(newcomer.sequence_id
                                                           for newcomer in step.new_sequences)
        assert len(requests) <= self.settings.max_batch_size
        assert sum(len(request.prompt) for request in requests) <= self.settings.max_prefill_tokens
        previous_plan = self.sent_plans[-1][1] if self.sent_plans else None
        if running and previous_plan is not None and previous_plan.epoch == plan.epoch:
            assert not isinstance(previous_plan.messages[-1], PoolingStep), "two steps of texts while others generate"

    def _check_rejection(self, error: Exception) -> None:
        """Assert that a shard rejects a message only by a scripted fault or after an earlier failure in this epoch."""
        outcomes = [outcome[0] if isinstance(outcome, tuple) and len(outcome) == 1 else outcome
                    for _, outcome in self._waiting_answers]
        has_failed = any(isinstance(outcome, ShardLossReason) for outcome in outcomes)
        assert "told to refuse" in str(error) or has_failed, str(error)

    def _schedule_outcome(self, plan: StepPlan, time: float, outcome: Any, delay: float) -> None:
        epoch = self.epoch
        self._waiting_answers.append((plan, outcome))
        self.schedule_at(time + delay + 1e-4, lambda: self._process_outcomes(epoch, plan))

    def _process_outcomes(self, epoch: int, plan: StepPlan) -> None:
        """Process answers in the order of their plans, whatever the order of arrival."""
        if epoch != self.epoch or not self.is_scheduler_ready:
            return
        for index, (waiting, outcome) in enumerate(self._waiting_answers):
            if waiting is plan:
                self._waiting_answers[index] = (plan, (outcome,))
        while self._waiting_answers and isinstance(self._waiting_answers[0][1], tuple) \
                and len(self._waiting_answers[0][1]) == 1:
            head, (outcome,) = self._waiting_answers.pop(0)
            if isinstance(outcome, ShardLossReason):
                self._lose_shards(outcome)
                return
            if not self._complete_plan(head, *outcome):
                return

    def _complete_plan(self, plan: StepPlan, message: Any, seconds: float) -> bool:
        try:
            if isinstance(message, pb.StepAnswer | pb.EmbedAnswer):
                message.forward_seconds = seconds
                answer = decode_answer(message, plan, self.model_info)
                self.answered_plans.append((plan, seconds))
            else:
                answer = StepResult(plan.epoch, 0.0, {}, {})
        except InvalidShardAnswer:
            self._lose_shards(ShardLossReason.DEFECT)
            return False
        for number, result in answer.pooling_outputs.items():
            self.clients[number].pooled_result = result
        stopped = {number: stop for number, row in answer.rows.items() if (stop := self._find_stop(number, row.tokens))}
        self._apply_events(self._call_scheduler("complete_step", plan.last_message_number, answer, stopped, self.now),
                           answer)
        self._replay_old_answer(plan, answer)
        return True

    def _replay_old_answer(self, plan: StepPlan, answer: StepResult) -> None:
        """Check L7: an answer that arrives twice, or from an older epoch, changes nothing."""
        if self.random.random() < 0.05:
            digest_before = self.make_state_digest()
            assert self.scheduler.complete_step(plan.last_message_number, answer, {}, self.now) == []
            assert self.scheduler.complete_step(plan.last_message_number + 1, replace(answer, epoch=plan.epoch - 1), {},
                                                self.now) == []
            assert self.make_state_digest() == digest_before

    def _find_stop(self, number: int, tokens: Any) -> int | None:
        client = self.clients[number]
        if client.tokens_until_stop is None or client.end_reason is not None:
            return None
        tokens_left = client.tokens_until_stop - len(client.tokens)
        return tokens_left if 0 < tokens_left <= len(tokens) else None

    def _apply_events(self, events: list[Any], answer: StepResult | None) -> None:
        for event in events:
            if isinstance(event, TokensGenerated):
                self._apply_tokens(event, answer)
                continue
            client = self.clients[event.sequence_id]
            assert client.end_reason is None, f"L1: {event} after {client.end_reason}"
            if isinstance(event, SequenceFinished):
                client.end_reason, client.ended_at = event.reason.value, self.now
            elif isinstance(event, SequenceExpired):
                assert not client.tokens
                client.end_reason, client.ended_at = "expired", self.now
            elif isinstance(event, SequenceFailed):
                client.end_reason, client.ended_at = f"failed: {event.reason}", self.now

    def _apply_tokens(self, event: TokensGenerated, answer: StepResult | None) -> None:
        assert answer is not None
        for number, counted in event.token_counts.items():
            client = self.clients[number]
            assert client.end_reason is None, f"L1: tokens after {client.end_reason}"
            client.tokens += answer.rows[number].tokens[:counted]
            self._check_tokens(client)

    # -- losing and finding the shards

    def _lose_shards(self, loss_reason: ShardLossReason) -> None:
        self.losses.append(loss_reason)
        if loss_reason is ShardLossReason.DEATH:
            self._loaded_resources.clear()
        lost_plans = [plan for plan, _ in self._waiting_answers]
        self._waiting_answers.clear()
        self._apply_events(self._call_scheduler("on_shards_lost", loss_reason, self.now), None)
        for plan in lost_plans:
            assert self.scheduler.complete_step(plan.last_message_number, StepResult(plan.epoch, 1.0, {}, {}), {},
                                                self.now) == []
        if loss_reason is ShardLossReason.DEATH:
            self.worker = self._start_worker(replace(self.model, faults=self._remaining_faults()))
        self.schedule_at(self.now + (1.0 if loss_reason is ShardLossReason.DEATH else 0.0), self._reset_shards)

    def add_fault(self, fault: str) -> None:
        """Add a fault to the script of the running shard."""
        old_faults = self.worker.faults
        self.worker_script = ";".join(part for part in (self.worker_script, fault) if part)
        self.worker.faults = FaultScript(self.worker_script)
        self.worker.faults.num_calls = old_faults.num_calls
        for fresh, known in zip(self.worker.faults, old_faults, strict=False):
            fresh.has_fired = known.has_fired

    def _remaining_faults(self) -> str:
        """Return the fault script of the next shard process: faults that have not fired yet, and poison."""
        self._note_faults()
        faults = [part for part in self.worker_script.split(";") if part]
        remaining = [part for part, fault in zip(faults, self.worker.faults, strict=True)
                     if not fault.has_fired or fault.kind == "poison"]
        return ";".join(remaining)

    def _start_worker(self, model: SimulatedConfig) -> SimulatedWorker:
        """Return a worker whose warmup succeeded; after a failed warmup, start another worker."""
        while True:
            self.worker_script = model.faults
            self.worker = SimulatedWorker(ShardConfig(simulated=model), sleep=sleep_or_hang, exit=raise_shard_died)
            try:
                self.worker.warmup(make_warmup_request(self.config, self.config.max_total_tokens or 512))
                return self.worker
            except (ShardDied, ShardHung, SimulatedStepError, ShardRefused):
                model = replace(model, faults=self._remaining_faults())

    def _reset_shards(self) -> None:
        self.epoch += 1
        try:
            self.worker.reset(pb.ResetRequest(epoch=self.epoch))
            self._reload_resources()
        except (ShardDied, ShardHung):
            self.worker = self._start_worker(replace(self.model, faults=self._remaining_faults()))
            self.schedule_at(self.now + 1.0, self._reset_shards)
            return
        except (SimulatedStepError, ShardRefused):
            self.schedule_at(self.now + 0.1, self._reset_shards)
            return
        self._busy_until = self.now
        self._apply_events(self._call_scheduler("on_shards_ready", self.model_info, self.epoch, self.now), None)
        for resource, present in self.resource_presence.items():
            if present and self.is_scheduler_ready:
                self._load(resource)

    def _reload_resources(self) -> None:
        """Load all resources that the core believes to be loaded; a new shard process has none of them."""
        for resource in self._loaded_resources:
            if resource.id not in self.worker.shard_state.loaded_ids[RESOURCE_KINDS[resource.kind]]:
                self.worker.load_resource(pb.LoadRequest(epoch=self.epoch, kind=RESOURCE_KINDS[resource.kind],
                                                         id=resource.id))

    # -- the laws

    def _check_tokens(self, client: SimulatedClient) -> None:
        """Check L6 and L10: a client gets the tokens that it would get alone, none repeated and none left out."""
        expected = compute_expected_tokens(client.request, len(client.tokens), self.model)
        assert client.tokens == expected, f"client {client.sequence_id} got another's tokens"

    def check_laws(self) -> None:
        scheduler = self.scheduler
        blocks, sequences = scheduler.running.block_pool, list(scheduler.sequences)
        holders = Counter(block for sequence in sequences for block in sequence.blocks)
        assert sorted([*blocks._free_blocks, *blocks._evictable_blocks,
                       *holders]) == list(range(blocks.num_blocks)), "L2: blocks are lost"
        assert all(blocks._ref_counts[block] == holders[block]
                   for block in range(blocks.num_blocks)), "L2: holders differ"
        block_by_name = {name: block for block, name in enumerate(blocks._hash_by_block) if name is not None}
        assert blocks._block_by_hash == block_by_name, "L2: names differ"
        assert blocks._evictable_blocks.keys() <= set(block_by_name.values())
        self._check_sharing(holders)
        running = list(scheduler.running)
        assert len(running) <= self.settings.max_batch_size, "L4: too many run"
        assert all(sequence.num_preemptions <= self.settings.max_preemptions
                   for sequence in sequences), "L4: yields without end"
        states = {SequenceState.WAITING: 0, SequenceState.RUNNING: 0, SequenceState.PREEMPTED: 0,
                  SequenceState.FINISHING: 0}
        for sequence in sequences:
            states[sequence.state] += 1
            should_hold_blocks = bool(sequence.blocks) or sequence.state is SequenceState.FINISHING
            assert (
                sequence.state in {SequenceState.RUNNING,
                                   SequenceState.FINISHING}) == should_hold_blocks, "blocks are held by whoever runs"
            assert sequence.num_outputs_in_flight >= 0
        assert states[SequenceState.WAITING] == len(scheduler.waiting)
        assert states[SequenceState.RUNNING] == len(running)
        assert len(scheduler._unanswered_plans) <= self.settings.look_ahead
        expected = {client.sequence_id for client in self.clients.values() if client.end_reason is None}
        assert expected == {sequence.id for sequence in sequences}, "L1: the core and its clients disagree"

    def _check_sharing(self, holders: "Counter[int]") -> None:
        """Check L3: no running sequence writes to a block that others can find or hold.

        Blocks that others wait for are held by a sequence that computes them.
        """
        blocks = self.scheduler.running.block_pool
        for sequence in self.scheduler.running:
            own = sequence.blocks[sequence.num_cached_blocks:]
            shared = any(blocks._hash_by_block[block] is not None for block in own)
            assert not shared, "L3: a block is written that others may find"
            assert all(holders[block] == 1 for block in own), "L3: a block is written that others hold"
            assert len(sequence.block_hashes) >= sequence.num_cached_blocks
        held = {block for sequence in self.scheduler.sequences for block in sequence.blocks}
        assert set(blocks._reserved_hashes.values()) <= held, "somebody waits for what nobody computes"

    def check_timelines(self) -> None:
        """Assert that each timeline covers the time from arrival to end without a gap."""
        for client, timeline in zip([c for c in self.all_clients if c.sequence_id is not None], self.timelines,
                                    strict=True):
            if timeline is None:
                continue
            assert timeline.ended_at is not None
            assert abs(sum(timeline.seconds_by_phase(1e9).values()) - (timeline.ended_at - client.arrives_at)) < 1e-6

    def check_idle(self) -> None:
        """Check L9 and L1: at rest the core and the shard hold nothing, and every request has ended."""
        scheduler = self.scheduler
        assert not len(scheduler.sequences)
        assert not len(scheduler.running)
        assert not scheduler._unanswered_plans
        assert not scheduler._fault_isolation.suspect_sets
        assert not scheduler._fair_shares._num_unfinished
        assert scheduler.wake_at is None
        assert not scheduler.running.block_pool._reserved_hashes
        assert scheduler.running.block_pool.num_free == scheduler.running.block_pool.num_blocks
        assert not self.worker.shard_state.sequences
        assert not self.worker.shard_state.batches
        assert all(client.end_reason is not None for client in self.all_clients)

    def check_end_reasons(self) -> None:
        """Assert that each request ended where its finish reason requires."""
        for client in self.all_clients:
            length, request = len(client.tokens), client.request
            if request.kind in POOLING_KINDS:
                has_result = client.end_reason == FinishReason.LENGTH
                assert client.pooled_result == (compute_expected_pooled(request, self.model) if has_result
                                                else client.pooled_result)
                assert not client.tokens
            elif client.end_reason == FinishReason.LENGTH:
                assert length == request.max_new_tokens
            elif client.end_reason == FinishReason.END_TOKEN:
                assert client.tokens[-1] in request.end_tokens
            elif client.end_reason == FinishReason.STOP_STRING:
                assert length == client.tokens_until_stop

    def check_replay(self) -> None:
        """Check L8: a fresh core returns the same results for the same calls."""
        fresh_scheduler = Scheduler(self.settings, self.model_info)
        for (name, args), output in zip(self.scheduler_calls, self.scheduler_results, strict=True):
            assert getattr(fresh_scheduler, name)(*args) == output, f"L8: {name}{args} differs"

    def make_state_digest(self) -> tuple[Any, ...]:
        scheduler = self.scheduler
        return (tuple((s.id, s.state, tuple(s.blocks), s.num_scheduled_tokens, s.num_outputs_in_flight,
                       tuple(s.generated)) for s in scheduler.sequences),
                tuple(scheduler.running.block_pool._free_blocks), len(scheduler._unanswered_plans))
