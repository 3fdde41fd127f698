"""Tests of launcher/doctor/adapter_checks.py."""

from pathlib import Path

from launcher.doctor.adapter_checks import check_adapters
from launcher.hub.resolve import DEMO_FOLDER
from launcher.settings import LaunchConfig
from router.config import RouterConfig

ROUTER_CONFIG = RouterConfig(adapter_source="local")


def test_adapters_are_named_and_broken_ones_are_warnings(tmp_path: Path) -> None:
    for name in ("shout", "broken", "empty"):
        (tmp_path / name).symlink_to(DEMO_FOLDER / "adapters/shout") if name == "shout" else (tmp_path / name).mkdir()
    (tmp_path / "broken/adapter_config.json").write_text('{"peft_type": "PREFIX"}')
    (tmp_path / "broken/adapter_model.safetensors").write_text("")
    first, *others = check_adapters(LaunchConfig(adapter_root=str(tmp_path)), ROUTER_CONFIG)
    assert str(first) == f"ok       adapters       broken, shout, in {tmp_path}"
    assert [(item.state, item.text) for item in others] == [
        ("warning", "broken: adapter_config.json: peft_type must be LORA, got 'PREFIX'")]


def test_adapter_without_weights_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one/adapter_config.json").write_text("{}")
    _, finding = check_adapters(LaunchConfig(adapter_root=str(tmp_path)), ROUTER_CONFIG)
    assert (finding.state, finding.text) == ("warning", "one: the folder has no adapter_model.safetensors")


def test_server_without_adapters_has_nothing_to_check() -> None:
    assert not list(check_adapters(LaunchConfig(), RouterConfig()))
