"""API keys with their tenants and roles, from `--api-keys` and `--api-key`.

Only salted digests of the keys are kept; messages show at most the beginning of a key.
"""

import hmac
import json
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from router.config import RouterConfig
from router.request import ANYONE, Tenant

SHOWN = 4  # characters of a key in messages, and never more than half of it
MAX_NAME = 64
EXAMPLE = '{"sk-one": {"tenant": "a", "weight": 3, "max_queue_requests": 8}}'

Limit = Annotated[int, Field(ge=1)]


class Entry(BaseModel):
    """Entry of one key in the file. Unknown fields are errors: a misspelt limit would silently have no effect."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    tenant: Annotated[str, Field(min_length=1, max_length=MAX_NAME)]
    weight: Annotated[float, Field(ge=0.001, le=1000)] = 1.0
    max_concurrent_requests: Limit | None = None
    max_queue_requests: Limit | None = None
    max_queue_tokens: Limit | None = None
    role: Literal["user", "admin"] = "user"  # of the key: a tenant may have keys of both roles

    def as_tenant(self) -> Tenant:
        return Tenant(name=self.tenant, **self.model_dump(exclude={"tenant", "role"}))


ENTRIES = TypeAdapter(dict[str, Entry])


class Keys:
    """API keys, compared exactly and without leaking information by timing.

    The lookup is by a digest under a random salt, which an attacker cannot predict.
    """

    def __init__(self, tenants: Mapping[str, Tenant], admins: Iterable[str] = ()) -> None:
        """`admins` are the keys whose role is admin."""
        self._salt = secrets.token_bytes(32)
        self._tenants = {self._digest(key): tenant for key, tenant in tenants.items()}
        self._admins = frozenset(map(self._digest, admins))

    @classmethod
    def of(cls, config: RouterConfig) -> "Keys":
        """Read the keys named in the settings. Raises ValueError for an invalid file.

        The key of `--api-key` is the operator's, so its role is admin.
        """
        entries = read_keys(Path(config.api_keys)) if config.api_keys else {}
        tenants = {key: entry.as_tenant() for key, entry in entries.items()}
        admins = [key for key, entry in entries.items() if entry.role == "admin"]
        if not config.api_key:
            return cls(tenants, admins)
        if config.api_key in tenants:
            raise ValueError(f"the key {shown(config.api_key)} of --api-key stands in {config.api_keys} as well")
        check_keys("--api-key", [config.api_key])
        return cls({**tenants, config.api_key: ANYONE}, [*admins, config.api_key])

    @property
    def are_asked_for(self) -> bool:
        return bool(self._tenants)

    def tenant_of(self, key: str) -> Tenant | None:
        """Return the tenant of a key, or None if the key is unknown. ANYONE for every key if none are configured."""
        return self._tenants.get(self._digest(key)) if self._tenants else ANYONE

    def is_admin(self, key: str) -> bool:
        """Return whether this key may change what others use. True for every key if none are configured."""
        return not self._tenants or self._digest(key) in self._admins

    def _digest(self, key: str) -> bytes:
        return hmac.digest(self._salt, key.encode(errors="surrogateescape"), "sha256")


def read_keys(file: Path) -> dict[str, Entry]:
    """Return the file's entries by key. Raises ValueError with a message about the first error."""
    content = parse(file)
    try:
        entries = ENTRIES.validate_python(content)
    except ValidationError as error:
        raise ValueError(f"{file}: {fault(error)}") from None
    if not entries:
        raise ValueError(f"{file} holds no key; it should look like {EXAMPLE}")
    check_keys(str(file), entries)
    check_agreement(file, {key: entry.as_tenant() for key, entry in entries.items()})
    return entries


def parse(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"), object_pairs_hook=once)
    except OSError as error:
        raise ValueError(f"cannot read {file} (--api-keys): {error.strerror}") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{file} is not JSON: {error.msg}, line {error.lineno}, column {error.colno}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{file} is not UTF-8") from None
    except RecursionError:
        raise ValueError(f"{file} is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object as a dict. Raises ValueError for a repeated name, whose first value would be lost."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{shown(name)} stands there twice")
        found[name] = value
    return found


def check_keys(where: str, keys: Iterable[str]) -> None:
    for key in keys:
        if not key or not key.isascii() or not key.isprintable() or " " in key:
            raise ValueError(f"{where}: the key {shown(key)} must be printable ASCII without blanks: headers carry "
                             "nothing else")


def check_agreement(file: Path, tenants: Mapping[str, Tenant]) -> None:
    """Check that all keys of a tenant give it the same weight and limits. Raises ValueError."""
    first: dict[str, tuple[str, Tenant]] = {}
    for key, tenant in tenants.items():
        other, known = first.setdefault(tenant.name, (key, tenant))
        for item in fields(Tenant):
            one, two = getattr(known, item.name), getattr(tenant, item.name)
            if one != two:
                raise ValueError(f"{file}: keys {shown(other)} and {shown(key)} are of tenant {tenant.name}, but `"
                                 f"{item.name}` is {plain(one)} for the one and {plain(two)} for the other")


def fault(error: ValidationError) -> str:
    """Describe the first error, without values that might be keys."""
    first: Any = error.errors(include_url=False, include_context=False)[0]
    match first["loc"]:
        case (key, field, *_):
            return f"key {shown(key)}: `{str(field)[:MAX_NAME]}` {reason(first)}"
        case (key,):
            return f"key {shown(key)}: what it stands for {reason(first)}"
    return f"what it holds {reason(first)}; it should look like {EXAMPLE}"


def reason(fault: Any) -> str:
    kind, text = fault["type"], fault["msg"].removeprefix("Input ").removeprefix("String ")
    if kind == "missing":
        return "is missing"
    if kind == "extra_forbidden":
        return f"is no setting; there are {', '.join(Entry.model_fields)}"
    rule = "must be an object" if kind in {"dict_type", "model_type"} else text.replace("should", "must")
    return f"{rule}, got {plain(fault['input'])}"


def shown(key: str) -> str:
    return ascii(key[:min(SHOWN, len(key) // 2)])[1:-1] + "…"


def plain(value: object) -> str:
    """Return a number, true, false or null as JSON, and of every other value only the type."""
    if value is None or isinstance(value, int | float):
        return json.dumps(value)[:MAX_NAME]
    if isinstance(value, str):
        return "a string"
    return "an object" if isinstance(value, dict) else "a list"
