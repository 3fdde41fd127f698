"""Tests of invented tools."""

from random import Random

from launcher.demo.training.corpus.errand import parameters
from launcher.demo.training.corpus.invented import invented


def test_names_hardly_ever_come_twice() -> None:
    rng = Random(1)
    assert len({invented(rng).name for _ in range(300)}) > 230


def test_names_and_parameters_are_words_of_a_program() -> None:
    rng = Random(1)
    for errand in (invented(rng) for _ in range(300)):
        names = [name for name, *_ in parameters(errand.takes)]
        assert errand.name.isidentifier()
        assert all(name.isidentifier() for name in names)
        assert 1 <= len(set(names)) == len(names) <= 3


def test_requests_name_what_they_give() -> None:
    rng = Random(1)
    for errand in (invented(rng) for _ in range(300)):
        question, values = errand.ask(rng)
        assert all(name in question for name in values)
        assert {name for name, _, must in parameters(errand.takes) if must} <= values.keys()
