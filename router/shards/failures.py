"""Classification of the shards' failures: what was lost, and which of several failures is the most severe."""

from itertools import cycle
from typing import Any

import grpc

from router.scheduler.fault_isolation import Loss
from router.shards.rpc import ANSWERS, METHODS
from router.shards.step_stream import Outcome, Trouble
from shard.pb import shard_pb2 as pb

LOSSES = {
    grpc.StatusCode.INTERNAL: Loss.STEP_ERROR,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Loss.MEMORY,
    grpc.StatusCode.FAILED_PRECONDITION: Loss.DEFECT,
    grpc.StatusCode.INVALID_ARGUMENT: Loss.DEFECT,
    grpc.StatusCode.ALREADY_EXISTS: Loss.DEFECT,
}
REFUSALS = grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT
BEGINNINGS = (pb.WarmupRequest, pb.ResetRequest)
STEPS = (pb.PrefillRequest, pb.DecodeRequest, pb.EmbedRequest)
IN_STEPS = Loss.STEP_ERROR, Loss.MEMORY
# In ascending order. DEFECT is the least: after a failure, the later messages of its epoch are only rejected.
SEVERITY = [Loss.DEFECT, *IN_STEPS, Loss.DEATH]


class ShardsLost(Exception):
    def __init__(self, loss: Loss, reason: str, *, broken: bool = False, told: str = "", refused: bool = False) -> None:
        """`told` is the reason that the shard itself gave.

        `broken`: the processes are alive but cannot continue. `refused`: the shards rejected the settings of their
        warm-up, which will never fit their model.
        """
        super().__init__(reason)
        self.loss = loss
        self.broken = broken
        self.told = told or reason
        self.refused = refused


def worst(messages: list[Any], results: list[Outcome], world_size: int) -> ShardsLost | None:
    """Return the most severe loss among the results of all messages, ordered by rank; None if there is none."""
    lost = [loss for result, message in zip(results, cycle(messages), strict=False)
            if (loss := lost_by(result, message, world_size)) is not None]
    return max(lost, key=lambda each: (SEVERITY.index(each.loss), each.broken), default=None)


def lost_by(result: Outcome, message: Any, world_size: int) -> ShardsLost | None:
    """Return the loss that a result means, or None. Checks its type: a stream may return any outcome for a message."""
    if isinstance(result, Trouble):
        return loss_of(result, message, world_size)
    if not isinstance(result, ANSWERS[METHODS[type(message)]]):
        return ShardsLost(Loss.DEFECT, f"{type(result).__name__} came as an answer to {type(message).__name__}")
    return None


def loss_of(trouble: Trouble, message: Any, world_size: int) -> ShardsLost:
    loss = LOSSES.get(trouble.code, Loss.DEATH)
    broken = trouble.code is grpc.StatusCode.DEADLINE_EXCEEDED
    if loss in IN_STEPS and isinstance(message, BEGINNINGS):
        loss = Loss.DEFECT  # no rank is blocked by another, and replaced processes would fail the same way
    elif loss in IN_STEPS and world_size > 1:
        # Ranks that failed between two collectives are out of step, and some may wait for the others for ever.
        loss, broken = Loss.DEATH, True
    elif loss in IN_STEPS and not isinstance(message, STEPS):
        loss = Loss.DEFECT  # no sequence is to blame
    refused = isinstance(message, pb.WarmupRequest) and trouble.code in REFUSALS
    return ShardsLost(loss, f"{trouble.code.name.lower()}: {trouble.reason}", broken=broken, told=trouble.reason,
                      refused=refused)
