"""Processing of the shards' answers: accepts tokens, ends sequences, publishes prompts in the prefix cache."""

from collections.abc import Mapping
from collections.abc import Sequence as Rows

from router.request import FinishReason, Wish
from router.scheduler.events import Event, Produced
from router.scheduler.fairness import PER_GENERATED_TOKEN, Shares
from router.scheduler.fault_isolation import Trials
from router.scheduler.plan import Answer
from router.scheduler.running import Running
from router.scheduler.sequence import Sequence, State
from router.scheduler.sequence_table import Register
from router.scheduler.timeline import Cause
from router.scheduler.under_way import Step
from router.text.stop_strings import count_tokens


class Answers:
    def __init__(self, sequences: Register, shares: Shares, trials: Trials) -> None:
        self._sequences = sequences
        self._shares = shares
        self._trials = trials

    def start_empty(self, running: Running) -> None:
        self._running = running

    def heard(self, step: Step, answer: Answer, stopped: Mapping[int, int], now: float) -> list[Event]:
        """Apply the answer to this step; return the events.

        `stopped` maps the sequences whose text has just reached a stop string to the number of this answer's tokens
        that count.
        """
        if step.wish is not Wish.TEXT:
            return self._told(step, answer.failed, now)
        counts: dict[int, int] = {}
        events: list[Event] = [Produced(counts)] if step.expects else []
        rows, failed = answer.rows, answer.failed
        for filled in step.fills:
            if filled.is_there and filled.sequence.number not in failed:
                self._filled(filled.sequence, filled.end, now)
        for sequence in step.expects:
            sequence.in_flight -= 1
            number = sequence.number
            if sequence.state is not State.OVER and number not in failed:
                counts[number] = self._accept(sequence, rows[number].tokens, stopped.get(number), events, now)
                if sequence.state is State.YIELDING:
                    self._sequences.wait_once_answered(sequence)
        if self._trials:
            self._trials.acquit(counts)
        return events + [self._sequences.fail(self._sequences[n], why, now) for n, why in failed.items()
                         if n in self._sequences]

    def _filled(self, sequence: Sequence, end: int, now: float) -> None:
        """Record that a chunk was computed: the first `end` tokens of the sequence are in the cache."""
        self._running.publish(sequence, end)
        if end >= sequence.given:
            sequence.story.turn(Cause.DECODE, now)

    def _told(self, step: Step, failed: Mapping[int, str], now: float) -> list[Event]:
        """Finish or fail all sequences of a pooling step, since it is their only one."""
        here = [sequence for sequence in step.members if sequence.state is not State.OVER]
        return [self._sequences.fail(sequence, failed[sequence.number], now) if sequence.number in failed
                else self._sequences.finish(sequence, FinishReason.LENGTH, now) for sequence in here]

    def _accept(self, sequence: Sequence, tokens: Rows[int], stop: int | None, events: list[Event], now: float) -> int:
        request = sequence.request
        counted, reason = count_tokens(request, len(sequence.generated), tokens, stop)
        sequence.accept(tokens if counted == len(tokens) else tokens[:counted])
        sequence.num_deaths = 0
        if self._shares.several:
            self._shares.charge(request.tenant, PER_GENERATED_TOKEN * counted)
        if reason is None and now >= sequence.deadline:
            reason = FinishReason.TIMEOUT
        if reason is not None:
            events.append(self._sequences.finish(sequence, reason, now))
        return counted
