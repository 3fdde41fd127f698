"""API keys with their tenants and roles, from `--api-keys` and `--api-key`. Only salted digests of the keys are kept;
messages show at most the beginning of a key."""

import hmac
import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from router.config import RouterConfig
from router.pydantic_errors import describe_first_error, describe_value
from router.request import DEFAULT_TENANT, Tenant

MAX_SHOWN_KEY_CHARACTERS = 4  # characters of a key in messages, and never more than half of it
MAX_NAME_LENGTH = 64
EXAMPLE_KEY_FILE = '{"sk-one": {"tenant": "a", "weight": 3, "max_queue_requests": 8}}'

EXAMPLE_ENTRY_RULE = 'must be an object such as {"tenant": "a"}'

PositiveLimit = Annotated[int, Field(ge=1)]


class ApiKeyEntry(BaseModel):
    """Entry of one key in the file. Unknown fields are errors: a misspelt limit would silently have no effect."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    tenant: Annotated[str, Field(min_length=1, max_length=MAX_NAME_LENGTH)]
    weight: Annotated[float, Field(ge=0.001, le=1000)] = 1.0
    max_concurrent_requests: PositiveLimit | None = None
    max_queue_requests: PositiveLimit | None = None
    max_queue_tokens: PositiveLimit | None = None
    role: Literal["user", "admin"] = "user"  # of the key: a tenant may have keys of both roles

    def as_tenant(self) -> Tenant:
        return Tenant(name=self.tenant, **self.model_dump(exclude={"tenant", "role"}))


KEY_FILE_SCHEMA = TypeAdapter(dict[str, ApiKeyEntry])


class ApiKeys:
    """API keys, compared exactly and without leaking information by timing: the lookup is by a digest under a random
    salt, which an attacker cannot predict."""

    def __init__(self, tenant_by_key: Mapping[str, Tenant], admin_keys: Iterable[str] = ()) -> None:
        """`admin_keys` are the keys whose role is admin."""
        self._salt = secrets.token_bytes(32)
        self._tenant_by_digest = {self._digest(key): tenant for key, tenant in tenant_by_key.items()}
        self._admin_digests = frozenset(map(self._digest, admin_keys))

    @classmethod
    def from_config(cls, config: RouterConfig) -> "ApiKeys":
        """Read the keys named in the settings. Raises ValueError for an invalid file."""
        entries = load_key_file(Path(config.api_keys)) if config.api_keys else {}
        tenant_by_key = {key: entry.as_tenant() for key, entry in entries.items()}
        admin_keys = [key for key, entry in entries.items() if entry.role == "admin"]
        if not config.api_key:
            return cls(tenant_by_key, admin_keys)
        if config.api_key in tenant_by_key:
            raise ValueError(f"the key {mask_key(config.api_key)} of --api-key stands in {config.api_keys} as well")
        check_key_characters("--api-key", [config.api_key])
        # The key of `--api-key` is the operator's, so its role is admin.
        return cls({**tenant_by_key, config.api_key: DEFAULT_TENANT}, [*admin_keys, config.api_key])

    @property
    def are_required(self) -> bool:
        return bool(self._tenant_by_digest)

    def find_tenant(self, key: str) -> Tenant | None:
        """Return the tenant of a key, or None if the key is unknown. DEFAULT_TENANT if no keys are configured."""
        return self._tenant_by_digest.get(self._digest(key)) if self._tenant_by_digest else DEFAULT_TENANT

    def is_admin(self, key: str) -> bool:
        """Return whether this key may change what others use. True for every key if none are configured."""
        return not self._tenant_by_digest or self._digest(key) in self._admin_digests

    def _digest(self, key: str) -> bytes:
        return hmac.digest(self._salt, key.encode(errors="surrogateescape"), "sha256")


def load_key_file(file: Path) -> dict[str, ApiKeyEntry]:
    """Return the file's entries by key. Raises ValueError with a message about the first error."""
    content = parse_json_file(file)
    try:
        entries = KEY_FILE_SCHEMA.validate_python(content)
    except ValidationError as error:
        raise ValueError(f"{file}: {describe_validation_error(error, [*content] if isinstance(content, dict) else [])}"
                         ) from None
    if not entries:
        raise ValueError(f"{file} holds no key; it should look like {EXAMPLE_KEY_FILE}")
    check_key_characters(str(file), entries)
    check_tenant_consistency(file, {key: entry.as_tenant() for key, entry in entries.items()})
    return entries


def parse_json_file(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"), object_pairs_hook=build_dict_rejecting_duplicates)
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


def build_dict_rejecting_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object as a dict. Raises ValueError for a repeated name, whose first value would be lost."""
    json_object: dict[str, Any] = {}
    for name, value in pairs:
        if name in json_object:
            raise ValueError(f"{mask_key(name)} stands there twice")
        json_object[name] = value
    return json_object


def check_key_characters(source: str, keys: Iterable[str]) -> None:
    for key in keys:
        if not key or not key.isascii() or not key.isprintable() or " " in key:
            raise ValueError(f"{source}: the key {mask_key(key)} must be printable ASCII without blanks: headers carry "
                             "nothing else")


def check_tenant_consistency(file: Path, tenant_by_key: Mapping[str, Tenant]) -> None:
    """Check that all keys of a tenant give it the same weight and limits. Raises ValueError."""
    first_by_tenant: dict[str, tuple[str, Tenant]] = {}
    for key, tenant in tenant_by_key.items():
        first_key, first_tenant = first_by_tenant.setdefault(tenant.name, (key, tenant))
        for item in fields(Tenant):
            one, two = getattr(first_tenant, item.name), getattr(tenant, item.name)
            if one != two:
                raise ValueError(
                    f"{file}: keys {mask_key(first_key)} and {mask_key(key)} are of tenant {tenant.name}, but `"
                    f"{item.name}` is {describe_value(one)} for the one and {describe_value(two)} for the other")


def describe_validation_error(error: ValidationError, keys: Sequence[str]) -> str:
    """Describe the first error, without values that might be keys. `keys`: all of the file, since many of them may
    begin alike."""
    first_error: Any = error.errors(include_url=False)[0]
    match first_error["loc"]:
        case (key, *rest):
            position = f", number {keys.index(key) + 1} of {len(keys)}" if len(keys) > 1 and key in keys else ""
            rule = describe_broken_rule(first_error)
            what = (f"`{str(rest[0])[:MAX_NAME_LENGTH]}` {rule}" if rest
                    else f"its value {rule.replace('must be an object', EXAMPLE_ENTRY_RULE)}")
            return f"key {mask_key(key)}{position}: {what}"
    return f"what it holds {describe_broken_rule(first_error)}; it should look like {EXAMPLE_KEY_FILE}"


def describe_broken_rule(error: Mapping[str, Any]) -> str:
    if error["type"] == "extra_forbidden":
        return f"is no setting; there are {', '.join(ApiKeyEntry.model_fields)}"
    return describe_first_error([error], shows_strings=error["type"] == "literal_error")[1]


def mask_key(key: str) -> str:
    return ascii(key[:min(MAX_SHOWN_KEY_CHARACTERS, len(key) // 2)])[1:-1] + "…"
