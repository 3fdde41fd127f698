"""Recorded form of the core's decisions."""

from dataclasses import replace

from router.recording import decision
from router.request import FinishReason, Request, Wish
from router.scheduler.events import Failed, Finished, Produced
from router.scheduler.plan import Chunk, Concat, Decode, Embed, Filter, Grant, Newcomer, Plan, Prefill

DECODE = Plan(1, 5, (Decode(1, (Grant(3, (8,)),), (3, 4)),), (3, 4), (3, 4), 0.1)
NEWCOMER = Newcomer(5, Request("a", (1, 2, 3), 4), (9,), (6, 7), 0)
MIXED = Plan(1, 8, (Filter(2, ()), Concat((1, 2)), Prefill(1, (NEWCOMER,), (Chunk(5, 0, 2),), True)), (3, 5), (3,), 0.1)


def digest(plan):
    return decision.of_plan(plan)[1]


def test_the_figures_for_people():
    assert decision.of_plan(DECODE)[::2] == (5, 2, 0)
    order, _, decodes, newcomers, tokens = decision.of_plan(MIXED)
    assert (order, decodes, newcomers, tokens) == (8, 1, 1, 2)


def test_the_digest_is_the_same_on_every_machine():
    assert (digest(DECODE), digest(MIXED)) == ("235ab5c10b76c51a", "8eb7310155dcc08b")


def test_predicted_seconds_are_no_decision():
    assert digest(replace(DECODE, seconds=0.2)) == digest(DECODE)


def test_whatever_is_decided_otherwise_changes_the_digest():
    step = DECODE.messages[0]
    prefill = MIXED.messages[-1]
    decodes = [replace(step, batch=2), replace(step, grants=()), replace(step, keep=None)]
    others = [replace(DECODE, order=6), replace(DECODE, members=(4, 3)), replace(DECODE, expects=(3,)),
              replace(DECODE, messages=(Filter(1, ()), step))]
    others += [replace(DECODE, messages=(other,)) for other in decodes]
    newcomers = [replace(NEWCOMER, blocks=(7, 6)), replace(NEWCOMER, num_cached=16), replace(NEWCOMER, sequence=6)]
    steps = [replace(prefill, newcomers=(one,)) for one in newcomers] + [replace(prefill, alongside=False)]
    others += [replace(MIXED, messages=(*MIXED.messages[:-1], other)) for other in steps]
    assert len({digest(plan) for plan in (DECODE, MIXED, *others)}) == len(others) + 2


def test_tokens_do_not_change_the_digest():
    other = replace(NEWCOMER, generated=(8,), request=Request("b", (4, 5), 6))
    step = replace(MIXED.messages[-1], newcomers=(other,))
    assert digest(replace(MIXED, messages=(*MIXED.messages[:-1], step))) == digest(MIXED)


def test_events_are_told_but_for_tokens():
    events = [Produced({1: 1, 2: 1}), Finished(1, FinishReason.LENGTH), Failed(2, "why")]
    assert decision.of_events(events) == (("Finished", 1, "length"), ("Failed", 2, "why"))
    assert decision.of_events(events[:1]) == ()


def test_a_step_of_texts_is_written_down_with_its_wish():
    newcomer = Newcomer(5, Request("a", (1, 2, 3), 0, wish=Wish.VECTOR), (), ())
    plan = Plan(1, 8, (Embed(Wish.VECTOR, (newcomer,)),), (5,), (5,), 0.1)
    order, _, decodes, newcomers, tokens = decision.of_plan(plan)
    assert (order, decodes, newcomers, tokens) == (8, 0, 1, 3)
    assert digest(plan) != digest(replace(plan, messages=(Embed(Wish.LABELS, (newcomer,)),)))
