"""Adapter references: as named by clients, as described by the store, and as resolved for a request. Plain data, and
the checks that need no I/O."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Self

from router.config import LOCAL_SOURCE, MAX_NAME_LENGTH
from router.errors import InvalidRequest
from router.request import LoadableResource

MAX_MERGED_ADAPTERS = 16
MERGE_STRATEGIES = ("linear", "ties", "dare_linear", "dare_ties")
MAJORITY_SIGN_METHODS = ("total", "frequency")


@dataclass(frozen=True, slots=True)
class AdapterReference:
    """Adapter as named by a client. Without a source, the server's default source is used."""

    name: str
    source: str | None = None
    source_token: str = field(default="", repr=False, compare=False)  # the client's token for the source


@dataclass(frozen=True, slots=True)
class MergedAdapterReference:
    adapters: tuple[AdapterReference, ...]
    weights: tuple[float, ...]
    merge_strategy: str = "linear"
    density: float = 1.0
    majority_sign_method: str = "total"


RequestedAdapter = AdapterReference | MergedAdapterReference


@dataclass(frozen=True, slots=True)
class FetchedAdapter:
    """An adapter as the store has fetched it: digest of its contents, its folder, and its sizes."""

    digest: str
    folder: str
    max_shard_bytes: int  # bytes on a shard, at most
    disk_bytes: int
    base_model: str = ""
    is_private: bool = False

    @classmethod
    def from_store(cls, answer: Mapping[str, Any]) -> Self:
        return cls(answer["digest"], answer["folder"], answer["takes"], answer["bytes"], answer.get("base", ""),
                   bool(answer.get("private")))


@dataclass(frozen=True, slots=True)
class ResolvedAdapter:
    """Adapter version that a request uses."""

    resource: LoadableResource
    digest: str
    name: str
    source: str
    is_private: bool = field(default=False, compare=False)  # other clients must not see its name, also not in metrics


def is_other_base_model(base_model: str, served_model: str) -> bool:
    """Return whether the last path components differ, if both names are known. Owner and folder are ignored: the same
    model may be in a folder, or on the Hub under another owner."""
    base, served = (name.rstrip("/").rpartition("/")[2].lower() for name in (base_model, served_model))
    return bool(base_model and served_model) and base != served


def check_adapter_name(field: str, name: str) -> None:
    if not name or len(name) > MAX_NAME_LENGTH or not name.isprintable():
        raise InvalidRequest(f"`{field}` must be a name of 1 to {MAX_NAME_LENGTH} characters that can be printed, "
                             f"got {len(name)} characters")


def normalize_name(name: str, source: str | None) -> str:
    """Return the one spelling of an adapter's name in its source: `./pirate` and `pirate/` are the local `pirate`."""
    return str(PurePosixPath(name)) if source == LOCAL_SOURCE else name


def check_merge(merge: MergedAdapterReference) -> None:
    """Check the parameters of a merge, in LoRAX's order. Raises InvalidRequest."""
    if not merge.adapters:
        raise InvalidRequest("at least one adapter ID must be provided when setting `adapters`")
    if len(merge.adapters) > MAX_MERGED_ADAPTERS:
        raise InvalidRequest(f"at most {MAX_MERGED_ADAPTERS} adapters can be merged, got {len(merge.adapters)}")
    if len(merge.adapters) != len(merge.weights):
        raise InvalidRequest("number of adapter IDs must match number of adapter weights")
    for name, value, choices in (("merge_strategy", merge.merge_strategy, MERGE_STRATEGIES),
                                 ("majority_sign_method", merge.majority_sign_method, MAJORITY_SIGN_METHODS)):
        if value not in choices:
            raise InvalidRequest(f"`{name}` must be one of {', '.join(choices)}, got {value[:40]!r}")
    if merge.merge_strategy != "linear" and not 0.0 < merge.density <= 1.0:
        raise InvalidRequest(f"`density` must be above 0 and at most 1, got {merge.density}")
    for weight in merge.weights:
        if not abs(weight) <= 1e6:
            raise InvalidRequest(f"a weight must be at most 1e6, got {weight}")
