"""Entities of a classified text: groups of labelled tokens that name a person, a city, or whatever the labels mean.
Same as the aggregation strategy "simple" of transformers' pipeline: adjacent tokens whose labels are equal without a
prefix `B-` or `I-` form one entity, and a label that begins with `B-` always begins a new one."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum

from router.request import TokenClassificationOutput
from router.text.prompt_encoder import TokenOffsets
from router.text.tokenizer import Tokenizer

BEGIN_PREFIX, INSIDE_PREFIX = "B-", "I-"
OUTSIDE_LABEL = "O"  # label of tokens outside every entity


@dataclass(frozen=True, slots=True)
class ClassifiedToken:
    token: int
    char_range: tuple[int, int]
    label: str
    score: float

    @property
    def entity_group(self) -> str:
        return self.label[2:] if self.label.startswith((BEGIN_PREFIX, INSIDE_PREFIX)) else self.label


@dataclass(frozen=True, slots=True)
class Entity:
    group: str
    score: float  # mean of its tokens' scores
    word: str
    start: int
    end: int


def find_entities(text: str, tokens: Sequence[int], token_offsets: TokenOffsets,
                  token_labels: TokenClassificationOutput, *, label_names: Sequence[str],
                  tokenizer: Tokenizer) -> list[Entity]:
    """Group the labelled tokens of a text into entities. `label_names` are the names by the labels' ids."""
    groups: list[list[ClassifiedToken]] = []
    for token_id, char_range, label, score in zip(tokens, token_offsets, token_labels.label_ids, token_labels.scores,
                                                  strict=True):
        if char_range is None:
            continue
        token = ClassifiedToken(token_id, char_range, label_names[label], score)
        is_begin = token.label.startswith(BEGIN_PREFIX) or not groups
        if is_begin or token.entity_group != groups[-1][-1].entity_group:
            groups.append([])
        groups[-1].append(token)
    entities = [make_entity(text, group, tokenizer) for group in groups]
    return [entity for entity in entities if entity.group != OUTSIDE_LABEL]


def make_entity(text: str, group: Sequence[ClassifiedToken], tokenizer: Tokenizer) -> Entity:
    parts = [text[slice(*each.char_range)] for each in group]
    word = tokenizer.join_words([each.token for each in group], parts)
    score = fsum(each.score for each in group) / len(group)
    name = group[0].label.partition("-")[2] or group[0].label  # without the prefix before a dash, whatever it is
    return Entity(name, score, word, group[0].char_range[0], group[-1].char_range[1])
