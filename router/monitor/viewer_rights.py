"""Rights of one viewer of the live view: its own tenant's sequences whole, those of others without a name.

Own sequences have a `request_id`, by which a client can explain or cancel them; those of others have only the number
that the scheduler gave them, which no route takes. Tenants and adapters are numbered for colours. An admin key sees
the names of all tenants, other keys that of their own. Adapters that are not private are named to everybody, as by
`GET /v1/adapters`.
"""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any

from router.monitor.observed_steps import ObservedSequence, round_seconds


@dataclass(frozen=True, slots=True)
class Viewer:
    """A client by its rights. Viewers with equal rights share what is rendered for one of them."""

    tenant_name: str
    is_admin: bool
    shows_text: bool = False  # --ui-show-text

    def owns(self, sequence: ObservedSequence) -> bool:
        return sequence.tenant_name == self.tenant_name

    def may_read_text(self, sequence: ObservedSequence) -> bool:
        return self.shows_text and (self.is_admin or self.owns(sequence))


class AnonymousNumbers:
    """Numbers from 1 for tenants and adapters, in the order in which they are first shown. None has number 0."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}

    def get(self, key: Hashable) -> int:
        return 0 if key is None else self._numbers.setdefault(key, len(self._numbers) + 1)


class SequenceRedactor:
    """Makes JSON of sequences, without what a viewer may not see, and with clock times as Unix time."""

    def __init__(self, clock_offset: float) -> None:
        self.clock_offset = clock_offset
        self._tenants, self._adapters = AnonymousNumbers(), AnonymousNumbers()

    def describe(self, sequence: ObservedSequence, viewer: Viewer) -> dict[str, Any]:
        is_own = viewer.owns(sequence)
        return {
            "id": sequence.id, "own": is_own, "request_id": sequence.request_id if is_own else None,
            "kind": str(sequence.kind), "tenant": sequence.tenant_name if is_own or viewer.is_admin else None,
            "tenant_ordinal": self._tenants.get(sequence.tenant_name),
            "adapter": sequence.adapter_name or None,  # a request for a private adapter has no name of it
            "adapter_ordinal": self._adapters.get(sequence.adapter and sequence.adapter.id),
            "submitted_at": round_seconds(sequence.submitted_at + self.clock_offset),
            "prompt_tokens": sequence.num_prompt_tokens, "max_new_tokens": sequence.max_new_tokens}

    def describe_all(self, sequences: Iterable[ObservedSequence], viewer: Viewer) -> list[dict[str, Any]]:
        """Return the entries of `sequences` in a frame."""
        return [self.describe(sequence, viewer) | {"cached_tokens": sequence.num_cached_tokens}
                for sequence in sequences]
