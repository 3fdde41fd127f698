"""File cache of startup probes, for one build and one model shape."""

from importlib.metadata import version
from pathlib import Path

import pytest

from shard.hardware import probe_cache
from shard.hardware.probe_cache import ProbeCache, make_probe_key


def test_stored_values_are_there_for_the_next_process(tmp_path: Path) -> None:
    ProbeCache(tmp_path / "new" / "machine.json").put("key", "found")
    assert ProbeCache(tmp_path / "new" / "machine.json").get("key") == "found"


def test_damaged_file_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "machine.json"
    for damaged in ("", "[1, 2]", '{"key": 3}', "{"):
        path.write_text(damaged)
        assert ProbeCache(path).get("key") is None
    ProbeCache(path).put("key", "found")
    assert ProbeCache(path).get("key") == "found"


def test_probe_key_is_stable_and_depends_on_the_model_shape() -> None:
    assert make_probe_key({"hidden_size": 64}) == make_probe_key({"hidden_size": 64})
    assert make_probe_key({"hidden_size": 64}) != make_probe_key({"hidden_size": 65})


def test_probe_key_depends_on_driver_and_library_versions(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = make_probe_key({})
    monkeypatch.setattr(probe_cache, "DRIVER_VERSION_FILE", tmp_path / "version")
    (tmp_path / "version").write_text("580.1")
    other_driver = make_probe_key({})
    monkeypatch.setattr(probe_cache, "version", lambda name: "0.0" if name == "triton" else version(name))
    assert len({before, other_driver, make_probe_key({})}) == 3


def test_unwritable_cache_keeps_nothing_and_warns(caplog: pytest.LogCaptureFixture) -> None:
    cache = ProbeCache(Path("/dev/null/weft/machine.json"))
    cache.put("key", "found")
    assert cache.get("key") is None
    assert "cannot remember" in caplog.text
