"""File cache of startup probes, for one build and one model shape."""

from importlib.metadata import version
from pathlib import Path

import pytest

from shard.host import probe_cache
from shard.host.probe_cache import Kept, fingerprint


def test_what_was_put_is_there_for_the_next_process(tmp_path: Path) -> None:
    Kept(tmp_path / "new" / "machine.json").put("key", "found")
    assert Kept(tmp_path / "new" / "machine.json").get("key") == "found"


def test_a_damaged_file_is_as_none(tmp_path: Path) -> None:
    path = tmp_path / "machine.json"
    for damaged in ("", "[1, 2]", '{"key": 3}', "{"):
        path.write_text(damaged)
        assert Kept(path).get("key") is None
    Kept(path).put("key", "found")
    assert Kept(path).get("key") == "found"


def test_a_fingerprint_tells_shapes_apart_and_is_the_same_again() -> None:
    assert fingerprint({"hidden_size": 64}) == fingerprint({"hidden_size": 64})
    assert fingerprint({"hidden_size": 64}) != fingerprint({"hidden_size": 65})


def test_what_computes_is_part_of_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = fingerprint({})
    monkeypatch.setattr(probe_cache, "DRIVER", tmp_path / "version")
    (tmp_path / "version").write_text("580.1")
    other_driver = fingerprint({})
    monkeypatch.setattr(probe_cache, "version", lambda name: "0.0" if name == "triton" else version(name))
    assert len({before, other_driver, fingerprint({})}) == 3


def test_where_nothing_can_be_written_it_is_found_out_again(caplog: pytest.LogCaptureFixture) -> None:
    kept = Kept(Path("/dev/null/weft/machine.json"))
    kept.put("key", "found")
    assert kept.get("key") is None
    assert "cannot remember" in caplog.text
