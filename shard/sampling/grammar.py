"""Grammars: which tokens may come next in sequences whose output is constrained.

Only rank 0, which chooses the tokens, needs this module, and the bytes of every token, read from the model's
tokenizer.json. A sequence keeps its match; one that re-enters with generated tokens is matched with them again.
"""

import logging
from pathlib import Path
from typing import Any

import torch
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from torch import Tensor

from shard.errors import Refused
from shard.state.sequence import Sequence

# Limits of the work for a single token, about 5 ms, and of a match's memory: the whole step waits for each match.
LIMITS: Any = {"step_lexer_fuel": 50_000, "step_max_items": 20_000, "max_lexer_states": 20_000}
# By the value of a byte: its bits from the lowest on, as eight bytes in one int64.
BYTES, BITS = torch.arange(256, dtype=torch.uint8), torch.arange(8, dtype=torch.uint8)
SPREAD = (BYTES[:, None] >> BITS & 1).view(torch.int64)[:, 0]

log = logging.getLogger(__name__)


class Table:
    """Bytes of all tokens, in the form that llguidance expects. One more token follows, which no model has: the end of
    the text. So the tokenizer's own end tokens do not matter."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokenizer: str, size: int) -> None:
        """Read a tokenizer. `tokenizer` is the text of its file, `size` the width of the logits. Raises ValueError."""
        self._tokenizer = LLTokenizer(tokenizer, slices=[])
        known = range(min(self._tokenizer.vocab_size, size))
        self.eos_token_id = size
        self.tokens = [self._tokenizer.decode_bytes([token]) for token in known] + [b""] * (size + 1 - len(known))
        self.special_token_ids = [*filter(self._tokenizer.is_special_token, known), size]
        self.compiled = LLTokenizer(self)  # type: ignore[arg-type]  # wants a class of its own, takes any like it

    def __call__(self, text: str) -> list[int]:
        """Tokenize forced text as the model's tokenizer does, unless its tokens are beyond the vocabulary or yield
        another text, such as one with a leading blank."""
        tokens = self._tokenizer.tokenize_str(text)
        if max(tokens, default=0) < self.eos_token_id and self._tokenizer.decode_bytes(tokens) == text.encode():
            return tokens
        return self.compiled.greedy_tokenize(text)


class Match:
    """Progress of a sequence in its grammar."""

    def __init__(self, matcher: LLMatcher, sequence: Sequence) -> None:
        self._matcher = matcher
        self._end_tokens = frozenset(sequence.sampling.end_tokens)
        matcher.consume_tokens(sequence.tokens[sequence.num_prompt_tokens:])

    def mask(self) -> bytes:
        """Return a bit for every token; none is set if the grammar allows no token."""
        mask = self._matcher.compute_bitmask()
        return bytes(len(mask)) if self._matcher.is_error() else mask

    def advance(self, token: int) -> bool:
        """Advance by a token and return whether it fits. An end token changes nothing: a step may be under way already.
        """
        return token in self._end_tokens or self._matcher.consume_token(token)


class Grammars:
    def __init__(self, table: Table) -> None:
        self._table = table
        self._loaded: dict[int, LLMatcher] = {}

    def load(self, number: int, source: str) -> None:
        """Compile a grammar, from any thread. Raises Refused."""
        matcher = LLMatcher(self._table.compiled, source, log_level=0, limits=LLParserLimits(**LIMITS))
        if matcher.is_error():
            raise Refused(f"grammar {number} cannot be loaded: {matcher.get_error().splitlines()[0]}")
        self._loaded[number] = matcher

    def unload(self, number: int) -> None:
        self._loaded.pop(number, None)

    def mask(self, logits: Tensor, sequences: list[Sequence]) -> set[int]:
        """Set logits [rows, vocabulary] of tokens that do not fit to -inf; rows without a grammar are not changed.
        Return the rows for which no token is left, whose logits are not changed either."""
        rows = [row for row, sequence in enumerate(sequences) if sequence.grammar]
        fitting = self._fitting([sequences[row] for row in rows])
        lost = {row for row, any_is in zip(rows, fitting.any(-1).tolist(), strict=True) if not any_is}
        for row, tokens in zip(rows, fitting.logical_not_().to(logits.device), strict=True):
            if row not in lost:
                logits[row].masked_fill_(tokens, -torch.inf)
        return lost

    def advance(self, sequence: Sequence, token: int) -> bool:
        """Advance the sequence's match by the chosen token and return whether it fits."""
        match: Match = sequence.memory
        return match.advance(token)

    def _fitting(self, sequences: list[Sequence]) -> Tensor:  # [rows, vocabulary] bool
        masks = bytearray().join([self._match(sequence).mask() for sequence in sequences])
        bits = torch.frombuffer(masks, dtype=torch.uint8).view(len(sequences), -1)
        fitting = SPREAD[bits.long()].view(torch.bool)
        size = self._table.eos_token_id
        for sequence, tokens in zip(sequences, fitting, strict=True):
            tokens[torch.tensor(sequence.sampling.end_tokens, dtype=torch.int64)] = tokens[size].clone()
        return fitting[:, :size]

    def _match(self, sequence: Sequence) -> Match:
        if sequence.memory is None:
            sequence.memory = Match(self._loaded[sequence.grammar].deep_copy(), sequence)
        match: Match = sequence.memory
        return match


def read_grammars(folder: Path, vocabulary_size: int) -> Grammars | None:
    """Read the model's tokenizer. Return None if it cannot be used: the model is then served without grammars."""
    try:
        return Grammars(Table((folder / "tokenizer.json").read_text(encoding="utf-8"), vocabulary_size))
    except (OSError, ValueError) as error:
        log.info("served without grammars: %s", error)
        return None
