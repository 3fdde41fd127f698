"""Check of law L5: how long prompts may be left out of steps, and how much longer they may make a step.

The check runs directly after each plan, before anything else changes the core. With mixed steps both bounds are in
seconds that the core predicts: prompts add no more than the stall promise or what they earned (see
`router.scheduler.prefill_budget.PromptShare`), and they are left out only while what they earned is less than the
cost of a block.
"""

from router.request import Wish
from router.scheduler.cost_model import Load
from router.scheduler.plan import Decode, Plan, Prefill
from router.scheduler.prefill_budget import EARNED, seconds_of_chunk
from router.scheduler.scheduler import Scheduler

ROUNDING = 1e-9  # seconds


class Waits:
    def __init__(self) -> None:
        self._epoch = 0
        self._left_out = 0  # consecutive decode steps that left out a prompt which could have run
        self._held_up = 0.0  # predicted seconds of such decode steps

    def check(self, core: Scheduler, plan: Plan, now: float) -> None:
        step = plan.messages[-1]
        if core.policy.recompute or not isinstance(step, Prefill | Decode):
            return  # with `recompute` each step runs all sequences; otherwise this is no step, or a pooling step
        if plan.epoch != self._epoch:
            self._epoch, self._left_out, self._held_up = plan.epoch, 0, 0.0
        if isinstance(step, Prefill):
            if core.policy.mixed:
                self._check_stall(core, step)
            self._left_out, self._held_up = 0, 0.0
            return
        is_unfinished = any(not sequence.is_ready for sequence in core.running)
        if not is_unfinished and not self._leaves_newcomer(core):
            self._left_out, self._held_up = 0, 0.0
            return
        if core.policy.mixed:
            self._held_up += core.costs.predict(core.last_load)
            self._check_held_up(core, now)
            return
        self._left_out += 1
        most = 1 if is_unfinished else max(1, core.policy.max_waiting_tokens)
        assert self._left_out <= most, f"L5: {self._left_out} decodes passed by a prompt, where {most} may, at {now}"

    def _leaves_newcomer(self, core: Scheduler) -> bool:
        """Return whether the first waiting request could have started.

        `Turns.next` is not called to find that request: it would change the recorded causes of waiting.
        """
        if core.policy.mixed:
            return core._in_flight[-1].crowded
        if core.policy.static or core._trials:
            return False
        turns, running = core._turns, core.running
        able = [s for s in core._queue if s.request.wish is Wish.TEXT and not turns.is_stuck(s)]
        return bool(able) and all(turns._no_room(s) is None and not running.waits_for_prefix(s) for s in able)

    def _check_held_up(self, core: Scheduler, now: float) -> None:
        """Assert that the earned seconds do not pay for a block of the most expensive waiting prompt."""
        earned, size = EARNED * self._held_up, core.running.blocks.size
        waiting = [s for s in core.running if not s.is_ready] or [*core._queue]
        dearest = max(seconds_of_chunk(core.costs, sequence.length, size) for sequence in waiting)
        most = max(earned, core.policy.stall_seconds / core.costs.caution)
        assert most <= dearest + ROUNDING, f"L5: prompts earned {earned} seconds, a block takes {dearest}, at {now}"

    def _check_stall(self, core: Scheduler, step: Prefill) -> None:
        """Assert that prompts add no more than the stall promise, caution included, or what they earned.

        A single chunk may add more if more sequences wait than decode.
        """
        if not step.alongside:
            return
        costs, whole = core.costs, core.last_load
        added = sum(seconds_of_chunk(costs, chunk.start, chunk.length) for chunk in step.chunks)
        ready = whole.rows - len(step.chunks)
        alone = Load(ready, 0, whole.context - sum(chunk.start + chunk.length for chunk in step.chunks))
        earned = EARNED * (self._held_up + costs.predict(alone))
        most = max(core.policy.stall_seconds / costs.caution, earned)
        if len(step.chunks) == 1:
            most = max(most, earned * (len(core.running) - ready + len(core._queue)) / ready)
        assert added <= most + ROUNDING, f"L5: prompts add {added} seconds to {alone}, where {most} may"
