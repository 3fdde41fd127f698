"""Tests of router/scheduler/running.py."""

from dataclasses import replace

from support.simulated_world import named

from router.request import Request, Tenant
from router.scheduler.block_pool import Blocks
from router.scheduler.running import Running
from router.scheduler.sequence import Sequence, State
from router.scheduler.settings import Policy

POLICY = Policy(look_ahead=2)


def running(num_blocks=20, tokens_per_step=1, **policy):
    return Running(replace(POLICY, **policy), Blocks(num_blocks, 16), tokens_per_step)


def newcomer(number, prompt=16, output=16, priority=0):
    return Sequence(Request(str(number), (1,) * prompt, output, priority=priority), number, float(number))


def entered(house, *sequences):
    """Enter the sequences into one new batch, with their prompts computed and a first token each."""
    batch = house.new_batch()
    for sequence in sequences:
        house.enter(sequence, batch)
        sequence.computed = sequence.given
        sequence.accept([7])
    return batch


def test_a_newcomer_takes_the_blocks_of_its_prompt():
    house = running()
    house.enter(newcomer(1, prompt=33), house.new_batch())
    assert house.blocks.num_free == 17


def test_the_last_token_needs_no_place():
    assert running().whole(newcomer(1, prompt=16, output=17)) == 2


def test_several_tokens_a_step_need_places_to_spare():
    assert running(tokens_per_step=4).whole(newcomer(1, prompt=16, output=17)) == 3


def test_a_newcomer_leaves_a_block_free_for_everyone_who_runs():
    house = running(num_blocks=6)
    entered(house, newcomer(1), newcomer(2))
    assert house.has_room(newcomer(3, prompt=32))
    assert not house.has_room(newcomer(3, prompt=33))


def test_a_newcomer_leaves_a_share_of_the_cache_free():
    house = running(num_blocks=100, reserve=0.5)
    entered(house, newcomer(1))
    assert house.has_room(newcomer(2, prompt=49 * 16))
    assert not house.has_room(newcomer(2, prompt=50 * 16))


def test_an_empty_house_takes_whoever_fits():
    assert running(num_blocks=4).has_room(newcomer(1, prompt=64, output=1))


def test_no_more_than_the_batch_size_run():
    house = running(max_batch_size=1)
    entered(house, newcomer(1))
    assert not house.has_room(newcomer(2))


def test_who_fills_its_last_block_is_granted_another():
    house, one = running(), newcomer(1)
    entered(house, one)
    grants, yielded = house.grow([one])
    assert [len(grant.blocks) for grant in grants] == [1]
    assert not yielded


def test_the_latest_arrival_yields_when_blocks_run_out():
    house = running(num_blocks=4)
    everyone = [newcomer(1), newcomer(2), newcomer(3)]
    entered(house, *everyone)
    grants, yielded = house.grow(everyone)
    assert [s.number for s in yielded] == [3]
    assert [grant.sequence for grant in grants] == [1, 2]


def test_lower_priority_yields_before_later_arrival():
    house = running(num_blocks=3)
    everyone = [newcomer(1), newcomer(2, priority=-1), newcomer(3)]
    entered(house, *everyone)
    _, yielded = house.grow(everyone[:1])
    assert [s.number for s in yielded] == [2]


def test_the_first_of_all_never_yields():
    house = running(num_blocks=2)
    first, last = newcomer(1), newcomer(2)
    entered(house, first, last)
    _, yielded = house.grow([first, last])
    assert yielded == [last]
    assert len(first.blocks) == 2


def test_who_yielded_often_enough_comes_back_with_all_it_can_need():
    house, one = running(), newcomer(1, output=64)
    one.num_yields = POLICY.max_yields
    house.enter(one, house.new_batch())
    assert len(one.blocks) == house.whole(one) == 5


def test_who_came_back_for_good_is_not_asked_again():
    house = running(num_blocks=8)
    first, settled, last = newcomer(1), newcomer(2, output=48), newcomer(3)
    settled.num_yields = POLICY.max_yields
    entered(house, first, settled, last)
    house.blocks.take(house.blocks.num_free)
    _, yielded = house.grow([first])
    assert yielded == [last]


def test_beside_a_settled_one_nobody_enters_who_could_not_end():
    house, settled = running(num_blocks=10), newcomer(1, output=64)
    settled.num_yields = POLICY.max_yields
    entered(house, settled)
    assert house.has_room(newcomer(2, output=65))
    assert not house.has_room(newcomer(2, output=66))


def test_leaving_owes_a_filter_and_frees_the_blocks():
    house, one = running(), newcomer(1)
    entered(house, one, newcomer(2))
    house.leave(one, State.OVER)
    (owed,) = house.owed_filters()
    assert owed.keep == (2,)
    assert house.blocks.num_free == 19


def test_an_empty_batch_is_forgotten():
    house, one = running(), newcomer(1)
    entered(house, one)
    house.leave(one, State.OVER)
    house.owed_filters()
    assert house.batches == []


def test_joining_keeps_the_first_number():
    house = running()
    first, second = entered(house, newcomer(1)), entered(house, newcomer(2))
    assert house.concat() == (first.number, second.number)
    assert [batch.number for batch in house.batches] == [first.number]
    assert len(house) == 2


# -- sharing


def shared(number, prompt=48, output=16, tenant="many"):
    request = Request(str(number), tuple(range(prompt)), output, tenant=Tenant(tenant))
    return Sequence(named(request, 16), number, float(number))


def test_blocks_of_who_is_ending_are_kept_from_newcomers_and_given_to_who_grows():
    house, ends, grows = running(num_blocks=6, reserve=0.0), shared(1, prompt=32, output=1), newcomer(2, prompt=47)
    batch = house.new_batch()
    house.enter(ends, batch)
    ends.computed, ends.in_flight = ends.given, 1
    entered(house, grows)
    house.leave_ending(ends)
    assert (house.blocks.num_free, ends.state) == (1, State.ENDING)
    house.blocks.take(1)
    grows.accept([7])
    assert house.grow([grows])[1] == []
    assert not ends.blocks


def test_who_is_ending_and_fills_no_block_any_more_gives_its_blocks_back_at_once():
    house, one = running(), shared(1, prompt=40, output=2)
    entered(house, one)
    house.publish(one, 40)
    one.in_flight = 1
    house.leave_ending(one)
    assert house.blocks.num_free == house.blocks.count


def test_what_two_share_is_free_when_both_make_way():
    house = running(num_blocks=9, reserve=0.0)
    everyone = [newcomer(0), shared(1, prompt=16), shared(2, prompt=16), shared(3, prompt=65), shared(4, prompt=65)]
    batch = house.new_batch()
    for sequence in everyone:
        house.enter(sequence, batch)
        house.publish(sequence, len(sequence.request.prompt))
    assert house.blocks.num_free == 1
    assert house.make_way(shared(5, prompt=48, tenant="few")) == [everyone[4], everyone[3]]
