"""Wire protocol of the adapter store: requests of the router, one JSON object per line, parsed into dataclasses, and
the reply that describes a version.

    {"id": 1, "op": "fetch", "source": "hub", "name": "org/name", "token": "", "own_token": false, "fresh": false}
    {"id": 2, "op": "allowed", "source": "hub", "name": "org/name", "token": ""}
    {"id": 3, "op": "pin", "digests": []}
    {"id": 4, "op": "merge", "digests": [], "weights": [], "strategy": "ties", "density": 0.5, "sign": "total"}
    {"id": 5, "op": "names"}
    {"id": 6, "op": "ping"}
"""

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from launcher.adapters.errors import AdapterError, quote_name
from launcher.adapters.store import AdapterVersion

SOURCE_NAMES = ("hub", "local", "s3", "pbase")
MAX_NAME_LENGTH = 4096  # characters
DIGEST_PATTERN = re.compile(r"[0-9a-f]{64}")
TOKEN_PATTERN = re.compile(r"[!-~]*")
PBASE_UNSUPPORTED_ERROR = (
    "the source `pbase` is Predibase's registry, which is not served; fetch the adapter from there and serve it "
    "from the sources `local`, `s3` or `hub`")
RequestId = int | str | None
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """Request to bring an adapter into the store and return its version."""

    source: str
    name: str
    token: str = field(default="", repr=False)
    is_from_settings: bool = False  # then the server's own token and every place may be used
    skips_name_cache: bool = False  # whether to ask the source even if the name was resolved before


@dataclass(frozen=True, slots=True)
class AccessCheckRequest:
    """Request to check whether a token may read an adapter."""

    source: str
    name: str
    token: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class ReplacePinsRequest:
    """Request to replace the router's pins: versions with these digests must not be evicted."""

    digests: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MergeRequest:
    """Request to merge stored adapters into a new one."""

    digests: tuple[str, ...]
    weights: tuple[float, ...]
    strategy: str
    density: float
    sign_method: str

    @property
    def content_hash(self) -> str:
        """Hash of all fields: merges with equal keys have equal results."""
        fields = [self.digests, self.weights, self.strategy, self.density, self.sign_method]
        return hashlib.sha256(json.dumps(fields).encode()).hexdigest()

    @property
    def seed(self) -> int:
        return int(self.content_hash[:16], 16)


@dataclass(frozen=True, slots=True)
class ListNamesRequest:
    """Request for the names of the adapters that the source `local` has."""


@dataclass(frozen=True, slots=True)
class PingRequest:
    """Request that is answered at once, which shows that the store responds."""


StoreRequest = FetchRequest | AccessCheckRequest | ReplacePinsRequest | MergeRequest | ListNamesRequest | PingRequest


def parse_request_line(line: bytes) -> tuple[RequestId, dict[str, Any]]:
    """Return the id of a request and its other fields. Raises AdapterError."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        raise AdapterError("invalid", "a request is a JSON object on a line") from None
    request_id = fields.pop("id", None) if isinstance(fields, dict) else None
    if type(request_id) not in {int, str}:
        raise AdapterError("invalid", "a request is a JSON object with an id, a number or a string")
    return request_id, fields


def parse_request(fields: Mapping[str, Any]) -> StoreRequest:
    """Parse a request. Raises AdapterError if it is invalid."""
    op = fields.get("op")
    if not isinstance(op, str) or op not in REQUEST_PARSERS:
        raise AdapterError("invalid", f"op must be one of {', '.join(REQUEST_PARSERS)}, got {op!r:.50}")
    return REQUEST_PARSERS[op](fields)


def parse_fetch_request(fields: Mapping[str, Any]) -> FetchRequest:
    return FetchRequest(parse_source_name(fields), parse_adapter_name(fields), parse_token(fields),
                        get_typed_field(fields, "own_token", bool, False),
                        get_typed_field(fields, "fresh", bool, False))


def parse_access_check_request(fields: Mapping[str, Any]) -> AccessCheckRequest:
    return AccessCheckRequest(parse_source_name(fields), parse_adapter_name(fields), parse_token(fields))


def parse_replace_pins_request(fields: Mapping[str, Any]) -> ReplacePinsRequest:
    return ReplacePinsRequest(parse_digests(fields))


def parse_merge_request(fields: Mapping[str, Any]) -> MergeRequest:
    digests, weights = parse_digests(fields), get_typed_field(fields, "weights", list)
    density = parse_number(get_typed_field(fields, "density", object), "density")
    if not digests or len(digests) != len(weights):
        raise AdapterError("invalid", f"a merge has a weight for each of its adapters, got {len(weights)} for "
                           f"{len(digests)}")
    if not 0 <= density <= 1:
        raise AdapterError("invalid", f"density must be from 0 to 1, got {density}")
    return MergeRequest(digests, tuple(parse_number(weight, "a weight") for weight in weights),
                        get_typed_field(fields, "strategy", str), density, get_typed_field(fields, "sign", str))


REQUEST_PARSERS: Mapping[str, Callable[[Mapping[str, Any]], StoreRequest]] = {
    "fetch": parse_fetch_request, "allowed": parse_access_check_request, "pin": parse_replace_pins_request,
    "merge": parse_merge_request, "names": lambda _: ListNamesRequest(), "ping": lambda _: PingRequest()}


def parse_source_name(fields: Mapping[str, Any]) -> str:
    source = get_typed_field(fields, "source", str)
    if source == "pbase":
        raise AdapterError("invalid", PBASE_UNSUPPORTED_ERROR)
    if source not in SOURCE_NAMES:
        raise AdapterError(
            "invalid", f"the source of an adapter must be one of {', '.join(SOURCE_NAMES)}, got {quote_name(source)}")
    return source


def parse_adapter_name(fields: Mapping[str, Any]) -> str:
    name = get_typed_field(fields, "name", str)
    if not name:
        raise AdapterError("invalid", "the name of the adapter is empty")
    if len(name) > MAX_NAME_LENGTH:
        raise AdapterError("invalid",
                           f"the name of an adapter must have at most {MAX_NAME_LENGTH} characters, this one has "
                           f"{len(name)}")
    return name


def parse_token(fields: Mapping[str, Any]) -> str:
    token = get_typed_field(fields, "token", str, "")
    if not TOKEN_PATTERN.fullmatch(token):
        raise AdapterError("forbidden", "the token of the request holds characters that no token has")
    return token


def parse_digests(fields: Mapping[str, Any]) -> tuple[str, ...]:
    digests = get_typed_field(fields, "digests", list)
    if not all(isinstance(digest, str) and DIGEST_PATTERN.fullmatch(digest) for digest in digests):
        raise AdapterError("invalid", "digests must be a list of SHA-256 digests in hexadecimal digits")
    return tuple(digests)


def parse_number(value: object, field_name: str) -> float:
    if type(value) not in {int, float} or not math.isfinite(value):  # type: ignore[arg-type]  # it is a number there
        raise AdapterError("invalid", f"{field_name} must be a number, got {value!r:.50}")
    return float(value)  # type: ignore[arg-type]  # likewise


def get_typed_field(fields: Mapping[str, Any], name: str, expected_type: type[Value],
                    default: Value | None = None) -> Value:
    value = fields.get(name, default)
    if not isinstance(value, expected_type):
        # The value itself may be a secret.
        raise AdapterError("invalid", f"{name} must be {expected_type.__name__}, got {type(value).__name__}")
    return value


def make_adapter_version_reply(version: AdapterVersion, *, is_private: bool) -> dict[str, Any]:
    return {"digest": version.digest, "folder": str(version.folder), "bytes": version.contents.file_bytes,
            "takes": version.contents.max_loaded_bytes, "base": version.contents.base_model, "private": is_private}
