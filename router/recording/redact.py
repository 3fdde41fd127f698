"""Redacted requests: the length of the prompt instead of its tokens, no text, no sampling parameters.

The rest is all that scheduling depends on. When requests are rebuilt every token is `NOTHING`, except that a token that
ended a sequence is `END`.
"""

from operator import attrgetter
from typing import Any

from router.request import Request, Resource, Tenant, Wish

NOTHING, END = 0, 1
ENDS = frozenset({END})
LEFT_OUT = frozenset({"prompt", "key", "sampling", "end_tokens", "stop_strings", "max_length", "adapter_name"})
KEPT = ("id", "max_new_tokens", "prompt_logprobs", "priority", "tenant", "timeout", "namespace", "block_hashes",
        "adapter", "grammar", "wish")

Bare = tuple[int, tuple[Any, ...]]  # number of prompt tokens, and the values of the KEPT fields

kept_of = attrgetter(*KEPT)
tenant_of = attrgetter(*Tenant.__slots__)
parts_of = attrgetter("kind", "id", "takes", "stays")  # of a resource


def bare(request: Request) -> Bare:
    return len(request.prompt), kept_of(request)


def request_of(length: int, kept: tuple[Any, ...]) -> Request:
    return Request(prompt=(NOTHING,) * length, end_tokens=ENDS, **dict(zip(KEPT, kept, strict=True)))


def told(given: Bare) -> dict[str, Any]:
    """Return a redacted request as a JSON object."""
    values = dict(zip(KEPT, given[1], strict=True))
    values["tenant"] = list(tenant_of(values["tenant"]))
    values["namespace"] = values["namespace"].hex()
    values["block_hashes"] = [name.hex() for name in values["block_hashes"]]
    for name in ("adapter", "grammar"):
        values[name] = values[name] and list(parts_of(values[name]))
    return {"prompt_tokens": given[0], **values}


def heard(values: dict[str, Any]) -> Request:
    """Rebuild a request from the JSON object that `told` returned."""
    values = dict(values)
    length = values.pop("prompt_tokens")
    values["tenant"] = Tenant(*values["tenant"])
    values["namespace"] = bytes.fromhex(values["namespace"])
    values["block_hashes"] = tuple(map(bytes.fromhex, values["block_hashes"]))
    for name in ("adapter", "grammar"):
        values[name] = values[name] and Resource(*values[name])
    values["wish"] = Wish(values.get("wish", Wish.TEXT))
    return Request(prompt=(NOTHING,) * length, end_tokens=ENDS, **values)
