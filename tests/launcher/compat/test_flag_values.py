"""Tests of collecting the given flags of a table, before they are translated."""

import pytest

from launcher.compat.flag_values import ParsedArguments, ResolvedFlag, reject_refused_or_conflicting_flags
from launcher.compat.foreign_flag_table import (
    FlagAction,
    FlagEffect,
    ForeignFlag,
    ForeignFlagTable,
    make_setting_effect,
    refused_effect,
    unchanged_flag,
)

PORT_FLAG, LIST_FLAG = unchanged_flag("port", default="80"), unchanged_flag("cors-allow-origin", kind="list")
MODEL_FLAG = ForeignFlag("model-id", (FlagEffect(FlagAction.MODEL_AND_REVISION, "model_id"),))
FLAG_TABLE = ForeignFlagTable("loom-launcher", (
    PORT_FLAG, LIST_FLAG, ForeignFlag("grace", (make_setting_effect("shutdown_timeout"),)), MODEL_FLAG))


def resolve_flags(*weft_arguments: str, values_by_flag: dict[str, list[str]] | None = None,
                  **environment: str) -> list[tuple[str, str]]:
    return [(item.name_as_given, item.value)
            for item in ParsedArguments(values_by_flag or {}, weft_arguments, environment).resolve_flags(FLAG_TABLE)]


def test_flag_precedes_its_variable_and_default() -> None:
    assert resolve_flags() == [("--port", "80")]
    assert resolve_flags(PORT="81") == [("PORT", "81")]
    assert resolve_flags(PORT="81", values_by_flag={"port": ["82", "83"]}) == [("--port", "83")]


def test_last_value_of_a_flag_and_all_of_a_list_count() -> None:
    resolved_flags = ParsedArguments({"cors-allow-origin": ["a", "b"]}, [], {}).resolve_flags(FLAG_TABLE)
    assert resolved_flags[1].values == ["a", "b"]
    assert ParsedArguments({}, [], {"CORS_ALLOW_ORIGIN": " a,\tb "}).resolve_flags(FLAG_TABLE)[1].values == ["a", "b"]


@pytest.mark.parametrize("argument", ["--shutdown-timeout=1", "--shutdown-timeout"])
def test_weft_flag_precedes_foreign_variable(argument: str) -> None:
    assert ("GRACE", "5") in resolve_flags(GRACE="5")
    assert ("GRACE", "5") not in resolve_flags(argument, GRACE="5")
    # a duplicate, which `weft serve` reports
    assert ("--grace", "5") in resolve_flags(argument, values_by_flag={"grace": ["5"]})


@pytest.mark.parametrize("word", ["--adapters", "--no-adapters", "--adapters=true"])
def test_weft_switch_is_found_in_every_form(word: str) -> None:
    assert ParsedArguments({}, ["--block-size", "16", word], {}).is_setting_given("adapters")
    assert not ParsedArguments({}, ["--adapters-of-others"], {}).is_setting_given("adapters")


@pytest.mark.parametrize(("value", "revised"), [
    ("org/name", ("org/name", "")), ("org/name@v2", ("org/name", "v2")), ("/a/b@c", ("/a/b@c", ""))])
def test_model_may_have_a_revision(value: str, revised: tuple[str, str]) -> None:
    assert ResolvedFlag(MODEL_FLAG, "flag", [value]).model_and_revision == revised


def test_rejections_are_reported_before_duplicates() -> None:
    paint_flag, nails_flag = ForeignFlag("paint", (refused_effect("there is no paint"),)), ForeignFlag(
        "nails", (refused_effect("there are no nails"),))
    duplicates = [ResolvedFlag(PORT_FLAG, "flag", ["1"])] * 2
    with pytest.raises(ValueError, match=r"^--paint is refused: there is no paint; and NAILS is refused: there are no"):
        reject_refused_or_conflicting_flags([*duplicates, ResolvedFlag(paint_flag, "flag", ["red"]),
                                             ResolvedFlag(nails_flag, "variable", ["2"])])
    with pytest.raises(ValueError, match=r"^--port and --port are given, and mean the same; give one$"):
        reject_refused_or_conflicting_flags(duplicates)
