"""Tests of router/shards/encode.py."""

from dataclasses import fields
from itertools import chain

import pytest

from router.request import Request, Resource, SamplingParams
from router.scheduler.plan import Chunk, Concat, Decode, Filter, Grant, ModelFacts, Newcomer, Plan, Prefill
from router.shards import encode
from shard.pb import shard_pb2 as pb
from shard.state.sequence import Sampling, read_sampling

FACTS = ModelFacts("m", "cpu", "float32", 100, 64, 16, 8, tokens_per_step=2)


def plan(*messages, expects=(1, 2), members=(1, 2, 3)):
    return Plan(4, 10, messages, members, expects, 0.1)


def answer(**fields):
    plain = {"epoch": 4, "order": 10, "forward_seconds": 0.5, "sequences": [1, 2], "tokens": [7, 8],
             "logprobs": [-1.0, -2.0]}
    return pb.StepAnswer(**plain | fields)


def read(message):
    return encode.decode(message, plan(Decode(1)), FACTS)


def test_the_columns_of_sampling_are_the_fields_of_sampling_params():
    """A tuple field is a ragged column with its counts before it. The end tokens come from the request."""
    columns = [[f"num_{f.name}", f.name] if f.default == () else [f.name] for f in fields(SamplingParams)]
    sent = [f.name for f in pb.Sampling.DESCRIPTOR.fields if f.name not in {"num_end_tokens", "end_tokens"}]
    assert [*chain(*columns)] == sent


def test_messages_of_a_plan_are_numbered_up_to_its_order():
    encoded = encode.encode(plan(Filter(1, (2,)), Concat((1, 2)), Decode(1)))
    assert [(m.epoch, m.order) for m in encoded] == [(4, 8), (4, 9), (4, 10)]


def test_keeping_nobody_is_said_and_not_left_out():
    (message,) = encode.encode(plan(Filter(1, ())))
    assert message.HasField("keep")


def test_end_tokens_are_told_of_those_who_may_not_always_choose_them():
    requests = [Request("a", (1,), 3, end_tokens=frozenset({9, 2}), **more) for more in (
        {}, {"sampling": SamplingParams(min_tokens=2)}, {"grammar": Resource("grammar", 4)})]
    newcomers = tuple(Newcomer(number, request, (), (number,)) for number, request in enumerate(requests))
    (message,) = encode.encode(plan(Prefill(1, newcomers, (), False)))
    assert list(message.sequences.sampling.num_end_tokens) == [0, 2, 2]
    assert list(message.sequences.sampling.end_tokens) == [2, 9, 2, 9]
    assert list(message.sequences.grammars) == [0, 0, 4]


@pytest.mark.parametrize(("kind", "on_wire"), [("adapter", pb.KIND_ADAPTER), ("grammar", pb.KIND_GRAMMAR)])
def test_resources_are_loaded_unloaded_and_told_of_by_kind_and_number(kind, on_wire):
    resource = Resource(kind, 7)
    assert encode.load_request(resource, "source", 4) == pb.LoadRequest(epoch=4, kind=on_wire, id=7, source="source")
    assert encode.unload_request(resource, 4) == pb.UnloadRequest(epoch=4, kind=on_wire, id=7)
    assert encode.loaded(pb.InfoAnswer(**{f"loaded_{kind}s": [7]})) == {resource}


def test_chunks_name_the_spans_that_they_belong_to():
    chunks = (Chunk(5, 0, 3), Chunk(6, 0, 2))
    (told,) = encode.encode(plan(Prefill(1, (), chunks, False)), {5: "", 6: "00-six"}.__getitem__)
    (untold,) = encode.encode(plan(Prefill(1, (), chunks, False)))
    assert list(told.chunks.traceparents) == ["", "00-six"]
    assert not untold.chunks.traceparents


def test_newcomers_become_columns():
    first = Newcomer(5, Request("a", (1, 2), 3, key=9, sampling=SamplingParams(top_k=4)), (3,), (0, 1))
    second = Newcomer(6, Request("b", (4,), 3, adapter=Resource("adapter", 8)), (), (2,))
    (message,) = encode.encode(plan(Prefill(1, (first, second), (Chunk(5, 0, 3),), True, (Grant(1, (6, 7)),))))
    sequences = message.sequences
    assert (list(sequences.ids), list(sequences.num_tokens)) == ([5, 6], [3, 1])
    assert list(sequences.num_prompt_tokens) == [2, 1]
    assert (list(sequences.tokens), list(sequences.blocks)) == ([1, 2, 3, 4], [0, 1, 2])
    assert (list(sequences.keys), list(sequences.adapters)) == ([9, 0], [0, 8])
    assert (list(message.grants.blocks), message.alongside) == ([6, 7], True)


def test_a_column_of_defaults_is_left_out():
    newcomer = Newcomer(5, Request("a", (1,), 3, sampling=SamplingParams(top_k=4)), (), (0,))
    (message,) = encode.encode(plan(Prefill(1, (newcomer,), (), False)))
    assert list(message.sequences.sampling.top_k) == [4]
    assert not message.sequences.sampling.temperature
    assert not message.sequences.adapters


def entered(*requests):
    newcomers = tuple(Newcomer(number, request, (), (number,)) for number, request in enumerate(requests))
    (message,) = encode.encode(plan(Prefill(1, newcomers, (), False)))
    return message.sequences.sampling


def test_tuples_become_ragged_columns():
    biased = SamplingParams(biased_tokens=(4, 2), biases=(0.5, -1.0))
    sampling = entered(Request("a", (1,), 3), Request("b", (1,), 3, sampling=biased))
    assert (list(sampling.num_biased_tokens), list(sampling.biased_tokens)) == ([0, 2], [4, 2])
    assert (list(sampling.num_biases), list(sampling.biases)) == ([0, 2], [0.5, -1.0])
    assert not sampling.num_allowed_tokens


def test_end_tokens_go_with_those_who_may_not_choose_them_at_first():
    ends = frozenset({9, 7})
    sampling = entered(Request("a", (1,), 3, end_tokens=ends),
                       Request("b", (1,), 3, end_tokens=ends, sampling=SamplingParams(min_tokens=2)))
    assert (list(sampling.num_end_tokens), list(sampling.end_tokens)) == ([0, 2], [7, 9])
    assert not entered(Request("a", (1,), 3, end_tokens=ends)).num_end_tokens


def test_what_the_router_writes_a_shard_reads():
    """One of two rows has a value other than the default in every field."""
    values = {f.name: {float: 0.5, int: 3, bool: True}.get(type(f.default), (5, 6)) for f in fields(SamplingParams)}
    request = Request("a", (1,), 3, sampling=SamplingParams(**values | {"biases": (0.5, -1.0)}))
    said = entered(Request("b", (1,), 3), request)
    plain, full = read_sampling(said, 2)
    assert plain == Sampling()
    assert [getattr(full, name) for name in values] == [getattr(request.sampling, name) for name in values]


def test_an_answer_becomes_rows():
    rows = read(answer(num_tokens=[2, 1], tokens=[7, 8, 9], logprobs=[-1.0, -2.0, -3.0])).rows
    assert (rows[1].tokens, rows[2].tokens, rows[2].logprobs) == ([7, 8], [9], [-3.0])


def test_top_tokens_go_to_their_token():
    rows = read(answer(num_top_tokens=[2, 0], top_tokens=[3, 4], top_logprobs=[-0.5, -1.5])).rows
    assert (rows[1].top, rows[2].top) == ([[(3, -0.5), (4, -1.5)]], [[]])


def test_any_member_may_fail_also_one_that_was_not_expected_to_speak():
    found = read(answer(failed=[3], failures=[pb.NON_FINITE]))
    assert found.failed == {3: "the model's output was not a number"}


def test_whoever_failed_need_not_speak():
    found = read(answer(sequences=[1], tokens=[7], logprobs=[-1.0], failed=[2], failures=[pb.GRAMMAR]))
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
def test_an_answer_that_makes_no_sense_is_a_defect(wrong):
    with pytest.raises(encode.Defect):
        read(answer(**wrong))


def test_an_acknowledgement_is_of_the_last_message():
    one = plan(Filter(1, ()), expects=(), members=())
    assert encode.acknowledged(pb.Acknowledgement(epoch=one.epoch, order=one.order), one).rows == {}
    for wrong in ({"epoch": one.epoch + 1, "order": one.order}, {"epoch": one.epoch, "order": one.order + 1}):
        with pytest.raises(encode.Defect):
            encode.acknowledged(pb.Acknowledgement(**wrong), one)


def test_the_smallest_cache_of_the_ranks_counts():
    def info(rank, num_blocks):
        return pb.InfoAnswer(rank=rank, warmup=pb.WarmupAnswer(block_size=16, num_blocks=num_blocks))

    assert encode.facts([info(0, 90), info(1, 80)]).num_blocks == 80


def test_ranks_that_serve_different_models_are_refused():
    with pytest.raises(encode.Defect, match="rank 1 serves another model than rank 0"):
        encode.facts([pb.InfoAnswer(model="a"), pb.InfoAnswer(model="b", rank=1)])
