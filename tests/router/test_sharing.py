"""Prefix sharing as a state machine, compared with a model of the cache: a dict from a namespace and all tokens up to a
block's end to the block that holds them. The model learns a block's contents from messages only, and which blocks may
be found from answers only."""

from dataclasses import dataclass, field
from itertools import takewhile

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from support.scheduling.method_overrides import override_methods, restore_methods
from support.scheduling.shared_prefixes import (
    BLOCK_SIZE,
    END_TOKEN,
    get_new_sequences,
    make_prefix_scheduler,
    make_prompt_tokens,
    submit_prompt,
)

from router.request import Request
from router.scheduler.events import TokensGenerated
from router.scheduler.fault_isolation import ShardLossReason
from router.scheduler.running_sequences import RunningSequences
from router.scheduler.shard_messages import Concat, StepPlan, StepResult, StepResultRow

EXTRA_REQUEST_FIELDS = st.fixed_dictionaries({
    "tenant": st.sampled_from(["one", "one", "two"]), "prompt_logprobs": st.sampled_from([False, False, False, True])})


@dataclass(eq=False)
class BatchedSequence:
    """Sequence between entering and leaving a batch, as seen in the messages."""

    id: int
    request: Request
    tokens: list[int]
    blocks: list[int]
    num_computed: int  # tokens sent to be computed
    num_published: int  # blocks
    num_entry_tokens: int  # tokens at entry

    def block_key(self, index):
        """Return what identifies the full block at this index: the namespace and all tokens up to its end."""
        return self.request.cache_namespace, tuple(self.tokens[:(index + 1) * BLOCK_SIZE])


class CallLog(list):
    """Log of the core's calls in order: the number of a sequence that frees its blocks, or a list of blocks taken."""

    def __init__(self, running):
        restore_methods(running, RunningSequences)  # those of an earlier log
        override_methods(running, free_blocks=self.wrap_and_log(running.free_blocks),
                         remove_finishing_sequence=self.wrap_and_log(running.remove_finishing_sequence))
        take = running.block_pool.allocate

        def logged_allocate(count):
            taken = take(count)
            self.append(list(taken))
            return taken

        override_methods(running.block_pool, allocate=logged_allocate)

    def wrap_and_log(self, leave):
        def logged_leave(sequence):
            if sequence.blocks:
                self.append(sequence.id)
            leave(sequence)

        return logged_leave


@dataclass
class StepInFlight:
    """Step under way, with the tokens that its chunks compute."""

    plan: StepPlan
    # sequence, and its number of computed tokens after the chunk
    computed_chunks: list[tuple[BatchedSequence, int]] = field(default_factory=list)


class SharingMachine(RuleBasedStateMachine):
    """Core with random requests, answers, clients and losses, and the model that follows its messages."""

    @initialize(mixed=st.booleans(), look_ahead=st.sampled_from([1, 2, 2]), tokens_per_step=st.sampled_from([1, 1, 3]),
                num_blocks=st.sampled_from([14, 20, 40]), prefill=st.sampled_from([32, 64, 256]))
    def build(self, mixed, look_ahead, tokens_per_step, num_blocks, prefill):
        self.core = make_prefix_scheduler(num_blocks, tokens_per_step, mixed=mixed, look_ahead=look_ahead,
                                          max_prefill_tokens=prefill, max_batch_size=8)
        self.tokens_per_step, self.epoch = tokens_per_step, 1
        self.requests, self.generated = {}, {}
        self.hits = 0
        self.forget()

    def forget(self):
        self.shared = {}  # the model of the cache
        self.written = {}  # block to the key of the tokens that the shards wrote there
        self.computing = {}  # key to the sequence that will fill its block; others that need it wait
        self.idle = {}  # shared blocks that no sequence holds, and the call since which they are idle
        self.calls = 0
        self.lives, self.batches, self.steps_in_flight = {}, {}, []
        self.log = CallLog(self.core.running)

    # -- events

    @rule(follows=st.sampled_from([0, 0, 1, 2, 3, 5, 8]), shared=st.sampled_from([16, 33, 64, 70, 1000]),
          own=st.integers(0, 20), output=st.sampled_from([1, 2, 20, 50]), more=EXTRA_REQUEST_FIELDS)
    def submit(self, follows, shared, own, output, more):
        texts = [make_prompt_tokens(100),
                 *((*self.requests[number].prompt, *tokens) for number, tokens in self.generated.items())]
        prompt = texts[follows % len(texts)][:shared] + make_prompt_tokens(own, seed=len(texts))
        number = submit_prompt(self.core, prompt[:140], output, float(len(texts)), **more)
        self.requests[number], self.generated[number] = self.core.sequences[number].request, []

    @rule(steps=st.integers(1, 6), num_tokens=st.integers(1, 3))
    def run_steps(self, steps, num_tokens):
        for _ in range(steps):
            self.plan()
            if self.steps_in_flight:
                self.answer(num_tokens)

    @rule()
    def plan(self):
        while (plan := self.core.plan(0.0)) is not None:
            self.apply_plan(plan)

    @precondition(lambda self: self.steps_in_flight)
    @rule(num_tokens=st.integers(1, 3), ends=st.integers(0, 3), fails=st.integers(0, 9))
    def answer(self, num_tokens, ends=9, fails=99):
        """Answer the oldest step; one of its sequences may end, and one may fail."""
        step = self.steps_in_flight.pop(0)
        tokens = {number: self.tokens_of(number, num_tokens, place == ends)
                  for place, number in enumerate(step.plan.output_ids)}
        failed = {number: "why" for place, number in enumerate(step.plan.member_ids) if place == fails}
        rows = {number: StepResultRow(generated, (0.0,) * len(generated)) for number, generated in tokens.items()
                if number not in failed}
        before = self.sequences_with_blocks()
        events = self.core.complete_step(step.plan.last_message_number, StepResult(self.epoch, 0.01, rows, failed),
                                         {}, 0.0)
        for sequence, end in step.computed_chunks:
            if sequence in before and sequence.id not in failed:
                self.publish(sequence, end)
        for event in events:
            if isinstance(event, TokensGenerated):
                self.accept(event.token_counts, tokens, before)
        self.settle()

    def tokens_of(self, number, num_tokens, ends):
        length = len(self.requests[number].prompt) + len(self.generated[number])
        tokens = [(length + place) % 5 + 2 for place in range(min(num_tokens, self.tokens_per_step))]
        return (*tokens[:-1], END_TOKEN) if ends else tuple(tokens)

    @precondition(lambda self: self.generated)
    @rule(choice=st.integers(0, 99), action=st.sampled_from(["cancel", "suspend", "resume"]))
    def client(self, choice, action):
        getattr(self.core, action)(list(self.generated)[choice % len(self.generated)], 0.0)
        self.settle()

    @precondition(lambda self: len(self.core.running))
    @rule(choice=st.integers(0, 99))
    def preempt(self, choice):
        """Preempt a sequence, if possible in mid-prompt; the sequence may enter again while its earlier steps run."""
        if len(self.steps_in_flight) > 1:
            self.answer(1)
        running = list(self.core.running)
        numbers = [s.id for s in running if not s.is_ready_to_decode] or [s.id for s in running] or list(self.generated)
        for call in (self.core.suspend, self.core.resume):
            call(numbers[choice % len(numbers)], 0.0)
        self.settle()
        self.plan()

    @rule()
    def lose(self):
        self.core.on_shards_lost(ShardLossReason.DEFECT, 0.0)
        self.epoch += 1
        self.core.on_shards_ready(self.core._model_info, self.epoch, 0.0)
        self.forget()

    # -- messages

    def apply_plan(self, plan):
        step, dropped, evicted, idle = StepInFlight(plan), set(), [], dict(self.idle)
        for message in plan.messages:
            dropped |= self.drop(message)
        self.let_go(get_new_sequences(plan))
        for message in plan.messages:
            for grant in getattr(message, "grants", ()):
                self.apply_allocation(grant.blocks)
                evicted += self.take(grant.blocks)
                self.lives[grant.sequence_id].blocks += grant.blocks
            for newcomer in getattr(message, "new_sequences", ()):
                evicted += self.enter(newcomer, message.batch)
            step.computed_chunks += [self.write_chunk(chunk) for chunk in getattr(message, "chunks", ())]
        self.steps_in_flight.append(step)
        self.settle()
        self.check_order_of_eviction(evicted, idle, dropped)

    def apply_allocation(self, taken):
        """Apply the logged calls up to the allocation of these blocks."""
        self.apply_departures()
        assert self.log.pop(0) == list(taken)

    def apply_departures(self):
        """Apply the logged departures up to the next allocation."""
        while self.log and not isinstance(self.log[0], list):
            self.leave(self.lives.get(self.log.pop(0)))

    def leave(self, sequence):
        """Publish the blocks that the sequence generated."""
        if sequence is not None and len(sequence.tokens) > sequence.num_entry_tokens:
            self.publish(sequence, len(sequence.tokens) - 1)

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

    def let_go(self, entering_numbers):
        """Remove sequences from `computing` that hold no blocks any more, or enter again with other blocks."""
        here = self.sequences_with_blocks()
        self.computing = {key: life for key, life in self.computing.items()
                          if life in here and life.id not in entering_numbers}

    def take(self, blocks):
        """Forget the contents of blocks that will be overwritten, and return those that were shared."""
        evicted = [block for block in blocks if block in self.shared.values()]
        self.shared = {key: block for key, block in self.shared.items() if block not in blocks}
        for block in blocks:
            self.written.pop(block, None)
        return evicted

    def enter(self, newcomer, batch):
        self.apply_departures()
        number, request = newcomer.sequence_id, newcomer.request
        assert list(newcomer.generated) == self.generated[number]
        sequence = BatchedSequence(number, request, [*request.prompt, *newcomer.generated], list(newcomer.blocks),
                                   newcomer.num_cached_tokens, newcomer.num_cached_tokens // BLOCK_SIZE,
                                   len(request.prompt) + len(newcomer.generated))
        keys = [sequence.block_key(index) for index in range(len(self.core.sequences[number].block_hashes))]
        most = 0 if request.prompt_logprobs else (len(sequence.tokens) - 1) // BLOCK_SIZE
        expected = list(takewhile(self.shared.__contains__, keys[:most]))
        assert [self.shared[key] for key in expected] == sequence.blocks[:sequence.num_published]
        assert [self.written[block] for block in sequence.blocks[:sequence.num_published]] == expected
        assert not self.computing.keys() & set(keys[:most][sequence.num_published:sequence.num_published + 1])
        self.apply_allocation(sequence.blocks[sequence.num_published:])
        evicted = self.take(sequence.blocks[sequence.num_published:])
        for key in keys[sequence.num_published:len(sequence.tokens) // BLOCK_SIZE]:
            if key not in self.shared:
                self.computing.setdefault(key, sequence)
        self.lives[number] = sequence
        self.batches.setdefault(batch, set()).add(number)
        self.hits += bool(expected)
        return evicted

    def write_chunk(self, chunk):
        sequence = self.lives[chunk.sequence_id]
        start, end = sequence.num_computed, sequence.num_computed + chunk.length
        assert chunk.start == start
        for index in range(start // BLOCK_SIZE, -(-end // BLOCK_SIZE)):
            assert sequence.blocks[index] not in self.shared.values()
            self.written[sequence.blocks[index]] = (sequence.block_key(index) if (index + 1) * BLOCK_SIZE <= end
                                                    else None)
        sequence.num_computed = end
        return sequence, end

    # -- answers

    def sequences_with_blocks(self):
        sequences = self.core.sequences
        return {life for number, life in self.lives.items() if number in sequences and sequences[number].blocks}

    def accept(self, counts, tokens, before):
        for number, count in counts.items():
            self.generated[number] += tokens[number][:count]
            sequence = self.lives[number]
            if sequence in before:
                sequence.tokens += tokens[number][:count]

    def publish(self, sequence, filled):
        for index in range(sequence.num_published, filled // BLOCK_SIZE):
            key, block = sequence.block_key(index), sequence.blocks[index]
            self.written[block] = self.written.get(block) or key  # a block filled by decodes appears in no message
            assert self.written[block] == key
            self.shared.setdefault(key, block)
            if self.computing.get(key) is sequence:
                del self.computing[key]
            sequence.num_published += 1

    # -- invariants

    def settle(self):
        self.apply_departures()
        assert not self.log
        held = {block for sequence in self.core.sequences for block in sequence.blocks}
        self.calls += 1
        self.idle = {block: self.idle.get(block, self.calls) for block in self.shared.values() if block not in held}
        blocks = self.core.running.block_pool
        assert set(blocks._block_by_hash.values()) == set(self.shared.values())
        assert blocks.num_evictable == len(self.idle)
        assert blocks.num_free == blocks.num_blocks - len(held)

    def check_order_of_eviction(self, evicted, idle, dropped):
        left = [since for block, since in self.idle.items() if block in idle]
        assert max((idle.get(block, self.calls) for block in evicted), default=0) <= min(left, default=self.calls)
        blocks = self.core.running.block_pool
        assert not evicted or dropped or blocks.num_free == blocks.num_evictable

    def teardown(self):
        if not hasattr(self, "core"):
            return
        for number in self.generated:
            self.core.resume(number, 0.0)
        while self.core.num_unfinished:
            self.run_steps(1, 1)
        self.plan()
        while self.steps_in_flight:
            self.answer(1)
        assert not self.core.running.block_pool._reserved_hashes
        assert len(self.shared) == self.core.running.block_pool.num_evictable


SharingMachine.TestCase.settings = settings(
    max_examples=70, stateful_step_count=40, deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
TestPrefixSharingMachine = pytest.mark.slow(SharingMachine.TestCase)


@pytest.mark.long
@pytest.mark.timeout(3600)
class TestPrefixSharingMachineLong(SharingMachine.TestCase):
    settings = settings(max_examples=3000, stateful_step_count=60, deadline=None,
                        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
