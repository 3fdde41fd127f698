"""What a client asked: validated, tokenised, fixed.

Knows nothing of text, HTTP or the way a request takes. `validation.py` is the only place that makes a Request.
"""

from dataclasses import dataclass, field
from enum import StrEnum


class FinishReason(StrEnum):
    LENGTH = "length"
    END_TOKEN = "eos_token"  # noqa: S105 - the TGI dialect's word for it
    STOP_STRING = "stop_sequence"
    TIMEOUT = "timeout"  # the time that the client gave it ran out


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the tokens of one request are chosen. Field by field the columns of `Sampling` in proto/shard.proto, where
    the meanings stand; every default is "off"."""

    temperature: float = 0.0  # 0 is greedy
    top_k: int = 0
    top_p: float = 0.0
    typical_p: float = 0.0
    repetition_penalty: float = 0.0
    relative_frequency_penalty: float = 0.0  # by a token's share of prompt and output, as TGI has it
    watermark: bool = False
    top_n_tokens: int = 0
    raw_logprobs: bool = False
    min_p: float = 0.0
    frequency_penalty: float = 0.0  # by how often it was generated, as OpenAI has it
    presence_penalty: float = 0.0
    min_tokens: int = 0
    allowed_tokens: tuple[int, ...] = ()
    banned_tokens: tuple[int, ...] = ()
    biased_tokens: tuple[int, ...] = ()
    biases: tuple[float, ...] = ()  # one for each of the biased tokens


class Wish(StrEnum):
    """What is wanted of a prompt."""

    TEXT = "text"  # that goes on from it
    VECTOR = "vector"  # its embedding
    LABELS = "labels"  # for each of its tokens the likeliest label


EMBEDDED = (Wish.VECTOR, Wish.LABELS)  # run as a whole in one step, and nothing stays of them

ADAPTER, GRAMMAR = "adapter", "grammar"


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Resource:
    """An adapter or a grammar that a request needs before it can start; `id` is its number on the wire."""

    kind: str
    id: int
    takes: int = field(default=0, compare=False)  # bytes on a shard, at most
    stays: bool = field(default=False, compare=False)  # once it is there


@dataclass(frozen=True, slots=True)
class Tenant:
    """Whom a request belongs to: tenants share the shards by weight, and their requests never share what is private.
    Limits are for those that wait; None is none."""

    name: str = ""
    weight: float = 1.0
    max_concurrent_requests: int | None = None
    max_queue_requests: int | None = None
    max_queue_tokens: int | None = None


ANYONE = Tenant()


@dataclass(frozen=True, slots=True)
class Request:
    id: str
    prompt: tuple[int, ...]
    max_new_tokens: int  # 0 unless text is wanted
    key: int = 0  # 64 bits, feeds every draw of this request
    sampling: SamplingParams = field(default_factory=SamplingParams)
    end_tokens: frozenset[int] = frozenset()  # empty for one that goes on beyond the model's end tokens
    stop_strings: tuple[str, ...] = ()
    prompt_logprobs: bool = False
    priority: int = 0  # a level is worth ten seconds of age
    tenant: Tenant = ANYONE
    timeout: float | None = None  # seconds from its coming; what cannot start by then never reaches a shard
    # Who may share its cached blocks, and the chained hashes of its prompt's full blocks; empty if none are.
    namespace: bytes = b""
    block_hashes: tuple[bytes, ...] = ()
    adapter: Resource | None = None
    grammar: Resource | None = None
    adapter_name: str = ""  # for those who count; empty where nobody may know it
    wish: Wish = Wish.TEXT
    max_length: int = field(init=False)  # prompt and everything that may be generated

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_length", len(self.prompt) + self.max_new_tokens)

    @property
    def needs(self) -> tuple[Resource, ...]:
        return tuple(resource for resource in (self.adapter, self.grammar) if resource is not None)

