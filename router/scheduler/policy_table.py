"""Policies by name, and the policy that the settings ask for."""

from router.scheduler.baseline_policies import RecomputePolicy, StaticPolicy
from router.scheduler.policies import MixedPolicy, PausePolicy, SchedulerView, StepPolicy

POLICIES: dict[str, type[StepPolicy]] = {"mixed": MixedPolicy, "pause": PausePolicy, "recompute": RecomputePolicy}


def make_policy(scheduler: SchedulerView) -> StepPolicy:
    settings = scheduler.settings
    policy = POLICIES[settings.policy_name](scheduler)
    return StaticPolicy(scheduler, policy) if settings.static else policy
