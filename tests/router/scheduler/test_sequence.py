from router.request import Request
from router.scheduler.sequence import Sequence


def sequence(**fields):
    return Sequence(Request("r", (1, 2, 3), 5), 1, 0.0, **fields)


def test_length_counts_prompt_and_generated():
    assert sequence(generated=[4, 5]).length == 5


def test_tokens_under_way_count_as_generated_for_what_is_left():
    assert sequence(generated=[4], in_flight=2).tokens_left == 2


def test_it_is_ready_when_all_it_came_with_is_computed():
    assert sequence(given=3, computed=3).is_ready
    assert not sequence(given=3, computed=2).is_ready


def test_forgetting_the_cache_returns_the_blocks_and_starts_anew():
    one = sequence(blocks=[3, 4], given=3, computed=3)
    assert one.forget_cache() == [3, 4]
    assert (one.blocks, one.given, one.computed) == ([], 0, 0)
