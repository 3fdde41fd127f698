"""Tests of launcher/command_line/lora_modules.py."""

import pytest

from launcher.command_line.lora_modules import convert_json_adapter_ids


@pytest.mark.parametrize(("text", "adapter_ids"), [
    ("one", ("one",)), ("one=org/one", ("one=org/one",)),
    ('{"name": "sql", "path": "/srv/loras/sql", "base_model_name": "org/base"}', ("sql=/srv/loras/sql",)),
    (' [{"name": "a", "path": "org/a"}, {"name": "b", "path": "org/b"}]', ("a=org/a", "b=org/b"))])
def test_json_becomes_name_and_id(text: str, adapter_ids: tuple[str, ...]) -> None:
    assert convert_json_adapter_ids({"port": 1, "preloaded_adapter_ids": ("x", text)}) == {
        "port": 1, "preloaded_adapter_ids": ("x", *adapter_ids)}


def test_settings_without_adapters_are_kept() -> None:
    assert convert_json_adapter_ids({"port": 1}) == {"port": 1}


@pytest.mark.parametrize(("text", "message"), [
    ("{", "is not JSON: Expecting"), ('{"name": "a"}', 'got {"name": "a"}$'), ('["a"]', 'got "a"$'),
    ('{"name": "a", "path": 1}', 'got {"name": "a", "path": 1}$'), ("[" * 100_000, "is not JSON: "),
    ('{"name": "a=b", "path": "c"}', "name must have no =, got a=b$"),
    ('{"name": "a", "path": "b", "rank": 8}', "rank is none of base_model_name, name, path$")])
def test_other_json_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^--preloaded-adapter-ids.* {message}"):
        convert_json_adapter_ids({"preloaded_adapter_ids": (text,)})
