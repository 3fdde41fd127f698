"""The core: who waits, who runs, what the next step is, what an answer means. Pure state.

No clock, randomness, I/O or asyncio: time is an argument, messages and events are results. The engine calls in and
carries out. `plan` may be called ahead of answers (`look_ahead`): what is under way is counted as done wherever that
can be foreseen, and what cannot be foreseen (an end token, a stop string, a client that leaves) costs at most the
tokens under way, which nobody sees.
"""

from collections import deque
from collections.abc import Mapping
from collections.abc import Sequence as Rows
from dataclasses import dataclass
from enum import Enum, auto
from itertools import count, islice

from router.blocks import Blocks
from router.costs import CostModel, Load
from router.events import Entered, Event, Failed, Finished, Produced, Refused
from router.messages import Answer, ModelFacts, Plan
from router.policy import Policy
from router.queue import Queue
from router.request import Request, Resource
from router.running import Running
from router.sequence import Sequence, State
from router.steps import Draft, Mixed, Pause, Steps, load_of_step
from router.stopping import count_tokens
from router.trials import Trials

LOOKED_AT = 64  # how deep a newcomer is searched when the first must wait for an adapter or a grammar
DEATHS_BEFORE_TRIAL, DEATHS_BEFORE_FAILURE = 2, 3


class Loss(Enum):
    """Why the shards' state is gone."""

    STEP_ERROR = auto()  # a step raised: one of its sequences may be to blame
    DEATH = auto()  # the processes ended or hung: whoever was under way twice is suspect, and nothing is loaded
    DEFECT = auto()  # a refusal or an answer that makes no sense: no sequence's fault


@dataclass(frozen=True, slots=True)
class Step:
    """What is under way: who takes part, who must get tokens, what it should cost."""

    order: int
    members: tuple[Sequence, ...]
    expects: tuple[Sequence, ...]
    load: Load | None


class Scheduler:
    def __init__(self, policy: Policy, facts: ModelFacts) -> None:
        self.policy = policy
        self.costs = CostModel.measured(facts.measurements)
        self._queue = Queue()
        self._trials = Trials()
        self._numbers = count(1)
        self._sequences: dict[int, Sequence] = {}
        self._present: set[Resource] = set()
        self._epoch: int | None = None
        self._facts = facts
        self._start_empty()

    def _start_empty(self) -> None:
        """Nothing runs and every block is free."""
        facts = self._facts
        self.running = Running(self.policy, Blocks(facts.num_blocks, facts.block_size), facts.tokens_per_step)
        self._steps: Steps = Mixed(self) if self.policy.mixed else Pause(self)
        self._in_flight: deque[Step] = deque()
        self._yielded: list[Sequence] = []  # of late; who still waits for tokens under way is found by its state
        self._order = 0

    @property
    def num_in_flight(self) -> int:
        return len(self._in_flight)

    @property
    def num_unfinished(self) -> int:
        return len(self._sequences)

    # -- requests

    def submit(self, request: Request, now: float) -> list[Event]:
        if len(self._sequences) >= self.policy.max_concurrent_requests:
            limit = self.policy.max_concurrent_requests
            return [Refused(f"{limit} requests are in the house (--max-concurrent-requests {limit})", 1.0)]
        sequence = Sequence(request, next(self._numbers), now)
        self._sequences[sequence.number] = sequence
        self._queue.push(sequence)
        return [Entered(sequence.number), *self._fail_misfits([sequence])]

    def cancel(self, number: int, now: float) -> list[Event]:  # noqa: ARG002 - every input carries its time
        """The client is gone, wherever its sequence stands; its blocks are free with the next message sent."""
        sequence = self._sequences.get(number)
        if sequence is not None:
            self._end(sequence)
        return []

    def hold(self, number: int, now: float) -> list[Event]:  # noqa: ARG002
        """The client does not read: the sequence gives its blocks back and waits until `resume`."""
        sequence = self._sequences.get(number)
        if sequence is not None:
            sequence.held = True
            if sequence.state is State.RUNNING:
                self.running.leave(sequence, State.YIELDING)
                self._wait_once_answered(sequence)
        return []

    def resume(self, number: int, now: float) -> list[Event]:  # noqa: ARG002
        sequence = self._sequences.get(number)
        if sequence is not None:
            sequence.held = False
        return []

    def available(self, resource: Resource, now: float) -> list[Event]:  # noqa: ARG002
        """Every rank has loaded the adapter or grammar; requests that need it may start."""
        self._present.add(resource)
        return []

    def unavailable(self, resource: Resource, reason: str, now: float) -> list[Event]:  # noqa: ARG002
        """It is not to be had; whoever needs it fails."""
        self._present.discard(resource)
        users = [sequence for sequence in self._sequences.values() if resource in sequence.request.needs]
        return [self._fail(sequence, reason) for sequence in users]

    # -- steps

    def plan(self, now: float) -> Plan | None:  # noqa: ARG002
        """The messages of the next step, or nothing: there is nothing to do, or enough is under way."""
        if self._epoch is None or len(self._in_flight) >= self.policy.look_ahead:
            return None
        self._leave_foreseen_ends()
        draft = self._steps.draft()
        messages = draft.messages()
        if not messages:
            return None
        self._order += len(messages)
        under_way = self._send(draft) if draft.is_step else Step(self._order, (), (), None)
        self._in_flight.append(under_way)
        seconds = self.costs.predict(under_way.load) if under_way.load is not None else 0.0
        members = numbers(under_way.members)
        expects = members if under_way.expects is under_way.members else numbers(under_way.expects)
        return Plan(self._epoch, self._order, tuple(messages), members, expects, seconds)

    def complete(self, order: int, answer: Answer, stopped: Mapping[int, int], now: float) -> list[Event]:  # noqa: ARG002
        """The answer to the oldest plan. `stopped` names sequences whose text just met a stop string, and how many of
        this answer's tokens count."""
        if answer.epoch != self._epoch or not self._in_flight or self._in_flight[0].order != order:
            return []
        step = self._in_flight.popleft()
        if step.load is not None:
            self.costs.observe(step.load, answer.seconds)
        counts: dict[int, int] = {}
        events: list[Event] = [Produced(counts)] if step.expects else []
        rows, failed = answer.rows, answer.failed
        for sequence in step.expects:
            sequence.in_flight -= 1
            number = sequence.number
            if sequence.state is not State.OVER and number not in failed:
                counts[number] = self._accept(sequence, rows[number].tokens, stopped.get(number), events)
                if sequence.state is State.YIELDING:
                    self._wait_once_answered(sequence)
        return events + [self._fail(self._sequences[n], reason) for n, reason in failed.items() if n in self._sequences]

    # -- shards

    def shards_lost(self, now: float, loss: Loss) -> list[Event]:  # noqa: ARG002
        """Everything that the shards held is gone. Who was on the way goes back to the queue with its tokens."""
        steps = list(self._in_flight)
        self._epoch = None
        self._start_empty()
        for sequence in self._sequences.values():
            if sequence.state is not State.WAITING:
                self._back_to_queue(sequence)
        if loss is Loss.DEATH:
            self._present.clear()
            return self._suspect(unique([s for step in steps for s in step.members if s.state is not State.OVER]))
        if loss is Loss.STEP_ERROR and steps:
            members = steps[0].members
            here = [sequence for sequence in members if sequence.state is not State.OVER]
            guilty = self._trials.accuse(here, alone=len(members) == 1)
            return [self._fail(guilty, "the step failed with this request alone")] if guilty is not None else []
        return []

    def shards_ready(self, facts: ModelFacts, epoch: int, now: float) -> list[Event]:  # noqa: ARG002
        """The shards are empty and wait for the first message of this epoch."""
        self._facts, self._epoch = facts, epoch
        self._start_empty()
        return self._fail_misfits(list(self._queue))

    # -- what the steps may use

    def next_newcomer(self) -> Sequence | None:
        """Who would start next; nobody while there is no room. Who must wait for something else is passed over."""
        suspects = self._trials.first(self._is_stuck)
        readers = (sequence for sequence in self._queue if not sequence.held)
        for sequence in islice(readers, None if suspects is not None else LOOKED_AT):
            if not self._is_stuck(sequence) and (suspects is None or sequence.number in suspects):
                is_next = all(sequence.rank < other.rank for other in self._yielded if is_coming_back(other))
                return sequence if is_next and self.running.has_room(sequence) else None
        return None

    def num_waiting(self) -> int:
        return len(self._queue)

    def take(self, newcomer: Sequence) -> None:
        self._queue.remove(newcomer)

    def wait_again(self, yielded: list[Sequence]) -> None:
        for sequence in yielded:
            self._wait_once_answered(sequence)
        self._yielded = [sequence for sequence in (*self._yielded, *yielded) if is_coming_back(sequence)]

    # -- the inside

    def _is_stuck(self, sequence: Sequence) -> bool:
        """It waits for something that room alone does not give: a reader, an adapter, a grammar."""
        needs = sequence.request.needs
        return sequence.state is State.WAITING and (sequence.held or not self._present.issuperset(needs))

    def _leave_foreseen_ends(self) -> None:
        """Who reaches its length limit with the tokens under way takes no part in another step."""
        for sequence in [s for s in self.running if s.tokens_left <= 0]:
            self.running.leave(sequence, State.ENDING)

    def _send(self, draft: Draft) -> Step:
        """From here on the step counts as computed."""
        load = load_of_step(draft)
        expects = members = tuple(draft.ready)
        for sequence in draft.ready:
            sequence.computed += 1
        for sequence, length in draft.chunks:
            sequence.computed += length
        if draft.chunks:
            prompts = [sequence for sequence, _ in draft.chunks]
            members = (*expects, *prompts)
            expects = (*expects, *(sequence for sequence in prompts if sequence.is_ready))
        for sequence in expects:
            sequence.in_flight += 1
        return Step(self._order, members, expects, load)

    def _accept(self, sequence: Sequence, tokens: Rows[int], stop: int | None, events: list[Event]) -> int:
        request = sequence.request
        counted, reason = count_tokens(request, len(sequence.generated), tokens, stop)
        sequence.accept(tokens[:counted])
        sequence.num_deaths = 0
        if self._trials:
            self._trials.clear(sequence)
        if reason is not None:
            self._end(sequence)
            events.append(Finished(sequence.number, reason))
        return counted

    def _wait_once_answered(self, sequence: Sequence) -> None:
        """Who yielded waits again as soon as none of its tokens is under way."""
        if sequence.state is State.YIELDING and not sequence.in_flight:
            sequence.state = State.WAITING
            self._queue.push(sequence)

    def _back_to_queue(self, sequence: Sequence) -> None:
        sequence.forget_cache()
        sequence.in_flight = 0
        sequence.state = State.WAITING
        self._queue.push(sequence)

    def _suspect(self, members: list[Sequence]) -> list[Event]:
        """The processes died with these under way."""
        for sequence in members:
            sequence.num_deaths += 1
        dead = [s for s in members if s.num_deaths >= DEATHS_BEFORE_FAILURE]
        self._trials.isolate([s] for s in members if s.num_deaths == DEATHS_BEFORE_TRIAL)
        return [self._fail(s, f"the model's processes died {s.num_deaths} times with this request") for s in dead]

    def _fail_misfits(self, sequences: list[Sequence]) -> list[Event]:
        blocks = self.running.blocks
        return [self._fail(s, f"{s.request.max_length} tokens do not fit the cache of {blocks.count * blocks.size}")
                for s in sequences if self.running.whole(s) > blocks.count]

    def _fail(self, sequence: Sequence, reason: str) -> Failed:
        self._end(sequence)
        return Failed(sequence.number, reason)

    def _end(self, sequence: Sequence) -> None:
        if sequence.state is State.WAITING:
            self._queue.remove(sequence)
        elif sequence.state is State.RUNNING:
            self.running.leave(sequence, State.OVER)
        sequence.state = State.OVER
        self._trials.clear(sequence)
        del self._sequences[sequence.number]


def is_coming_back(sequence: Sequence) -> bool:
    """It yielded and will wait again: nobody who came later starts before it."""
    return sequence.state is State.YIELDING and not sequence.held


def numbers(sequences: tuple[Sequence, ...]) -> tuple[int, ...]:
    return tuple(sequence.number for sequence in sequences)


def unique(sequences: list[Sequence]) -> list[Sequence]:
    return list({sequence.number: sequence for sequence in sequences}.values())
