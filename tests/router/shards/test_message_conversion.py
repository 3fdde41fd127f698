"""Messages to shards as they are encoded, and their answers as they are decoded and checked."""

from dataclasses import fields
from itertools import chain
from math import nan

import pytest

from router.model_info import ModelInfo
from router.request import LoadableResource, Request, RequestKind, SamplingParams, TokenClassificationOutput
from router.scheduler.shard_messages import (
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
from router.shards.message_conversion import InvalidShardAnswer, decode_answer, encode_plan
from shard.pb import shard_pb2 as pb
from shard.state.sequence import SamplingParams as ShardSamplingParams
from shard.state.sequence import parse_sampling_params

MODEL_INFO = ModelInfo("m", "cpu", "float32", 100, 64, 16, 8, tokens_per_step=2, labels=("O", "B-PER"))


def make_plan(*messages, expects=(1, 2), members=(1, 2, 3)):
    return StepPlan(4, 10, messages, members, expects, 0.1)


def make_answer(**fields):
    defaults = {"epoch": 4, "order": 10, "forward_seconds": 0.5, "sequences": [1, 2], "tokens": [7, 8],
                "logprobs": [-1.0, -2.0]}
    return pb.StepAnswer(**defaults | fields)


def decode_step(message):
    return decode_answer(message, make_plan(Decode(1)), MODEL_INFO)


def make_pooling_plan(kind: RequestKind, *lengths: int) -> StepPlan:
    requests = [Request("r", (5,) * length, 0, kind=kind) for length in lengths]
    newcomers = tuple(NewSequence(number, request, (), ()) for number, request in enumerate(requests, 11))
    members = tuple(newcomer.sequence_id for newcomer in newcomers)
    return StepPlan(4, 10, (PoolingStep(kind, newcomers),), members, members, 0.1)


def make_vectors_answer(**fields: object) -> pb.EmbedAnswer:
    defaults = {"epoch": 4, "order": 10, "forward_seconds": 0.5, "width": 2, "values": [1.0, 2.0, 3.0, 4.0]}
    return pb.EmbedAnswer(**defaults | fields)  # type: ignore[arg-type]


def make_labels_answer(**fields: object) -> pb.EmbedAnswer:
    defaults = {"epoch": 4, "order": 10, "forward_seconds": 0.5, "num_labels": [2, 1], "labels": [0, 1, 1],
                "scores": [0.5, 0.25, 1.0]}
    return pb.EmbedAnswer(**defaults | fields)  # type: ignore[arg-type]


def test_every_text_gets_its_vector() -> None:
    answer = decode_answer(make_vectors_answer(), make_pooling_plan(RequestKind.EMBED, 3, 1), MODEL_INFO)
    assert (answer.pooling_outputs, answer.failures, answer.seconds) == ({11: [1.0, 2.0], 12: [3.0, 4.0]}, {}, 0.5)


def test_every_token_gets_its_label() -> None:
    answer = decode_answer(make_labels_answer(), make_pooling_plan(RequestKind.CLASSIFY, 2, 1), MODEL_INFO)
    assert answer.pooling_outputs == {11: TokenClassificationOutput([0, 1], [0.5, 0.25]),
                                      12: TokenClassificationOutput([1], [1.0])}


def test_failed_text_has_no_output() -> None:
    answer = decode_answer(make_vectors_answer(failed=[1], failures=[pb.NON_FINITE]),
                           make_pooling_plan(RequestKind.EMBED, 3, 1, 2), MODEL_INFO)
    assert answer.pooling_outputs.keys() == {11, 13}
    assert answer.failures == {12: "the model's output was not a number"}


def test_all_texts_may_fail() -> None:
    answer = decode_answer(make_vectors_answer(failed=[0], failures=[1], width=0, values=[]),
                           make_pooling_plan(RequestKind.EMBED, 3), MODEL_INFO)
    assert (answer.pooling_outputs, answer.failures.keys()) == ({}, {11})


@pytest.mark.parametrize("wrong", [
    {"epoch": 3}, {"order": 9}, {"forward_seconds": nan}, {"failed": [0]}, {"failed": [2], "failures": [1]},
    {"values": [1.0]}, {"width": 0}, {"width": 0, "values": []}, {"values": [1.0, 2.0, nan, 4.0]},
    {"failed": [0], "failures": [1]}])
def test_invalid_vectors_are_rejected(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidShardAnswer):
        decode_answer(make_vectors_answer(**wrong), make_pooling_plan(RequestKind.EMBED, 3, 1), MODEL_INFO)


@pytest.mark.parametrize("wrong", [
    {"num_labels": [1, 2]}, {"num_labels": [2]}, {"labels": [0, 1]}, {"scores": [0.5]}, {"labels": [0, 2, 1]},
    {"scores": [0.5, nan, 1.0]}, {"failed": [1], "failures": [1]}])
def test_invalid_labels_are_rejected(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidShardAnswer):
        decode_answer(make_labels_answer(**wrong), make_pooling_plan(RequestKind.CLASSIFY, 2, 1), MODEL_INFO)


def test_answer_is_decoded_into_rows():
    rows = decode_step(make_answer(num_tokens=[2, 1], tokens=[7, 8, 9], logprobs=[-1.0, -2.0, -3.0])).rows
    assert (rows[1].tokens, rows[2].tokens, rows[2].logprobs) == ([7, 8], [9], [-3.0])


def test_top_tokens_are_assigned_to_their_token():
    rows = decode_step(make_answer(num_top_tokens=[2, 0], top_tokens=[3, 4], top_logprobs=[-0.5, -1.5])).rows
    assert (rows[1].top_logprobs, rows[2].top_logprobs) == ([[(3, -0.5), (4, -1.5)]], [[]])


def test_any_member_may_fail_even_without_expected_output():
    result = decode_step(make_answer(failed=[3], failures=[pb.NON_FINITE]))
    assert result.failures == {3: "the model's output was not a number"}


def test_failed_sequence_needs_no_output():
    result = decode_step(make_answer(sequences=[1], tokens=[7], logprobs=[-1.0], failed=[2], failures=[pb.GRAMMAR]))
    assert set(result.rows) == {1}


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
    {"logprobs": [-1.0, nan]},
    {"num_top_tokens": [1, 0], "top_tokens": [3], "top_logprobs": [float("-inf")]},
    {"prompt_sequences": [1], "prompt_starts": [1], "num_prompt_logprobs": [1], "prompt_logprobs": [-1.0],
     "num_prompt_top_tokens": [1], "prompt_top_tokens": [100], "prompt_top_logprobs": [-1.0]},
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
    *({"prompt_sequences": [1], "prompt_starts": [1], "num_prompt_logprobs": [1], "prompt_logprobs": [-1.0]} | tops
      for tops in ({"num_prompt_top_tokens": [1]}, {"num_prompt_top_tokens": [1, 1], "prompt_top_tokens": [5],
                                                    "prompt_top_logprobs": [-1.0]},
                   {"num_prompt_top_tokens": [1], "prompt_top_tokens": [5]})),
])
def test_invalid_answer_is_rejected(wrong):
    with pytest.raises(InvalidShardAnswer):
        decode_step(make_answer(**wrong))


def test_acknowledgement_must_match_the_last_message():
    plan = make_plan(Filter(1, ()), expects=(), members=())
    assert decode_answer(pb.Acknowledgement(epoch=plan.epoch, order=plan.last_message_number), plan,
                         MODEL_INFO).rows == {}
    for wrong in ({"epoch": plan.epoch + 1, "order": plan.last_message_number},
                  {"epoch": plan.epoch, "order": plan.last_message_number + 1}):
        with pytest.raises(InvalidShardAnswer):
            decode_answer(pb.Acknowledgement(**wrong), plan, MODEL_INFO)


# -- encoding

def test_sampling_columns_match_the_fields_of_sampling_params():
    """A tuple field is a ragged column with its counts before it. The end tokens come from the request."""
    columns = [[f"num_{f.name}", f.name] if f.default == () else [f.name] for f in fields(SamplingParams)]
    sent = [f.name for f in pb.Sampling.DESCRIPTOR.fields if f.name not in {"num_end_tokens", "end_tokens"}]
    assert [*chain(*columns)] == sent


def test_messages_of_a_plan_are_numbered_up_to_the_last():
    encoded = encode_plan(make_plan(Filter(1, (2,)), Concat((1, 2)), Decode(1)))
    assert [(m.epoch, m.order) for m in encoded] == [(4, 8), (4, 9), (4, 10)]


def test_filter_that_keeps_nobody_sets_the_field():
    (message,) = encode_plan(make_plan(Filter(1, ())))
    assert message.HasField("keep")


def test_end_tokens_are_sent_for_requests_that_may_not_always_choose_them():
    requests = [Request("a", (1,), 3, end_tokens=frozenset({9, 2}), **more) for more in (
        {}, {"sampling": SamplingParams(min_tokens=2)}, {"grammar": LoadableResource("grammar", 4)})]
    newcomers = tuple(NewSequence(number, request, (), (number,)) for number, request in enumerate(requests))
    (message,) = encode_plan(make_plan(Prefill(1, newcomers, (), False)))
    assert list(message.sequences.sampling.num_end_tokens) == [0, 2, 2]
    assert list(message.sequences.sampling.end_tokens) == [2, 9, 2, 9]
    assert list(message.sequences.grammars) == [0, 0, 4]


def test_chunks_carry_their_trace_context():
    chunks = (PrefillChunk(5, 0, 3), PrefillChunk(6, 0, 2))
    (traced,) = encode_plan(make_plan(Prefill(1, (), chunks, False)), {5: "", 6: "00-six"}.__getitem__)
    (plain,) = encode_plan(make_plan(Prefill(1, (), chunks, False)))
    assert list(traced.chunks.traceparents) == ["", "00-six"]
    assert not plain.chunks.traceparents


def test_new_sequences_are_encoded_in_columns():
    first = NewSequence(5, Request("a", (1, 2), 3, sampling_key=9, sampling=SamplingParams(top_k=4)), (3,), (0, 1))
    second = NewSequence(6, Request("b", (4,), 3, adapter=LoadableResource("adapter", 8)), (), (2,))
    (message,) = encode_plan(make_plan(Prefill(1, (first, second), (PrefillChunk(5, 0, 3),), True,
                                               (BlockGrant(1, (6, 7)),))))
    sequences = message.sequences
    assert (list(sequences.ids), list(sequences.num_tokens)) == ([5, 6], [3, 1])
    assert list(sequences.num_prompt_tokens) == [2, 1]
    assert (list(sequences.tokens), list(sequences.blocks)) == ([1, 2, 3, 4], [0, 1, 2])
    assert (list(sequences.keys), list(sequences.adapters)) == ([9, 0], [0, 8])
    assert (list(message.grants.blocks), message.alongside) == ([6, 7], True)


def test_column_of_defaults_is_left_out():
    newcomer = NewSequence(5, Request("a", (1,), 3, sampling=SamplingParams(top_k=4)), (), (0,))
    (message,) = encode_plan(make_plan(Prefill(1, (newcomer,), (), False)))
    assert list(message.sequences.sampling.top_k) == [4]
    assert not message.sequences.sampling.temperature
    assert not message.sequences.adapters


def encode_sampling(*requests):
    newcomers = tuple(NewSequence(number, request, (), (number,)) for number, request in enumerate(requests))
    (message,) = encode_plan(make_plan(Prefill(1, newcomers, (), False)))
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
    encoded = encode_sampling(Request("b", (1,), 3), request)
    plain, full = parse_sampling_params(encoded, 2)
    assert plain == ShardSamplingParams()
    assert [getattr(full, name) for name in values] == [getattr(request.sampling, name) for name in values]


def test_pooling_request_is_encoded_in_columns():
    requests = [Request("a", (5, 6), 0, kind=RequestKind.CLASSIFY),
                Request("b", (7,), 0, kind=RequestKind.CLASSIFY, adapter=LoadableResource("adapter", 3))]
    newcomers = tuple(NewSequence(number, request, (), ()) for number, request in enumerate(requests))
    (message,) = encode_plan(StepPlan(4, 10, (PoolingStep(RequestKind.CLASSIFY, newcomers),), (0, 1),
                                      (0, 1), 0.1))
    assert message == pb.EmbedRequest(
        epoch=4, order=10, wanted=pb.LABELS, num_tokens=[2, 1], tokens=[5, 6, 7], adapters=[0, 3])
