"""Entities of a classified text: groups of labelled tokens that name a person, a city, or whatever the labels mean.

Same as the aggregation strategy "simple" of transformers' pipeline: adjacent tokens whose labels are equal without a
prefix `B-` or `I-` form one entity, and a label that begins with `B-` always begins a new one.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import fsum

from router.scheduler.plan import Labelling
from router.text.prompts import Places
from router.text.tokenizer import Tokenizer

BEGINNING, INSIDE = "B-", "I-"
NOTHING = "O"  # label of tokens outside every entity


@dataclass(frozen=True, slots=True)
class Labelled:
    """Token with its character range in the text, its label, and the label's score."""

    token: int
    place: tuple[int, int]
    label: str
    score: float

    @property
    def group(self) -> str:
        return self.label[2:] if self.label.startswith((BEGINNING, INSIDE)) else self.label

    def goes_on_from(self, before: "Labelled") -> bool:
        return self.group == before.group and not self.label.startswith(BEGINNING)


@dataclass(frozen=True, slots=True)
class Entity:
    group: str
    score: float  # mean of its tokens' scores
    word: str
    start: int
    end: int


class Entities:
    def __init__(self, names: Sequence[str], tokenizer: Tokenizer) -> None:
        """`names` are the names of the labels, by their ids."""
        self._names = names
        self._tokenizer = tokenizer

    def of(self, text: str, tokens: Sequence[int], places: Places, labelling: Labelling) -> list[Entity]:
        rows = zip(tokens, places, labelling.labels, labelling.scores, strict=True)
        labelled = [Labelled(token, place, self._names[label], score)
                    for token, place, label, score in rows if place is not None]
        found = [self._entity(text, group) for group in groups(labelled)]
        return [entity for entity in found if entity.group != NOTHING]

    def _entity(self, text: str, group: Sequence[Labelled]) -> Entity:
        parts = [text[slice(*each.place)] for each in group]
        word = self._tokenizer.words([each.token for each in group], parts)
        score = fsum(each.score for each in group) / len(group)
        name = group[0].label.partition("-")[2] or group[0].label  # without the prefix before a dash, whatever it is
        return Entity(name, score, word, group[0].place[0], group[-1].place[1])


def groups(labelled: Iterable[Labelled]) -> Iterator[list[Labelled]]:
    group: list[Labelled] = []
    for each in labelled:
        if group and not each.goes_on_from(group[-1]):
            yield group
            group = []
        group.append(each)
    if group:
        yield group
