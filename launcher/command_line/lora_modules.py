"""Adapters that --lora-modules names in vLLM's JSON form, as NAME=ID."""

import json
from collections.abc import Mapping
from typing import Any

SETTING_NAME = "preloaded_adapter_ids"
# base_model_name only changes what vLLM lists; an adapter's own config names its base model.
KNOWN_KEYS = {"name", "path", "base_model_name"}


def convert_json_adapter_ids(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with each `{"name": ..., "path": ...}` as NAME=PATH. Raises ValueError for other JSON."""
    if not (adapter_ids := settings.get(SETTING_NAME)):
        return dict(settings)
    return {**settings, SETTING_NAME: tuple(adapter_id for text in adapter_ids for adapter_id in convert_json(text))}


def convert_json(text: str) -> list[str]:
    """Return NAME=PATH of each adapter in a JSON object or list, or a text that is neither as it is."""
    if not text.lstrip().startswith(("{", "[")):
        return [text]
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"--preloaded-adapter-ids takes ID, NAME=ID or vLLM's JSON; {text:.100} is not JSON: {error}"
                         ) from error
    return [format_adapter_id(module) for module in (value if isinstance(value, list) else [value])]


def format_adapter_id(module: object) -> str:
    if not isinstance(module, dict) or not all(isinstance(module.get(key), str) for key in ("name", "path")):
        raise ValueError('--preloaded-adapter-ids takes ID, NAME=ID or {"name": NAME, "path": ID}, got '
                         f"{json.dumps(module):.100}")
    if unknown_keys := sorted(module.keys() - KNOWN_KEYS):
        raise ValueError(f"--preloaded-adapter-ids: {unknown_keys[0]} is none of {', '.join(sorted(KNOWN_KEYS))}")
    for key in ("name", "path"):
        if "=" in module[key]:
            raise ValueError(f"--preloaded-adapter-ids: {key} must have no =, got {module[key]:.100}")
    return f"{module['name']}={module['path']}"
