"""How far a request travels: bounds on the files and calls that it passes through (`make stats` prints the figures)."""

from support.call_path_stats import NUM_FURTHER_TOKENS, count_router_hops, count_shard_hops

from shard.native.library import load_library


def test_request_and_further_token_take_few_calls(tmp_path):
    generate, short, long = count_router_hops(tmp_path).values()
    assert generate.num_calls <= 650
    assert len(generate.files) <= 31
    assert short.num_calls <= 650
    assert len(short.files) <= 32
    assert long.num_calls - short.num_calls <= 110 * NUM_FURTHER_TOKENS


def test_decode_step_of_two_adapters_passes_through_few_functions(tmp_path):
    step = count_shard_hops(tmp_path / "model")
    assert step.num_calls
    assert len(step.files) <= 26
    assert len(step.functions) <= (110 if load_library() is not None else 120)
