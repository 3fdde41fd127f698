"""Redacted requests: the length of the prompt instead of its tokens, no text, no sampling parameters.

The rest is all that scheduling depends on. When requests are rebuilt every token is `PLACEHOLDER_TOKEN`, except that a
token that ended a sequence is `PLACEHOLDER_END_TOKEN`.
"""

from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from router.request import LoadableResource, Request, RequestKind, Tenant

PLACEHOLDER_TOKEN, PLACEHOLDER_END_TOKEN = 0, 1
PLACEHOLDER_END_TOKENS = frozenset({PLACEHOLDER_END_TOKEN})
OMITTED_FIELDS = frozenset({"prompt", "sampling_key", "sampling", "end_tokens", "stop_strings", "max_length",
                            "needed_resources", "adapter_name"})
KEPT_FIELDS = ("id", "max_new_tokens", "prompt_logprobs", "priority", "tenant", "timeout", "cache_namespace",
               "block_hashes", "adapter", "grammar", "kind")


@dataclass(frozen=True, slots=True)
class RedactedRequest:
    """A request without tokens, text and sampling parameters."""

    num_prompt_tokens: int
    kept_values: tuple[Any, ...]  # of KEPT_FIELDS


get_kept_fields = attrgetter(*KEPT_FIELDS)
get_tenant_fields = attrgetter(*Tenant.__slots__)
get_resource_fields = attrgetter("kind", "id", "max_bytes", "is_pinned")  # of a resource


def redact_request(request: Request) -> RedactedRequest:
    return RedactedRequest(len(request.prompt), get_kept_fields(request))


def rebuild_request(redacted: RedactedRequest) -> Request:
    return Request(prompt=(PLACEHOLDER_TOKEN,) * redacted.num_prompt_tokens, end_tokens=PLACEHOLDER_END_TOKENS,
                   **dict(zip(KEPT_FIELDS, redacted.kept_values, strict=True)))


def redacted_request_to_json(redacted: RedactedRequest) -> dict[str, Any]:
    """Return a redacted request as a JSON object."""
    values = dict(zip(KEPT_FIELDS, redacted.kept_values, strict=True))
    values["tenant"] = list(get_tenant_fields(values["tenant"]))
    values["cache_namespace"] = values["cache_namespace"].hex()
    values["block_hashes"] = [name.hex() for name in values["block_hashes"]]
    for name in ("adapter", "grammar"):
        values[name] = values[name] and list(get_resource_fields(values[name]))
    return {"prompt_tokens": redacted.num_prompt_tokens, **values}


def request_from_json(values: dict[str, Any]) -> Request:
    """Rebuild a request from the JSON object that `redacted_request_to_json` returned."""
    values = dict(values)
    num_prompt_tokens = values.pop("prompt_tokens")
    values["tenant"] = Tenant(*values["tenant"])
    values["cache_namespace"] = bytes.fromhex(values["cache_namespace"])
    values["block_hashes"] = tuple(map(bytes.fromhex, values["block_hashes"]))
    for name in ("adapter", "grammar"):
        values[name] = values[name] and LoadableResource(*values[name])
    values["kind"] = RequestKind(values["kind"])
    return Request(prompt=(PLACEHOLDER_TOKEN,) * num_prompt_tokens, end_tokens=PLACEHOLDER_END_TOKENS, **values)
