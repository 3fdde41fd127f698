"""Settings from a YAML file: `weft serve --config weft.yaml`, with the names of the flags."""

from collections.abc import Collection, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

CONFIG_FLAG = "--config"


def find_config_path(arguments: Sequence[str]) -> str:
    """Return the value of the last `--config` in a command line, or "". A missing value is left to the parser."""
    path = ""
    for position, word in enumerate(arguments):
        if word.startswith(f"{CONFIG_FLAG}="):
            path = word.partition("=")[2]
        elif word == CONFIG_FLAG and position + 1 < len(arguments):
            path = arguments[position + 1]
    return path


def read_config_file(path: str, flag_names: Collection[str]) -> dict[str, Any]:
    """Return the settings of a file by flag, such as "max-batch-size". Underscores in names count as hyphens.

    Raises ValueError for a file that cannot be read and for unknown names; values are checked where flags are.
    """
    try:
        content = yaml.safe_load(Path(path).read_text())
    except OSError as error:
        raise ValueError(f"cannot read {path} ({CONFIG_FLAG}): {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} ({CONFIG_FLAG}) is not YAML: {error}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ValueError(f"{path} ({CONFIG_FLAG}) must have a line `name: value` for each setting")
    settings = {str(name).replace("_", "-"): value for name, value in content.items()}
    for name, value in settings.items():
        if name not in flag_names:
            similar = get_close_matches(name, flag_names, n=1)
            raise ValueError(f"{path} ({CONFIG_FLAG}): there is no setting {name}"
                             + (f"; did you mean {similar[0]}?" if similar else ""))
        if value is None or isinstance(value, dict):
            raise ValueError(f"{path} ({CONFIG_FLAG}): {name} needs a value" + (
                "" if value is None else ", not further names"))
    return settings
