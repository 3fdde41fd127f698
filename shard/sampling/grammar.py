"""Grammars: which tokens may come next in sequences whose output is constrained.

Only rank 0, which chooses the tokens, needs this module, and the bytes of every token, read from the model's
tokenizer.json. A sequence keeps its match; one that re-enters with generated tokens is matched with them again.
"""

import logging
from pathlib import Path
from time import thread_time
from typing import Any

import torch
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from torch import Tensor

from shard.errors import RejectedMessage
from shard.state.sequence import Sequence

# Limits of the work for a single token, about 5 ms, and of a match's memory: the whole step waits for each match.
MATCHER_LIMITS: Any = {"step_lexer_fuel": 50_000, "step_max_items": 20_000, "max_lexer_states": 20_000}
# Processor time of a step for matching again what sequences have generated: together, and at least for each.
MAX_REMATCHING_SECONDS, MIN_REMATCHING_SECONDS = 0.5, 0.03
REMATCHED_PIECE_TOKENS = 4
# By the value of a byte: its bits from the lowest on, as eight bytes in one int64.
BYTE_VALUES, BIT_INDICES = torch.arange(256, dtype=torch.uint8), torch.arange(8, dtype=torch.uint8)
UNPACKED_BITS_BY_BYTE = (BYTE_VALUES[:, None] >> BIT_INDICES & 1).view(torch.int64)[:, 0]

# Text of the token that ends a grammar. With an empty text it would be the beginning of every special token, and fit
# wherever one of them does.
END_OF_GRAMMAR = b"end of the grammar"

logger = logging.getLogger(__name__)


class GrammarTokenizer:
    """Bytes of all tokens, in the form that llguidance expects. One more token follows, which no model has: the end of
    the text. So the tokenizer's own end tokens do not matter."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokenizer_json: str, vocabulary_size: int) -> None:
        """Read a tokenizer. `tokenizer_json` is the text of its file, `vocabulary_size` the width of the logits. Raises
        ValueError."""
        self._model_tokenizer = LLTokenizer(tokenizer_json, slices=[])
        known_tokens = range(min(self._model_tokenizer.vocab_size, vocabulary_size))
        self.eos_token_id = vocabulary_size
        self.tokens = ([self._model_tokenizer.decode_bytes([token]) for token in known_tokens]
                       + [b""] * (vocabulary_size - len(known_tokens)) + [END_OF_GRAMMAR])
        self.special_token_ids = [*filter(self._model_tokenizer.is_special_token, known_tokens), vocabulary_size]
        self._special_tokens = frozenset(self.special_token_ids)
        self.llguidance_tokenizer = LLTokenizer(self)  # type: ignore[arg-type]  # wants a class of its own, takes any like it

    def __call__(self, text: str) -> list[int]:
        """Tokenize forced text as the model's tokenizer does, unless its tokens are beyond the vocabulary, special,
        which no text is to llguidance, or yield another text, such as one with a leading blank."""
        tokens = self._model_tokenizer.tokenize_str(text)
        if (self._special_tokens.isdisjoint(tokens) and max(tokens, default=0) < self.eos_token_id
            and self._model_tokenizer.decode_bytes(tokens) == text.encode()):
            return tokens
        return self.llguidance_tokenizer.greedy_tokenize(text)


class GrammarState:
    """Progress of a sequence in its grammar."""

    def __init__(self, matcher: LLMatcher, sequence: Sequence, max_seconds: float) -> None:
        """Match the tokens that the sequence has generated. If that takes more than `max_seconds` of the processor, the
        grammar allows no further token."""
        self._matcher = matcher
        self._end_tokens = frozenset(sequence.sampling.end_tokens)
        tokens, deadline = sequence.tokens[sequence.num_prompt_tokens:], thread_time() + max_seconds
        self._is_lost = False
        for start in range(0, len(tokens), REMATCHED_PIECE_TOKENS):
            if thread_time() > deadline:
                self._is_lost = True
                break
            matcher.consume_tokens(tokens[start:start + REMATCHED_PIECE_TOKENS])

    def compute_bitmask(self) -> bytes:
        """Return a bit for every token; none is set if the grammar allows no token."""
        mask = self._matcher.compute_bitmask()
        return bytes(len(mask)) if self._is_lost or self._matcher.is_error() else mask

    def advance(self, token: int) -> bool:
        """Advance by a token and return whether it fits. An end token changes nothing: a step may be under way already.
        """
        return token in self._end_tokens or self._matcher.consume_token(token)


class GrammarRegistry:
    """Loaded grammars, and the masks that they put on logits."""

    def __init__(self, tokenizer: GrammarTokenizer) -> None:
        self._tokenizer = tokenizer
        self._matchers: dict[int, LLMatcher] = {}

    def load(self, grammar_id: int, source: str) -> None:
        """Compile a grammar, from any thread. Raises RejectedMessage."""
        matcher = LLMatcher(self._tokenizer.llguidance_tokenizer, source, log_level=0,
                            limits=LLParserLimits(**MATCHER_LIMITS))
        if matcher.is_error():
            raise RejectedMessage(f"grammar {grammar_id} cannot be loaded: {matcher.get_error().splitlines()[0]}")
        self._matchers[grammar_id] = matcher

    def unload(self, grammar_id: int) -> None:
        self._matchers.pop(grammar_id, None)

    def mask_logits(self, logits: Tensor, sequences: list[Sequence]) -> set[int]:
        """Set logits [rows, vocabulary] of tokens that do not fit to -inf; rows without a grammar are not changed.
        Return the rows for which no token is left, whose logits are not changed either."""
        rows = [row for row, sequence in enumerate(sequences) if sequence.grammar_id]
        is_allowed = self._compute_allowed_tokens([sequences[row] for row in rows])
        dead_rows = {row for row, has_token in zip(rows, is_allowed.any(-1).tolist(), strict=True) if not has_token}
        for row, tokens in zip(rows, is_allowed.logical_not_().to(logits.device), strict=True):
            if row not in dead_rows:
                logits[row].masked_fill_(tokens, -torch.inf)
        return dead_rows

    def advance(self, sequence: Sequence, token: int) -> bool:
        """Advance the sequence's match by the chosen token and return whether it fits."""
        state: GrammarState = sequence.worker_state
        return state.advance(token)

    def _compute_allowed_tokens(self, sequences: list[Sequence]) -> Tensor:  # [rows, vocabulary] bool
        rematching_ends_at = thread_time() + MAX_REMATCHING_SECONDS
        for sequence in sequences:
            if sequence.worker_state is None:
                sequence.worker_state = GrammarState(self._matchers[sequence.grammar_id].deep_copy(), sequence,
                                                     max(rematching_ends_at - thread_time(), MIN_REMATCHING_SECONDS))
        masks = bytearray().join([sequence.worker_state.compute_bitmask() for sequence in sequences])
        bits = torch.frombuffer(masks, dtype=torch.uint8).view(len(sequences), -1)
        is_allowed = UNPACKED_BITS_BY_BYTE[bits.long()].view(torch.bool)
        vocabulary_size = self._tokenizer.eos_token_id
        for sequence, tokens in zip(sequences, is_allowed, strict=True):
            tokens[torch.tensor(sequence.sampling.end_tokens, dtype=torch.int64)] = tokens[vocabulary_size].clone()
        return is_allowed[:, :vocabulary_size]


def make_grammar_registry(folder: Path, vocabulary_size: int) -> GrammarRegistry | None:
    """Read the model's tokenizer. Return None if it cannot be used: the model is then served without grammars."""
    try:
        return GrammarRegistry(GrammarTokenizer((folder / "tokenizer.json").read_text(encoding="utf-8"),
                                                vocabulary_size))
    except (OSError, ValueError) as error:
        logger.info("served without grammars: %s", error)
        return None
