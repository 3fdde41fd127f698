"""Settings of the scheduler, in its own units (seconds, not milliseconds)."""

from dataclasses import dataclass

from router.config import RouterConfig
from router.scheduler.plan import ModelFacts

PAUSE_ONLY = ("waiting_served_ratio", "max_waiting_tokens")
STATIC_ONLY = ("static_window_ms", "static_equal_lengths")
BATCHING_ONLY = ("max_handlers",)
NOT_STATIC = ("max_queue_ms",)
NOT_ANEW = ("prefill_policy", "max_decode_stall_ms")
NONE = ("none", "nobatch")
STALL_SECONDS = {"cuda": 0.050, "cpu": 0.150}


@dataclass(frozen=True, slots=True)
class Policy:
    mixed: bool = True
    max_concurrent_requests: int = 128
    max_queue_requests: int | None = None
    max_queue_tokens: int | None = None
    max_queue_seconds: float | None = None
    passed_over_seconds: float = 2.0  # age of the first sequence up to which cached ones may overtake it
    max_batch_size: int = 256
    max_active_adapters: int = 1024
    adapter_cycle_seconds: float = 2.0  # how long an adapter stays in use while others wait for its slot
    max_prefill_tokens: int = 4096
    stall_seconds: float = 0.150
    waiting_served_ratio: float = 0.3
    max_waiting_tokens: int = 20
    look_ahead: int = 2
    # A sequence preempted this often waits until its greatest number of blocks is free, and is not preempted again.
    max_yields: int = 3
    # Fraction of all blocks that a new sequence must leave free.
    reserve: float = 0.05
    # Static batching: how long a group waits for more members, and whether their lengths must be equal.
    static: bool = False
    static_window: float = 0.0
    static_equal_lengths: bool = False
    recompute: bool = False  # each new token recomputes its whole sequence, as if there were no KV cache

    @classmethod
    def of(cls, config: RouterConfig, facts: ModelFacts) -> "Policy":
        stall = config.max_decode_stall_ms
        # A full batch of decodes must leave room in a step for one block of a prompt, or prompts would never run.
        most = min(config.max_batch_size, config.max_batch_prefill_tokens - facts.block_size)
        return cls(
            mixed=config.prefill_policy == "mixed" and facts.mixed_steps,
            max_concurrent_requests=config.max_concurrent_requests,
            max_queue_requests=config.max_queue_requests,
            max_queue_tokens=config.max_queue_tokens,
            max_queue_seconds=None if config.max_queue_ms is None else config.max_queue_ms / 1000,
            passed_over_seconds=config.max_passed_over_ms / 1000,
            max_batch_size=1 if config.batching in NONE else most,
            max_active_adapters=config.max_active_adapters,
            adapter_cycle_seconds=config.adapter_cycle_time_s,
            max_prefill_tokens=config.max_batch_prefill_tokens,
            stall_seconds=STALL_SECONDS.get(facts.device, 0.150) if stall is None else stall / 1000,
            waiting_served_ratio=config.waiting_served_ratio,
            max_waiting_tokens=config.max_waiting_tokens,
            # Recomputing needs the tokens of the step before, so no step can be planned ahead.
            look_ahead=1 if config.recompute else config.look_ahead,
            static=config.batching == "static",
            static_window=config.static_window_ms / 1000,
            static_equal_lengths=config.static_equal_lengths,
            recompute=config.recompute,
        )


def without_effect(config: RouterConfig, policy: Policy) -> list[str]:
    """Return a warning for each setting that differs from its default but has no effect."""
    defaults = RouterConfig()
    idle = [(PAUSE_ONLY, policy.mixed, "with mixed steps, only with --prefill-policy pause"),
            (STATIC_ONLY, not policy.static, "but with --batching static"),
            (NOT_STATIC, policy.static, "with --batching static: waits are foreseen where requests join at every step"),
            (NOT_ANEW, policy.recompute, "with --recompute: every step is one of prompts"),
            (BATCHING_ONLY, config.dialect != "batching", "but with --dialect batching")]
    return [f"--{name.replace('_', '-')} has no effect {why}" for names, is_idle, why in idle if is_idle
            for name in names if getattr(config, name) != getattr(defaults, name)]
