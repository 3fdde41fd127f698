"""Settings of the scheduler, in its own units (seconds, not milliseconds)."""

from dataclasses import dataclass

from router.config import RouterConfig
from router.model_info import ModelInfo

DEFAULT_MAX_STALL_SECONDS = {"cuda": 0.050, "cpu": 0.150}


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """Settings of the scheduler, derived from the router's configuration and what the model supports."""

    mixed: bool = True
    max_concurrent_requests: int = 128
    max_queue_requests: int | None = None
    max_queue_tokens: int | None = None
    max_queue_seconds: float | None = None
    max_passed_over_seconds: float = 2.0  # age of the first sequence up to which cached ones may overtake it
    max_batch_size: int = 256
    max_active_adapters: int = 1024
    adapter_cycle_seconds: float = 2.0  # how long an adapter stays in use while others wait for its slot
    max_prefill_tokens: int = 4096  # of a step, its decodes included
    max_stall_seconds: float = 0.150
    waiting_served_ratio: float = 0.3
    max_waiting_tokens: int = 20
    look_ahead: int = 2
    # A sequence preempted this often waits until its greatest number of blocks is free, and is not preempted again.
    max_preemptions: int = 3
    reserved_block_fraction: float = 0.05  # of all blocks; a new sequence must leave them free
    # Static batching: how long a group waits for more members, and whether their lengths must be equal.
    static: bool = False
    static_window_seconds: float = 0.0
    static_equal_lengths: bool = False
    recompute: bool = False  # each new token recomputes its whole sequence, as if there were no KV cache

    @property
    def policy_name(self) -> str:
        """Name of the policy in POLICIES; with `static`, of the one that StaticPolicy leaves the steps to."""
        return "recompute" if self.recompute else "mixed" if self.mixed else "pause"

    @classmethod
    def from_config(cls, config: RouterConfig, model_info: ModelInfo) -> "SchedulerSettings":
        max_stall_ms = config.max_decode_stall_ms
        # A full batch of decodes must leave room in a step for one block of a prompt, or prompts would never run.
        max_batch_size = min(config.max_batch_size, config.max_batch_prefill_tokens - model_info.block_size)
        return cls(
            mixed=config.prefill_policy == "mixed" and model_info.mixed_steps,
            max_concurrent_requests=config.max_concurrent_requests,
            max_queue_requests=config.max_queue_requests,
            max_queue_tokens=config.max_queue_tokens,
            max_queue_seconds=None if config.max_queue_ms is None else config.max_queue_ms / 1000,
            max_passed_over_seconds=config.max_passed_over_ms / 1000,
            max_batch_size=1 if config.batching in {"none", "nobatch"} else max_batch_size,
            max_active_adapters=config.max_active_adapters,
            adapter_cycle_seconds=config.adapter_cycle_time_s,
            max_prefill_tokens=config.max_batch_prefill_tokens,
            max_stall_seconds=(DEFAULT_MAX_STALL_SECONDS.get(model_info.device, 0.150) if max_stall_ms is None
                               else max_stall_ms / 1000),
            waiting_served_ratio=config.waiting_served_ratio,
            max_waiting_tokens=config.max_waiting_tokens,
            # Recomputing needs the tokens of the step before, so no step can be planned ahead.
            look_ahead=1 if config.recompute else config.look_ahead,
            static=config.batching == "static",
            static_window_seconds=config.static_window_ms / 1000,
            static_equal_lengths=config.static_equal_lengths,
            recompute=config.recompute,
        )


def describe_unused_settings(config: RouterConfig, settings: SchedulerSettings) -> list[str]:
    """Return a warning for each setting that differs from its default but has no effect, or only a part of it."""
    defaults = RouterConfig()
    setting_groups = [
        (("waiting_served_ratio", "max_waiting_tokens"), settings.mixed,
         "with mixed steps, only with --prefill-policy pause"),
        (("static_window_ms", "static_equal_lengths"), not settings.static, "but with --batching static"),
        (("max_queue_ms",), settings.static,
         "with --batching static: waits are foreseen where requests join at every step"),
        (("prefill_policy", "max_decode_stall_ms"), settings.recompute,
         "with --recompute: every step is one of prompts"),
        (("max_handlers",), config.dialect != "batching", "but with --dialect batching")]
    warnings = [f"--{name.replace('_', '-')} has no effect {why}" for names, is_unused, why in setting_groups
                if is_unused for name in names if getattr(config, name) != getattr(defaults, name)]
    if config.max_batch_size != defaults.max_batch_size and config.max_batch_size > config.max_concurrent_requests:
        warnings.append(f"--max-batch-size {config.max_batch_size} can only be reached with several sequences per "
                        f"request: --max-concurrent-requests {config.max_concurrent_requests} refuses further requests")
    return warnings
