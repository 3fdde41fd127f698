"""Tests of the sentences that explain the effect of each flag."""

import pytest

from launcher.compat.docs_table import meaning, rows
from launcher.compat.flag_table import (
    Fate,
    Flag,
    Outcome,
    Table,
    refused,
    same,
    setting,
    silent,
    switch,
    unused,
    variable,
)


@pytest.mark.parametrize(("flag", "words"), [
    (same("port", short="p"), "the same"),
    (same("loom", default="5"), "the same; 5 unless given"),
    (Flag("grace", (setting("shutdown_timeout"),)), "becomes --shutdown-timeout"),
    (Flag("CACHING", (setting("cache_scope", "0", "false", gives="off"), silent("it is on"))),
     "0, false: becomes --cache-scope off; otherwise: not needed: it is on"),
    (switch("nails", refused("there are no nails")), "refused: there are no nails"),
    (Flag("cache", (variable("HF_HUB_CACHE"),)), "sets HF_HUB_CACHE; as a variable, if that is not set"),
    (Flag("glue", (unused("there is no glue"),)), "no effect: there is no glue"),
    (Flag("paint", (refused("there is no paint", "red"), silent("as ever"))),
     "red: refused: there is no paint; otherwise: not needed: as ever"),
    (Flag("sharded", (Outcome(Fate.SHARDS, values=("true", "false")),)),
     "--sharded and --num-shard together say how many shards there are"),
    (Flag("model-id", (Outcome(Fate.REVISED, "model_id"),)), "the same, and org/name@v2 names a revision, too"),
    (Flag("threads", (Outcome(Fate.ADAPTERS, "preloaded_adapter_ids"),)),
     "becomes --adapters and --preloaded-adapter-ids for each; folders need --adapter-root"),
    (switch("spin", Outcome(Fate.DOWNLOADED)), "downloads the model, and ends"),
    (Flag("adapter-source", (setting("adapter_source", "hub"),
                             setting("adapter_source", "local", needs="adapter_root"))),
     "hub: the same; local: the same, with --adapter-root"),
    (Flag("source", (setting("adapter_source"),), over="fibre"),
     "becomes --adapter-source; --fibre does not count beside it"),
    (switch("wet", silent("it is wet"), against="dry"), "not needed: it is wet; not beside --dry"),
    (Flag("ENDPOINT", (variable("ENDPOINT"),), only_variable=True), "the same"),
    (Flag("ACCOUNT", (variable("ENDPOINT", gives="https://{}.org"),), only_variable=True),
     "sets ENDPOINT to https://VALUE.org; as a variable, if that is not set"),
])
def test_a_flag_has_its_sentence(flag: Flag, words: str) -> None:
    assert meaning(flag) == words


def test_a_table_has_a_row_for_each_flag() -> None:
    table = Table("loom-launcher", (same("port", short="p"), Flag("SHADE", (silent("x"),), only_variable=True)))
    assert [*rows(table)][2:] == ["| `--port`, `-p` | `PORT` | the same |",
                                  "|  | `SHADE` | not needed: x |"]
