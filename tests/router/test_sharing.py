"""Prefix sharing as a state machine, compared with a model of the cache: a dict from a namespace and all tokens up to a
block's end to the block that holds them. The model learns a block's contents from messages only, and which blocks may
be found from answers only."""

from dataclasses import dataclass, field
from itertools import takewhile

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from support.shared_prefixes import END, SIZE, newcomers, scheduler, submit, text

from router.request import Request
from router.scheduler.events import Produced
from router.scheduler.fault_isolation import Loss
from router.scheduler.plan import Answer, AnswerRow, Concat, Plan

MORE = st.fixed_dictionaries({
    "tenant": st.sampled_from(["one", "one", "two"]), "prompt_logprobs": st.sampled_from([False, False, False, True])})


@dataclass(eq=False)
class Life:
    """Sequence between entering and leaving a batch, as seen in the messages."""

    number: int
    request: Request
    tokens: list[int]
    blocks: list[int]
    computed: int  # tokens sent to be computed
    num_published: int  # blocks
    given: int  # tokens at entry

    def key(self, index):
        """Return what identifies the full block at this index: the namespace and all tokens up to its end."""
        return self.request.namespace, tuple(self.tokens[:(index + 1) * SIZE])


class Log(list):
    """Log of the core's calls in order: the number of a sequence that frees its blocks, or a list of blocks taken."""

    def __init__(self, running):
        running.free = self.noted(running.free)
        running.leave_ending = self.noted(running.leave_ending)
        take = running.blocks.take

        def noted_take(count):
            taken = take(count)
            self.append(list(taken))
            return taken

        running.blocks.take = noted_take

    def noted(self, leave):
        def noted_leave(sequence):
            if sequence.blocks:
                self.append(sequence.number)
            leave(sequence)

        return noted_leave


@dataclass
class Way:
    """Step under way, with the tokens that its chunks compute."""

    plan: Plan
    fills: list[tuple[Life, int]] = field(default_factory=list)  # and the number of tokens computed afterwards


class SharingMachine(RuleBasedStateMachine):
    """Core with random requests, answers, clients and losses, and the model that follows its messages."""

    @initialize(mixed=st.booleans(), look_ahead=st.sampled_from([1, 2, 2]), tokens_per_step=st.sampled_from([1, 1, 3]),
                num_blocks=st.sampled_from([14, 20, 40]), prefill=st.sampled_from([32, 64, 256]))
    def build(self, mixed, look_ahead, tokens_per_step, num_blocks, prefill):
        self.core = scheduler(num_blocks, tokens_per_step, mixed=mixed, look_ahead=look_ahead,
                              max_prefill_tokens=prefill, max_batch_size=8)
        self.tokens_per_step, self.epoch = tokens_per_step, 1
        self.requests, self.said = {}, {}
        self.hits = 0
        self.forget()

    def forget(self):
        self.shared = {}  # the model of the cache
        self.written = {}  # block to the key of the tokens that the shards wrote there
        self.computing = {}  # key to the sequence that will fill its block; others that need it wait
        self.idle = {}  # shared blocks that no sequence holds, and the call since which they are idle
        self.calls = 0
        self.lives, self.batches, self.ways = {}, {}, []
        self.log = Log(self.core.running)

    # -- events

    @rule(follows=st.sampled_from([0, 0, 1, 2, 3, 5, 8]), shared=st.sampled_from([16, 33, 64, 70, 1000]),
          own=st.integers(0, 20), output=st.sampled_from([1, 2, 20, 50]), more=MORE)
    def submit(self, follows, shared, own, output, more):
        texts = [text(100), *((*self.requests[n].prompt, *said) for n, said in self.said.items())]
        prompt = texts[follows % len(texts)][:shared] + text(own, seed=len(texts))
        number = submit(self.core, prompt[:140], output, float(len(texts)), **more)
        self.requests[number], self.said[number] = self.core.sequences[number].request, []

    @rule(steps=st.integers(1, 6), says=st.integers(1, 3))
    def go_on(self, steps, says):
        for _ in range(steps):
            self.plan()
            if self.ways:
                self.answer(says)

    @rule()
    def plan(self):
        while (plan := self.core.plan(0.0)) is not None:
            self.hear(plan)

    @precondition(lambda self: self.ways)
    @rule(says=st.integers(1, 3), ends=st.integers(0, 3), fails=st.integers(0, 9))
    def answer(self, says, ends=9, fails=99):
        """Answer the oldest step; one of its sequences may end, and one may fail."""
        way = self.ways.pop(0)
        tokens = {number: self.tokens_of(number, says, place == ends) for place, number in enumerate(way.plan.expects)}
        failed = {number: "why" for place, number in enumerate(way.plan.members) if place == fails}
        rows = {number: AnswerRow(said, (0.0,) * len(said)) for number, said in tokens.items() if number not in failed}
        before = self.holders()
        events = self.core.complete(way.plan.order, Answer(self.epoch, 0.01, rows, failed), {}, 0.0)
        for life, end in way.fills:
            if life in before and life.number not in failed:
                self.publish(life, end)
        for event in events:
            if isinstance(event, Produced):
                self.accept(event.counts, tokens, before)
        self.settle()

    def tokens_of(self, number, says, ends):
        length = len(self.requests[number].prompt) + len(self.said[number])
        said = [(length + place) % 5 + 2 for place in range(min(says, self.tokens_per_step))]
        return (*said[:-1], END) if ends else tuple(said)

    @precondition(lambda self: self.said)
    @rule(which=st.integers(0, 99), what=st.sampled_from(["cancel", "hold", "resume"]))
    def client(self, which, what):
        getattr(self.core, what)(list(self.said)[which % len(self.said)], 0.0)
        self.settle()

    @precondition(lambda self: len(self.core.running))
    @rule(which=st.integers(0, 99))
    def come_back(self, which):
        """Preempt a sequence, if possible in mid-prompt; it may enter again while its earlier steps are under way."""
        if len(self.ways) > 1:
            self.answer(1)
        running = list(self.core.running)
        numbers = [s.number for s in running if not s.is_ready] or [s.number for s in running] or list(self.said)
        for call in (self.core.hold, self.core.resume):
            call(numbers[which % len(numbers)], 0.0)
        self.settle()
        self.plan()

    @rule()
    def lose(self):
        self.core.shards_lost(0.0, Loss.DEFECT)
        self.epoch += 1
        self.core.shards_ready(self.core._facts, self.epoch, 0.0)
        self.forget()

    # -- messages

    def hear(self, plan):
        way, dropped, evicted, idle = Way(plan), set(), [], dict(self.idle)
        for message in plan.messages:
            dropped |= self.drop(message)
        self.let_go(newcomers(plan))
        for message in plan.messages:
            for grant in getattr(message, "grants", ()):
                self.hear_of(grant.blocks)
                evicted += self.take(grant.blocks)
                self.lives[grant.sequence].blocks += grant.blocks
            for newcomer in getattr(message, "newcomers", ()):
                evicted += self.enter(newcomer, message.batch)
            way.fills += [self.write(chunk) for chunk in getattr(message, "chunks", ())]
        self.ways.append(way)
        self.settle()
        self.check_order_of_eviction(evicted, idle, dropped)

    def hear_of(self, taken):
        """Apply the logged calls up to the allocation of these blocks."""
        self.hear_of_leaving()
        assert self.log.pop(0) == list(taken)

    def hear_of_leaving(self):
        """Apply the logged departures up to the next allocation."""
        while self.log and not isinstance(self.log[0], list):
            self.leave(self.lives.get(self.log.pop(0)))

    def leave(self, life):
        """Publish the blocks that the sequence generated."""
        if life is not None and len(life.tokens) > life.given:
            self.publish(life, len(life.tokens) - 1)

    def drop(self, message):
        """Apply a message's merge or filter of batches and return the sequences that leave theirs."""
        if isinstance(message, Concat):
            first, *others = message.batches
            self.batches[first] |= set().union(*map(self.batches.pop, others))
        keep = getattr(message, "keep", None)
        if keep is None:
            return set()
        dropped = self.batches[message.batch] - set(keep)
        self.batches[message.batch] -= dropped
        return dropped

    def let_go(self, entering):
        """Remove sequences from `computing` that hold no blocks any more, or enter again with other blocks."""
        here = self.holders()
        self.computing = {key: life for key, life in self.computing.items()
                          if life in here and life.number not in entering}

    def take(self, blocks):
        """Forget the contents of blocks that will be overwritten, and return those that were shared."""
        evicted = [block for block in blocks if block in self.shared.values()]
        self.shared = {key: block for key, block in self.shared.items() if block not in blocks}
        for block in blocks:
            self.written.pop(block, None)
        return evicted

    def enter(self, newcomer, batch):
        self.hear_of_leaving()
        number, request = newcomer.sequence, newcomer.request
        assert list(newcomer.generated) == self.said[number]
        life = Life(number, request, [*request.prompt, *newcomer.generated], list(newcomer.blocks),
                    newcomer.num_cached, newcomer.num_cached // SIZE, len(request.prompt) + len(newcomer.generated))
        keys = [life.key(index) for index in range(len(self.core.sequences[number].names))]
        most = 0 if request.prompt_logprobs else (len(life.tokens) - 1) // SIZE
        expected = list(takewhile(self.shared.__contains__, keys[:most]))
        assert [self.shared[key] for key in expected] == life.blocks[:life.num_published]
        assert [self.written[block] for block in life.blocks[:life.num_published]] == expected
        assert not self.computing.keys() & set(keys[:most][life.num_published:life.num_published + 1])
        self.hear_of(life.blocks[life.num_published:])
        evicted = self.take(life.blocks[life.num_published:])
        for key in keys[life.num_published:len(life.tokens) // SIZE]:
            if key not in self.shared:
                self.computing.setdefault(key, life)
        self.lives[number] = life
        self.batches.setdefault(batch, set()).add(number)
        self.hits += bool(expected)
        return evicted

    def write(self, chunk):
        life = self.lives[chunk.sequence]
        start, end = life.computed, life.computed + chunk.length
        assert chunk.start == start
        for index in range(start // SIZE, -(-end // SIZE)):
            assert life.blocks[index] not in self.shared.values()
            self.written[life.blocks[index]] = life.key(index) if (index + 1) * SIZE <= end else None
        life.computed = end
        return life, end

    # -- answers

    def holders(self):
        sequences = self.core.sequences
        return {life for number, life in self.lives.items() if number in sequences and sequences[number].blocks}

    def accept(self, counts, tokens, before):
        for number, count in counts.items():
            self.said[number] += tokens[number][:count]
            life = self.lives[number]
            if life in before:
                life.tokens += tokens[number][:count]

    def publish(self, life, filled):
        for index in range(life.num_published, filled // SIZE):
            key, block = life.key(index), life.blocks[index]
            self.written[block] = self.written.get(block) or key  # a block filled by decodes appears in no message
            assert self.written[block] == key
            self.shared.setdefault(key, block)
            if self.computing.get(key) is life:
                del self.computing[key]
            life.num_published += 1

    # -- invariants

    def settle(self):
        self.hear_of_leaving()
        assert not self.log
        held = {block for sequence in self.core.sequences for block in sequence.blocks}
        self.calls += 1
        self.idle = {block: self.idle.get(block, self.calls) for block in self.shared.values() if block not in held}
        blocks = self.core.running.blocks
        assert set(blocks._published.values()) == set(self.shared.values())
        assert blocks.num_kept == len(self.idle)
        assert blocks.num_free == blocks.count - len(held)

    def check_order_of_eviction(self, evicted, idle, dropped):
        left = [since for block, since in self.idle.items() if block in idle]
        assert max((idle.get(block, self.calls) for block in evicted), default=0) <= min(left, default=self.calls)
        blocks = self.core.running.blocks
        assert not evicted or dropped or blocks.num_free == blocks.num_kept

    def teardown(self):
        if not hasattr(self, "core"):
            return
        for number in self.said:
            self.core.resume(number, 0.0)
        while self.core.num_unfinished:
            self.go_on(1, 1)
        self.plan()
        while self.ways:
            self.answer(1)
        assert not self.core.running.blocks._reserved
        assert len(self.shared) == self.core.running.blocks.num_kept


SharingMachine.TestCase.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
TestSharing = pytest.mark.slow(SharingMachine.TestCase)


@pytest.mark.long
@pytest.mark.timeout(3600)
class TestSharingLong(SharingMachine.TestCase):
    settings = settings(max_examples=3000, stateful_step_count=60, deadline=None,
                        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
