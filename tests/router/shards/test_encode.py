"""Tests of router/shards/encode.py."""

from dataclasses import fields
from itertools import chain

import pytest

from router.model import ModelInfo
from router.request import LoadableResource, Request, SamplingParams
from router.scheduler.plan import BlockGrant, Concat, Decode, Filter, NewSequence, Prefill, PromptChunk, StepPlan
from router.shards import encode
from shard.pb import shard_pb2 as pb
from shard.state.sequence import SamplingParams as ShardSamplingParams
from shard.state.sequence import read_sampling_params

MODEL_INFO = ModelInfo("m", "cpu", "float32", 100, 64, 16, 8, tokens_per_step=2)


def make_plan(*messages, expects=(1, 2), members=(1, 2, 3)):
    return StepPlan(4, 10, messages, members, expects, 0.1)


def make_answer(**fields):
    defaults = {"epoch": 4, "order": 10, "forward_seconds": 0.5, "sequences": [1, 2], "tokens": [7, 8],
                "logprobs": [-1.0, -2.0]}
    return pb.StepAnswer(**defaults | fields)


def decode_answer(message):
    return encode.decode_step_answer(message, make_plan(Decode(1)), MODEL_INFO)


def test_sampling_columns_match_the_fields_of_sampling_params():
    """A tuple field is a ragged column with its counts before it. The end tokens come from the request."""
    columns = [[f"num_{f.name}", f.name] if f.default == () else [f.name] for f in fields(SamplingParams)]
    sent = [f.name for f in pb.Sampling.DESCRIPTOR.fields if f.name not in {"num_end_tokens", "end_tokens"}]
    assert [*chain(*columns)] == sent


def test_messages_of_a_plan_are_numbered_up_to_the_last():
    encoded = encode.encode_plan(make_plan(Filter(1, (2,)), Concat((1, 2)), Decode(1)))
    assert [(m.epoch, m.order) for m in encoded] == [(4, 8), (4, 9), (4, 10)]


def test_filter_that_keeps_nobody_sets_the_field():
    (message,) = encode.encode_plan(make_plan(Filter(1, ())))
    assert message.HasField("keep")


def test_end_tokens_are_sent_for_requests_that_may_not_always_choose_them():
    requests = [Request("a", (1,), 3, end_tokens=frozenset({9, 2}), **more) for more in (
        {}, {"sampling": SamplingParams(min_tokens=2)}, {"grammar": LoadableResource("grammar", 4)})]
    newcomers = tuple(NewSequence(number, request, (), (number,)) for number, request in enumerate(requests))
    (message,) = encode.encode_plan(make_plan(Prefill(1, newcomers, (), False)))
    assert list(message.sequences.sampling.num_end_tokens) == [0, 2, 2]
    assert list(message.sequences.sampling.end_tokens) == [2, 9, 2, 9]
    assert list(message.sequences.grammars) == [0, 0, 4]


@pytest.mark.parametrize(("kind", "on_wire"), [("adapter", pb.KIND_ADAPTER), ("grammar", pb.KIND_GRAMMAR)])
def test_resources_are_identified_by_kind_and_number(kind, on_wire):
    resource = LoadableResource(kind, 7)
    assert (encode.make_load_request(resource, "source", 4)
            == pb.LoadRequest(epoch=4, kind=on_wire, id=7, source="source"))
    assert encode.make_unload_request(resource, 4) == pb.UnloadRequest(epoch=4, kind=on_wire, id=7)
    assert encode.loaded_resources(pb.InfoAnswer(**{f"loaded_{kind}s": [7]})) == {resource}


def test_chunks_carry_their_trace_context():
    chunks = (PromptChunk(5, 0, 3), PromptChunk(6, 0, 2))
    (told,) = encode.encode_plan(make_plan(Prefill(1, (), chunks, False)), {5: "", 6: "00-six"}.__getitem__)
    (untold,) = encode.encode_plan(make_plan(Prefill(1, (), chunks, False)))
    assert list(told.chunks.traceparents) == ["", "00-six"]
    assert not untold.chunks.traceparents


def test_new_sequences_are_encoded_in_columns():
    first = NewSequence(5, Request("a", (1, 2), 3, random_key=9, sampling=SamplingParams(top_k=4)), (3,), (0, 1))
    second = NewSequence(6, Request("b", (4,), 3, adapter=LoadableResource("adapter", 8)), (), (2,))
    (message,) = encode.encode_plan(make_plan(Prefill(1, (first, second), (PromptChunk(5, 0, 3),), True,
                                                      (BlockGrant(1, (6, 7)),))))
    sequences = message.sequences
    assert (list(sequences.ids), list(sequences.num_tokens)) == ([5, 6], [3, 1])
    assert list(sequences.num_prompt_tokens) == [2, 1]
    assert (list(sequences.tokens), list(sequences.blocks)) == ([1, 2, 3, 4], [0, 1, 2])
    assert (list(sequences.keys), list(sequences.adapters)) == ([9, 0], [0, 8])
    assert (list(message.grants.blocks), message.alongside) == ([6, 7], True)


def test_column_of_defaults_is_left_out():
    newcomer = NewSequence(5, Request("a", (1,), 3, sampling=SamplingParams(top_k=4)), (), (0,))
    (message,) = encode.encode_plan(make_plan(Prefill(1, (newcomer,), (), False)))
    assert list(message.sequences.sampling.top_k) == [4]
    assert not message.sequences.sampling.temperature
    assert not message.sequences.adapters


def encode_sampling(*requests):
    newcomers = tuple(NewSequence(number, request, (), (number,)) for number, request in enumerate(requests))
    (message,) = encode.encode_plan(make_plan(Prefill(1, newcomers, (), False)))
    return message.sequences.sampling


def test_tuple_fields_become_ragged_columns():
    biased = SamplingParams(biased_tokens=(4, 2), biases=(0.5, -1.0))
    sampling = encode_sampling(Request("a", (1,), 3), Request("b", (1,), 3, sampling=biased))
    assert (list(sampling.num_biased_tokens), list(sampling.biased_tokens)) == ([0, 2], [4, 2])
    assert (list(sampling.num_biases), list(sampling.biases)) == ([0, 2], [0.5, -1.0])
    assert not sampling.num_allowed_tokens


def test_end_tokens_are_sent_with_min_tokens():
    ends = frozenset({9, 7})
    sampling = encode_sampling(Request("a", (1,), 3, end_tokens=ends),
                               Request("b", (1,), 3, end_tokens=ends, sampling=SamplingParams(min_tokens=2)))
    assert (list(sampling.num_end_tokens), list(sampling.end_tokens)) == ([0, 2], [7, 9])
    assert not encode_sampling(Request("a", (1,), 3, end_tokens=ends)).num_end_tokens


def test_shard_reads_what_the_router_writes():
    """One of two rows has a value other than the default in every field."""
    values = {f.name: {float: 0.5, int: 3, bool: True}.get(type(f.default), (5, 6)) for f in fields(SamplingParams)}
    request = Request("a", (1,), 3, sampling=SamplingParams(**values | {"biases": (0.5, -1.0)}))
    said = encode_sampling(Request("b", (1,), 3), request)
    plain, full = read_sampling_params(said, 2)
    assert plain == ShardSamplingParams()
    assert [getattr(full, name) for name in values] == [getattr(request.sampling, name) for name in values]


def test_answer_is_decoded_into_rows():
    rows = decode_answer(make_answer(num_tokens=[2, 1], tokens=[7, 8, 9], logprobs=[-1.0, -2.0, -3.0])).rows
    assert (rows[1].tokens, rows[2].tokens, rows[2].logprobs) == ([7, 8], [9], [-3.0])


def test_top_tokens_are_assigned_to_their_token():
    rows = decode_answer(make_answer(num_top_tokens=[2, 0], top_tokens=[3, 4], top_logprobs=[-0.5, -1.5])).rows
    assert (rows[1].top_logprobs, rows[2].top_logprobs) == ([[(3, -0.5), (4, -1.5)]], [[]])


def test_any_member_may_fail_even_without_expected_output():
    found = decode_answer(make_answer(failed=[3], failures=[pb.NON_FINITE]))
    assert found.failures == {3: "the model's output was not a number"}


def test_failed_sequence_needs_no_output():
    found = decode_answer(make_answer(sequences=[1], tokens=[7], logprobs=[-1.0], failed=[2], failures=[pb.GRAMMAR]))
    assert set(found.rows) == {1}


@pytest.mark.parametrize("wrong", [
    {"epoch": 3},
    {"order": 9},
    {"forward_seconds": float("nan")},
    {"sequences": [1, 9]},
    {"sequences": [1, 1]},
    {"sequences": [1], "tokens": [7], "logprobs": [-1.0]},
    {"sequences": [1, 2, 3], "tokens": [7, 8, 9], "logprobs": [-1.0] * 3},
    {"tokens": [7, 100]},
    {"tokens": [7]},
    {"logprobs": [-1.0]},
    {"num_tokens": [1, 0]},
    {"num_tokens": [3, 1], "tokens": [7] * 4, "logprobs": [-1.0] * 4},
    {"num_tokens": [1]},
    {"num_top_tokens": [1]},
    {"num_top_tokens": [1, 1], "top_tokens": [3], "top_logprobs": [-1.0]},
    {"failed": [3]},
    {"failed": [9], "failures": [pb.NON_FINITE]},
    {"failed": [1], "failures": [pb.NON_FINITE]},
    {"num_top_tokens": [1, 0], "top_tokens": [100], "top_logprobs": [-1.0]},
    {"prompt_sequences": [1], "prompt_starts": [1], "num_prompt_logprobs": [2], "prompt_logprobs": [-1.0]},
    {"prompt_sequences": [9], "prompt_starts": [1], "num_prompt_logprobs": [1], "prompt_logprobs": [-1.0]},
])
def test_invalid_answer_is_rejected(wrong):
    with pytest.raises(encode.InvalidShardAnswer):
        decode_answer(make_answer(**wrong))


def test_acknowledgement_must_match_the_last_message():
    one = make_plan(Filter(1, ()), expects=(), members=())
    assert encode.decode_acknowledgement(pb.Acknowledgement(epoch=one.epoch, order=one.last_message_number),
                                         one).rows == {}
    for wrong in ({"epoch": one.epoch + 1, "order": one.last_message_number},
                  {"epoch": one.epoch, "order": one.last_message_number + 1}):
        with pytest.raises(encode.InvalidShardAnswer):
            encode.decode_acknowledgement(pb.Acknowledgement(**wrong), one)


def test_smallest_cache_of_all_ranks_counts():
    def info(rank, num_blocks):
        return pb.InfoAnswer(rank=rank, warmup=pb.WarmupAnswer(block_size=16, num_blocks=num_blocks))

    assert encode.combine_rank_infos([info(0, 90), info(1, 80)]).num_blocks == 80


def test_ranks_with_different_models_are_rejected():
    with pytest.raises(encode.InvalidShardAnswer, match="rank 1 serves another model than rank 0"):
        encode.combine_rank_infos([pb.InfoAnswer(model="a"), pb.InfoAnswer(model="b", rank=1)])
