"""Adapter references: as named by clients, as described by the store, and as resolved for a request.

Plain data, and the checks that need no I/O.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from router.errors import InvalidRequest
from router.request import Resource

LONGEST_NAME = 512
MOST_MERGED = 16
STRATEGIES = ("linear", "ties", "dare_linear", "dare_ties")
SIGNS = ("total", "frequency")


@dataclass(frozen=True, slots=True)
class Named:
    """Adapter as named by a client. Without a source, the server's default source is used."""

    name: str
    source: str | None = None
    token: str = field(default="", repr=False, compare=False)  # the client's token for the source


@dataclass(frozen=True, slots=True)
class Merged:
    """Merge of several adapters into one."""

    parts: tuple[Named, ...]
    weights: tuple[float, ...]
    strategy: str = "linear"
    density: float = 1.0
    sign: str = "total"


Wanted = Named | Merged


@dataclass(frozen=True, slots=True)
class Version:
    digest: str
    folder: str
    takes: int  # bytes on a shard, at most
    bytes: int
    base: str = ""
    is_private: bool = False


@dataclass(frozen=True, slots=True)
class Borrowed:
    """Adapter version that a request uses."""

    resource: Resource
    digest: str
    name: str
    source: str
    is_private: bool = field(default=False, compare=False)  # other clients must not see its name, also not in metrics


def version_of(answer: Mapping[str, Any]) -> Version:
    return Version(answer["digest"], answer["folder"], answer["takes"], answer["bytes"], answer.get("base", ""),
                   bool(answer.get("private")))


def is_other_model(base: str, model: str) -> bool:
    """Return whether the last path components differ, if both names are known.

    Owner and folder are ignored: the same model may be in a folder, or on the Hub under another owner.
    """
    return bool(base and model) and last_name(base) != last_name(model)


def last_name(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2].lower()


def check_name(field: str, name: str) -> None:
    if not name or len(name) > LONGEST_NAME or not name.isprintable():
        raise InvalidRequest(f"`{field}` must be a name of 1 to {LONGEST_NAME} characters that can be printed, "
                             f"got {len(name)} characters")


def check_merge(wanted: Merged) -> None:
    """Check the parameters of a merge, in LoRAX's order. Raises InvalidRequest."""
    if not wanted.parts:
        raise InvalidRequest("at least one adapter ID must be provided when setting `adapters`")
    if len(wanted.parts) > MOST_MERGED:
        raise InvalidRequest(f"at most {MOST_MERGED} adapters can be merged, got {len(wanted.parts)}")
    if len(wanted.parts) != len(wanted.weights):
        raise InvalidRequest("number of adapter IDs must match number of adapter weights")
    for name, value, choices in (("merge_strategy", wanted.strategy, STRATEGIES),
                                 ("majority_sign_method", wanted.sign, SIGNS)):
        if value not in choices:
            raise InvalidRequest(f"`{name}` must be one of {', '.join(choices)}, got {value[:40]!r}")
    if wanted.strategy != "linear" and not 0.0 < wanted.density <= 1.0:
        raise InvalidRequest(f"`density` must be above 0 and at most 1, got {wanted.density}")
    for weight in wanted.weights:
        if not abs(weight) <= 1e6:
            raise InvalidRequest(f"a weight must be at most 1e6, got {weight}")
