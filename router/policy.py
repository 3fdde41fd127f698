"""The settings that the core decides by, in its own units."""

from dataclasses import dataclass

from router.config import RouterConfig
from router.messages import ModelFacts

PAUSE_ONLY = ("waiting_served_ratio", "max_waiting_tokens")
STALL_SECONDS = {"cuda": 0.050, "cpu": 0.150}


@dataclass(frozen=True, slots=True)
class Policy:
    mixed: bool = True
    max_concurrent_requests: int = 128
    max_queue_requests: int | None = None
    max_queue_tokens: int | None = None
    max_queue_seconds: float | None = None
    passed_over_seconds: float = 2.0  # that the first may be passed over by those whose prompts are cached
    max_batch_size: int = 256
    max_active_adapters: int = 1024
    adapter_cycle_seconds: float = 2.0  # that one may stay in use while others wait for its place
    max_prefill_tokens: int = 4096
    stall_seconds: float = 0.150
    waiting_served_ratio: float = 0.3
    max_waiting_tokens: int = 20
    look_ahead: int = 2
    # After so many yields a sequence waits until all it can ever need is free, and then never yields again.
    max_yields: int = 3
    # Share of the blocks that a newcomer must leave free.
    reserve: float = 0.05
    # Steps in a row that the stall promise may keep prompts waiting; then one block runs anyway.
    max_starved_steps: int = 8

    @classmethod
    def of(cls, config: RouterConfig, facts: ModelFacts) -> "Policy":
        stall = config.max_decode_stall_ms
        return cls(
            mixed=config.prefill_policy == "mixed" and facts.mixed_steps,
            max_concurrent_requests=config.max_concurrent_requests,
            max_queue_requests=config.max_queue_requests,
            max_queue_tokens=config.max_queue_tokens,
            max_queue_seconds=None if config.max_queue_ms is None else config.max_queue_ms / 1000,
            passed_over_seconds=config.max_passed_over_ms / 1000,
            # Ready sequences must leave room for one block of prompt, or prompts would wait for ever.
            max_batch_size=min(config.max_batch_size, config.max_batch_prefill_tokens - facts.block_size),
            max_active_adapters=config.max_active_adapters,
            adapter_cycle_seconds=config.adapter_cycle_time_s,
            max_prefill_tokens=config.max_batch_prefill_tokens,
            stall_seconds=STALL_SECONDS.get(facts.device, 0.150) if stall is None else stall / 1000,
            waiting_served_ratio=config.waiting_served_ratio,
            max_waiting_tokens=config.max_waiting_tokens,
            look_ahead=config.look_ahead,
        )


def without_effect(config: RouterConfig, policy: Policy) -> list[str]:
    """The flags that were given and change nothing under this policy."""
    defaults = RouterConfig()
    given = [name for name in PAUSE_ONLY if getattr(config, name) != getattr(defaults, name)]
    return [f"--{name.replace('_', '-')}" for name in given] if policy.mixed else []
