"""Grouping of token labels into entities. Agreement with transformers is tested with a real model."""

from router.request import TokenClassificationOutput
from router.text import entity_aggregation
from router.text.entity_aggregation import Entity
from router.text.tokenizer import create_byte_tokenizer

LABEL_NAMES = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC", "MISC", "X-ORG")
TEXT = "ab cd ef"


def find_entities(*labels: str, text: str = TEXT, num_special_tokens: int = 0) -> list[Entity]:
    """Return the entities of `text`, with one label per token; the first `num_special_tokens` tokens are special."""
    places = (None,) * num_special_tokens + tuple((place, place + 1)
                                                  for place in range(len(labels) - num_special_tokens))
    tokens = [256] * num_special_tokens + list(text.encode())[:len(labels) - num_special_tokens]
    labelling = TokenClassificationOutput([LABEL_NAMES.index(label) for label in labels],
                                          [1 / (place + 1) for place in range(len(labels))])
    return entity_aggregation.find_entities(text, tokens, places, labelling, label_names=LABEL_NAMES,
                                            tokenizer=create_byte_tokenizer())


def groups_and_words(entities: list[Entity]) -> list[tuple[str, str]]:
    return [(entity.group, entity.word) for entity in entities]


def test_adjacent_labels_of_one_group_form_an_entity_with_the_mean_score() -> None:
    assert find_entities("B-PER", "I-PER", "O") == [Entity("PER", 0.75, "ab", 0, 2)]


def test_begin_label_starts_a_new_entity() -> None:
    assert groups_and_words(find_entities("B-PER", "B-PER", "I-PER")) == [("PER", "a"), ("PER", "b ")]


def test_inside_label_needs_no_begin_label() -> None:
    assert groups_and_words(find_entities("I-LOC", "I-LOC", "I-PER")) == [("LOC", "ab"), ("PER", " ")]


def test_labels_without_a_prefix_count_as_inside() -> None:
    assert groups_and_words(find_entities("MISC", "MISC", "O")) == [("MISC", "ab")]


def test_unknown_prefix_is_removed_from_the_group_name() -> None:
    assert groups_and_words(find_entities("X-ORG", "X-ORG")) == [("ORG", "ab")]


def test_outside_labels_and_special_tokens_are_left_out() -> None:
    assert find_entities("O", "O", "O") == []
    assert groups_and_words(find_entities("B-PER", "I-PER", "O", num_special_tokens=1)) == [("PER", "a")]
