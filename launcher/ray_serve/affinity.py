"""The replica for a request: one that has its adapter loaded and the beginning of its prompt cached, if not too busy.

A key is a list of digests, from general to specific: of the adapter, then of the prompt's first 128 characters, the
first 256, and so on. A table remembers which replicas got requests with each digest; what they have evicted since is
not known. Nothing here knows Ray.
"""

import json
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

FIRST_PREFIX_CHARACTERS = 128
MAX_PARSED_BYTES = 4_000_000  # longer bodies have no key, since parsing them would hold up other requests
# In the order in which chat templates write them.
PROMPT_FIELDS = ("tools", "system", "instructions", "messages", "prompt", "inputs", "input")
BASE_MODEL_NAMES = frozenset({"", "__base_model__", "tgi", "dummy", "base", "default"})
MIN_MATCHED_SHARE = 0.25  # of a prompt; a shorter cached part is not worth a longer queue
# Bounded load: a replica may have a quarter more requests than the mean, and some more, as a small batch costs little.
LOAD_FACTOR, LOAD_SLACK = 1.25, 4
MAX_ENTRIES = 100_000
MAX_REPLICAS_PER_ENTRY = 16


@dataclass(frozen=True, slots=True)
class AffinityKey:
    """Digests of a request. `is_generation`: whether its body has a prompt, so that it may be sent twice."""

    digests: tuple[bytes, ...] = ()
    shares: tuple[float, ...] = ()  # of the prompt that each digest covers; 1 for an adapter
    is_generation: bool = False


def make_affinity_key(body: bytes, model_names: tuple[str, ...] = ()) -> AffinityKey:
    """Return the key of a request's body, empty for one without a prompt. `model_names`: those of the
    model, which are no adapter's."""
    fields = parse_object(body)
    prompt = "".join(json.dumps(fields[name]) for name in PROMPT_FIELDS if fields.get(name))
    if not prompt:
        return AffinityKey()
    adapter = find_adapter(fields, model_names)
    parameters = fields.get("parameters")
    salt = fields.get("cache_salt") or (parameters.get("cache_salt") if isinstance(parameters, dict) else None)
    digest = blake2b(json.dumps([adapter, salt]).encode(), digest_size=8)
    digests, shares = list[bytes](), list[float]()
    if adapter:
        digests.append(digest.digest())
        shares.append(1.0)
    start, end = 0, FIRST_PREFIX_CHARACTERS
    while end <= len(prompt):
        digest.update(prompt[start:end].encode("utf-8", "surrogatepass"))
        digests.append(digest.digest())
        shares.append(end / len(prompt))
        start, end = end, 2 * end
    return AffinityKey(tuple(digests), tuple(shares), is_generation=True)


def parse_object(body: bytes) -> dict[str, Any]:
    """Return the JSON object in a body, or an empty one; the server says what is wrong with others."""
    if body.lstrip()[:1] != b"{" or len(body) > MAX_PARSED_BYTES:
        return {}
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return parsed if isinstance(parsed, dict) else {}


def find_adapter(fields: Mapping[str, Any], model_names: tuple[str, ...]) -> str:
    """Return the adapter that a body names, or "". OpenAI's clients name it in `model`."""
    parameters = fields.get("parameters")
    named = parameters.get("adapter_id") if isinstance(parameters, dict) else None
    adapter = named or fields.get("adapter_id") or fields.get("model")
    return adapter if isinstance(adapter, str) and adapter not in BASE_MODEL_NAMES.union(model_names) else ""


class AffinityTable:
    """Replicas that got requests, by digest. The digests not seen for longest are forgotten."""

    def __init__(self, max_entries: int = MAX_ENTRIES) -> None:
        self._max_entries = max_entries
        self._holders: OrderedDict[bytes, list[str]] = OrderedDict()

    def choose(self, key: AffinityKey, loads: Mapping[str, int]) -> str:
        """Return the replica for a request and remember it. `loads`: requests under way, by replica; not empty."""
        limit = LOAD_FACTOR * (sum(loads.values()) + 1) / len(loads) + LOAD_SLACK
        chosen = ""
        for digest, share in zip(reversed(key.digests), reversed(key.shares), strict=True):
            holders = [name for name in self._holders.get(digest, ()) if loads.get(name, limit) < limit]
            if holders and share >= MIN_MATCHED_SHARE:
                chosen = find_least_loaded(holders, loads, digest)
                break
        chosen = chosen or find_least_loaded(loads, loads, key.digests[0] if key.digests else b"")
        self._remember(key.digests, chosen, loads)
        return chosen

    def _remember(self, digests: Sequence[bytes], replica: str, loads: Mapping[str, int]) -> None:
        for digest in digests:
            known = [name for name in self._holders.pop(digest, ()) if name in loads and name != replica]
            self._holders[digest] = [replica, *known[:MAX_REPLICAS_PER_ENTRY - 1]]
        while len(self._holders) > self._max_entries:
            self._holders.popitem(last=False)


def find_least_loaded(names: Iterable[str], loads: Mapping[str, int], digest: bytes) -> str:
    """Return the replica with the fewest requests. Of equals, the digest decides, the same in every process."""
    return min(names, key=lambda name: (loads[name], blake2b(digest + name.encode(), digest_size=8).digest()))
