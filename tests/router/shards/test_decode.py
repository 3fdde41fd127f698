"""Decoding and checking of embedding and classification replies."""

from math import nan

import pytest

from router.request import Request, Resource, Wish
from router.scheduler.plan import Embed, Labelling, ModelFacts, Newcomer, Plan
from router.shards import decode, encode
from shard.pb import shard_pb2 as pb

FACTS = ModelFacts("m", "cpu", "float32", 100, 64, 16, 8, labels=("O", "B-PER"))


def plan(wish: Wish, *lengths: int) -> Plan:
    requests = [Request("r", (5,) * length, 0, wish=wish) for length in lengths]
    newcomers = tuple(Newcomer(number, request, (), ()) for number, request in enumerate(requests, 11))
    members = tuple(newcomer.sequence for newcomer in newcomers)
    return Plan(4, 10, (Embed(wish, newcomers),), members, members, 0.1)


def vectors(**fields: object) -> pb.EmbedAnswer:
    plain = {"epoch": 4, "order": 10, "forward_seconds": 0.5, "width": 2, "values": [1.0, 2.0, 3.0, 4.0]}
    return pb.EmbedAnswer(**plain | fields)  # type: ignore[arg-type]


def labels(**fields: object) -> pb.EmbedAnswer:
    plain = {"epoch": 4, "order": 10, "forward_seconds": 0.5, "num_labels": [2, 1], "labels": [0, 1, 1],
             "scores": [0.5, 0.25, 1.0]}
    return pb.EmbedAnswer(**plain | fields)  # type: ignore[arg-type]


def test_texts_are_told_in_columns() -> None:
    requests = [Request("a", (5, 6), 0, wish=Wish.LABELS),
                Request("b", (7,), 0, wish=Wish.LABELS, adapter=Resource("adapter", 3))]
    newcomers = tuple(Newcomer(number, request, (), ()) for number, request in enumerate(requests))
    (message,) = encode.encode(Plan(4, 10, (Embed(Wish.LABELS, newcomers),), (0, 1), (0, 1), 0.1))
    assert message == pb.EmbedRequest(
        epoch=4, order=10, wanted=pb.LABELS, num_tokens=[2, 1], tokens=[5, 6, 7], adapters=[0, 3])


def test_every_text_gets_its_vector() -> None:
    answer = decode.decode(vectors(), plan(Wish.VECTOR, 3, 1), FACTS)
    assert (answer.told, answer.failed, answer.seconds) == ({11: [1.0, 2.0], 12: [3.0, 4.0]}, {}, 0.5)


def test_every_token_gets_its_label() -> None:
    answer = decode.decode(labels(), plan(Wish.LABELS, 2, 1), FACTS)
    assert answer.told == {11: Labelling([0, 1], [0.5, 0.25]), 12: Labelling([1], [1.0])}


def test_a_text_that_failed_has_no_row() -> None:
    answer = decode.decode(vectors(failed=[1], failures=[pb.NON_FINITE]), plan(Wish.VECTOR, 3, 1, 2), FACTS)
    assert answer.told.keys() == {11, 13}
    assert answer.failed == {12: "the model's output was not a number"}


def test_all_may_fail() -> None:
    answer = decode.decode(vectors(failed=[0], failures=[1], width=0, values=[]), plan(Wish.VECTOR, 3), FACTS)
    assert (answer.told, answer.failed.keys()) == ({}, {11})


@pytest.mark.parametrize("wrong", [
    {"epoch": 3}, {"order": 9}, {"forward_seconds": nan}, {"failed": [0]}, {"failed": [2], "failures": [1]},
    {"values": [1.0]}, {"width": 0}, {"width": 0, "values": []}, {"values": [1.0, 2.0, nan, 4.0]},
    {"failed": [0], "failures": [1]}])
def test_vectors_that_make_no_sense_are_a_defect(wrong: dict[str, object]) -> None:
    with pytest.raises(encode.Defect):
        decode.decode(vectors(**wrong), plan(Wish.VECTOR, 3, 1), FACTS)


@pytest.mark.parametrize("wrong", [
    {"num_labels": [1, 2]}, {"num_labels": [2]}, {"labels": [0, 1]}, {"scores": [0.5]}, {"labels": [0, 2, 1]},
    {"scores": [0.5, nan, 1.0]}, {"failed": [1], "failures": [1]}])
def test_labels_that_make_no_sense_are_a_defect(wrong: dict[str, object]) -> None:
    with pytest.raises(encode.Defect):
        decode.decode(labels(**wrong), plan(Wish.LABELS, 2, 1), FACTS)
