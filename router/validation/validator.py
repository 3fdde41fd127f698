"""Validation of a client's parameters: checks every limit once, has the prompt tokenized, and builds the `Request`.
Messages use TGI's names of parameters, except for those in `DialectParameterNames`."""

import hashlib
import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from router.adapters.reference import MergedAdapterReference, RequestedAdapter, ResolvedAdapter
from router.adapters.registry import AdapterRegistry
from router.config import RouterConfig
from router.errors import InvalidRequest, TimedOut
from router.grammars.chat_grammar import ChatGrammar
from router.grammars.compiler_client import GrammarCompiler, ResumedTokenUnfit
from router.grammars.parameters import Grammar
from router.model_info import ModelInfo
from router.request import (
    LoadableResource,
    Request,
    RequestKind,
    SamplingParams,
    hash_namespace,
)
from router.text.chat_template import ChatTemplate
from router.text.output_formats import NO_ANSWER_BEGINNING, AnswerBeginning, ReasoningState
from router.text.prompt_encoder import EncodedPrompt, PromptEncoder, PromptInput, TokenOffsets, check_text
from router.text.tokenizer import ResumedText, Tokenizer
from router.validation.bounds import (
    MAX_PRIORITY,
    MAX_SALT_CHARACTERS,
    MAX_STOP_CHARACTERS,
    validate_bias,
    validate_fraction,
    validate_min_p,
    validate_penalty,
    validate_positive,
    validate_token_ids,
)

TOKEN_ID_PATTERN = re.compile(r"\d{1,10}", re.ASCII)
DEFAULT_MAX_TOP_N_TOKENS = RouterConfig().max_top_n_tokens
NO_ADAPTER_DIGEST = ""  # in a namespace, in place of an adapter's digest
KIND_DESCRIPTIONS = {
    RequestKind.GENERATE: ("generate text", "generates text (/generate, /v1/chat/completions)"),
    RequestKind.EMBED: ("make embeddings", "makes embeddings (/embed, /v1/embeddings)"),
    RequestKind.CLASSIFY: ("label tokens", "labels tokens (/classify)"),
}
# Fields of GenerationInput with a floating-point number, their names in messages, and their checks, in TGI's order.
FLOAT_PARAMETERS: tuple[tuple[str, str, Callable[[str, float], float]], ...] = (
    ("temperature", "temperature", validate_positive),
    ("repetition_penalty", "repetition_penalty", validate_positive),
    ("relative_frequency_penalty", "frequency_penalty", validate_penalty),
    ("frequency_penalty", "frequency_penalty", validate_penalty),
    ("presence_penalty", "presence_penalty", validate_penalty),
    ("top_p", "top_p", validate_fraction),
    ("typical_p", "typical_p", validate_fraction),
    ("min_p", "min_p", validate_min_p))
now = time.monotonic


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationInput(PromptInput):
    """Parameters of a client: their types are checked, their values are not. None means not given."""

    best_of: int | None = None
    num_choices: int = 1  # how many texts are generated and returned, whatever their logprobs
    greedy: bool = False  # no sampling, whatever else is given
    temperature: float | None = None
    repetition_penalty: float | None = None
    relative_frequency_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    typical_p: float | None = None
    min_p: float | None = None
    logit_bias: Mapping[str, float] = field(default_factory=dict)  # what is added to a token's logit, by its id
    allowed_token_ids: tuple[int, ...] | None = None  # the only ones that may be chosen
    min_tokens: int = 0  # before one that ends the text
    stop_token_ids: tuple[int, ...] = ()  # that end the text beside the model's end tokens, and are not part of it
    raw_logprobs: bool = False  # logprobs of the model's logits as they are
    do_sample: bool = False
    ignore_eos: bool = False  # generate past the model's end tokens
    stop_strings: tuple[str, ...] = ()
    watermark: bool = False
    seed: int | None = None
    top_n_tokens: int | None = None
    prompt_logprobs: bool = False
    num_prompt_top_tokens: int = 0  # best candidates wanted beside each prompt logprob
    grammar: Grammar | ChatGrammar | None = None
    adapter: RequestedAdapter | None = None
    cache_salt: str | None = None  # only requests with the same one share cached prompts
    priority: int = 0
    resume_token_ids: tuple[int, ...] = ()  # of the output, which the client has: only what follows them is streamed
    request_id: str | None = None
    deadline: float | None = None  # of time.monotonic

    def with_extra_stop_tokens(self, tokens: Sequence[int]) -> Self:
        """Return the input of a text that these tokens end, too, unless a grammar ends it."""
        return self if self.grammar is not None else replace(self, stop_token_ids=(*self.stop_token_ids, *tokens))

    @property
    def is_sampling(self) -> bool:
        """Whether tokens are sampled: any parameter that only has an effect on sampling switches it on."""
        return not self.greedy and (self.do_sample or self.temperature not in {None, 1.0} or any(
            value is not None for value in (self.top_k, self.top_p, self.typical_p)))


@dataclass(frozen=True, slots=True)
class ValidatedRequest:
    """One of the texts to generate for a client. `seed` reproduces the text; None if nothing is sampled."""

    request: Request
    seed: int | None
    num_prompt_characters: int = 0  # of the prompt's text
    adapter: ResolvedAdapter | None = None
    char_ranges: TokenOffsets = ()  # for classification: character ranges of the prompt's tokens
    answer_beginning: AnswerBeginning = NO_ANSWER_BEGINNING  # in a chat
    resumed_text: ResumedText | None = None  # of the request's `resumed_tokens`, if it has any


class RequestValidator:
    """Validator of the requests of all dialects. `close` ends its threads."""

    def __init__(self, config: RouterConfig, model_info: ModelInfo, tokenizer: Tokenizer,
                 chat_template: ChatTemplate | None = None,
                 get_resource: Callable[[str, str], LoadableResource] | None = None, *,
                 adapter_registry: AdapterRegistry | None = None) -> None:
        """`get_resource` returns the resource of a kind and a source. Grammars are served only with `get_resource`,
        adapters with `adapter_registry`."""
        self.tokenizer = tokenizer
        self.adapter_registry = adapter_registry
        self.chat_template = chat_template
        self.prompt_encoder = PromptEncoder(config, model_info, tokenizer, chat_template)
        self.limits = self.prompt_encoder.limits
        self.output_format = None if chat_template is None else chat_template.output_format  # of the answers in chats
        # without tool calls; None if the model does not set reasoning apart
        self.reasoning_format = None if chat_template is None else chat_template.reasoning_format
        self._config = config
        self._model_info = model_info
        self._supported_kinds = model_info.supported_kinds
        self._get_resource = get_resource
        self._grammar_compiler = GrammarCompiler(lambda: tokenizer.path_or_content)
        # Without those outside the model's vocabulary, which are no tokens to the shards.
        self._end_tokens = frozenset(token for token in tokenizer.end_tokens if token < model_info.vocabulary_size)

    async def validate(self, generation_input: GenerationInput) -> list[ValidatedRequest]:
        """Return the validated requests, one for each of `best_of` or `num_choices`. Raises InvalidRequest,
        ChatTemplateFailed, AdapterNotFound, AdapterLoadFailed, Overloaded or TimedOut."""
        kind = generation_input.kind
        if kind not in self._supported_kinds:
            supported_text = " and ".join(KIND_DESCRIPTIONS[other][1] for other in self._supported_kinds)
            raise InvalidRequest(f"this model does not {KIND_DESCRIPTIONS[kind][0]}; it {supported_text}")
        sampling = self._validate_parameters(generation_input)
        adapter = None
        if self.adapter_registry is not None:
            adapter = await self.adapter_registry.resolve(generation_input.adapter, generation_input.deadline,
                                                          generation_input.tenant)
        elif generation_input.adapter is not None:
            name = "merged_adapters" if isinstance(generation_input.adapter, MergedAdapterReference) else "adapter_id"
            raise InvalidRequest(f"`{name}` is given, but this model is served without adapters (--adapters); "
                                 "leave it out")
        cache_namespace = b""  # within which prompts share cached blocks; empty if they do not
        if self._config.cache_scope != "off" and kind is RequestKind.GENERATE:
            tenant = generation_input.tenant.name if self._config.cache_scope == "tenant" else ""
            cache_namespace = hash_namespace(tenant, NO_ADAPTER_DIGEST if adapter is None else adapter.digest,
                                             generation_input.cache_salt or "")
        prompt = await self.prompt_encoder.encode(generation_input, cache_namespace)
        grammar = await self._resolve_grammar(generation_input, prompt.answer_beginning.reasoning_state)
        choices = [self._make_validated_request(generation_input, sampling, prompt, adapter, grammar=grammar,
                                                cache_namespace=cache_namespace, index=index)
                   for index in range(generation_input.best_of or generation_input.num_choices)]
        if generation_input.resume_token_ids:
            return [await self._resume(choices[0], generation_input)]
        return choices

    def close(self) -> None:
        self.prompt_encoder.close()
        self._grammar_compiler.close()

    def _validate_parameters(self, generation_input: GenerationInput) -> SamplingParams:
        """Check everything that does not need the tokenized prompt, in TGI's order."""
        config, names, best_of = self._config, generation_input.parameter_names, generation_input.best_of or 1
        if best_of > config.max_best_of:
            raise InvalidRequest(f"`best_of` must be at most {config.max_best_of} (--max-best-of), got {best_of}")
        if best_of > 1 and not generation_input.is_sampling:
            raise InvalidRequest(f"`best_of` is {best_of}, but nothing is sampled: all choices would be the same; set "
                                 "`do_sample`, `temperature`, `top_k`, `top_p` or `typical_p`")
        max_choices = min(config.max_choices, config.max_concurrent_requests)
        if not 1 <= generation_input.num_choices <= max_choices:
            raise InvalidRequest(f"`n` must be at least 1 and at most {max_choices} (--max-choices, "
                                 f"--max-concurrent-requests), got {generation_input.num_choices}")
        sampling = self._make_sampling_params(generation_input)
        if generation_input.max_new_tokens == 0:
            raise InvalidRequest(f"`{names.max_new_tokens}` must be at least 1, got 0")
        self._check_stop_strings(names.stop, generation_input.stop_strings)
        self._check_stop_conditions(generation_input, sampling)
        if generation_input.seed is not None and best_of > 1:
            raise InvalidRequest("`seed` must not be given with `best_of` above 1: all choices would be the same")
        limit = (max(config.max_top_n_tokens, names.max_top_n_tokens)
                 if config.max_top_n_tokens == DEFAULT_MAX_TOP_N_TOKENS else config.max_top_n_tokens)
        if sampling.top_n_tokens > limit:
            raise InvalidRequest(f"`{names.top_n_tokens}` must be at most {limit} (--max-top-n-tokens), got "
                                 f"{sampling.top_n_tokens}")
        check_text(names.prompt, generation_input.prompt)
        max_input, truncate = self.limits.max_input_tokens, generation_input.truncate
        if truncate is not None and not 1 <= truncate <= max_input:
            raise InvalidRequest(f"`truncate` must be at least 1 and at most {max_input} (--max-input-tokens), "
                                 f"got {truncate}")
        check_text("cache_salt", generation_input.cache_salt, MAX_SALT_CHARACTERS)
        if generation_input.resume_token_ids:
            self._check_resumption(generation_input, sampling)
        if abs(generation_input.priority) > MAX_PRIORITY:
            raise InvalidRequest(f"`priority` must be at least {-MAX_PRIORITY} and at most {MAX_PRIORITY}, "
                                 f"got {generation_input.priority}")
        return sampling

    def _check_resumption(self, generation_input: GenerationInput, sampling: SamplingParams) -> None:
        """Check that a single text can go on behind the tokens that the client has of it. Raises InvalidRequest."""
        for name, number in (("best_of", generation_input.best_of or 1), ("n", generation_input.num_choices)):
            if number > 1:
                raise InvalidRequest(f"`{name}` must be 1 with `resume_token_ids`, got {number}: one text goes on")
        if sampling.temperature and generation_input.seed is None:
            raise InvalidRequest("`seed` must be given with `resume_token_ids` when tokens are sampled: the text goes "
                                 "on as it began only with the same one", param="seed")
        limit, vocabulary_size = self.limits.max_total_tokens, self._model_info.vocabulary_size
        if len(generation_input.resume_token_ids) > limit:
            raise InvalidRequest(f"`resume_token_ids` must hold at most {limit} tokens (--max-total-tokens), got "
                                 f"{len(generation_input.resume_token_ids)}", param="resume_token_ids")
        for token in (min(generation_input.resume_token_ids), max(generation_input.resume_token_ids)):
            if not 0 <= token < vocabulary_size:
                raise InvalidRequest(f"a token in `resume_token_ids` must be at least 0 and below {vocabulary_size}, "
                                     f"the size of the vocabulary, got {token}", param="resume_token_ids")

    async def _resume(self, choice: ValidatedRequest, generation_input: GenerationInput) -> ValidatedRequest:
        """Return the request to go on behind the tokens that the client has. Raises InvalidRequest if none may follow
        them."""
        request, tokens = choice.request, generation_input.resume_token_ids
        if len(tokens) >= request.max_new_tokens:
            raise InvalidRequest(
                f"`resume_token_ids` must hold fewer than `{generation_input.parameter_names.max_new_tokens}` tokens "
                f"({request.max_new_tokens}), got {len(tokens)}: the text is complete", param="resume_token_ids")
        if not request.end_tokens.isdisjoint(tokens):
            index = next(index for index, token in enumerate(tokens) if token in request.end_tokens)
            raise InvalidRequest(f"`resume_token_ids` holds a token that ends the text at index {index}, got "
                                 f"{tokens[index]}: the text is complete", param="resume_token_ids")
        text = await self.prompt_encoder.decode_resumed(request.prompt, tokens, request.tenant)
        searched_text = "".join(text.pieces[max(request.sampling.min_tokens - 1, 0):])
        for string in request.stop_strings:
            if string in searched_text:
                raise InvalidRequest(f"the text of `resume_token_ids` holds {string[:40]!a} of "
                                     f"`{generation_input.parameter_names.stop}`: the text is complete",
                                     param="resume_token_ids")
        return replace(choice, request=replace(request, resumed_tokens=tokens), resumed_text=text)

    def _make_sampling_params(self, generation_input: GenerationInput) -> SamplingParams:
        checked: dict[str, Any] = {}
        names = generation_input.parameter_names
        for field_name, name, check in FLOAT_PARAMETERS:
            if (value := getattr(generation_input, field_name)) is not None:
                checked[field_name] = check(names.repetition_penalty if name == "repetition_penalty" else name, value)
        if checked.get("repetition_penalty") == 1:
            del checked["repetition_penalty"]  # changes nothing
        checked["temperature"] = checked.get("temperature", 1.0) if generation_input.is_sampling else 0.0
        top_k = generation_input.top_k
        if top_k is not None and top_k <= 0:
            raise InvalidRequest(f"`top_k` must be at least 1, got {top_k}")
        if top_k is None or top_k >= self._model_info.vocabulary_size:
            top_k = 0  # keeps all
        return SamplingParams(**checked, **self._check_token_parameters(generation_input), top_k=top_k,
                              watermark=generation_input.watermark, raw_logprobs=generation_input.raw_logprobs,
                              top_n_tokens=generation_input.top_n_tokens or 0)

    def _check_token_parameters(self, generation_input: GenerationInput) -> dict[str, Any]:
        """Return the fields of `SamplingParams` that name tokens or count them. Raises InvalidRequest."""
        vocabulary_size, checked = self._model_info.vocabulary_size, dict[str, Any]()
        if generation_input.logit_bias:
            bias_by_token = check_logit_bias(generation_input.logit_bias, vocabulary_size)
            checked |= {"biased_tokens": tuple(bias_by_token), "biases": tuple(bias_by_token.values())}
        if generation_input.allowed_token_ids is not None:
            checked["allowed_tokens"] = validate_token_ids("allowed_token_ids", generation_input.allowed_token_ids,
                                                           vocabulary_size)
            if not checked["allowed_tokens"]:
                raise InvalidRequest("`allowed_token_ids` must hold at least one token, got none; leave it out to "
                                     "allow all")
        if generation_input.min_tokens:
            limit, limit_name = generation_input.max_new_tokens, generation_input.parameter_names.max_new_tokens
            if limit is not None and generation_input.min_tokens > limit:
                raise InvalidRequest(f"`min_tokens` must be at most `{limit_name}` ({limit}), "
                                     f"got {generation_input.min_tokens}")
            checked["min_tokens"] = generation_input.min_tokens
        return checked

    def _check_stop_strings(self, name: str, strings: tuple[str, ...]) -> None:
        limit = self._config.max_stop_sequences
        if len(strings) > limit:
            raise InvalidRequest(f"`{name}` must hold at most {limit} strings (--max-stop-sequences), "
                                 f"got {len(strings)}")
        for string in strings:
            check_text(name, string)
            if len(string) > MAX_STOP_CHARACTERS:
                raise InvalidRequest(f"a string in `{name}` must have at most {MAX_STOP_CHARACTERS} characters, "
                                     f"got {len(string)}", param=name)

    def _check_stop_conditions(self, generation_input: GenerationInput, sampling: SamplingParams) -> None:
        """Check that there is a token to choose in every step: what ends a text must go together."""
        grammar_name, stop_tokens = generation_input.parameter_names.grammar, generation_input.stop_token_ids
        if stop_tokens:
            validate_token_ids("stop_token_ids", stop_tokens, self._model_info.vocabulary_size)
        for name, is_given in (("stop_token_ids", stop_tokens), ("min_tokens", sampling.min_tokens),
                               ("allowed_token_ids", sampling.allowed_tokens)):
            if is_given and generation_input.grammar is not None:
                raise InvalidRequest(f"`{name}` and `{grammar_name}` are given, but a grammar alone says which tokens "
                                     "come and where the text ends; leave one of them out")
        if (sampling.min_tokens and sampling.allowed_tokens
            and self._end_tokens.union(stop_tokens).issuperset(sampling.allowed_tokens)):
            raise InvalidRequest("`allowed_token_ids` must hold a token that does not end the text, since `min_tokens` "
                                 f"is {sampling.min_tokens}")

    async def _resolve_grammar(self, generation_input: GenerationInput,
                               reasoning_state: ReasoningState) -> LoadableResource | None:
        if (grammar := generation_input.grammar) is None:
            return None
        if isinstance(grammar, ChatGrammar):
            grammar = grammar.to_output_grammar(reasoning_state)
        tokens = generation_input.resume_token_ids
        get_resource, reason = self._get_resource, ""
        if self._config.disable_grammar_support:
            reason = "grammars are switched off (--disable-grammar-support)"
        elif get_resource is None or not self._model_info.grammars:
            reason = "this model is served without grammars"
        elif not self._end_tokens:
            reason = "this model has no end token, so no answer could end where its grammar does"
        if reason or get_resource is None:
            raise InvalidRequest(f"`{generation_input.parameter_names.grammar}` is given, but {reason}; leave it out")
        name = generation_input.parameter_names.grammar
        try:
            return get_resource("grammar", await self._grammar_compiler.compile(
                replace(grammar, resumed_tokens=tokens), generation_input.tenant.name))
        except ResumedTokenUnfit as unfit:
            raise InvalidRequest(f"a token in `resume_token_ids` must fit `{name}`, got {tokens[unfit.index]} at index "
                                 f"{unfit.index}, which it does not allow there", param="resume_token_ids") from unfit
        except InvalidRequest as error:  # several requests may share one
            message = f"`{name}` is refused: {grammar.reference_fault}" if grammar.reference_fault else str(error)
            raise InvalidRequest(message, param=name) from error

    def _make_validated_request(self, generation_input: GenerationInput, sampling: SamplingParams,
                                prompt: EncodedPrompt, adapter: ResolvedAdapter | None, *,
                                grammar: LoadableResource | None, cache_namespace: bytes,
                                index: int) -> ValidatedRequest:
        is_generation = generation_input.kind is RequestKind.GENERATE
        num_tokens_left = self.limits.max_total_tokens - len(prompt.tokens) if is_generation else 0
        seed = generation_input.seed if sampling.temperature else None
        if sampling.temperature and seed is None:
            seed = secrets.randbits(53)  # which every JSON parser reads exactly
        request_id = generation_input.request_id or secrets.token_hex(16)
        request = Request(
            id=f"{request_id}-{index + 1}" if index else request_id,
            prompt=prompt.tokens,
            max_new_tokens=(num_tokens_left if generation_input.max_new_tokens is None
                            else min(generation_input.max_new_tokens, num_tokens_left)),
            sampling_key=0 if seed is None else make_sampling_key(seed, 0 if generation_input.seed is None else index),
            sampling=sampling,
            # With a grammar the text ends where the grammar does, even with `ignore_eos`.
            end_tokens=(frozenset() if generation_input.ignore_eos and grammar is None else self._end_tokens).union(
                generation_input.stop_token_ids),
            stop_strings=generation_input.stop_strings,
            prompt_logprobs=generation_input.prompt_logprobs,
            num_prompt_top_tokens=generation_input.num_prompt_top_tokens,
            priority=generation_input.priority,
            tenant=generation_input.tenant,
            timeout=require_remaining_seconds(generation_input.deadline),
            cache_namespace=cache_namespace,
            block_hashes=prompt.block_hashes,
            adapter=None if adapter is None else adapter.resource,
            grammar=grammar,
            adapter_name="" if adapter is None or adapter.is_private else adapter.name,
            kind=generation_input.kind,
        )
        return ValidatedRequest(request, seed, prompt.num_characters, adapter, prompt.token_offsets,
                                prompt.answer_beginning)


def check_logit_bias(logit_bias: Mapping[str, float], vocabulary_size: int) -> dict[int, float]:
    """Return the biases by token, in the order of the tokens. Raises InvalidRequest."""
    bias_by_token = dict[int, float]()
    for name, bias in logit_bias.items():
        if not TOKEN_ID_PATTERN.fullmatch(name):
            raise InvalidRequest(f"`logit_bias` must have ids of tokens as keys, got {name[:40]!a}", param="logit_bias")
        if int(name) in bias_by_token:
            raise InvalidRequest(f"`logit_bias` has the token {int(name)} twice; give it once")
        bias_by_token[int(name)] = validate_bias("logit_bias", bias)
    return {token: bias_by_token[token] for token in validate_token_ids("logit_bias", [*bias_by_token],
                                                                        vocabulary_size)}


def require_remaining_seconds(deadline: float | None) -> float | None:
    """Return the seconds that checking and tokenizing have left. Raises TimedOut if none are left."""
    if deadline is None:
        return None
    remaining = deadline - now()
    if remaining <= 0:
        raise TimedOut("its time ran out before it could wait for a shard")
    return remaining


def make_sampling_key(seed: int, choice_index: int) -> int:
    """Return the 64-bit key that all random draws of a request depend on; the same in every process."""
    hash_input = b"weft draw" + seed.to_bytes(8, "little") + choice_index.to_bytes(8, "little")
    return int.from_bytes(hashlib.sha256(hash_input).digest()[:8], "little")
