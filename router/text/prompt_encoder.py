"""Encoding of prompts (texts, conversations or token ids): tokens, length limits, and hashes of the cache blocks.
Conversations and long prompts are encoded in threads, off the event loop."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Self, TypeVar

from router.config import RouterConfig
from router.errors import ChatTemplateFailed, InvalidRequest, RetryableStartupError
from router.model_info import ModelInfo
from router.request import DEFAULT_TENANT, FairThreadPool, RequestKind, Tenant, hash_blocks
from router.text.chat_template import ChatTemplate, Conversation
from router.text.infill import InfillEncoder, InfillPrompt, require_infill
from router.text.output_formats import NO_ANSWER_BEGINNING, AnswerBeginning
from router.text.tokenizer import ResumedText, Tokenizer

T = TypeVar("T")
# Only this many of `max_new_tokens` have to fit after the prompt: larger values are cut to what is left, and the text
# then finishes with `length`. Clients of TGI rely on asking for more than fits.
MAX_REQUIRED_NEW_TOKENS = 1024
MAX_INLINE_RESUMED_TOKENS = 64  # that are decoded on the event loop
CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"  # OpenAI's code, on which clients shorten the prompt
MAX_INLINE_CHARACTERS = 512  # of a prompt that is encoded without a thread


@dataclass(frozen=True, slots=True)
class TokenLimits:
    """Maximum numbers of tokens in a prompt and in a request, as configured or as model and cache allow."""

    max_input_tokens: int
    max_total_tokens: int

    @classmethod
    def from_config(cls, config: RouterConfig, model_info: ModelInfo) -> Self:
        if not model_info.generation:
            return cls(*[find_pooling_limit(config, model_info)[0]] * 2)
        # A step that may generate several tokens needs slots for all of them, and so does every step in flight.
        num_spare_tokens = config.look_ahead * (model_info.tokens_per_step - 1)
        max_fitting = min(model_info.max_positions, model_info.num_blocks * model_info.block_size - num_spare_tokens)
        max_total = config.max_total_tokens or max_fitting
        is_fixed = config.max_batch_total_tokens is not None  # else the cache is as large as free memory allows
        if max_total > max_fitting:
            error_type = ValueError if is_fixed or max_total > model_info.max_positions else RetryableStartupError
            raise error_type(
                f"--max-total-tokens is {max_total}, but model and cache can hold {max_fitting} tokens; lower it")
        max_input = config.max_input_tokens or max_total - 1
        if max_input >= max_total:
            error_type = ValueError if is_fixed or max_input >= model_info.max_positions else RetryableStartupError
            raise error_type(f"--max-input-tokens is {max_input}, it must be below --max-total-tokens ({max_total})")
        return cls(max_input_tokens=max_input, max_total_tokens=max_total)


def find_pooling_limit(config: RouterConfig, model_info: ModelInfo) -> tuple[int, str]:
    """Return the maximum number of tokens of a text to embed or classify, and what limits it."""
    limits = [(model_info.max_positions, "what the model holds"),
              (config.max_batch_prefill_tokens, "--max-batch-prefill-tokens")]
    if config.max_input_tokens is not None:
        limits.append((config.max_input_tokens, "--max-input-tokens"))
    return min(limits)


@dataclass(frozen=True, slots=True)
class DialectParameterNames:
    """A dialect's names of request parameters, as error messages show them, and its own limits of lengths and
    alternatives."""

    prompt: str = "inputs"
    max_new_tokens: str = "max_new_tokens"
    truncate: str = "truncate"  # empty if the dialect cannot truncate prompts
    top_n_tokens: str = "top_n_tokens"
    grammar: str = "grammar"
    stop: str = "stop"
    repetition_penalty: str = "repetition_penalty"
    max_top_n_tokens: int = 0  # that the dialect itself promises, also beyond --max-top-n-tokens
    max_required_new_tokens: int = MAX_REQUIRED_NEW_TOKENS

    def answer_format_parameter(self, openai_name: str) -> str:
        """Return the name of a field of OpenAI's chats that holds the format of the answer."""
        return self.grammar if openai_name == "response_format" else openai_name

    def check_prompt_length(self, num_tokens: int, max_new_tokens: int | None, limits: TokenLimits) -> None:
        """Check the length of a prompt and of the text generated after it. Raises InvalidRequest."""
        truncate_hint = f", or set `{self.truncate}`" if self.truncate else ""
        num_required = min(max_new_tokens or 0, self.max_required_new_tokens)
        if num_required and num_tokens + num_required > limits.max_total_tokens:
            raise InvalidRequest(
                f"`{self.prompt}` ({num_tokens} tokens) and `{self.max_new_tokens}` ({max_new_tokens}) must be at most "
                f"{limits.max_total_tokens} together (--max-total-tokens); shorten one{truncate_hint}",
                code=CONTEXT_LENGTH_EXCEEDED)
        if num_tokens > limits.max_input_tokens:
            raise InvalidRequest(f"`{self.prompt}` must have at most {limits.max_input_tokens} tokens "
                                 f"(--max-input-tokens), got {num_tokens}; shorten it{truncate_hint}",
                                 code=CONTEXT_LENGTH_EXCEEDED)


TGI_PARAMETER_NAMES = DialectParameterNames()
# Token ids if the client has tokenized the prompt.
RawPrompt = str | Conversation | InfillPrompt | tuple[int, ...]
TokenOffsets = tuple[tuple[int, int] | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptInput:
    """The part of a client's parameters that the encoding of the prompt depends on. None means not given."""

    prompt: RawPrompt
    kind: RequestKind = RequestKind.GENERATE
    parameter_names: DialectParameterNames = TGI_PARAMETER_NAMES
    tenant: Tenant = DEFAULT_TENANT
    truncate: int | None = None
    max_new_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    tokens: tuple[int, ...]
    block_hashes: tuple[bytes, ...]  # of the prompt's full blocks; empty if they are not shared
    num_characters: int  # of its text
    token_offsets: TokenOffsets = ()  # for classification: character range of each token, None for special tokens
    answer_beginning: AnswerBeginning = NO_ANSWER_BEGINNING  # in a chat


@dataclass(frozen=True, slots=True)
class TokenizedText:
    """Text with its tokens and their character ranges: the index of the first character and the one after the last."""

    text: str
    token_ids: Sequence[int]
    offsets: Sequence[tuple[int, int]]


class PromptEncoder:
    """Encoder of prompts. `close` ends its threads."""

    def __init__(self, config: RouterConfig, model_info: ModelInfo, tokenizer: Tokenizer,
                 chat_template: ChatTemplate | None = None) -> None:
        self.limits = TokenLimits.from_config(config, model_info)
        self.infill = InfillEncoder.create_if_supported(tokenizer, model_info.vocabulary_size)
        self._tokenizer = tokenizer
        self._chat_template = chat_template
        self._model_info = model_info
        self._pooling_limit = find_pooling_limit(config, model_info)
        self._thread_pool = FairThreadPool(config.validation_workers, config.max_concurrent_requests,
                                           "tokenizer", "prompts wait to be tokenized")

    def close(self) -> None:
        if self._chat_template is not None:
            self._chat_template.close()
        self._thread_pool.close()

    async def encode(self, prompt_input: PromptInput, cache_namespace: bytes) -> EncodedPrompt:
        """Encode a prompt. Prompts of the same namespace share cached blocks; if it is empty, nothing is shared."""
        work = partial(self._encode_prompt, prompt_input, cache_namespace)
        return work() if is_short(prompt_input.prompt) else await self._thread_pool.run(work, prompt_input.tenant)

    async def tokenize_and_call(self, prompt: str | Conversation, parameter_names: DialectParameterNames,
                                render: Callable[[TokenizedText], T], *, tenant: Tenant = DEFAULT_TENANT,
                                add_special_tokens: bool = True) -> T:
        """Tokenize a prompt and return `render` of it, in the same thread: rendering takes longer than tokenizing.
        Raises InvalidRequest, ChatTemplateFailed or Overloaded."""
        check_text(parameter_names.prompt, prompt)
        adds_special_tokens = add_special_tokens and not isinstance(prompt, Conversation)
        check_length = partial(self._check_length, parameter_names, is_pooling=not self._model_info.generation)

        def work() -> T:
            text = self._render_text(prompt)
            if len(text) > self.limits.max_input_tokens:  # counting tokens is three times as fast as locating them
                check_length(len(self._tokenizer.tokenize(text, add_special_tokens=adds_special_tokens)))
            encoding = self._tokenizer.tokenize_with_offsets(text, add_special_tokens=adds_special_tokens)
            check_length(len(encoding))
            return render(TokenizedText(text, encoding.ids, encoding.offsets))

        return work() if is_short(prompt) else await self._thread_pool.run(work, tenant)

    async def detokenize(self, name: str, tokens: tuple[int, ...], tenant: Tenant = DEFAULT_TENANT) -> str:
        """Return the text of tokens, special ones included. `name`: of the parameter. Raises InvalidRequest or
        Overloaded."""
        limit = self.limits.max_total_tokens
        if len(tokens) > limit:
            raise InvalidRequest(f"`{name}` must hold at most {limit} tokens (--max-total-tokens), got {len(tokens)}")
        self._check_vocabulary(name, tokens)
        work = partial(self._tokenizer.decode, tokens, skip_special=False)
        return work() if is_short(tokens) else await self._thread_pool.run(work, tenant)

    async def decode_resumed(self, prompt: tuple[int, ...], tokens: tuple[int, ...], tenant: Tenant) -> ResumedText:
        """Decode the first tokens of an output that continues after them. Raises Overloaded."""
        work = partial(self._tokenizer.decode_resumed, prompt, tokens)
        is_inline = len(tokens) <= MAX_INLINE_RESUMED_TOKENS
        return work() if is_inline else await self._thread_pool.run(work, tenant)

    def _encode_prompt(self, prompt_input: PromptInput, cache_namespace: bytes) -> EncodedPrompt:
        prompt, parameter_names = prompt_input.prompt, prompt_input.parameter_names
        text = "" if isinstance(prompt, tuple | InfillPrompt) else self._render_text(prompt)
        check_text(parameter_names.prompt, text, may_be_empty=True)  # a template may decode what was escaped in JSON
        token_offsets: TokenOffsets = ()
        if isinstance(prompt, tuple):
            tokens = prompt
        elif isinstance(prompt, InfillPrompt):
            tokens = require_infill(self.infill).encode(prompt)
        elif prompt_input.kind is RequestKind.CLASSIFY:
            encoding = self._tokenizer.tokenize_with_offsets(text)
            tokens = tuple(encoding.ids)
            token_offsets = tuple(None if is_special else char_range for is_special, char_range in zip(
                encoding.special_tokens_mask, encoding.offsets, strict=True))
        else:  # a template has already added the special tokens
            tokens = tuple(self._tokenizer.tokenize(text, add_special_tokens=not isinstance(prompt, Conversation),
                                                    keep_last=prompt_input.truncate).ids)
        if not tokens:
            raise InvalidRequest(f"`{parameter_names.prompt}` must hold at least one token, got none")
        self._check_length(parameter_names, len(tokens), prompt_input.max_new_tokens,
                           is_pooling=prompt_input.kind is not RequestKind.GENERATE)
        self._check_vocabulary(parameter_names.prompt, tokens)
        hashes = hash_blocks(cache_namespace, tokens, self._model_info.block_size) if cache_namespace else ()
        num_characters = len(prompt) if isinstance(prompt, InfillPrompt) else len(text)
        return EncodedPrompt(tokens, hashes, num_characters, token_offsets, self._find_answer_beginning(prompt, text))

    def _find_answer_beginning(self, prompt: RawPrompt, text: str) -> AnswerBeginning:
        if self._chat_template is None or not isinstance(prompt, Conversation):
            return NO_ANSWER_BEGINNING
        return self._chat_template.find_begun_answer(prompt, text)

    def _check_vocabulary(self, name: str, tokens: tuple[int, ...]) -> None:
        if (largest := max(tokens, default=0)) >= self._model_info.vocabulary_size:
            raise InvalidRequest(f"`{name}` holds token {largest}; this model knows those below "
                                 f"{self._model_info.vocabulary_size}")

    def _render_text(self, prompt: str | Conversation) -> str:
        if isinstance(prompt, str):
            return prompt
        if self._chat_template is None:
            raise ChatTemplateFailed(
                "this model has no chat template (chat_template.jinja), so it is not made for chats; "
                "send whole prompts to /generate")
        return self._chat_template.render(prompt)

    def _check_length(self, parameter_names: DialectParameterNames, num_tokens: int, max_new_tokens: int | None = None,
                      *, is_pooling: bool) -> None:
        limit, why = self._pooling_limit
        if not is_pooling:
            parameter_names.check_prompt_length(num_tokens, max_new_tokens, self.limits)
        elif num_tokens > limit:
            raise InvalidRequest(
                f"`{parameter_names.prompt}` must have at most {limit} tokens ({why}), got {num_tokens}; a text "
                "is read as a whole, so shorten it", code=CONTEXT_LENGTH_EXCEEDED)


def is_short(prompt: RawPrompt) -> bool:
    """Return whether a prompt is encoded in less time than it takes to hand it to a thread."""
    return not isinstance(prompt, Conversation) and len(prompt) <= MAX_INLINE_CHARACTERS


def check_text(name: str, text: object, max_characters: int | None = None, *, may_be_empty: bool = False) -> None:
    """Check a parameter if it holds a text. Raises InvalidRequest."""
    if not isinstance(text, str):
        return
    if not text and not may_be_empty:
        raise InvalidRequest(f"`{name}` must not be an empty string")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(f"`{name}` holds half of a surrogate pair, which is no character") from None
    if max_characters is not None and len(text) > max_characters:
        raise InvalidRequest(f"`{name}` must have at most {max_characters} characters, got {len(text)}")
