"""Settings from a YAML file: `weft serve --config weft.yaml`, with the names of the flags."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

CONFIG_FLAG = "--config"


def find_config_path(arguments: Sequence[str]) -> str | None:
    """Return the value of the last `--config` in a command line, or None. A missing value is left to the parser."""
    path = None
    for position, word in enumerate(arguments):
        if word.startswith(f"{CONFIG_FLAG}="):
            path = word.partition("=")[2]
        elif word == CONFIG_FLAG and position + 1 < len(arguments):
            path = arguments[position + 1]
    return path


def load_config_file(path: str, flag_names: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings of a file by flag, such as "max-batch-size". Underscores in names count as hyphens.

    `flag_names` has the first name of each setting by every name it has. Values are texts, as on a command line, or
    lists of them; they are checked where flags are. Raises ValueError for a file that cannot be read, and for unknown
    and repeated names.
    """
    try:
        content = yaml.load(Path(path).read_text(), yaml.BaseLoader)  # noqa: S506 - it makes nothing but texts and lists
    except OSError as error:
        raise ValueError(f"cannot read {path or 'the file'} ({CONFIG_FLAG}): {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path} ({CONFIG_FLAG}) is not YAML: {error}") from error
    if content is None or content == "":
        return {}
    if not isinstance(content, dict):
        raise ValueError(f"{path} ({CONFIG_FLAG}) must have a line `name: value` for each setting")
    settings = dict[str, Any]()
    for written_name, value in content.items():
        name = str(written_name).replace("_", "-")
        if name not in flag_names:
            similar = get_close_matches(name, flag_names, n=1)
            raise ValueError(f"{path} ({CONFIG_FLAG}): there is no setting {name!r}"
                             + (f"; did you mean {similar[0]}?" if similar else ""))
        if flag_names[name] in settings:
            raise ValueError(f"{path} ({CONFIG_FLAG}): {flag_names[name]} is set twice")
        if value == "" or isinstance(value, dict):
            raise ValueError(f"{path} ({CONFIG_FLAG}): {name} needs a value" + (
                "" if value == "" else ", not further names"))
        settings[flag_names[name]] = value
    return settings
