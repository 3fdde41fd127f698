"""Tests of the flags and outcomes of which a flag table consists."""

import pytest

from launcher.compat.foreign_flag_table import (
    FlagAction,
    ForeignFlag,
    ForeignFlagTable,
    ignored_effect,
    make_setting_effect,
    make_switch_flag,
    refused_effect,
    unchanged_flag,
    unneeded_effect,
    variable_only_flag,
)


def test_flag_has_the_variable_of_its_name() -> None:
    assert ForeignFlag("max-weft", ()).environment_variable == "MAX_WEFT"


def test_flag_spellings_are_long_and_short_and_none_for_variables() -> None:
    assert unchanged_flag("port", short_name="p").spellings == ("--port", "-p")
    assert variable_only_flag("LOG_LEVEL").spellings == ()


def test_first_matching_outcome_counts_whatever_the_case() -> None:
    flag = ForeignFlag("colour", (refused_effect("no paint", "red"), ignored_effect("no light", "red", "green"),
                                  unneeded_effect("as ever")))
    assert [flag.find_effect(value).action for value in ("RED", "green", "blue")] == [
        FlagAction.REFUSED, FlagAction.IGNORED, FlagAction.UNNEEDED]


def test_accepted_values_are_listed_when_not_all_are() -> None:
    flag = ForeignFlag("colour", (refused_effect("no paint", "red"), ignored_effect("no light", "green")))
    assert flag.find_effect("blue") is None
    assert [*flag.list_accepted_values()] == ["red", "green"]


def test_switch_is_on_or_off() -> None:
    flag = make_switch_flag("json-output", make_setting_effect("json_output"))
    assert [flag.find_effect(value).action
            for value in ("true", "1", "false", "0")] == [FlagAction.SETTING] * 2 + [FlagAction.UNNEEDED] * 2
    assert flag.find_effect("maybe") is None


def test_flag_of_the_same_name_sets_that_setting() -> None:
    assert unchanged_flag("max-best-of").effects == (make_setting_effect("max_best_of"),)


def test_table_rows_can_be_taken_by_name_in_any_order() -> None:
    rows = unchanged_flag("warp"), unchanged_flag("weft"), unchanged_flag("loom")
    table = ForeignFlagTable("loom-launcher", rows)
    assert table.select_flags("loom", "warp") == (rows[2], rows[0])
    with pytest.raises(KeyError):
        table.select_flags("silk")
