"""Tests of collecting the given flags of a table, before they are translated."""

import pytest

from launcher.compat.arguments import Heard, Said, check
from launcher.compat.flag_table import Fate, Flag, Outcome, Table, refused, same, setting

PORT, LIST = same("port", default="80"), same("cors-allow-origin", kind="list")
MODEL = Flag("model-id", (Outcome(Fate.REVISED, "model_id"),))
TABLE = Table("loom-launcher", (PORT, LIST, Flag("grace", (setting("shutdown_timeout"),)), MODEL))


def heard(*rest: str, given: dict[str, list[str]] | None = None, **environment: str) -> list[tuple[str, str]]:
    return [(item.name, item.value) for item in Heard(given or {}, rest, environment).said(TABLE)]


def test_a_flag_counts_before_its_variable_and_that_before_a_default() -> None:
    assert heard() == [("--port", "80")]
    assert heard(PORT="81") == [("PORT", "81")]
    assert heard(PORT="81", given={"port": ["82", "83"]}) == [("--port", "83")]


def test_the_last_one_of_a_flag_counts_and_all_of_a_list() -> None:
    found = Heard({"cors-allow-origin": ["a", "b"]}, [], {}).said(TABLE)
    assert found[1].values == ["a", "b"]
    assert Heard({}, [], {"CORS_ALLOW_ORIGIN": " a,\tb "}).said(TABLE)[1].values == ["a", "b"]


@pytest.mark.parametrize("rest", ["--shutdown-timeout=1", "--shutdown-timeout"])
def test_a_flag_of_ours_counts_before_a_variable_of_theirs(rest: str) -> None:
    assert ("GRACE", "5") in heard(GRACE="5")
    assert ("GRACE", "5") not in heard(rest, GRACE="5")
    assert ("--grace", "5") in heard(rest, given={"grace": ["5"]})  # a duplicate, which `weft serve` reports


@pytest.mark.parametrize("word", ["--adapters", "--no-adapters", "--adapters=true"])
def test_a_switch_of_ours_is_there_however_it_is_turned(word: str) -> None:
    assert Heard({}, ["--block-size", "16", word], {}).has("adapters")
    assert not Heard({}, ["--adapters-of-others"], {}).has("adapters")


@pytest.mark.parametrize(("value", "revised"), [
    ("org/name", ("org/name", "")), ("org/name@v2", ("org/name", "v2")), ("/a/b@c", ("/a/b@c", ""))])
def test_a_model_may_have_a_revision(value: str, revised: tuple[str, str]) -> None:
    assert Said(MODEL, "flag", [value]).revised == revised


def test_all_that_is_refused_is_told_before_anything_else() -> None:
    paint, nails = Flag("paint", (refused("there is no paint"),)), Flag("nails", (refused("there are no nails"),))
    twice = [Said(PORT, "flag", ["1"])] * 2
    with pytest.raises(ValueError, match=r"^--paint is refused: there is no paint; and NAILS is refused: there are no"):
        check([*twice, Said(paint, "flag", ["red"]), Said(nails, "variable", ["2"])])
    with pytest.raises(ValueError, match=r"^--port and --port are given, and mean the same; give one$"):
        check(twice)
