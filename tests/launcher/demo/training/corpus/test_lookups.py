"""Tests of the tools that look something up: each definition is complete."""

from random import Random

import pytest

from launcher.demo.training.corpus.asking import parted, slots_of
from launcher.demo.training.corpus.errand import Errand, parameters
from launcher.demo.training.corpus.lookups import LOOKUPS
from launcher.demo.training.corpus.values import KINDS


def named(way: str) -> set[str]:
    said, meant = parted(way)
    return {*slots_of(said), *meant}


@pytest.mark.parametrize("errand", LOOKUPS, ids=lambda errand: errand.name)
def test_every_way_to_ask_gives_what_is_needed(errand: Errand) -> None:
    known = {name for name, *_ in parameters(errand.takes)}
    needed = {name for name, _, must in parameters(errand.takes) if must}
    assert [way for way in errand.asks if not needed <= named(way) <= known] == []


@pytest.mark.parametrize("errand", LOOKUPS, ids=lambda errand: errand.name)
def test_a_vague_request_lacks_something_and_has_its_question(errand: Errand) -> None:
    needed = {name for name, _, must in parameters(errand.takes) if must}
    assert [way for way in errand.vague if needed <= named(way)] == []
    assert bool(errand.vague) == bool(errand.back)


@pytest.mark.parametrize("errand", LOOKUPS, ids=lambda errand: errand.name)
def test_something_is_said_whatever_was_asked(errand: Errand) -> None:
    rng = Random(1)
    for _ in range(30):
        _, values = errand.ask(rng)
        assert errand.say(rng, values, errand.answer(rng, values))


def test_names_are_unique_and_kinds_known() -> None:
    assert len({errand.name for errand in LOOKUPS}) == len(LOOKUPS)
    assert {kind for errand in LOOKUPS for _, kind, _ in parameters(f"{errand.takes} {errand.tells}")} <= KINDS.keys()
