"""Tests of the parts that every plot needs to fit any hero."""

import re

import pytest

from launcher.demo.training.corpus.story_plots import PLOTS, SHORT_PLOTS, STORY_OPENINGS, Plot


@pytest.mark.parametrize("plot", [*PLOTS, *SHORT_PLOTS])
def test_plot_introduces_friend_and_thing_before_optional_parts(plot: Plot) -> None:
    needed = [part for part in plot if not part.endswith("|]")][:4]
    assert any("{a_friend}" in part for part in needed)
    assert any("thing}" in part or "THING}" in part for part in needed)


@pytest.mark.parametrize("plot", [*PLOTS, *SHORT_PLOTS])
def test_friend_is_introduced_before_being_mentioned(plot: Plot) -> None:
    text = " ".join(plot)
    mention = re.search(r"\{(friend|FRIEND)\}", text)
    assert mention is None or text.index("{a_friend}") < mention.start()


@pytest.mark.parametrize("opening", STORY_OPENINGS)
def test_opening_names_hero_and_place(opening: str) -> None:
    assert "{a_hero}" in opening
    assert "{name}" in opening
    assert re.search(r"\{(place|PLACE)\}", opening)


@pytest.mark.parametrize("plot", [*PLOTS, *SHORT_PLOTS])
def test_brackets_are_closed(plot: Plot) -> None:
    assert [part for part in plot if part.count("[") != part.count("]") or part.count("{") != part.count("}")] == []
