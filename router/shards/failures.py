"""Classification of the shards' failures: what was lost, and which of several failures is the most severe."""

from typing import Any

import grpc

from router.scheduler.fault_isolation import ShardLossReason
from router.shards.step_stream import RpcFailure
from shard.pb import shard_pb2 as pb

LOSS_REASON_BY_STATUS = {
    grpc.StatusCode.INTERNAL: ShardLossReason.STEP_ERROR,
    grpc.StatusCode.RESOURCE_EXHAUSTED: ShardLossReason.MEMORY,
    grpc.StatusCode.FAILED_PRECONDITION: ShardLossReason.DEFECT,
    grpc.StatusCode.INVALID_ARGUMENT: ShardLossReason.DEFECT,
    grpc.StatusCode.ALREADY_EXISTS: ShardLossReason.DEFECT,
}
REJECTION_STATUSES = grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT
EPOCH_START_REQUESTS = (pb.WarmupRequest, pb.ResetRequest)
STEP_REQUESTS = (pb.PrefillRequest, pb.DecodeRequest, pb.EmbedRequest)
STEP_LOSS_REASONS = ShardLossReason.STEP_ERROR, ShardLossReason.MEMORY


class ShardsLost(Exception):
    """The shards or their state are lost, for `loss_reason`."""

    def __init__(self, loss_reason: ShardLossReason, reason: str, *, needs_restart: bool = False,
                 shard_reason: str = "", is_warmup_rejected: bool = False) -> None:
        """`shard_reason` is the reason that the shard itself gave. `needs_restart`: the processes are alive but cannot
        continue. `is_warmup_rejected`: the settings of the warm-up will never fit the shards' model."""
        super().__init__(reason)
        self.loss_reason = loss_reason
        self.needs_restart = needs_restart
        self.shard_reason = shard_reason or reason
        self.is_warmup_rejected = is_warmup_rejected


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
