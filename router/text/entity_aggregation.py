"""Entities of a classified text: groups of labelled tokens that name a person, a city, or whatever the labels mean.

Same as the aggregation strategy "simple" of transformers' pipeline: adjacent tokens whose labels are equal without a
prefix `B-` or `I-` form one entity, and a label that begins with `B-` always begins a new one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum

from router.request import TokenClassificationOutput
from router.text.prompt_encoder import TokenOffsets
from router.text.tokenizer import Tokenizer

BEGIN_PREFIX, INSIDE_PREFIX = "B-", "I-"
OUTSIDE_LABEL = "O"  # label of tokens outside every entity


@dataclass(frozen=True, slots=True)
class LabelledToken:
    """Token with its character range in the text, its label, and the label's score."""

    token: int
    char_range: tuple[int, int]
    label: str
    score: float

    @property
    def entity_group(self) -> str:
        return self.label[2:] if self.label.startswith((BEGIN_PREFIX, INSIDE_PREFIX)) else self.label


@dataclass(frozen=True, slots=True)
class Entity:
    """A named entity in a text: its group, its words, and its character range."""

    group: str
    score: float  # mean of its tokens' scores
    word: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class EntityAggregator:
    """Groups the labelled tokens of a text into entities."""

    label_names: Sequence[str]  # by the labels' ids
    tokenizer: Tokenizer

    def find_entities(self, text: str, tokens: Sequence[int], token_offsets: TokenOffsets,
                      token_labels: TokenClassificationOutput) -> list[Entity]:
        rows = zip(tokens, token_offsets, token_labels.label_ids, token_labels.scores, strict=True)
        groups: list[list[LabelledToken]] = []
        for token_id, char_range, label, score in rows:
            if char_range is None:
                continue
            token = LabelledToken(token_id, char_range, self.label_names[label], score)
            is_begin = token.label.startswith(BEGIN_PREFIX) or not groups
            if is_begin or token.entity_group != groups[-1][-1].entity_group:
                groups.append([])
            groups[-1].append(token)
        entities = [self._make_entity(text, group) for group in groups]
        return [entity for entity in entities if entity.group != OUTSIDE_LABEL]

    def _make_entity(self, text: str, group: Sequence[LabelledToken]) -> Entity:
        parts = [text[slice(*each.char_range)] for each in group]
        word = self.tokenizer.join_words([each.token for each in group], parts)
        score = fsum(each.score for each in group) / len(group)
        name = group[0].label.partition("-")[2] or group[0].label  # without the prefix before a dash, whatever it is
        return Entity(name, score, word, group[0].char_range[0], group[-1].char_range[1])
