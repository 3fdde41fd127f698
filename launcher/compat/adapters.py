"""Translation of text-generation-inference's `--lora-adapters` into weft's settings of preloaded adapters."""

import os.path
import re
from collections.abc import Iterator

from launcher.hub.resolve import HUB_NAME

LISTED = re.compile(r"([^=@]+)(?:=([^=@]+))?(?:@([^=@]+))?")
FORMS = "NAME, NAME@REVISION and NAME=FOLDER, with commas between them"


def preloaded(listed: str) -> tuple[str, list[str]]:
    """Return the source, and each adapter in the form of `--preloaded-adapter-ids`. Raises ValueError."""
    found = list(each(listed))
    sources = {source for source, _ in found}
    if not found:
        raise ValueError(f"adapters are listed as {FORMS}, got {listed!r}")
    if len(sources) > 1:
        raise ValueError("what is loaded at start comes from one source, and these are at the Hub and in folders; list "
                         f"one kind, and let requests name the others (adapter_source), got {listed}")
    return sources.pop(), [adapter for _, adapter in found]


def each(listed: str) -> Iterator[tuple[str, str]]:
    for item in filter(None, map(str.strip, listed.split(","))):
        if not (match := LISTED.fullmatch(item)):
            raise ValueError(f"adapters are listed as {FORMS}, got {item}")
        yield read(*(part or "" for part in match.groups()))


def read(name: str, place: str, revision: str) -> tuple[str, str]:
    where = place or name
    if not is_folder(where):
        return "hub", called(name, f"{where}@{revision}" if revision else where)
    if revision:
        raise ValueError(f"{where} is a folder, which has no revision, got {revision}")
    return "local", called(name, os.path.abspath(os.path.expanduser(where)))


def is_folder(where: str) -> bool:
    """Whether `where` means a folder: it is one, or it cannot be a name at the Hub."""
    return not HUB_NAME.fullmatch(where) or os.path.isdir(where)


def called(name: str, adapter: str) -> str:
    return adapter if name == adapter else f"{name}={adapter}"
