"""Validation of a client's parameters: checks every limit once, has the prompt tokenised, and builds the `Request`.

Requests of all dialects are built only here. Messages use TGI's names of parameters, except for those in `Names`.
"""

import hashlib
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from router.adapters.reference import Borrowed
from router.adapters.reference import Wanted as AdapterWanted
from router.adapters.registry import Adapters
from router.block_hash import namespace
from router.config import RouterConfig
from router.errors import InvalidRequest, TimedOut
from router.grammars.compiler import Grammars, Number
from router.grammars.schema import Grammar
from router.request import ANYONE, Request, Resource, SamplingParams, Tenant, Wish
from router.scheduler.plan import ModelFacts
from router.text.chat_template import ChatTemplate, Conversation
from router.text.prompts import TGI_NAMES, Encoded, Given, Limits, Names, Places, Prompt, Prompts, Text
from router.text.response_parser import Shape
from router.text.tokenizer import Tokenizer
from router.validation.bounds import above_zero, between, fraction

# Every token's text is searched for stop strings, in time proportional to the longest.
MAX_STOP_CHARACTERS = 1024
MAX_SALT_CHARACTERS = 256
MOST_PRIORITY = 10
NO_ADAPTER = ""  # in a namespace, in place of an adapter's digest
SERVED = {
    Wish.TEXT: ("generate text", "generates text (/generate, /v1/chat/completions)"),
    Wish.VECTOR: ("make embeddings", "makes embeddings (/embed, /v1/embeddings)"),
    Wish.LABELS: ("label tokens", "labels tokens (/classify)"),
}
now = time.monotonic
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Parameters of a client: their types are checked, their values are not. None means not given."""

    prompt: Given
    wish: Wish = Wish.TEXT
    names: Names = TGI_NAMES
    best_of: int | None = None
    greedy: bool = False  # no sampling, whatever else is given
    temperature: float | None = None
    repetition_penalty: float | None = None
    relative_frequency_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    typical_p: float | None = None
    do_sample: bool = False
    max_new_tokens: int | None = None
    ignore_eos: bool = False  # generate past the model's end tokens
    stop_strings: tuple[str, ...] = ()
    truncate: int | None = None
    watermark: bool = False
    seed: int | None = None
    top_n_tokens: int | None = None
    prompt_logprobs: bool = False
    grammar: Grammar | None = None
    adapter: AdapterWanted | None = None
    cache_salt: str | None = None  # only requests with the same one share cached prompts
    priority: int = 0
    tenant: Tenant = ANYONE
    request_id: str | None = None
    deadline: float | None = None  # of time.monotonic

    @property
    def samples(self) -> bool:
        """Whether tokens are sampled: any parameter that only has an effect on sampling switches it on."""
        return not self.greedy and (self.do_sample or self.temperature not in {None, 1.0} or any(
            value is not None for value in (self.top_k, self.top_p, self.typical_p)))


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the texts to generate for a client. `seed` reproduces the text; None if nothing is sampled."""

    request: Request
    seed: int | None
    num_characters: int = 0  # of the prompt's text
    adapter: Borrowed | None = None
    places: Places = ()  # for classification: character ranges of the prompt's tokens


class Validator:
    """Validator of the requests of all dialects. `close` ends its threads."""

    def __init__(self, config: RouterConfig, facts: ModelFacts, tokenizer: Tokenizer,
                 template: ChatTemplate | None = None, number: Number | None = None, *,
                 adapters: Adapters | None = None) -> None:
        """`number` assigns numbers to grammars. Grammars are served only with `number`, adapters with `adapters`."""
        self.tokenizer = tokenizer
        self.adapters = adapters
        self._grammars = Grammars(config, facts, tokenizer, number)
        self._prompts = Prompts(config, facts, tokenizer, template)
        self._config = config
        self._facts = facts
        # Without those outside the model's vocabulary, which are no tokens to the shards.
        self._end_tokens = frozenset(token for token in tokenizer.end_tokens if token < facts.vocabulary_size)

    async def choices(self, wanted: Wanted) -> list[Choice]:
        """Return the validated requests, one for each of `best_of`.

        Raises InvalidRequest, TemplateFailed, AdapterMissing, AdapterFailed, Overloaded or TimedOut.
        """
        self._check_wish(wanted.wish)
        sampling = self._check(wanted)
        adapter = await self._adapter(wanted)
        space = self._namespace(wanted, adapter)
        given = Text(wanted.prompt, wanted.truncate, wanted.max_new_tokens, space, wanted.names, wanted.wish)
        prompt = await self._prompts.of(given)
        grammar = await self._grammars.need(wanted.names.grammar, wanted.grammar)
        return [self._choice(wanted, sampling, prompt, adapter, grammar=grammar, index=index)
                for index in range(wanted.best_of or 1)]

    async def encoded(self, text: str | Conversation, names: Names, render: Callable[[Encoded], T], *,
                      add_special_tokens: bool = True) -> T:
        """Render the tokens of a prompt within the limits. Raises InvalidRequest, TemplateFailed or Overloaded."""
        if isinstance(text, str):
            check_text(names.prompt, text)
        return await self._prompts.encoded(text, names, render, add_special_tokens=add_special_tokens)

    @property
    def shape(self) -> Shape | None:
        return self._prompts.shape

    @property
    def limits(self) -> Limits:
        return self._prompts.limits

    def close(self) -> None:
        self._prompts.close()
        self._grammars.close()

    def _check_wish(self, wish: Wish) -> None:
        wishes = self._facts.wishes
        if wish not in wishes:
            does = " and ".join(SERVED[other][1] for other in wishes)
            raise InvalidRequest(f"this model does not {SERVED[wish][0]}; it {does}")

    def _check(self, wanted: Wanted) -> SamplingParams:
        """Check everything that does not need the tokenised prompt, in TGI's order."""
        self._check_best_of(wanted)
        sampling = self._sampling(wanted)
        if wanted.max_new_tokens == 0:
            raise InvalidRequest(f"`{wanted.names.max_new_tokens}` must be at least 1, got 0")
        self._check_stop_strings(wanted.stop_strings)
        if wanted.seed is not None and (wanted.best_of or 1) > 1:
            raise InvalidRequest("`seed` must not be given with `best_of` above 1: all choices would be the same")
        self._check_top_n_tokens(wanted.names.top_n_tokens, sampling.top_n_tokens)
        if isinstance(wanted.prompt, str):
            check_text(wanted.names.prompt, wanted.prompt)
        self._check_truncate(wanted.truncate)
        self._check_cache_salt(wanted.cache_salt)
        if abs(wanted.priority) > MOST_PRIORITY:
            raise InvalidRequest(f"`priority` must be at least {-MOST_PRIORITY} and at most {MOST_PRIORITY}, "
                                 f"got {wanted.priority}")
        return sampling

    def _check_best_of(self, wanted: Wanted) -> None:
        best_of, limit = wanted.best_of or 1, self._config.max_best_of
        if best_of > limit:
            raise InvalidRequest(f"`best_of` must be at most {limit} (--max-best-of), got {best_of}")
        if best_of > 1 and not wanted.samples:
            raise InvalidRequest(f"`best_of` is {best_of}, but nothing is sampled: all choices would be the same; set "
                                 "`do_sample`, `temperature`, `top_k`, `top_p` or `typical_p`")

    def _sampling(self, wanted: Wanted) -> SamplingParams:
        # The order of these lines is TGI's order of checks.
        temperature = above_zero("temperature", wanted.temperature)
        repetition_penalty = above_zero("repetition_penalty", wanted.repetition_penalty)
        return SamplingParams(
            temperature=temperature if wanted.samples else 0.0,
            repetition_penalty=repetition_penalty if repetition_penalty != 1 else 0.0,
            relative_frequency_penalty=between("frequency_penalty", wanted.relative_frequency_penalty, -2.0, 2.0),
            frequency_penalty=between("frequency_penalty", wanted.frequency_penalty, -2.0, 2.0),
            presence_penalty=between("presence_penalty", wanted.presence_penalty, -2.0, 2.0),
            top_p=fraction("top_p", wanted.top_p),
            typical_p=fraction("typical_p", wanted.typical_p),
            top_k=self._top_k(wanted.top_k),
            watermark=wanted.watermark,
            top_n_tokens=wanted.top_n_tokens or 0,
        )

    def _top_k(self, value: int | None) -> int:
        if value is not None and value <= 0:
            raise InvalidRequest(f"`top_k` must be at least 1, got {value}")
        return value if value is not None and value < self._facts.vocabulary_size else 0

    def _check_stop_strings(self, strings: tuple[str, ...]) -> None:
        limit = self._config.max_stop_sequences
        if len(strings) > limit:
            raise InvalidRequest(f"`stop` must hold at most {limit} strings (--max-stop-sequences), got {len(strings)}")
        for string in strings:
            check_text("stop", string)
            if len(string) > MAX_STOP_CHARACTERS:
                raise InvalidRequest(f"a string in `stop` must have at most {MAX_STOP_CHARACTERS} characters, "
                                     f"got {len(string)}", param="stop")

    def _check_top_n_tokens(self, name: str, value: int) -> None:
        limit = self._config.max_top_n_tokens
        if value > limit:
            raise InvalidRequest(f"`{name}` must be at most {limit} (--max-top-n-tokens), got {value}")

    def _check_truncate(self, value: int | None) -> None:
        limit = self.limits.max_input_tokens
        if value is not None and not 1 <= value <= limit:
            raise InvalidRequest(f"`truncate` must be at least 1 and at most {limit} (--max-input-tokens), got {value}")

    def _check_cache_salt(self, salt: str | None) -> None:
        if salt is not None:
            check_text("cache_salt", salt)
            if len(salt) > MAX_SALT_CHARACTERS:
                raise InvalidRequest(f"`cache_salt` must have at most {MAX_SALT_CHARACTERS} characters, "
                                     f"got {len(salt)}")

    async def _adapter(self, wanted: Wanted) -> Borrowed | None:
        if self.adapters is not None:
            return await self.adapters.of(wanted.adapter, wanted.deadline)
        if wanted.adapter is not None:
            raise InvalidRequest("`adapter_id` is given, but this model is served without adapters (--adapters); "
                                 "leave it out")
        return None

    def _namespace(self, wanted: Wanted, adapter: Borrowed | None) -> bytes:
        """Return the namespace within which prompts share cached blocks (--cache-scope)."""
        if self._config.cache_scope == "off" or wanted.wish is not Wish.TEXT:
            return b""
        tenant = wanted.tenant.name if self._config.cache_scope == "tenant" else ""
        return namespace(tenant, NO_ADAPTER if adapter is None else adapter.digest, wanted.cache_salt or "")

    def _choice(self, wanted: Wanted, sampling: SamplingParams, prompt: Prompt, adapter: Borrowed | None, *,
                grammar: Resource | None, index: int) -> Choice:
        left = self.limits.max_total_tokens - len(prompt.tokens) if wanted.wish is Wish.TEXT else 0
        seed = chosen_seed(wanted.seed) if sampling.temperature else None
        request = Request(
            id=choice_id(wanted.request_id or secrets.token_hex(16), index),
            prompt=prompt.tokens,
            max_new_tokens=left if wanted.max_new_tokens is None else min(wanted.max_new_tokens, left),
            key=0 if seed is None else draw_key(seed, 0 if wanted.seed is None else index),
            sampling=sampling,
            # With a grammar the text ends where the grammar does, even with `ignore_eos`.
            end_tokens=frozenset() if wanted.ignore_eos and grammar is None else self._end_tokens,
            stop_strings=wanted.stop_strings,
            prompt_logprobs=wanted.prompt_logprobs,
            priority=wanted.priority,
            tenant=wanted.tenant,
            timeout=time_left(wanted.deadline),
            namespace=prompt.namespace,
            block_hashes=prompt.block_hashes,
            adapter=None if adapter is None else adapter.resource,
            grammar=grammar,
            adapter_name="" if adapter is None or adapter.is_private else adapter.name,
            wish=wanted.wish,
        )
        return Choice(request, seed, prompt.num_characters, adapter, prompt.places)


def choice_id(request_id: str, index: int) -> str:
    """Return the id of a choice; the first one has the request's own id."""
    return f"{request_id}-{index + 1}" if index else request_id


def time_left(deadline: float | None) -> float | None:
    """Return the seconds that checking and tokenising have left. Raises TimedOut if none are left."""
    if deadline is None:
        return None
    left = deadline - now()
    if left <= 0:
        raise TimedOut("its time ran out before it could wait for a shard")
    return left


def chosen_seed(given: int | None) -> int:
    """Return the given seed, or a random one of 53 bits, which every JSON parser reads exactly."""
    return secrets.randbits(53) if given is None else given


def draw_key(seed: int, choice: int) -> int:
    """Return the 64-bit key that all random draws of a request depend on; the same in every process."""
    name = b"weft draw" + seed.to_bytes(8, "little") + choice.to_bytes(8, "little")
    return int.from_bytes(hashlib.sha256(name).digest()[:8], "little")


def check_text(name: str, text: str) -> None:
    if not text:
        raise InvalidRequest(f"`{name}` must not be an empty string")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(f"`{name}` holds half of a surrogate pair, which is no character") from None
