"""Classification of failures, without shards; with failing shards it is tested in `test_shard_group.py`."""

import grpc
import pytest

from router.scheduler.fault_isolation import Loss
from router.shards.failures import loss_of, worst
from router.shards.step_stream import Trouble
from shard.pb import shard_pb2 as pb

Code = grpc.StatusCode


@pytest.mark.parametrize("code", [Code.INTERNAL, Code.RESOURCE_EXHAUSTED])
@pytest.mark.parametrize("message", [pb.WarmupRequest(), pb.ResetRequest()])
def test_what_fails_before_any_step_breaks_no_rank(message, code):
    """No rank waits for another yet, and new processes would fail in the same way."""
    lost = loss_of(Trouble(code, "no room"), message, 2)
    assert (lost.loss, lost.broken) == (Loss.DEFECT, False)


def test_of_several_failures_the_first_cause_is_told():
    """After a failure, later messages of its epoch are rejected; the rejections say less than the failure."""
    failed, refused = Trouble(Code.INTERNAL, "no such slot"), Trouble(Code.FAILED_PRECONDITION, "after a failure")
    lost = worst([pb.PrefillRequest(), pb.DecodeRequest()], [failed, refused], 1)
    assert lost is not None
    assert (lost.loss, lost.told) == (Loss.STEP_ERROR, "no such slot")


def test_nothing_is_lost_where_every_rank_gave_the_answer_that_belongs_to_each_message():
    assert worst([pb.FilterRequest(), pb.DecodeRequest()], 2 * [pb.Acknowledgement(), pb.StepAnswer()], 2) is None


@pytest.mark.parametrize(("code", "message", "refused"), [
    (Code.INVALID_ARGUMENT, pb.WarmupRequest(), True), (Code.FAILED_PRECONDITION, pb.WarmupRequest(), True),
    (Code.RESOURCE_EXHAUSTED, pb.WarmupRequest(), False), (Code.INTERNAL, pb.WarmupRequest(), False),
    (Code.FAILED_PRECONDITION, pb.DecodeRequest(), False)])
def test_a_warm_up_that_is_refused_would_be_refused_again_but_for_want_of_memory(code, message, refused):
    assert loss_of(Trouble(code, "no"), message, 1).refused is refused
