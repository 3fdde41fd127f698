"""Tests of the sentences that explain the effect of each flag."""

import pytest

from launcher.compat.flag_descriptions import describe_flag, format_flag_table_rows
from launcher.compat.foreign_flag_table import (
    FlagAction,
    FlagEffect,
    ForeignFlag,
    ForeignFlagTable,
    environment_variable_effect,
    ignored_effect,
    make_setting_effect,
    make_switch_flag,
    refused_effect,
    unchanged_flag,
    unneeded_effect,
)


@pytest.mark.parametrize(("flag", "words"), [
    (unchanged_flag("port", short_name="p"), "the same"),
    (unchanged_flag("loom", default="5"), "the same; 5 unless given"),
    (ForeignFlag("grace", (make_setting_effect("shutdown_timeout"),)), "becomes --shutdown-timeout"),
    (ForeignFlag("CACHING",
                 (make_setting_effect("cache_scope", "0", "false", value_template="off"), unneeded_effect("it is on"))),
     "0, false: becomes --cache-scope off; otherwise: not needed: it is on"),
    (make_switch_flag("nails", refused_effect("there are no nails")), "refused: there are no nails"),
    (ForeignFlag("cache", (environment_variable_effect("HF_HUB_CACHE"),)),
     "sets HF_HUB_CACHE; as a variable, if that is not set"),
    (ForeignFlag("glue", (ignored_effect("there is no glue"),)), "no effect: there is no glue"),
    (ForeignFlag("paint", (refused_effect("there is no paint", "red"), unneeded_effect("as ever"))),
     "red: refused: there is no paint; otherwise: not needed: as ever"),
    (ForeignFlag("sharded", (FlagEffect(FlagAction.NUM_SHARDS, matching_values=("true", "false")),)),
     "--sharded and --num-shard together say how many shards there are"),
    (ForeignFlag("model-id", (FlagEffect(FlagAction.MODEL_AND_REVISION, "model_id"),)),
     "the same, and org/name@v2 names a revision, too"),
    (ForeignFlag("threads", (FlagEffect(FlagAction.PRELOADED_ADAPTERS, "preloaded_adapter_ids"),)),
     "becomes --adapters and --preloaded-adapter-ids for each; folders need --adapter-root"),
    (make_switch_flag("spin", FlagEffect(FlagAction.DOWNLOAD_ONLY)), "downloads the model, and ends"),
    (ForeignFlag("adapter-source", (make_setting_effect("adapter_source", "hub"),
                                    make_setting_effect("adapter_source", "local", required_setting="adapter_root"))),
     "hub: the same; local: the same, with --adapter-root"),
    (ForeignFlag("source", (make_setting_effect("adapter_source"),), overrides="fibre"),
     "becomes --adapter-source; --fibre does not count beside it"),
    (make_switch_flag("wet", unneeded_effect("it is wet"), conflicts_with="dry"),
     "not needed: it is wet; not beside --dry"),
    (ForeignFlag("ENDPOINT", (environment_variable_effect("ENDPOINT"),), is_only_variable=True), "the same"),
    (ForeignFlag("ACCOUNT", (environment_variable_effect("ENDPOINT", value_template="https://{}.org"),),
                 is_only_variable=True),
     "sets ENDPOINT to https://VALUE.org; as a variable, if that is not set"),])
def test_every_kind_of_flag_has_its_sentence(flag: ForeignFlag, words: str) -> None:
    assert describe_flag(flag) == words


def test_table_has_a_row_for_each_flag() -> None:
    table = ForeignFlagTable("loom-launcher", (unchanged_flag("port", short_name="p"),
                                               ForeignFlag("SHADE", (unneeded_effect("x"),), is_only_variable=True)))
    assert [*format_flag_table_rows(table)][2:] == ["| `--port`, `-p` | `PORT` | the same |",
                                                    "|  | `SHADE` | not needed: x |"]
