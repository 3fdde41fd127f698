"""Classification of failures, without shards; with failing shards it is tested in `test_shard_group.py`."""

import grpc
import pytest

from router.scheduler.fault_isolation import ShardLossReason
from router.shards.failures import loss_from_rpc_failure
from router.shards.shard_group import most_severe_loss
from router.shards.step_stream import RpcFailure
from shard.pb import shard_pb2 as pb

Code = grpc.StatusCode


@pytest.mark.parametrize("code", [Code.INTERNAL, Code.RESOURCE_EXHAUSTED])
@pytest.mark.parametrize("message", [pb.WarmupRequest(), pb.ResetRequest()])
def test_failure_before_any_step_needs_no_restart(message, code):
    """No rank waits for another yet, and new processes would fail in the same way."""
    lost = loss_from_rpc_failure(RpcFailure(code, "no room"), message, 2)
    assert (lost.loss_reason, lost.needs_restart) == (ShardLossReason.DEFECT, False)


def test_first_cause_of_several_failures_is_reported():
    """After a failure, the shard rejects later messages of its epoch; these rejections hide the cause."""
    failed, refused = RpcFailure(Code.INTERNAL, "no such slot"), RpcFailure(Code.FAILED_PRECONDITION, "after a failure")
    lost = most_severe_loss([pb.PrefillRequest(), pb.DecodeRequest()], [failed, refused], 1)
    assert lost is not None
    assert (lost.loss_reason, lost.shard_reason) == (ShardLossReason.STEP_ERROR, "no such slot")


def test_matching_answers_of_all_ranks_are_no_loss():
    assert most_severe_loss([pb.FilterRequest(), pb.DecodeRequest()], 2 * [pb.Acknowledgement(), pb.StepAnswer()],
                            2) is None


@pytest.mark.parametrize(("code", "message", "refused"), [
    (Code.INVALID_ARGUMENT, pb.WarmupRequest(), True), (Code.FAILED_PRECONDITION, pb.WarmupRequest(), True),
    (Code.RESOURCE_EXHAUSTED, pb.WarmupRequest(), False), (Code.INTERNAL, pb.WarmupRequest(), False),
    (Code.FAILED_PRECONDITION, pb.DecodeRequest(), False)])
def test_rejected_warmup_is_final_except_for_lack_of_memory(code, message, refused):
    assert loss_from_rpc_failure(RpcFailure(code, "no"), message, 1).is_warmup_rejected is refused
