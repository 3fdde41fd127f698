"""Translation of text-generation-inference's `--lora-adapters` into weft's settings of preloaded adapters."""

import os.path
import re
from collections.abc import Iterator

from launcher.hub.resolve import HUB_NAME_PATTERN

ADAPTER_ITEM_PATTERN = re.compile(r"([^=@]+)(?:=([^=@]+))?(?:@([^=@]+))?")
ADAPTER_FORMS = "NAME, NAME@REVISION and NAME=FOLDER, with commas between them"


def parse_lora_adapters(flag_value: str) -> tuple[str, list[str]]:
    """Return the source, and each adapter in the form of `--preloaded-adapter-ids`. Raises ValueError."""
    adapters = list(iterate_adapters(flag_value))
    sources = {source for source, _ in adapters}
    if not adapters:
        raise ValueError(f"adapters are listed as {ADAPTER_FORMS}, got {flag_value!r}")
    if len(sources) > 1:
        raise ValueError("what is loaded at start comes from one source, and these are at the Hub and in folders; list "
                         f"one kind, and let requests name the others (adapter_source), got {flag_value}")
    return sources.pop(), [adapter for _, adapter in adapters]


def iterate_adapters(flag_value: str) -> Iterator[tuple[str, str]]:
    for item in filter(None, map(str.strip, flag_value.split(","))):
        if not (match := ADAPTER_ITEM_PATTERN.fullmatch(item)):
            raise ValueError(f"adapters are listed as {ADAPTER_FORMS}, got {item}")
        yield translate_adapter_item(*(part or "" for part in match.groups()))


def translate_adapter_item(name: str, path: str, revision: str) -> tuple[str, str]:
    path_or_name = path or name
    if not is_folder(path_or_name):
        return "hub", format_named_adapter(name, f"{path_or_name}@{revision}" if revision else path_or_name)
    if revision:
        raise ValueError(f"{path_or_name} is a folder, which has no revision, got {revision}")
    return "local", format_named_adapter(name, os.path.abspath(os.path.expanduser(path_or_name)))


def is_folder(path_or_name: str) -> bool:
    """Whether `path_or_name` means a folder: it is one, or it cannot be a name at the Hub."""
    return not HUB_NAME_PATTERN.fullmatch(path_or_name) or os.path.isdir(path_or_name)


def format_named_adapter(name: str, adapter: str) -> str:
    return adapter if name == adapter else f"{name}={adapter}"
