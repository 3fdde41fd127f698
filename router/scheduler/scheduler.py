"""The scheduler: plans steps from the waiting and running sequences and applies the shards' answers. Pure state.

No clock, randomness, I/O or asyncio: time is an argument, messages and events are return values, and the engine does
the I/O. `plan` may be called before earlier steps are answered (`look_ahead`): a step in flight counts as done as far
as its result is predictable. An end that is not predictable (an end token, a stop string, a client that disconnects)
wastes at most the tokens in flight, which are discarded.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import replace

from router.block_hash import block_hashes
from router.request import Request, Resource, Wish
from router.scheduler.admission import Admission
from router.scheduler.block_pool import Blocks
from router.scheduler.cost_model import CostModel, Load
from router.scheduler.events import Entered, Event
from router.scheduler.fairness import Shares
from router.scheduler.fault_isolation import Loss, Trials
from router.scheduler.plan import Answer, ModelFacts, Move, Plan
from router.scheduler.policies import Mixed, Pause, Steps
from router.scheduler.pooling import Embeds
from router.scheduler.recompute import Anew
from router.scheduler.resource_cache import Residents, Standing, waiting_for
from router.scheduler.results import Answers
from router.scheduler.running import Hasher, Running
from router.scheduler.selection import Turns
from router.scheduler.sequence import Sequence, State
from router.scheduler.sequence_table import Register
from router.scheduler.settings import Policy
from router.scheduler.static_groups import Groups
from router.scheduler.timeline import Cause, Story
from router.scheduler.under_way import Step, numbers
from router.scheduler.wait_forecast import Forecast
from router.scheduler.waiting_queue import Queue


class Scheduler:
    """Public interface of the scheduler. Inputs return events, `plan` and `moves` messages; no method blocks."""

    def __init__(self, policy: Policy, facts: ModelFacts, hasher: Hasher = block_hashes) -> None:
        self.policy = policy
        self._hasher = hasher
        self.costs = CostModel.measured(facts.measurements)
        self._present = set[Resource]()  # loaded on every shard, and open to new sequences
        self._queue, self._trials, self._shares = Queue(self._present), Trials(), Shares()
        self._forecast = Forecast(policy, facts.num_blocks * facts.block_size, self.costs)
        self._admission = Admission(policy, self._queue, self._shares, self._forecast)
        self._groups = Groups(policy)
        self._turns = Turns(policy, self._queue, self._trials, self._shares, self._groups)
        self._residents = Residents(policy, self._queue, self._shares, self._present)
        self.sequences = Register(self._queue, self._trials, self._shares, self._forecast, self._residents)
        self._answers = Answers(self.sequences, self._shares, self._trials)
        self._epoch: int | None = None
        self._now = 0.0  # time of the last call of `plan` that drafted a step
        self._facts = facts
        self._start_empty()

    def _start_empty(self) -> None:
        """Reset the state that mirrors the shards: nothing runs, every block is free. The queue is kept."""
        facts = self._facts
        blocks = Blocks(facts.num_blocks, facts.block_size)
        self.running = Running(self.policy, blocks, facts.tokens_per_step, self._hasher)
        self._steps: Steps = Anew(self) if self.policy.recompute else Mixed(self) if self.policy.mixed else Pause(self)
        self._embeds = Embeds(self)
        self._in_flight: deque[Step] = deque()
        self._turns.start_empty(self.running)
        self._groups.start_empty(self.running)
        self._admission.start_empty(self.running)
        self.sequences.start_empty(self.running)
        self._answers.start_empty(self.running)
        self._residents.start_empty(facts.adapter_bytes)
        self._order = 0
        self._answered_at: float | None = None  # time of the last answer, if other steps were in flight then

    @property
    def num_in_flight(self) -> int:
        return len(self._in_flight)

    @property
    def num_unfinished(self) -> int:
        return len(self.sequences)

    def num_waiting(self) -> int:
        return len(self._queue)

    # -- requests

    def submit(self, request: Request, now: float) -> list[Event]:
        wait = self._admission.plain_wait(request.tenant)
        refused = self._admission.refusal(request, len(self.sequences), wait)
        if refused is not None:
            return [refused]
        sequence = self.sequences.enter(request, now)
        sequence.foreseen_wait = wait
        self._queue.push(sequence)
        sequence.story.turn(Cause.SHARDS if self._epoch is None else waiting_for(sequence), now)
        return [Entered(sequence.number), *self._fail_misfits([sequence], now)]

    @property
    def last_load(self) -> Load:
        """Load of the step planned last; a simulation computes the step's duration from it."""
        return (self._in_flight[-1].load if self._in_flight else None) or Load()

    def story(self, number: int) -> Story:
        """Return the timeline of an unfinished sequence; it is updated until the sequence ends."""
        return self.sequences[number].story

    def cancel(self, number: int, now: float) -> list[Event]:
        """End a sequence in any state, because its client left. Its blocks are free with the next message sent."""
        sequence = self.sequences.get(number)
        if sequence is not None:
            self.sequences.end(sequence, now)
        return []

    @property
    def wake_at(self) -> float | None:
        """Time at which `expire` must be called if nothing else happens before; None if no timer runs."""
        moments = (self.sequences.wake_at, self._residents.wake_at, self._groups.wake_at)
        return min((moment for moment in moments if moment is not None), default=None)

    def expire(self, now: float) -> list[Event]:
        events = list[Event](self.sequences.expire(now))
        if self._epoch is not None:
            self._residents.arrange(now, self._used)
            self._groups.arrange(self._queue, now)
        return events

    def hold(self, number: int, now: float) -> list[Event]:
        """Suspend a sequence whose client does not read: it frees its blocks and waits until `resume`."""
        sequence = self.sequences.get(number)
        if sequence is not None:
            sequence.held = True
            sequence.story.turn(Cause.READER, now)
            if sequence.state is State.RUNNING:
                self.running.leave(sequence, State.YIELDING)
                self.sequences.wait_once_answered(sequence)
        return []

    def resume(self, number: int, now: float) -> list[Event]:
        sequence = self.sequences.get(number)
        if sequence is not None:
            sequence.held = False
            sequence.story.turn(Cause.SHARDS if self._epoch is None else waiting_for(sequence), now)
        return []

    # -- adapters and grammars

    def available(self, resource: Resource, now: float) -> list[Event]:
        """Record that every rank has loaded the resource: requests that need it may start."""
        self._residents.came(resource, now)
        return []

    def unavailable(self, resource: Resource, reason: str, now: float) -> list[Event]:
        """Record that the resource cannot be loaded: all requests that need it fail."""
        self._residents.gone(resource, now)
        failed: list[Event] = [self.sequences.fail(s, reason, now) for s in self.sequences.who_needs(resource)]
        self._queue.unwish(resource)
        return failed

    def removed(self, resource: Resource, now: float) -> list[Event]:
        """Record that every rank has unloaded the resource, after a `Remove`."""
        self._residents.gone(resource, now)
        return []

    def want(self, resource: Resource, now: float) -> list[Event]:  # noqa: ARG002
        """Load the resource even if no request needs it."""
        self._residents.want(resource)
        return []

    def drop(self, resource: Resource, now: float) -> list[Event]:  # noqa: ARG002
        """Unload the resource once no unfinished request needs it; a new request for it, or `want`, cancels this."""
        self._residents.drop(resource)
        return []

    def has(self, resource: Resource) -> bool:
        """Return whether new sequences may start with the resource."""
        return resource in self._present

    def misfit(self, resource: Resource) -> str:
        """Return why the resource can never be loaded, or an empty string if it can."""
        return self._residents.misfit(resource)

    @property
    def adapters(self) -> dict[Resource, Standing]:
        return self._residents.adapters

    def moves(self, now: float) -> list[Move]:  # noqa: ARG002
        """Return the loads and unloads that the shards should do; each is returned once."""
        moves, self._residents.moves = self._residents.moves, []
        return moves

    def _used(self) -> set[Resource]:
        """Return the resources needed by running sequences and by steps in flight."""
        members = [*self.running, *(sequence for step in self._in_flight for sequence in step.members)]
        return {need for sequence in members for need in sequence.request.needs}

    # -- steps

    def plan(self, now: float) -> Plan | None:
        """Return the messages of the next step; None if there is nothing to do or enough steps are in flight."""
        if self._epoch is None:
            return None
        self._residents.arrange(now, self._used)
        if len(self._in_flight) >= self.policy.look_ahead:
            return None
        self._now = now
        self._leave_foreseen_ends()
        self._groups.arrange(self._queue, now)
        self._make_way()
        draft = self._embeds.draft() or self._steps.draft()
        if self.policy.static:
            self._groups.planned(self._queue, goes_on=self.next_newcomer() is not None)
        self._admission.backlog = len(self._queue) - self._queue.num_aside
        messages = draft.messages()
        if not messages:
            return None
        self._order += len(messages)
        under_way = Step.of(draft, self._order)
        for sequence, length in draft.chunks:
            self._shares.charge_prompt(sequence, length)
        self._in_flight.append(under_way)
        seconds = self.costs.predict(under_way.load) if under_way.load is not None else 0.0
        members = numbers(under_way.members)
        expects = members if under_way.expects is under_way.members else numbers(under_way.expects)
        return Plan(self._epoch, self._order, tuple(messages), members, expects, seconds)

    def complete(self, order: int, answer: Answer, stopped: Mapping[int, int], now: float) -> list[Event]:
        """Apply the answer to the oldest plan in flight; ignore an answer to any other.

        `stopped` maps the sequences whose text has just reached a stop string to the number of this answer's tokens
        that count.
        """
        if answer.epoch != self._epoch or not self._in_flight or self._in_flight[0].order != order:
            return []
        step = self._in_flight.popleft()
        if step.load is not None:
            self._forecast.new_pace(self.costs.observe(step.load, answer.seconds))
            self._learn_pace(step.load, step.crowded, now)
        return self._answers.heard(step, answer, stopped, now)

    # -- shards

    def shards_lost(self, now: float, loss: Loss) -> list[Event]:
        """Put all sequences back into the queue with their tokens: the shards lost their state. Fail the guilty."""
        steps = list(self._in_flight)
        self._epoch = None
        self._start_empty()
        for sequence in self.sequences:
            sequence.story.turn(Cause.SHARDS, now)
            if sequence.state is not State.WAITING:
                self._back_to_queue(sequence)
        self._residents.lost(now, everything=loss is Loss.DEATH)
        if loss is Loss.MEMORY and not self._shrink():
            loss = Loss.STEP_ERROR
        guilty = self._trials.judge(loss, [step.members for step in steps])
        return [self.sequences.fail(sequence, why, now) for sequence, why in guilty]

    def shards_ready(self, facts: ModelFacts, epoch: int, now: float) -> list[Event]:
        """Start an epoch: the shards are empty and wait for its first message."""
        self._facts, self._epoch = facts, epoch
        self._start_empty()
        for sequence in self._queue:
            sequence.story.turn(waiting_for(sequence), now)
        return self._fail_misfits(list(self._queue), now)

    def _shrink(self) -> bool:
        """Halve the token limit of steps, but keep room for one block of a prompt beside a full batch of decodes.

        Return whether the limit fell.
        """
        tokens = self.policy.max_prefill_tokens
        fewer = max(tokens // 2, self.policy.max_batch_size + self._facts.block_size)
        if fewer < tokens:
            self.policy = replace(self.policy, max_prefill_tokens=fewer)
        return fewer < tokens

    # -- for the step policies (see `House` in policies.py)

    def next_wish(self) -> Wish:
        return self._turns.wish(self._now)

    def next_newcomer(self, wish: Wish = Wish.TEXT) -> Sequence | None:
        return self._turns.next(self._now, wish)

    def num_startable(self) -> int:
        """Return how many text sequences wait for nothing but room in the batch."""
        return sum(not sequence.held and sequence.request.wish is Wish.TEXT
                   for tenant in self._queue.tenants for sequence in self._queue.of(tenant))

    def num_with_room(self) -> int:
        """Return how many waiting sequences fit into the batch and the cache, estimated from their mean length."""
        demand, blocks = self._queue.demand, self.running.blocks
        if not demand.count:
            return 0
        fit = blocks.num_free * blocks.size * demand.count // max(demand.tokens, 1)
        return max(0, min(self._queue.num_able, fit, self.policy.max_batch_size - len(self.running)))

    def num_embeds(self) -> int:
        """Return how many requests for embeddings or labels wait."""
        return self._queue.num_embeds

    def take(self, newcomer: Sequence) -> None:
        """Start a waiting sequence: take it off the queue and record its wait. The caller adds it to the step."""
        self._queue.remove(newcomer)
        self._residents.started(newcomer)
        self._groups.joined(newcomer)
        if newcomer.foreseen_wait is not None:
            self._forecast.started(newcomer.foreseen_wait, self._now - newcomer.arrival)
            newcomer.foreseen_wait = None
            newcomer.story.cached_tokens = self.running.num_cached(newcomer)
        newcomer.story.turn(Cause.PREFILL, self._now)

    def turn_away(self, newcomer: Sequence) -> None:
        """Record that the step's token budget has no room for the sequence."""
        self._turns.turn_away(newcomer, Cause.BUDGET, self._now)

    def wait_again(self, yielded: list[Sequence]) -> None:
        for sequence in yielded:
            sequence.story.turn(Cause.YIELDED, self._now)
            self.sequences.wait_once_answered(sequence)
        self._turns.add_yielded(yielded)

    # -- internals

    def _make_way(self) -> None:
        """Preempt sequences of other tenants so that a tenant below its share need not wait for them to end."""
        leaving = self._turns.below_its_share(self._now)
        for sequence in leaving:
            self.running.give_back(sequence)
        self.wait_again(leaving)

    def _leave_foreseen_ends(self) -> None:
        """Remove sequences from their batches that reach their length limit with the tokens in flight."""
        for sequence in [s for s in self.running if s.tokens_left <= 0]:
            self.running.leave_ending(sequence)

    def _learn_pace(self, load: Load, crowded: bool, now: float) -> None:
        """Learn the interval between two answers, if a step was in flight all the time in between."""
        if self._answered_at is not None:
            self._forecast.step_took(now - self._answered_at, load.chunk_tokens, crowded=crowded)
        self._answered_at = now if self._in_flight else None

    def _back_to_queue(self, sequence: Sequence) -> None:
        sequence.forget_cache()
        sequence.in_flight = 0
        self.sequences.wait_again(sequence)

    def _fail_misfits(self, sequences: list[Sequence], now: float) -> list[Event]:
        return [self.sequences.fail(s, why, now) for s in sequences if (why := self._misfit(s))]

    def _misfit(self, sequence: Sequence) -> str:
        """Return why the sequence can never run, or an empty string if it can."""
        blocks, length, most = self.running.blocks, sequence.request.max_length, self.policy.max_prefill_tokens
        if sequence.request.wish is not Wish.TEXT:
            if length > most:
                return f"{length} tokens do not fit a step of {most} (--max-batch-prefill-tokens)"
        elif (needed := self.running.whole(sequence)) > blocks.count:
            return (f"{length} tokens need {needed} blocks of the cache, which has {blocks.count} "
                    "(--max-batch-total-tokens)")
        return next(filter(None, map(self._residents.misfit, sequence.request.needs)), "")
