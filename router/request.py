"""Validated, tokenized and immutable requests, the results of pooling requests, the hashes of cache blocks, and the
turns that tenants take with the work before a request is made. The server creates requests in `validation/validator.py`
only."""

import asyncio
import secrets
from array import array
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable
from collections.abc import Sequence as GenericSequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256
from typing import TypeVar

from router.errors import Overloaded

DIGEST_SIZE = 16  # bytes of a block hash
SALT = secrets.token_bytes(16)

T = TypeVar("T")


class FinishReason(StrEnum):
    """Reason why a sequence ended. The values are TGI's."""

    LENGTH = "length"
    END_TOKEN = "eos_token"  # noqa: S105 - the TGI dialect's word for it
    STOP_STRING = "stop_sequence"
    TIMEOUT = "timeout"  # the client's time limit was reached


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling parameters of one request, documented in proto/shard.proto (`Sampling`). Every default is "off"."""

    temperature: float = 0.0  # 0 is greedy
    top_k: int = 0
    top_p: float = 0.0
    typical_p: float = 0.0
    repetition_penalty: float = 0.0
    relative_frequency_penalty: float = 0.0  # by a token's share of prompt and output, as in TGI
    watermark: bool = False
    top_n_tokens: int = 0
    raw_logprobs: bool = False
    min_p: float = 0.0
    frequency_penalty: float = 0.0  # by how often a token was generated, as in OpenAI's API
    presence_penalty: float = 0.0
    min_tokens: int = 0
    allowed_tokens: tuple[int, ...] = ()
    banned_tokens: tuple[int, ...] = ()
    biased_tokens: tuple[int, ...] = ()
    biases: tuple[float, ...] = ()  # one for each of the biased tokens


class RequestKind(StrEnum):
    """Kind of result that a request asks for."""

    GENERATE = "text"  # a continuation of the prompt
    EMBED = "vector"  # the embedding of the prompt
    CLASSIFY = "labels"  # the likeliest label of each prompt token


POOLING_KINDS = (RequestKind.EMBED, RequestKind.CLASSIFY)  # prompts run whole in one step and use no KV cache


@dataclass(frozen=True, slots=True)
class TokenClassificationOutput:
    """Token classification of one text: for each token the index of its most probable label and the probability."""

    label_ids: GenericSequence[int]
    scores: GenericSequence[float]


EmbeddingVector = GenericSequence[float]
PoolingOutput = EmbeddingVector | TokenClassificationOutput

ADAPTER, GRAMMAR = "adapter", "grammar"


@dataclass(frozen=True, slots=True, weakref_slot=True)
class LoadableResource:
    """An adapter or a grammar that a request needs before it can start; `id` is its number on the wire."""

    kind: str
    id: int
    max_bytes: int = field(default=0, compare=False)  # upper bound of its bytes on a shard
    is_pinned: bool = field(default=False, compare=False)  # whether it is never unloaded once it is loaded


@dataclass(frozen=True, slots=True)
class Tenant:
    """Owner of requests. Tenants share the shards by weight, and their requests never share private data."""

    name: str = ""
    weight: float = 1.0
    max_concurrent_requests: int | None = None  # limit of unfinished requests; None, here and below: no limit
    max_queue_requests: int | None = None  # limits of waiting requests
    max_queue_tokens: int | None = None


DEFAULT_TENANT = Tenant()


@dataclass(frozen=True, slots=True)
class Request:
    """One sequence to generate, or one text to embed or classify, as the scheduler and the shards need it."""

    id: str
    prompt: tuple[int, ...]
    max_new_tokens: int  # 0 unless `kind` is GENERATE
    sampling_key: int = 0  # 64-bit key of every random draw of this request
    sampling: SamplingParams = field(default_factory=SamplingParams)
    end_tokens: frozenset[int] = frozenset()  # empty if generation ignores the model's end tokens
    stop_strings: tuple[str, ...] = ()
    prompt_logprobs: bool = False
    num_prompt_top_tokens: int = 0  # best candidates wanted beside each prompt logprob
    priority: int = 0  # a level counts as ten seconds of age in the queue
    tenant: Tenant = DEFAULT_TENANT
    timeout: float | None = None  # seconds from submission; without a token by then it expires, also amid its prompt
    # Start of the hash chain, equal for requests that may share cached blocks, and the chained hashes of the prompt's
    # full blocks; both are empty if blocks are not shared.
    cache_namespace: bytes = b""
    block_hashes: tuple[bytes, ...] = ()
    adapter: LoadableResource | None = None
    grammar: LoadableResource | None = None
    adapter_name: str = ""  # for metrics and accounts; empty for a private adapter, or none
    kind: RequestKind = RequestKind.GENERATE
    resumed_tokens: tuple[int, ...] = ()  # of the output, generated earlier, maybe elsewhere; the next one follows them
    num_given_tokens: int = field(init=False)  # tokens of the prompt and resumed_tokens
    max_length: int = field(init=False)  # tokens of the prompt and max_new_tokens
    needed_resources: tuple[LoadableResource, ...] = field(init=False, repr=False)  # adapter and grammar, if given

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_given_tokens", len(self.prompt) + len(self.resumed_tokens))
        object.__setattr__(self, "max_length", len(self.prompt) + self.max_new_tokens)
        object.__setattr__(self, "needed_resources",
                           tuple([resource for resource in (self.adapter, self.grammar) if resource is not None]))


# Hashes of KV cache blocks are chained over a namespace and all tokens up to the end of a block: two blocks have the
# same hash only if their tokens, all tokens before them and their namespaces are the same. They are salted per process,
# so that tokens cannot be guessed from recorded hashes by trial.


def hash_namespace(*parts: str, salt: bytes = SALT) -> bytes:
    """Return the start of the hash chain for requests that may share blocks. Each part is hashed with its length before
    it, so that two different lists of parts are never hashed as equal bytes."""
    digest = sha256(b"weft cache namespace" + salt)
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.digest()[:DIGEST_SIZE]


def hash_blocks(parent_hash: bytes, tokens: GenericSequence[int], block_size: int) -> tuple[bytes, ...]:
    """Return the hashes of all blocks that the tokens fill, after the block or namespace of `parent_hash`."""
    data, block_bytes = array("I", tokens).tobytes(), block_size * array("I").itemsize
    hashes, last_hash = [], parent_hash
    for start in range(0, len(data) - block_bytes + 1, block_bytes):
        last_hash = sha256(last_hash + data[start:start + block_bytes]).digest()[:DIGEST_SIZE]
        hashes.append(last_hash)
    return tuple(hashes)


# -- turns of tenants

Turn = asyncio.Future[None]


class FairSemaphore:
    """Semaphore of some places. One that becomes free goes to the tenant whose turn is next, for its oldest request.
    `close` cancels the turns that have not come."""

    def __init__(self, num_places: int, max_pending_per_tenant: int, describe_refusal: Callable[[int], str]) -> None:
        """A tenant may hold and wait for `max_pending_per_tenant` places together; `describe_refusal` says of their
        number why there may be no more."""
        self._num_free, self._max_pending_per_tenant = num_places, max_pending_per_tenant
        self._describe_refusal = describe_refusal
        self._num_pending: Counter[str] = Counter()  # held or waited for, by tenant
        # Turns that have not come, by tenant, oldest first; the tenant that is next comes first.
        self._queues: OrderedDict[str, OrderedDict[Turn, None]] = OrderedDict()

    @property
    def is_unused(self) -> bool:
        return not self._num_pending and not self._queues

    def close(self) -> None:
        for queue in self._queues.values():
            for turn in queue:
                turn.cancel()
        self._queues.clear()

    @asynccontextmanager
    async def acquire(self, tenant_name: str) -> AsyncIterator[None]:
        """Hold a place inside the context. Raises Overloaded if too much of the tenant is pending."""
        turn = self.request_turn(tenant_name)
        try:
            await turn
            yield
        finally:
            self.give_back(tenant_name, turn)

    def request_turn(self, tenant_name: str) -> Turn:
        """Return a future that is done when a place is the caller's, until `give_back`. Raises Overloaded."""
        if (num_pending := self._num_pending[tenant_name]) >= self._max_pending_per_tenant:
            raise Overloaded(self._describe_refusal(num_pending))
        self._num_pending[tenant_name] += 1
        turn: Turn = asyncio.get_running_loop().create_future()
        if self._num_free:
            self._num_free -= 1
            turn.set_result(None)
        else:
            self._queues.setdefault(tenant_name, OrderedDict())[turn] = None
        return turn

    def give_back(self, tenant_name: str, turn: Turn) -> None:
        """Give a turn back, whether it has come or not."""
        self._num_pending[tenant_name] -= 1
        if not self._num_pending[tenant_name]:
            del self._num_pending[tenant_name]
        if not turn.done() or turn.cancelled():
            turn.cancel()
            self._remove_from_queue(tenant_name, turn)
        else:
            self._pass_on()

    def _remove_from_queue(self, tenant_name: str, turn: Turn) -> None:
        if (queue := self._queues.get(tenant_name)) is not None:
            queue.pop(turn, None)
            if not queue:
                del self._queues[tenant_name]

    def _pass_on(self) -> None:
        while self._queues:
            tenant_name, queue = self._queues.popitem(last=False)
            while queue:
                turn, _ = queue.popitem(last=False)
                if not turn.done():  # else cancelled, and about to be given back
                    if queue:
                        self._queues[tenant_name] = queue  # behind all others
                    turn.set_result(None)
                    return
        self._num_free += 1


class FairThreadPool:
    """Pool of threads that take work of one tenant after the other. `close` ends them."""

    def __init__(self, num_threads: int, max_per_tenant: int, name: str, description: str) -> None:
        """`description` says of a number of pieces of work what they wait for, such as `prompts wait to be read`."""
        self._executor = ThreadPoolExecutor(num_threads, thread_name_prefix=name)
        self._semaphore = FairSemaphore(
            num_threads, max_per_tenant, f"{{}} {description} (--max-concurrent-requests)".format)

    def close(self) -> None:
        self._semaphore.close()
        self._executor.shutdown(cancel_futures=True)

    async def run(self, work: Callable[[], T], tenant: Tenant) -> T:
        """Run `work` in a thread. Raises Overloaded if too much work of the tenant waits."""
        turn = self._semaphore.request_turn(tenant.name)
        try:
            await turn
            return await asyncio.get_running_loop().run_in_executor(self._executor, work)
        finally:
            self._semaphore.give_back(tenant.name, turn)
