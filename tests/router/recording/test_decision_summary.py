"""Recorded form of the core's decisions."""

from dataclasses import replace

from router.recording import decision_summary
from router.request import FinishReason, Request, RequestKind
from router.scheduler.events import SequenceFailed, SequenceFinished, TokensGenerated
from router.scheduler.messages import (
    BlockGrant,
    Concat,
    Decode,
    Filter,
    NewSequence,
    PoolingStep,
    Prefill,
    PrefillChunk,
    StepPlan,
)

DECODE_PLAN = StepPlan(1, 5, (Decode(1, (BlockGrant(3, (8,)),), (3, 4)),), (3, 4), (3, 4), 0.1)
NEW_SEQUENCE = NewSequence(5, Request("a", (1, 2, 3), 4), (9,), (6, 7), 0)
MIXED_PLAN = StepPlan(1, 8, (Filter(2, ()), Concat((1, 2)),
                             Prefill(1, (NEW_SEQUENCE,), (PrefillChunk(5, 0, 2),), True)), (3, 5), (3,), 0.1)


def plan_digest(plan):
    return decision_summary.summarize_plan(plan)[1]


def test_plan_summary_counts_decodes_new_sequences_and_tokens():
    assert decision_summary.summarize_plan(DECODE_PLAN)[::2] == (5, 2, 0)
    order, _, decodes, newcomers, tokens = decision_summary.summarize_plan(MIXED_PLAN)
    assert (order, decodes, newcomers, tokens) == (8, 1, 1, 2)


def test_plan_digest_is_the_same_on_every_machine():
    assert (plan_digest(DECODE_PLAN), plan_digest(MIXED_PLAN)) == ("235ab5c10b76c51a", "8eb7310155dcc08b")


def test_predicted_seconds_do_not_change_the_digest():
    assert plan_digest(replace(DECODE_PLAN, predicted_seconds=0.2)) == plan_digest(DECODE_PLAN)


def test_every_change_of_a_plan_changes_the_digest():
    step = DECODE_PLAN.messages[0]
    prefill = MIXED_PLAN.messages[-1]
    decodes = [replace(step, batch=2), replace(step, grants=()), replace(step, keep=None)]
    others = [replace(DECODE_PLAN, last_message_number=6), replace(DECODE_PLAN, member_ids=(4, 3)),
              replace(DECODE_PLAN, output_ids=(3,)), replace(DECODE_PLAN, messages=(Filter(1, ()), step))]
    others += [replace(DECODE_PLAN, messages=(other,)) for other in decodes]
    newcomers = [replace(NEW_SEQUENCE, blocks=(7, 6)), replace(NEW_SEQUENCE, num_cached=16),
                 replace(NEW_SEQUENCE, sequence_id=6)]
    steps = [replace(prefill, new_sequences=(one,)) for one in newcomers] + [replace(prefill, includes_decodes=False)]
    others += [replace(MIXED_PLAN, messages=(*MIXED_PLAN.messages[:-1], other)) for other in steps]
    assert len({plan_digest(plan) for plan in (DECODE_PLAN, MIXED_PLAN, *others)}) == len(others) + 2


def test_tokens_do_not_change_the_digest():
    new_sequence = replace(NEW_SEQUENCE, generated=(8,), request=Request("b", (4, 5), 6))
    step = replace(MIXED_PLAN.messages[-1], new_sequences=(new_sequence,))
    assert plan_digest(replace(MIXED_PLAN, messages=(*MIXED_PLAN.messages[:-1], step))) == plan_digest(MIXED_PLAN)


def test_events_are_recorded_without_tokens():
    events = [TokensGenerated({1: 1, 2: 1}), SequenceFinished(1, FinishReason.LENGTH), SequenceFailed(2, "why")]
    assert decision_summary.summarize_events(events) == (("SequenceFinished", 1, "length"),
                                                         ("SequenceFailed", 2, "why"))
    assert decision_summary.summarize_events(events[:1]) == ()


def test_pooling_plan_is_recorded_with_its_request_kind():
    newcomer = NewSequence(5, Request("a", (1, 2, 3), 0, kind=RequestKind.EMBED), (), ())
    plan = StepPlan(1, 8, (PoolingStep(RequestKind.EMBED, (newcomer,)),), (5,), (5,), 0.1)
    order, _, decodes, newcomers, tokens = decision_summary.summarize_plan(plan)
    assert (order, decodes, newcomers, tokens) == (8, 0, 1, 3)
    assert plan_digest(plan) != plan_digest(replace(plan, messages=(PoolingStep(RequestKind.CLASSIFY, (newcomer,)),)))
