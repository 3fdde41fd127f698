"""Check of law L5: how long prompts may be left out of steps, and how much longer they may make a step.

The check runs directly after each plan, before anything else changes the core. With mixed steps both bounds are in
seconds that the core predicts: prompts add no more than the stall promise or what the step earns, rounded up to whole
blocks (see `router.scheduler.batching_policies.PrefillTimeLedger`), and they are left out only while what they earned
is less than the cost of a block.
"""

from router.request import RequestKind
from router.scheduler.batching_policies import EARNED_PER_DECODE_SECOND, predict_chunk_seconds
from router.scheduler.cost_model import CostModel, StepLoad
from router.scheduler.scheduler import Scheduler
from router.scheduler.shard_messages import Decode, Prefill, PrefillChunk, StepPlan

ROUNDING_SECONDS = 1e-9


class WaitingTimeChecker:
    def __init__(self) -> None:
        self._epoch = 0
        self._num_passed_over = 0  # consecutive decode steps that left out a prompt which could have run
        self._passed_over_seconds = 0.0  # predicted seconds of such decode steps

    def check_plan(self, scheduler: Scheduler, plan: StepPlan, now: float) -> None:
        step = plan.messages[-1]
        if scheduler.settings.recompute or not isinstance(step, Prefill | Decode):
            return  # with `recompute` each step runs all sequences; otherwise this is no step, or a pooling step
        if plan.epoch != self._epoch:
            self._epoch, self._num_passed_over, self._passed_over_seconds = plan.epoch, 0, 0.0
        if isinstance(step, Prefill):
            if scheduler.settings.mixed:
                self._check_added_seconds(scheduler, step)
            self._num_passed_over, self._passed_over_seconds = 0, 0.0
            return
        has_unfinished_prompt = any(not sequence.is_ready_to_decode for sequence in scheduler.running)
        if not has_unfinished_prompt and not self._passes_over_waiting(scheduler):
            self._num_passed_over, self._passed_over_seconds = 0, 0.0
            return
        if scheduler.settings.mixed:
            self._passed_over_seconds += scheduler.cost_model.predict(scheduler.last_step_load)
            self._check_earned_seconds(scheduler, now)
            return
        self._num_passed_over += 1
        max_passed_over = 1 if has_unfinished_prompt else max(1, scheduler.settings.max_waiting_tokens)
        assert self._num_passed_over <= max_passed_over, \
            f"L5: {self._num_passed_over} decodes passed by a prompt, where {max_passed_over} may, at {now}"

    def _passes_over_waiting(self, scheduler: Scheduler) -> bool:
        """Return whether the first waiting request could have started.

        `WaitingSequenceSelector.peek_next_sequence` is not called to find that request: it would change the recorded
        phases.
        """
        if scheduler.settings.mixed:
            return scheduler._unanswered_plans[-1].has_turned_new_sequence_away
        if scheduler.settings.static or scheduler._fault_isolation.suspect_sets:
            return False
        selector = scheduler.selector
        running = scheduler.running
        startable = [s for s in scheduler.waiting
                     if s.request.kind is RequestKind.GENERATE and not selector.cannot_start_even_with_room(s)]
        return bool(startable) and all(selector._why_no_room(s) is None and not running.is_waiting_for_prefix(s)
                                       for s in startable)

    def _check_earned_seconds(self, scheduler: Scheduler, now: float) -> None:
        """Assert that the earned seconds do not pay for a block of the most expensive waiting prompt."""
        earned_seconds, block_size = (EARNED_PER_DECODE_SECOND * self._passed_over_seconds,
                                      scheduler.running.block_pool.block_size)
        waiting = [s for s in scheduler.running if not s.is_ready_to_decode] or [*scheduler.waiting]
        max_block_seconds = max(predict_chunk_seconds(scheduler.cost_model, sequence.length, block_size)
                                for sequence in waiting)
        allowed_seconds = max(earned_seconds, scheduler.settings.max_stall_seconds / scheduler.cost_model.safety_factor)
        assert allowed_seconds <= max_block_seconds + ROUNDING_SECONDS, \
            f"L5: prompts earned {earned_seconds} seconds, a block takes {max_block_seconds}, at {now}"

    def _check_added_seconds(self, scheduler: Scheduler, step: Prefill) -> None:
        """Assert that prompts add no more than the stall promise, caution included, or what the step earns, and one
        block more: of any chunk, or a chunk of its own.

        A single chunk, without the block more, may add more if more sequences could start than decode.
        """
        if not step.includes_decodes:
            return
        costs, step_load = scheduler.cost_model, scheduler.last_step_load
        added_seconds = sum(predict_chunk_seconds(costs, chunk.start, chunk.length) for chunk in step.chunks)
        num_decodes = step_load.rows - len(step.chunks)
        decode_load = StepLoad(num_decodes, 0,
                               step_load.context - sum(chunk.start + chunk.length for chunk in step.chunks))
        earned_seconds = EARNED_PER_DECODE_SECOND * costs.predict(decode_load)
        allowed_seconds = max(scheduler.settings.max_stall_seconds / costs.safety_factor, earned_seconds)
        block_size = scheduler.running.block_pool.block_size
        if len(step.chunks) == 1 or (len(step.chunks) == 2 and step.chunks[1].length <= block_size):
            # A static group may have been closed since the step was drafted.
            num_waiting = (len(scheduler.waiting) if scheduler.settings.static
                           else sum(map(scheduler.selector.is_startable, scheduler.waiting)))
            allowed_seconds = max(allowed_seconds, earned_seconds
                                  * (len(scheduler.running) - num_decodes + num_waiting) / num_decodes)
        one_block_seconds = max(predict_last_block_seconds(costs, chunk, block_size) for chunk in step.chunks)
        assert added_seconds - one_block_seconds <= allowed_seconds + ROUNDING_SECONDS, \
            f"L5: prompts add {added_seconds} seconds to {decode_load}, where {allowed_seconds} and one block may"


def predict_last_block_seconds(cost_model: CostModel, chunk: PrefillChunk, block_size: int) -> float:
    """Return the seconds that the last block of a chunk adds to a step, or the whole chunk if it is no longer."""
    chunk_seconds = predict_chunk_seconds(cost_model, chunk.start, chunk.length)
    return chunk_seconds - (predict_chunk_seconds(cost_model, chunk.start, chunk.length - block_size)
                            if chunk.length > block_size else 0.0)
