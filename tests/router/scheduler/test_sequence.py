from router.request import Request
from router.scheduler.sequence import Sequence


def make_sequence(**fields):
    return Sequence(Request("r", (1, 2, 3), 5), 1, 0.0, **fields)


def test_length_counts_prompt_and_generated_tokens():
    assert make_sequence(generated=[4, 5]).length == 5


def test_sequence_is_ready_when_its_entry_tokens_are_computed():
    assert make_sequence(num_tokens_to_prefill=3, num_scheduled_tokens=3).is_ready_to_decode
    assert not make_sequence(num_tokens_to_prefill=3, num_scheduled_tokens=2).is_ready_to_decode


def test_forgetting_the_cache_returns_the_blocks_and_resets_the_sequence():
    sequence = make_sequence(blocks=[3, 4], num_tokens_to_prefill=3, num_scheduled_tokens=3)
    assert sequence.reset_cache_state() == [3, 4]
    assert (sequence.blocks, sequence.num_tokens_to_prefill, sequence.num_scheduled_tokens) == ([], 0, 0)
