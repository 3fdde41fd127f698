"""Encoding of prompts (texts, conversations or token ids): tokens, length limits, and hashes of the cache blocks.

Conversations and long prompts are encoded in threads, off the event loop.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Self, TypeVar

from router.block_hash import block_hashes
from router.config import RouterConfig
from router.errors import CannotStartNow, InvalidRequest, Overloaded, TemplateFailed
from router.request import Wish
from router.scheduler.plan import ModelFacts
from router.text.chat_template import ChatTemplate, Conversation
from router.text.response_parser import Shape
from router.text.tokenizer import Tokenizer

T = TypeVar("T")
# Only this many of `max_new_tokens` have to fit after the prompt: larger values are cut to what is left, and the text
# then finishes with `length`. Clients of TGI rely on asking for more than fits.
MUST_FIT = 1024
TOO_LONG = "context_length_exceeded"  # OpenAI's code, on which clients shorten the prompt
# Prompts of at most this many characters are tokenised in less time than it takes to hand them to a thread.
SHORT_PROMPT = 512


@dataclass(frozen=True, slots=True)
class Limits:
    """Maximum numbers of tokens in a prompt and in a request, as configured or as model and cache allow."""

    max_input_tokens: int
    max_total_tokens: int

    @classmethod
    def of(cls, config: RouterConfig, facts: ModelFacts) -> Self:
        if not facts.generation:
            return cls(*[longest_text(config, facts)[0]] * 2)
        # A step that may generate several tokens needs slots for all of them, and so does every step in flight.
        spare = config.look_ahead * (facts.tokens_per_step - 1)
        fits = min(facts.max_positions, facts.num_blocks * facts.block_size - spare)
        total = config.max_total_tokens or fits
        is_fixed = config.max_batch_total_tokens is not None  # else the cache is as large as free memory allows
        if total > fits:
            kind = ValueError if is_fixed or total > facts.max_positions else CannotStartNow
            raise kind(f"--max-total-tokens is {total}, but model and cache can hold {fits} tokens; lower it")
        prompt = config.max_input_tokens or total - 1
        if prompt >= total:
            kind = ValueError if is_fixed or prompt >= facts.max_positions else CannotStartNow
            raise kind(f"--max-input-tokens is {prompt}, it must be below --max-total-tokens ({total})")
        return cls(max_input_tokens=prompt, max_total_tokens=total)


def longest_text(config: RouterConfig, facts: ModelFacts) -> tuple[int, str]:
    """Return the maximum number of tokens of a text to embed or classify, and what limits it."""
    limits = [(facts.max_positions, "what the model holds"),
              (config.max_batch_prefill_tokens, "--max-batch-prefill-tokens")]
    if config.max_input_tokens is not None:
        limits.append((config.max_input_tokens, "--max-input-tokens"))
    return min(limits)


@dataclass(frozen=True, slots=True)
class Names:
    """Names that a dialect has for the parameters in error messages."""

    prompt: str = "inputs"
    max_new_tokens: str = "max_new_tokens"
    truncate: str = "truncate"  # empty if the dialect cannot truncate prompts
    top_n_tokens: str = "top_n_tokens"
    grammar: str = "grammar"
    must_fit: int = MUST_FIT

    def check_length(self, num_tokens: int, max_new_tokens: int | None, limits: Limits) -> None:
        """Check the length of a prompt and of the text generated after it. Raises InvalidRequest."""
        cut = f", or set `{self.truncate}`" if self.truncate else ""
        if max_new_tokens is not None and num_tokens + min(max_new_tokens, self.must_fit) > limits.max_total_tokens:
            raise InvalidRequest(
                f"`{self.prompt}` ({num_tokens} tokens) and `{self.max_new_tokens}` ({max_new_tokens}) must be at most "
                f"{limits.max_total_tokens} together (--max-total-tokens); shorten one{cut}", code=TOO_LONG)
        if num_tokens > limits.max_input_tokens:
            raise InvalidRequest(f"`{self.prompt}` must have at most {limits.max_input_tokens} tokens "
                                 f"(--max-input-tokens), got {num_tokens}; shorten it{cut}", code=TOO_LONG)


TGI_NAMES = Names()


Given = str | Conversation | tuple[int, ...]  # token ids if the client has tokenised the prompt
Places = tuple[tuple[int, int] | None, ...]


@dataclass(frozen=True, slots=True)
class Text:
    """Prompt as received, with the parameters that its encoding depends on."""

    text: Given
    truncate: int | None
    max_new_tokens: int | None
    namespace: bytes  # prompts with the same one share cached blocks; empty: shared with no other prompt
    names: Names = TGI_NAMES
    wish: Wish = Wish.TEXT


@dataclass(frozen=True, slots=True)
class Prompt:
    tokens: tuple[int, ...]
    namespace: bytes
    block_hashes: tuple[bytes, ...]  # of its full blocks; empty if they are not shared
    num_characters: int  # of its text
    places: Places = ()  # for classification: character range of each token, None for special tokens


@dataclass(frozen=True, slots=True)
class Encoded:
    """Text with its tokens and their character ranges: the index of the first character and the one after the last."""

    text: str
    ids: Sequence[int]
    offsets: Sequence[tuple[int, int]]


class Prompts:
    """Encoder of prompts. `close` ends its threads."""

    def __init__(self, config: RouterConfig, facts: ModelFacts, tokenizer: Tokenizer,
                 template: ChatTemplate | None = None) -> None:
        self.limits = Limits.of(config, facts)
        self._tokenizer = tokenizer
        self._template = template
        self._facts = facts
        self._longest_text = longest_text(config, facts)
        self._most_waiting = config.max_concurrent_requests
        self._num_waiting = 0
        self._threads = ThreadPoolExecutor(config.validation_workers, thread_name_prefix="tokenizer")

    @property
    def shape(self) -> Shape | None:
        """Format of the model's answers in chats."""
        return None if self._template is None else self._template.shape

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)

    async def of(self, given: Text) -> Prompt:
        return await self._aside(given.text, partial(self._tokenise, given))

    async def encoded(self, text: str | Conversation, names: Names, render: Callable[[Encoded], T], *,
                      add_special_tokens: bool = True) -> T:
        """Tokenise a prompt and return `render` of it, in the same thread: rendering takes longer than tokenising."""
        def work() -> T:
            return render(self._encode(text, names, add_special_tokens=add_special_tokens))
        return await self._aside(text, work)

    async def _aside(self, text: Given, work: Callable[[], T]) -> T:
        """Run `work` in a thread, unless the text is short. Raises Overloaded if too many texts wait."""
        if not isinstance(text, Conversation) and len(text) <= SHORT_PROMPT:
            return work()
        if self._num_waiting >= self._most_waiting:
            raise Overloaded(f"{self._num_waiting} prompts wait to be tokenised (--max-concurrent-requests)")
        self._num_waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        finally:
            self._num_waiting -= 1

    def _encode(self, text: str | Conversation, names: Names, *, add_special_tokens: bool) -> Encoded:
        is_rendered = isinstance(text, Conversation)
        text = self._render(text) if isinstance(text, Conversation) else text
        special = add_special_tokens and not is_rendered
        if len(text) > self.limits.max_input_tokens:  # counting tokens is three times as fast as locating them
            self._check_longest(len(self._tokenizer.encoding(text, add_special_tokens=special)), names)
        encoding = self._tokenizer.located(text, add_special_tokens=special)
        self._check_longest(len(encoding), names)
        return Encoded(text, encoding.ids, encoding.offsets)

    def _check_longest(self, num_tokens: int, names: Names) -> None:
        """Check the length of a prompt alone, whatever is requested for it. Raises InvalidRequest."""
        if self._facts.generation:
            names.check_length(num_tokens, None, self.limits)
        else:
            self._check_text(num_tokens, names)

    def _tokenise(self, given: Text) -> Prompt:
        tokens, places, num_characters = self._tokens_of(given)
        if not tokens:
            raise InvalidRequest(f"`{given.names.prompt}` must hold at least one token, got none")
        if given.wish is not Wish.TEXT:
            self._check_text(len(tokens), given.names)
        else:
            given.names.check_length(len(tokens), given.max_new_tokens, self.limits)
        if max(tokens) >= self._facts.vocabulary_size:
            raise InvalidRequest(f"`{given.names.prompt}` holds token {max(tokens)}; this model knows those below "
                                 f"{self._facts.vocabulary_size}")
        names = block_hashes(given.namespace, tokens, self._facts.block_size) if given.namespace else ()
        return Prompt(tokens, given.namespace, names, num_characters, places)

    def _tokens_of(self, given: Text) -> tuple[tuple[int, ...], Places, int]:
        if isinstance(given.text, tuple):
            return given.text, (), 0
        is_rendered = isinstance(given.text, Conversation)  # the template has already added the special tokens
        text = self._render(given.text) if isinstance(given.text, Conversation) else given.text
        if given.wish is Wish.LABELS:
            located = self._tokenizer.located(text)
            places = tuple(None if mark else place for mark, place in zip(
                located.special_tokens_mask, located.offsets, strict=True))
            return tuple(located.ids), places, len(text)
        encoding = self._tokenizer.encoding(text, add_special_tokens=not is_rendered, last=given.truncate)
        return tuple(encoding.ids), (), len(text)

    def _render(self, conversation: Conversation) -> str:
        if self._template is None:
            raise TemplateFailed("this model has no chat template (chat_template.jinja), so it is not made for chats; "
                                 "send whole prompts to /generate")
        return self._template.render(conversation)

    def _check_text(self, num_tokens: int, names: Names) -> None:
        limit, why = self._longest_text
        if num_tokens > limit:
            raise InvalidRequest(f"`{names.prompt}` must have at most {limit} tokens ({why}), got {num_tokens}; a text "
                                 "is read as a whole, so shorten it", code=TOO_LONG)
