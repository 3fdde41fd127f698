"""Overlapped decode steps: the next step begins before the results of the last one are known, so that the device does
not idle while the host reads tokens, writes answers and prepares the next step.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from shard.attention.kv_cache import KVCache
from shard.hardware.device_transfers import MAX_IN_FLIGHT_STEPS
from shard.pending_result import Answer, PendingResult
from shard.runner.cuda_graphs import CudaGraphRunner, InFlightReplay
from shard.runner.model_runner import StepOutputs, find_blocks_between
from shard.state.result_encoding import SequenceOutput
from shard.state.shard_state import ShardState
from shard.state.step import Step

NUM_AVERAGED_STEPS = 32  # steps that the moving average covers, about
MAX_RERUN_SHARE = 1 / 16  # share of them that may have to be run again before overlap is suspended
# steps without overlap then, e.g. for a filter that keeps many candidates of a flat distribution
NUM_SUSPENDED_STEPS = 32

RunSynchronously = Callable[[Step], StepOutputs]  # runs a step whose input tokens are all known
# makes the answer from the results and the seconds
MakeAnswer = Callable[[Step, Mapping[int, SequenceOutput], float], Answer]


@dataclass(slots=True)
class InFlightStep:
    """Step under way, and what is needed to finish it, to roll it back or to run it again."""

    step: Step
    placeholder_indices: list[int]  # index of the placeholder token in each decoding sequence
    started_at: float
    replay: InFlightReplay | None  # None: rolled back, must run again before another step begins
    pending_result: PendingResult[Any]  # its `finish` ends in `OverlapQueue._end_step`


@dataclass(slots=True)
class OverlapBackoff:
    """Decides when to suspend overlap for some steps: a rerun costs two steps, an overlap saves part of one."""

    _rerun_share: float = 0.0  # moving average: share of overlapped steps that had to be run again
    _num_suspended_left: int = 0

    def consume_suspended_overlap(self) -> bool:
        """Return whether the next step must wait for the last one, and count that step."""
        if not self._num_suspended_left:
            return False
        self._num_suspended_left -= 1
        return True

    def record_step(self, *, succeeded: bool) -> None:
        if not succeeded and self._rerun_share > MAX_RERUN_SHARE:
            self._num_suspended_left = NUM_SUSPENDED_STEPS
        self._rerun_share += ((not succeeded) - self._rerun_share) / NUM_AVERAGED_STEPS


class OverlapQueue:
    """Steps under way, at most MAX_IN_FLIGHT_STEPS, used from one thread.

    `ShardState` advances as if the tokens of the step under way were known, and the next step reads them on the device.
    If a result needs the host, that step and the one behind it are run again, one after the other, with the same
    results as without overlap. No step begins while one must be run again.
    """

    def __init__(self, shard_state: ShardState, cuda_graph_runner: CudaGraphRunner,
                 run_synchronously: RunSynchronously) -> None:
        self._shard_state = shard_state
        self._cuda_graph_runner = cuda_graph_runner
        self._run_synchronously = run_synchronously
        self._in_flight_steps: deque[InFlightStep] = deque()  # the oldest first
        self._last_ended_at = 0.0  # when the last step ended
        self._backoff = OverlapBackoff()
        self._first_error: Exception | None = None  # of a failed step; all steps behind it raise the same

    def wait_for_capacity(self) -> None:
        """Wait until another step may begin; raises the error of an earlier step."""
        if len(self._in_flight_steps) == MAX_IN_FLIGHT_STEPS:
            self._in_flight_steps[0].pending_result.finish()
        if self._in_flight_steps and self._in_flight_steps[-1].replay is None:
            self.finish_all()

    def finish_all(self) -> None:
        """Finish the steps under way, in order; stops at the first that failed and raises its error."""
        while self._in_flight_steps:  # `finish` ends in `_end_step`, which removes the step
            self._in_flight_steps[0].pending_result.finish()

    def discard_all(self) -> None:
        """Finish all steps under way, discarding their results and errors."""
        while self._in_flight_steps:  # `_end_step` removes the step, also if it fails
            self._in_flight_steps[0].pending_result.finish_without_raising()
        self._first_error = None

    def begin_step(self, step: Step, cache: KVCache, make_answer: MakeAnswer[Answer]) -> PendingResult[Answer] | None:
        """Begin the step; call `wait_for_capacity` before. Return None if it can only be run after the last step has
        ended."""
        if self._backoff.consume_suspended_overlap() or self._overwrites_blocks_in_flight(step, cache.block_size):
            return None
        previous = self._in_flight_steps[-1].replay if self._in_flight_steps else None
        started_at = perf_counter()
        replay = self._cuda_graph_runner.begin_step(step, cache, previous)
        if replay is None:
            return None
        placeholder_indices = self._shard_state.append_placeholders(step)
        pending_result = PendingResult(replay.wait, lambda: self._end_step(in_flight, cache, make_answer))
        in_flight = InFlightStep(step, placeholder_indices, started_at, replay, pending_result)
        self._in_flight_steps.append(in_flight)
        return pending_result

    def _overwrites_blocks_in_flight(self, step: Step, block_size: int) -> bool:
        """Return whether the step writes to a block of a sequence that a step under way is the last to compute: that
        step may have to be run again and must then find the block as it was."""
        ids = {sequence.id for sequence in step.decodes}
        blocks = {block for in_flight in self._in_flight_steps for sequence in in_flight.step.decodes
                  if sequence.id not in ids for block in sequence.blocks}
        return bool(blocks) and any(
            sequence.blocks[(len(sequence.tokens) - 1) // block_size] in blocks for sequence in step.decodes)

    def _end_step(self, in_flight: InFlightStep, cache: KVCache, make_answer: MakeAnswer[Answer]) -> Answer:
        """Make the answer of the oldest step and remove the step, also if it fails."""
        if self._in_flight_steps[0] is not in_flight:
            raise RuntimeError("steps end in their order")
        try:
            if self._first_error is not None:
                raise self._first_error
            outputs = self._compute_outputs(in_flight, cache)
        except Exception as error:
            self._first_error = error
            raise
        finally:
            self._in_flight_steps.popleft()
        now = perf_counter()
        seconds = now - max(in_flight.started_at, self._last_ended_at)
        self._last_ended_at = now
        return make_answer(in_flight.step, outputs, seconds)

    def _compute_outputs(self, in_flight: InFlightStep, cache: KVCache) -> Mapping[int, SequenceOutput]:
        step, replay = in_flight.step, in_flight.replay
        if replay is None:
            # sequences that failed in the step before ran in this one too
            for sequence, index in zip(step.decodes, in_flight.placeholder_indices, strict=True):
                if sequence.failure is not None:
                    cache.zero_blocks(find_blocks_between(sequence, index - 1, index, cache.block_size))
            step.separate_failed_sequences()
        elif (sampled_tokens := replay.get_sampled_tokens()) is not None:
            self._backoff.record_step(succeeded=True)
            self._shard_state.fill_placeholders(step, in_flight.placeholder_indices,
                                                [token for token, _ in sampled_tokens])
            return {sequence.id: SequenceOutput([token], [logprob])
                    for sequence, (token, logprob) in zip(step.decodes, sampled_tokens, strict=True)}
        else:
            self._roll_back_steps()
        if not step.decodes:
            return {}
        outputs = self._run_synchronously(step)
        self._shard_state.apply_results(step, outputs.new_tokens, outputs.failures)
        return outputs.by_sequence

    def _roll_back_steps(self) -> None:
        """Wait for all steps under way and roll them back in the shard's state, the youngest first."""
        self._backoff.record_step(succeeded=False)
        for in_flight in reversed(self._in_flight_steps):
            if in_flight.replay is not None:
                in_flight.replay.wait()
                in_flight.replay = None
                self._shard_state.roll_back_placeholders(in_flight.step, in_flight.placeholder_indices)
