"""Tests of the parts that every plot needs to fit any hero."""

import re

import pytest

from launcher.demo.training.corpus.plots import OPENINGS, PLOTS, SHORT, Plot


@pytest.mark.parametrize("plot", [*PLOTS, *SHORT])
def test_a_plot_has_a_friend_and_a_thing_before_it_may_be_cut(plot: Plot) -> None:
    needed = [part for part in plot if not part.endswith("|]")][:4]
    assert any("{a_friend}" in part for part in needed)
    assert any("thing}" in part or "THING}" in part for part in needed)


@pytest.mark.parametrize("plot", [*PLOTS, *SHORT])
def test_a_friend_is_introduced_before_it_is_spoken_of(plot: Plot) -> None:
    text = " ".join(plot)
    later = re.search(r"\{(friend|FRIEND)\}", text)
    assert later is None or text.index("{a_friend}") < later.start()


@pytest.mark.parametrize("opening", OPENINGS)
def test_an_opening_names_hero_and_place(opening: str) -> None:
    assert "{a_hero}" in opening
    assert "{name}" in opening
    assert re.search(r"\{(place|PLACE)\}", opening)


@pytest.mark.parametrize("plot", [*PLOTS, *SHORT])
def test_brackets_are_closed(plot: Plot) -> None:
    assert [part for part in plot if part.count("[") != part.count("]") or part.count("{") != part.count("}")] == []
