"""Small tokenizers, one for each way in which models decode tokens, and the text that they must decode to."""

import codecs
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from router.text.tokenizer import REPLACEMENT, Tokenizer, byte_letters

UNKNOWN = 60_000  # a token that no vocabulary has
WORDS = ("warp", "weft", "s", "é", "織", "🧵", ".", "!", "'", "n't")


@dataclass(frozen=True, slots=True)
class Style:
    """A tokenizer, the tokens that tests draw from, and `text`, a decoder independent of ours where there is one."""

    tokenizer: Tokenizer
    tokens: tuple[int, ...]
    text: Callable[[Sequence[int]], str]

    @property
    def whole(self) -> tuple[int, ...]:
        """Tokens whose text consists of whole characters."""
        special = self.tokenizer.special | {UNKNOWN}
        return tuple(token for token in self.tokens
                     if token not in special and REPLACEMENT not in self.tokenizer.token_text(token))


def style(tokenizer: tokenizers.Tokenizer, text: Callable[[Sequence[int]], str] | None = None) -> Style:
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True, normalized=False)])
    tokenizer.add_tokens([AddedToken("<plan>", normalized=False), AddedToken("ß", normalized=False)])
    made = Tokenizer(tokenizer, end_tokens=[])
    return Style(made, (*range(tokenizer.get_vocab_size()), UNKNOWN), text or made.decode)


def numbered(texts: Iterable[str]) -> dict[str, int]:
    return {text: number for number, text in enumerate(dict.fromkeys(texts))}


def byte_level() -> Style:
    """Return a tokenizer like that of GPT-2 and Llama 3: tokens are byte strings, cut also within characters."""
    letter = {byte: letter for letter, byte in byte_letters().items()}
    whole = [*WORDS, " warp", " weft", "\n\n", " ", "é 織", REPLACEMENT]
    parts = [b" \xe7", b"\xb9", b"\xb9\x94", b"\x94", b"\xc3", b"\xa9\xc3", b"\xa9", b"\xf0\x9f", b"\x9f\xa7", b"\xb5",
             b"\xff"]
    pieces = [*(piece.encode() for piece in whole), *parts]
    vocabulary = numbered("".join(letter[byte] for byte in piece) for piece in pieces)
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return style(tokenizer)


def sentencepiece() -> Style:
    """Return a tokenizer like that of Llama 2: a blank belongs to the word after it, and characters fall back to bytes.

    The blank before the first word is dropped.
    """
    pieces = ["<unk>", "▁", "▁▁", *WORDS, *(f"▁{word}" for word in WORDS), "we▁ft", REPLACEMENT]
    vocabulary = numbered([*pieces, *(f"<0x{byte:02X}>" for byte in range(256))])
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence([
        decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    bytes_ = "a\n é織🧵".encode() + b"\xff\xc3\xe7"
    made = style(tokenizer, lambda ids: as_sentencepiece(tokenizer, ids))
    ordinary = (token for token in made.tokens if not (tokenizer.id_to_token(token) or "").startswith("<0x"))
    return Style(made.tokenizer, (*ordinary, *(vocabulary[f"<0x{byte:02X}>"] for byte in bytes_)), made.text)


def as_sentencepiece(tokenizer: tokenizers.Tokenizer, ids: Sequence[int]) -> str:
    """Decode as sentencepiece itself does: only an invalid byte becomes a replacement character.

    The tokenizers library replaces the whole run of bytes around an invalid one.
    """
    special = {token for token, added in tokenizer.get_added_tokens_decoder().items() if added.special}
    names = [tokenizer.id_to_token(token) for token in ids if token not in special]
    return b"".join(map(bytes_of, filter(None, names))).decode(errors="each broken byte").removeprefix(" ")


def bytes_of(name: str) -> bytes:
    return bytes.fromhex(name[3:5]) if name.startswith("<0x") else name.replace("▁", " ").encode()


codecs.register_error("each broken byte", lambda error: (REPLACEMENT, error.start + 1))  # type: ignore[attr-defined]


def unigram() -> Style:
    """Return a tokenizer like that of T5: as `sentencepiece`, but without byte tokens."""
    pieces = ["<unk>", "▁", "▁▁", *WORDS, *(f"▁{word}" for word in WORDS), REPLACEMENT]
    tokenizer = tokenizers.Tokenizer(models.Unigram([(piece, -1.0) for piece in pieces], 0, byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return style(tokenizer)


def wordpiece() -> Style:
    """Return a tokenizer like that of BERT: blanks between words, but not before `##` pieces and some punctuation."""
    marks = [",", "?", "'s", "'re", "do", "not", "do not", REPLACEMENT]
    pieces = ["[UNK]", *WORDS, *(f"##{word}" for word in WORDS), *marks]
    tokenizer = tokenizers.Tokenizer(models.WordPiece(vocab=numbered(pieces), unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=True)
    return style(tokenizer)


STYLES = {"byte-level": byte_level(), "sentencepiece": sentencepiece(), "unigram": unigram(), "wordpiece": wordpiece()}
