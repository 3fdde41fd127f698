"""Small tokenizers, one for each way in which models decode tokens, and the text that they must decode to."""

import codecs
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from router.text.tokenizer import REPLACEMENT_CHARACTER, Tokenizer, byte_level_alphabet

UNKNOWN_TOKEN = 60_000  # a token that no vocabulary has
VOCABULARY_WORDS = ("warp", "weft", "s", "é", "織", "🧵", ".", "!", "'", "n't")


@dataclass(frozen=True, slots=True)
class TokenizerCase:
    """A tokenizer, the tokens that tests draw from, and `reference_decode`, a decoder independent of ours where there
    is one."""

    tokenizer: Tokenizer
    tokens: tuple[int, ...]
    reference_decode: Callable[[Sequence[int]], str]

    @property
    def whole_character_tokens(self) -> tuple[int, ...]:
        """Tokens whose text consists of whole characters."""
        special = self.tokenizer.special_tokens | {UNKNOWN_TOKEN}
        return tuple(token for token in self.tokens
                     if token not in special and REPLACEMENT_CHARACTER not in self.tokenizer.decode_token(token))


def make_tokenizer_case(tokenizer: tokenizers.Tokenizer,
                        reference_decode: Callable[[Sequence[int]], str] | None = None) -> TokenizerCase:
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True, normalized=False)])
    tokenizer.add_tokens([AddedToken("<plan>", normalized=False), AddedToken("ß", normalized=False)])
    wrapped = Tokenizer(tokenizer, end_tokens=[])
    return TokenizerCase(wrapped, (*range(tokenizer.get_vocab_size()), UNKNOWN_TOKEN),
                         reference_decode or wrapped.decode)


def number_texts(texts: Iterable[str]) -> dict[str, int]:
    return {text: number for number, text in enumerate(dict.fromkeys(texts))}


def make_byte_level_case() -> TokenizerCase:
    """Return a tokenizer like that of GPT-2 and Llama 3: tokens are byte strings, cut also within characters."""
    letter = {byte: letter for letter, byte in byte_level_alphabet().items()}
    whole_pieces = [*VOCABULARY_WORDS, " warp", " weft", "\n\n", " ", "é 織", REPLACEMENT_CHARACTER]
    partial_pieces = [b" \xe7", b"\xb9", b"\xb9\x94", b"\x94", b"\xc3", b"\xa9\xc3", b"\xa9", b"\xf0\x9f", b"\x9f\xa7",
                      b"\xb5", b"\xff"]
    pieces = [*(piece.encode() for piece in whole_pieces), *partial_pieces]
    vocabulary = number_texts("".join(letter[byte] for byte in piece) for piece in pieces)
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return make_tokenizer_case(tokenizer)


def make_sentencepiece_case() -> TokenizerCase:
    """Return a tokenizer like that of Llama 2: a blank belongs to the word after it, and characters fall back to bytes.

    The blank before the first word is dropped.
    """
    pieces = ["<unk>", "▁", "▁▁", *VOCABULARY_WORDS, *(f"▁{word}" for word in VOCABULARY_WORDS), "we▁ft",
              REPLACEMENT_CHARACTER]
    vocabulary = number_texts([*pieces, *(f"<0x{byte:02X}>" for byte in range(256))])
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence([
        decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    bytes_ = "a\n é織🧵".encode() + b"\xff\xc3\xe7"
    case = make_tokenizer_case(tokenizer, lambda ids: decode_like_sentencepiece(tokenizer, ids))
    ordinary_tokens = (token for token in case.tokens if not (tokenizer.id_to_token(token) or "").startswith("<0x"))
    return TokenizerCase(case.tokenizer, (*ordinary_tokens, *(vocabulary[f"<0x{byte:02X}>"] for byte in bytes_)),
                         case.reference_decode)


def decode_like_sentencepiece(tokenizer: tokenizers.Tokenizer, ids: Sequence[int]) -> str:
    """Decode as sentencepiece itself does: only an invalid byte becomes a replacement character.

    The tokenizers library replaces the whole run of bytes around an invalid one.
    """
    special = {token for token, added in tokenizer.get_added_tokens_decoder().items() if added.special}
    names = [tokenizer.id_to_token(token) for token in ids if token not in special]
    return b"".join(map(get_token_bytes, filter(None, names))).decode(errors="each broken byte").removeprefix(" ")


def get_token_bytes(name: str) -> bytes:
    return bytes.fromhex(name[3:5]) if name.startswith("<0x") else name.replace("▁", " ").encode()


# type: ignore[attr-defined]
codecs.register_error("each broken byte", lambda error: (REPLACEMENT_CHARACTER, error.start + 1))


def make_unigram_case() -> TokenizerCase:
    """Return a tokenizer like that of T5: as `make_sentencepiece_case`, but without byte tokens."""
    pieces = ["<unk>", "▁", "▁▁", *VOCABULARY_WORDS, *(f"▁{word}" for word in VOCABULARY_WORDS), REPLACEMENT_CHARACTER]
    tokenizer = tokenizers.Tokenizer(models.Unigram([(piece, -1.0) for piece in pieces], 0, byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return make_tokenizer_case(tokenizer)


def make_wordpiece_case() -> TokenizerCase:
    """Return a tokenizer like that of BERT: blanks between words, but not before `##` pieces and some punctuation."""
    marks = [",", "?", "'s", "'re", "do", "not", "do not", REPLACEMENT_CHARACTER]
    pieces = ["[UNK]", *VOCABULARY_WORDS, *(f"##{word}" for word in VOCABULARY_WORDS), *marks]
    tokenizer = tokenizers.Tokenizer(models.WordPiece(vocab=number_texts(pieces), unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=True)
    return make_tokenizer_case(tokenizer)


TOKENIZER_CASES = {"byte-level": make_byte_level_case(), "sentencepiece": make_sentencepiece_case(),
                   "unigram": make_unigram_case(), "wordpiece": make_wordpiece_case()}
