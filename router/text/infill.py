"""Prompts that fill in the middle: the texts before and behind a place, each after the token that models were trained
with."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from router.errors import InvalidRequest
from router.text.tokenizer import Tokenizer

# Tokens before the text that precedes the place, before the text behind it, and before what fills it.
INFILL_MARKS: Sequence[tuple[str, str, str]] = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen2.5-Coder, CodeGemma
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    ("\u2581<PRE>", "\u2581<SUF>", "\u2581<MID>"),  # CodeLlama
    ("<\uff5cfim\u2581begin\uff5c>", "<\uff5cfim\u2581hole\uff5c>", "<\uff5cfim\u2581end\uff5c>"),  # DeepSeek-Coder
)
# Tokens with which models end what fills the place, beside those that end any text.
INFILL_ENDS = ("\u2581<EOT>", "<|fim_pad|>", "<fim_pad>", "<fim-pad>", "<|file_sep|>", "<file_sep>",
               "<|file_separator|>", "<|repo_name|>", "<|endoftext|>")
SENTENCEPIECE_SPACE = "\u2581"


@dataclass(frozen=True, slots=True)
class InfillPrompt:
    """The texts around a place that the model fills."""

    prefix: str
    suffix: str

    def __len__(self) -> int:
        return len(self.prefix) + len(self.suffix)


@dataclass(frozen=True, slots=True)
class InfillEncoder:
    """Encoder of such prompts for a tokenizer that has the tokens."""

    marks: tuple[int, int, int]
    end_tokens: tuple[int, ...]
    tokenizer: Tokenizer
    adds_space: bool  # whether the tokenizer puts a space before every text

    @classmethod
    def create_if_supported(cls, tokenizer: Tokenizer, vocabulary_size: int) -> Self | None:
        """Return the encoder for a model; None if its vocabulary lacks the tokens."""
        def find_tokens(names: Sequence[str]) -> list[int]:
            tokens = map(tokenizer.token_to_id, names)
            return [token for token in tokens if token is not None and token < vocabulary_size]

        for names in INFILL_MARKS:
            match find_tokens(names):
                case [prefix, suffix, middle]:
                    marks = (prefix, suffix, middle)
                    return cls(marks, (*marks, *find_tokens(INFILL_ENDS)), tokenizer,
                               names[0].startswith(SENTENCEPIECE_SPACE))
        return None

    def encode(self, prompt: InfillPrompt) -> tuple[int, ...]:
        """Return the tokens of the prompt, behind those that begin any text of the model."""
        prefix_mark, suffix_mark, middle_mark = self.marks
        return (*self.tokenizer.tokenize("").ids, prefix_mark, *self._encode_text(prompt.prefix),
                suffix_mark, *self._encode_suffix(prompt.suffix), middle_mark)

    def _encode_text(self, text: str) -> Sequence[int]:
        return self.tokenizer.tokenize(text, add_special_tokens=False).ids

    def _encode_suffix(self, text: str) -> Sequence[int]:
        """Return the tokens of a text that continues another: without the space that the tokenizer puts before it,
        which CodeLlama was not trained with. A line break before the text takes that space, and is a token itself."""
        if not self.adds_space:
            return self._encode_text(text)
        before, tokens = self._encode_text("\n"), self._encode_text(f"\n{text}")
        return tokens[len(before):] if tokens[:len(before)] == before else self._encode_text(text)


def require_infill(encoder: InfillEncoder | None) -> InfillEncoder:
    """Return the encoder if there is one. Raises InvalidRequest."""
    if encoder is None:
        raise InvalidRequest("`suffix` is given, but this model does not support insert: its tokenizer has no tokens "
                             f"around a place to fill, such as {INFILL_MARKS[0][2]}; leave it out")
    return encoder
