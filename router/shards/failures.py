"""Classification of the shards' failures: what was lost, and which of several failures is the most severe."""

from itertools import cycle
from typing import Any

import grpc

from router.scheduler.fault_isolation import ShardLossReason
from router.shards.rpc_methods import ANSWER_TYPES, METHOD_BY_REQUEST_TYPE
from router.shards.step_stream import RpcFailure, RpcOutcome
from shard.pb import shard_pb2 as pb

LOSS_REASON_BY_STATUS = {
    grpc.StatusCode.INTERNAL: ShardLossReason.STEP_ERROR,
    grpc.StatusCode.RESOURCE_EXHAUSTED: ShardLossReason.MEMORY,
    grpc.StatusCode.FAILED_PRECONDITION: ShardLossReason.DEFECT,
    grpc.StatusCode.INVALID_ARGUMENT: ShardLossReason.DEFECT,
    grpc.StatusCode.ALREADY_EXISTS: ShardLossReason.DEFECT,
}
REJECTION_STATUSES = grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT
ANSWER_TYPE_BY_REQUEST_TYPE = {request_type: ANSWER_TYPES[method]
                               for request_type, method in METHOD_BY_REQUEST_TYPE.items()}
EPOCH_START_REQUESTS = (pb.WarmupRequest, pb.ResetRequest)
STEP_REQUESTS = (pb.PrefillRequest, pb.DecodeRequest, pb.EmbedRequest)
STEP_LOSS_REASONS = ShardLossReason.STEP_ERROR, ShardLossReason.MEMORY
# In ascending order. DEFECT is the least: after a failure, the later messages of its epoch are only rejected.
LOSS_REASONS_BY_SEVERITY = [ShardLossReason.DEFECT, *STEP_LOSS_REASONS, ShardLossReason.DEATH]


class ShardsLost(Exception):
    """The shards or their state are lost; `loss_reason` says how."""

    def __init__(self, loss_reason: ShardLossReason, reason: str, *, needs_restart: bool = False,
                 shard_reason: str = "", is_warmup_rejected: bool = False) -> None:
        """`shard_reason` is the reason that the shard itself gave.

        `needs_restart`: the processes are alive but cannot continue. `is_warmup_rejected`: the shards rejected the
        settings of their warm-up, which will never fit their model.
        """
        super().__init__(reason)
        self.loss_reason = loss_reason
        self.needs_restart = needs_restart
        self.shard_reason = shard_reason or reason
        self.is_warmup_rejected = is_warmup_rejected


def most_severe_loss(messages: list[Any], results: list[RpcOutcome], world_size: int) -> ShardsLost | None:
    """Return the most severe loss among the results of all messages on all ranks; None if there is none."""
    losses = []
    # `results` are rank by rank, each in the order of the messages.
    for result, message in zip(results, cycle(messages), strict=False):
        if isinstance(result, RpcFailure):
            losses.append(loss_from_rpc_failure(result, message, world_size))
        elif not isinstance(result, ANSWER_TYPE_BY_REQUEST_TYPE[type(message)]):  # a stream may return any outcome
            losses.append(ShardsLost(ShardLossReason.DEFECT,
                                     f"{type(result).__name__} came as an answer to {type(message).__name__}"))
    if not losses:
        return None
    return max(losses, key=lambda each: (LOSS_REASONS_BY_SEVERITY.index(each.loss_reason), each.needs_restart))


def loss_from_rpc_failure(failure: RpcFailure, message: Any, world_size: int) -> ShardsLost:
    loss_reason = LOSS_REASON_BY_STATUS.get(failure.code, ShardLossReason.DEATH)
    needs_restart = failure.code is grpc.StatusCode.DEADLINE_EXCEEDED
    if loss_reason in STEP_LOSS_REASONS and isinstance(message, EPOCH_START_REQUESTS):
        # No rank is blocked by another, and replaced processes would fail the same way.
        loss_reason = ShardLossReason.DEFECT
    elif loss_reason in STEP_LOSS_REASONS and world_size > 1:
        # Ranks that failed between two collectives are out of step, and some may wait for the others for ever.
        loss_reason, needs_restart = ShardLossReason.DEATH, True
    elif loss_reason in STEP_LOSS_REASONS and not isinstance(message, STEP_REQUESTS):
        loss_reason = ShardLossReason.DEFECT  # no sequence is to blame
    is_warmup_rejected = isinstance(message, pb.WarmupRequest) and failure.code in REJECTION_STATUSES
    return ShardsLost(loss_reason, f"{failure.code.name.lower()}: {failure.reason}", needs_restart=needs_restart,
                      shard_reason=failure.reason, is_warmup_rejected=is_warmup_rejected)
