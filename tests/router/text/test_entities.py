"""Grouping of token labels into entities. Agreement with transformers is tested with a real model."""

from router.scheduler.plan import Labelling
from router.text.entities import Entities, Entity
from router.text.tokenizer import byte_tokenizer

NAMES = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC", "MISC", "X-ORG")
TEXT = "ab cd ef"


def found(*labels: str, text: str = TEXT, marks: int = 0) -> list[Entity]:
    """Return the entities of `text`, with one label per token; the first `marks` tokens are special."""
    places = (None,) * marks + tuple((place, place + 1) for place in range(len(labels) - marks))
    tokens = [256] * marks + list(text.encode())[:len(labels) - marks]
    labelling = Labelling([NAMES.index(label) for label in labels], [1 / (place + 1) for place in range(len(labels))])
    return Entities(NAMES, byte_tokenizer()).of(text, tokens, places, labelling)


def shown(entities: list[Entity]) -> list[tuple[str, str]]:
    return [(entity.group, entity.word) for entity in entities]


def test_neighbours_of_one_group_are_one_with_the_mean_of_their_scores() -> None:
    assert found("B-PER", "I-PER", "O") == [Entity("PER", 0.75, "ab", 0, 2)]


def test_a_beginning_begins_anew() -> None:
    assert shown(found("B-PER", "B-PER", "I-PER")) == [("PER", "a"), ("PER", "b ")]


def test_an_inside_needs_no_beginning() -> None:
    assert shown(found("I-LOC", "I-LOC", "I-PER")) == [("LOC", "ab"), ("PER", " ")]


def test_labels_without_a_prefix_are_insides() -> None:
    assert shown(found("MISC", "MISC", "O")) == [("MISC", "ab")]


def test_of_another_prefix_what_follows_is_the_name() -> None:
    assert shown(found("X-ORG", "X-ORG")) == [("ORG", "ab")]


def test_what_is_nothing_is_left_out_and_so_are_marks() -> None:
    assert found("O", "O", "O") == []
    assert shown(found("B-PER", "I-PER", "O", marks=1)) == [("PER", "a")]
