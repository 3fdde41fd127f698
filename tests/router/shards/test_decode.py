"""Decoding and checking of embedding and classification replies."""

from math import nan

import pytest

from router.model import ModelInfo, TokenLabels
from router.request import LoadableResource, Request, RequestKind
from router.scheduler.plan import NewSequence, PoolingStep, StepPlan
from router.shards import decode, encode
from shard.pb import shard_pb2 as pb

MODEL_INFO = ModelInfo("m", "cpu", "float32", 100, 64, 16, 8, labels=("O", "B-PER"))


def make_plan(kind: RequestKind, *lengths: int) -> StepPlan:
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


def test_pooling_request_is_encoded_in_columns() -> None:
    requests = [Request("a", (5, 6), 0, kind=RequestKind.CLASSIFY),
                Request("b", (7,), 0, kind=RequestKind.CLASSIFY, adapter=LoadableResource("adapter", 3))]
    newcomers = tuple(NewSequence(number, request, (), ()) for number, request in enumerate(requests))
    (message,) = encode.encode_plan(StepPlan(4, 10, (PoolingStep(RequestKind.CLASSIFY, newcomers),), (0, 1),
                                             (0, 1), 0.1))
    assert message == pb.EmbedRequest(
        epoch=4, order=10, wanted=pb.LABELS, num_tokens=[2, 1], tokens=[5, 6, 7], adapters=[0, 3])


def test_every_text_gets_its_vector() -> None:
    answer = decode.decode_embed_answer(make_vectors_answer(), make_plan(RequestKind.EMBED, 3, 1), MODEL_INFO)
    assert (answer.pooling_outputs, answer.failures, answer.seconds) == ({11: [1.0, 2.0], 12: [3.0, 4.0]}, {}, 0.5)


def test_every_token_gets_its_label() -> None:
    answer = decode.decode_embed_answer(make_labels_answer(), make_plan(RequestKind.CLASSIFY, 2, 1), MODEL_INFO)
    assert answer.pooling_outputs == {11: TokenLabels([0, 1], [0.5, 0.25]), 12: TokenLabels([1], [1.0])}


def test_failed_text_has_no_output() -> None:
    answer = decode.decode_embed_answer(make_vectors_answer(failed=[1], failures=[pb.NON_FINITE]),
                                        make_plan(RequestKind.EMBED, 3, 1, 2), MODEL_INFO)
    assert answer.pooling_outputs.keys() == {11, 13}
    assert answer.failures == {12: "the model's output was not a number"}


def test_all_texts_may_fail() -> None:
    answer = decode.decode_embed_answer(make_vectors_answer(failed=[0], failures=[1], width=0, values=[]),
                                        make_plan(RequestKind.EMBED, 3), MODEL_INFO)
    assert (answer.pooling_outputs, answer.failures.keys()) == ({}, {11})


@pytest.mark.parametrize("wrong", [
    {"epoch": 3}, {"order": 9}, {"forward_seconds": nan}, {"failed": [0]}, {"failed": [2], "failures": [1]},
    {"values": [1.0]}, {"width": 0}, {"width": 0, "values": []}, {"values": [1.0, 2.0, nan, 4.0]},
    {"failed": [0], "failures": [1]}])
def test_invalid_vectors_are_rejected(wrong: dict[str, object]) -> None:
    with pytest.raises(encode.InvalidShardAnswer):
        decode.decode_embed_answer(make_vectors_answer(**wrong), make_plan(RequestKind.EMBED, 3, 1), MODEL_INFO)


@pytest.mark.parametrize("wrong", [
    {"num_labels": [1, 2]}, {"num_labels": [2]}, {"labels": [0, 1]}, {"scores": [0.5]}, {"labels": [0, 2, 1]},
    {"scores": [0.5, nan, 1.0]}, {"failed": [1], "failures": [1]}])
def test_invalid_labels_are_rejected(wrong: dict[str, object]) -> None:
    with pytest.raises(encode.InvalidShardAnswer):
        decode.decode_embed_answer(make_labels_answer(**wrong), make_plan(RequestKind.CLASSIFY, 2, 1), MODEL_INFO)
