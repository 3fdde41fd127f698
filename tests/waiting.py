"""L5: how long those who could go on may be left out, and how much longer prompts may make a step.

Looks at a core right behind each plan, when nothing else has happened yet.
"""

from router.budget import load_of_chunk
from router.costs import Load
from router.messages import Decode, Plan, Prefill
from router.request import Wish
from router.scheduler import Scheduler

ROUNDING = 1e-9  # seconds


class Waits:
    def __init__(self) -> None:
        self._epoch = 0
        self._left_out = 0  # decodes in a row that left somebody out who could have gone on

    def check(self, core: Scheduler, plan: Plan, now: float) -> None:
        step = plan.messages[-1]
        if core.policy.recompute or not isinstance(step, Prefill | Decode):
            return  # every step computes everybody; or there is none, or one of texts
        if plan.epoch != self._epoch:
            self._epoch, self._left_out = plan.epoch, 0
        if isinstance(step, Prefill):
            if core.policy.mixed:
                self._check_stall(core, step)
            self._left_out = 0
            return
        is_unfinished = any(not sequence.is_ready for sequence in core.running)
        if not is_unfinished and not self._leaves_newcomer(core):
            self._left_out = 0
            return
        self._left_out += 1
        most = self._most(core, is_unfinished=is_unfinished)
        assert self._left_out <= most, f"L5: {self._left_out} decodes passed by a prompt, where {most} may, at {now}"

    def _leaves_newcomer(self, core: Scheduler) -> bool:
        """Whoever is first could have started. To ask the core who is would tell those who wait why they do."""
        if core.policy.mixed:
            return core._in_flight[-1].crowded
        if core.policy.static or core._trials:
            return False
        turns, running = core._turns, core.running
        able = [s for s in core._queue if s.request.wish is Wish.TEXT and not turns.is_stuck(s)]
        return bool(able) and all(turns._no_room(s) is None and not running.waits_for_prefix(s) for s in able)

    def _most(self, core: Scheduler, *, is_unfinished: bool) -> int:
        if core.policy.mixed:
            return core.policy.max_starved_steps
        return 1 if is_unfinished else max(1, core.policy.max_waiting_tokens)

    def _check_stall(self, core: Scheduler, step: Prefill) -> None:
        """However unlucky, such a step takes no longer than foreseen without its prompts, and what was promised."""
        if not step.alongside:
            return
        policy, costs, whole = core.policy, core.costs, core.last_load
        chunks = [load_of_chunk(chunk.start, chunk.length) for chunk in step.chunks]
        alone = Load(whole.rows - len(chunks), 0, whole.context - sum(chunk.context for chunk in chunks))
        if self._left_out == policy.max_starved_steps and whole.chunk_tokens <= core.running.blocks.size:
            return  # one block, whatever it takes
        unlucky = costs.caution * costs.predict(whole)
        assert unlucky <= costs.predict(alone) + policy.stall_seconds + ROUNDING, \
            f"L5: {whole} may take {unlucky} seconds, {alone} takes {costs.predict(alone)}"
