from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from launcher.hosts.config_consistency import COMMON_SETTINGS, collect_host_facts, find_differences, fingerprint_model
from launcher.settings import SETTINGS_BY_NAME
from shard.config import ShardConfig

GROUP: Any = SimpleNamespace(node=SimpleNamespace(num_nodes=2), num_shard=4)


def describe(config: ShardConfig, version: str = "1") -> dict[str, Any]:
    return collect_host_facts(asdict(config), GROUP, version)


def make_model(folder: Path, weights: bytes = b"1234", config: str = "{}") -> str:
    folder.mkdir()
    (folder / "config.json").write_text(config)
    (folder / "model.safetensors").write_bytes(weights)
    return str(folder)


def test_hosts_may_differ_in_what_only_concerns_them() -> None:
    config = ShardConfig()
    other = replace(config, threads=3, memory_fraction=0.2, socket="unix:/x", memory="/m", cpu_isa="avx2")
    assert find_differences(describe(config), describe(other)) == ""


def test_differences_are_named_with_both_values() -> None:
    first, other = ShardConfig(), ShardConfig(dtype="bfloat16", adaptable=True)
    assert find_differences(describe(first), describe(other, "2")) == (
        "version of weft 2 instead of 1, --dtype bfloat16 instead of auto, --adapters True instead of False")


def test_every_difference_in_a_flag_is_named_by_a_flag_that_exists() -> None:
    flags = {name for name in describe(ShardConfig()) if name.startswith("--")}
    assert flags <= {flag for setting in SETTINGS_BY_NAME.values() for flag in setting.flags}


def test_common_settings_are_settings_of_a_shard() -> None:
    assert set(COMMON_SETTINGS) <= set(asdict(ShardConfig()))


def test_models_are_compared_by_their_files_and_not_by_their_folders(tmp_path: Path) -> None:
    first = fingerprint_model(make_model(tmp_path / "a"))
    (tmp_path / "a" / "notes.txt").write_text("here only")
    assert first == fingerprint_model(str(tmp_path / "a")) == fingerprint_model(make_model(tmp_path / "b"))
    assert first != fingerprint_model(make_model(tmp_path / "c", b"12345"))
    assert first != fingerprint_model(make_model(tmp_path / "d", config='{"n": 1}'))


def test_simulated_model_has_no_files() -> None:
    assert fingerprint_model("") == fingerprint_model("")
