"""Protocol of the adapter store: parsed requests of the router, one JSON object per line, and a version as a reply.

    {"id": 1, "op": "fetch", "source": "hub", "name": "org/name", "token": "", "own_token": false, "fresh": false}
    {"id": 2, "op": "allowed", "source": "hub", "name": "org/name", "token": ""}
    {"id": 3, "op": "pin", "digests": []}
    {"id": 4, "op": "merge", "digests": [], "weights": [], "strategy": "ties", "density": 0.5, "sign": "total"}
"""

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from launcher.adapters.errors import Refused, called
from launcher.adapters.store import Version

SOURCES = ("hub", "local", "s3", "pbase")
LONGEST_NAME = 4096  # characters
DIGEST = re.compile(r"[0-9a-f]{64}")
TOKEN = re.compile(r"[!-~]*")
PBASE = ("the source `pbase` is Predibase's registry, which is not served; fetch the adapter from there and serve it "
         "from the sources `local`, `s3` or `hub`")
Id = int | str | None
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Fetch:
    source: str
    name: str
    token: str = field(default="", repr=False)
    own_token: bool = False  # whether the server's own token may be used
    fresh: bool = False  # whether to ask the source even if the name was resolved before


@dataclass(frozen=True, slots=True)
class Allowed:
    source: str
    name: str
    token: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Pin:
    digests: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Merge:
    digests: tuple[str, ...]
    weights: tuple[float, ...]
    strategy: str
    density: float
    sign: str

    @property
    def key(self) -> str:
        """Hash of all fields: merges with equal keys have equal results."""
        asked = [self.digests, self.weights, self.strategy, self.density, self.sign]
        return hashlib.sha256(json.dumps(asked).encode()).hexdigest()

    @property
    def seed(self) -> int:
        return int(self.key[:16], 16)


Order = Fetch | Allowed | Pin | Merge


def read_id(line: bytes) -> tuple[Id, dict[str, Any]]:
    """Return the id of a request and its other fields. Raises Refused."""
    try:
        told = json.loads(line)
    except (ValueError, RecursionError):
        raise Refused("invalid", "a request is a JSON object on a line") from None
    number = told.pop("id", None) if isinstance(told, dict) else None
    if type(number) not in {int, str}:
        raise Refused("invalid", "a request is a JSON object with an id, a number or a string")
    return number, told


def read_order(told: Mapping[str, Any]) -> Order:
    """Parse a request. Raises Refused if it is invalid."""
    op = told.get("op")
    if not isinstance(op, str) or op not in READERS:
        raise Refused("invalid", f"op must be one of {', '.join(READERS)}, got {op!r:.50}")
    return READERS[op](told)


def read_fetch(told: Mapping[str, Any]) -> Fetch:
    return Fetch(read_source(told), read_name(told), read_token(told), given(told, "own_token", bool, False),
                 given(told, "fresh", bool, False))


def read_allowed(told: Mapping[str, Any]) -> Allowed:
    return Allowed(read_source(told), read_name(told), read_token(told))


def read_pin(told: Mapping[str, Any]) -> Pin:
    return Pin(read_digests(told))


def read_merge(told: Mapping[str, Any]) -> Merge:
    digests, weights = read_digests(told), given(told, "weights", list)
    density = read_number(given(told, "density", object), "density")
    if not digests or len(digests) != len(weights):
        raise Refused("invalid", f"a merge has a weight for each of its adapters, got {len(weights)} for "
                                 f"{len(digests)}")
    if not 0 <= density <= 1:
        raise Refused("invalid", f"density must be from 0 to 1, got {density}")
    return Merge(digests, tuple(read_number(weight, "a weight") for weight in weights),
                 given(told, "strategy", str), density, given(told, "sign", str))


READERS: Mapping[str, Callable[[Mapping[str, Any]], Order]] = {
    "fetch": read_fetch, "allowed": read_allowed, "pin": read_pin, "merge": read_merge}


def read_source(told: Mapping[str, Any]) -> str:
    source = given(told, "source", str)
    if source == "pbase":
        raise Refused("invalid", PBASE)
    if source not in SOURCES:
        raise Refused("invalid", f"the source of an adapter must be one of {', '.join(SOURCES)}, got {called(source)}")
    return source


def read_name(told: Mapping[str, Any]) -> str:
    name = given(told, "name", str)
    if not name:
        raise Refused("invalid", "the name of the adapter is empty")
    if len(name) > LONGEST_NAME:
        raise Refused("invalid", f"the name of an adapter must have at most {LONGEST_NAME} characters, this one has "
                                 f"{len(name)}")
    return name


def read_token(told: Mapping[str, Any]) -> str:
    token = given(told, "token", str, "")
    if not TOKEN.fullmatch(token):
        raise Refused("forbidden", "the token of the request holds characters that no token has")
    return token


def read_digests(told: Mapping[str, Any]) -> tuple[str, ...]:
    digests = given(told, "digests", list)
    if not all(isinstance(digest, str) and DIGEST.fullmatch(digest) for digest in digests):
        raise Refused("invalid", "digests must be a list of SHA-256 digests in hexadecimal digits")
    return tuple(digests)


def read_number(value: object, what: str) -> float:
    if type(value) not in {int, float} or not math.isfinite(value):  # type: ignore[arg-type]  # it is a number there
        raise Refused("invalid", f"{what} must be a number, got {value!r:.50}")
    return float(value)  # type: ignore[arg-type]  # likewise


def given(told: Mapping[str, Any], name: str, kind: type[Value], default: Value | None = None) -> Value:
    value = told.get(name, default)
    if not isinstance(value, kind):
        # The value itself may be a secret.
        raise Refused("invalid", f"{name} must be {kind.__name__}, got {type(value).__name__}")
    return value


def described(version: Version, *, private: bool) -> dict[str, Any]:
    return {"digest": version.digest, "folder": str(version.folder), "bytes": version.contents.bytes,
            "takes": version.contents.takes, "base": version.contents.base, "private": private}
