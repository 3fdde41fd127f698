"""Prompts that ended the shards' processes. Each cost several deaths before it was found, and is refused since."""

from array import array
from collections import OrderedDict
from hashlib import sha256

from router.errors import InvalidRequest
from router.request import Request

REFUSAL_SECONDS = 600.0
MAX_PROMPTS = 256


class CrashingPrompts:
    """Digests of the prompts, each with the time until which it is refused."""

    def __init__(self) -> None:
        self.refused_until: OrderedDict[bytes, float] = OrderedDict()

    def add(self, request: Request, now: float) -> None:
        digest = compute_prompt_digest(request)
        self.refused_until[digest] = now + REFUSAL_SECONDS
        self.refused_until.move_to_end(digest)
        if len(self.refused_until) > MAX_PROMPTS:
            self.refused_until.popitem(last=False)

    def check(self, request: Request, now: float) -> None:
        """Raise InvalidRequest for a prompt that is refused; forget those that are no longer."""
        while self.refused_until and next(iter(self.refused_until.values())) <= now:
            self.refused_until.popitem(last=False)
        seconds_left = self.refused_until.get(compute_prompt_digest(request), 0.0) - now
        if seconds_left > 0:
            raise InvalidRequest("the model's processes died several times with this prompt; it is refused for "
                                 f"{seconds_left:.0f} more seconds")


def compute_prompt_digest(request: Request) -> bytes:
    """Return a digest of the prompt and its resumed tokens, its adapter and its tenant, which must not have
    the prompts of others refused: a parameter may have been to blame."""
    adapter = "" if request.adapter is None else f"{request.adapter.kind} {request.adapter.id}"
    tokens = array("Q", (*request.prompt, *request.resumed_tokens))
    return sha256(f"{adapter}\0{request.tenant.name}\0".encode() + tokens.tobytes()).digest()
