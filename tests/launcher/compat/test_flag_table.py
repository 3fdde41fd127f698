"""Tests of the flags and outcomes of which a flag table consists."""

import pytest

from launcher.compat.flag_table import Fate, Flag, Table, only_variable, refused, same, setting, silent, switch, unused


def test_a_flag_has_the_variable_of_its_name() -> None:
    assert Flag("max-weft", ()).variable == "MAX_WEFT"


def test_a_flag_is_spelled_long_and_short_and_a_mere_variable_not_at_all() -> None:
    assert same("port", short="p").spellings == ("--port", "-p")
    assert only_variable("LOG_LEVEL").spellings == ()


def test_the_first_outcome_that_holds_for_a_value_counts_whatever_its_case() -> None:
    flag = Flag("colour", (refused("no paint", "red"), unused("no light", "red", "green"), silent("as ever")))
    assert [flag.outcome(value).fate for value in ("RED", "green", "blue")] == [
        Fate.REFUSED, Fate.UNUSED, Fate.SILENT]


def test_where_not_everything_is_accepted_what_is_can_be_listed() -> None:
    flag = Flag("colour", (refused("no paint", "red"), unused("no light", "green")))
    assert flag.outcome("blue") is None
    assert [*flag.values()] == ["red", "green"]


def test_a_switch_is_on_or_off() -> None:
    flag = switch("json-output", setting("json_output"))
    assert [flag.outcome(value).fate for value in ("true", "1", "false", "0")] == [Fate.SETTING] * 2 + [Fate.SILENT] * 2
    assert flag.outcome("maybe") is None


def test_a_flag_that_is_ours_sets_the_setting_of_its_name() -> None:
    assert same("max-best-of").outcomes == (setting("max_best_of"),)


def test_a_table_may_take_rows_of_another_by_name_and_in_its_own_order() -> None:
    rows = same("warp"), same("weft"), same("loom")
    table = Table("loom-launcher", rows)
    assert table.taken("loom", "warp") == (rows[2], rows[0])
    with pytest.raises(KeyError):
        table.taken("silk")
