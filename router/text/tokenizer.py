"""Conversion of text to token ids and back: one `Tokenizer` per model, one `Detokenizer` per sequence."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

# Output of decoders for bytes that are not, or not yet, a character.
REPLACEMENT_CHARACTER = "\N{REPLACEMENT CHARACTER}"
# A character has at most four bytes, so more tokens that decode to no text will not become one.
MAX_TOKENS_PER_CHARACTER = 4
# Maximum number of cached pairs of adjacent tokens: decoding costs ten times as much as a lookup.
MAX_CACHED_PAIRS = 100_000


class Tokenizer:
    """Tokenizer of a model, with caches for decoding."""

    def __init__(self, tokenizer: tokenizers.Tokenizer, end_tokens: Iterable[int], path: str = "",
                 config: Mapping[str, Any] | None = None) -> None:
        """`path` is the path of the tokenizer's file, if it has one, and `config` the model's tokenizer_config.json."""
        self._tokenizer = tokenizer
        self._path = path
        self.config: Mapping[str, Any] = config or {}
        self._token_texts: dict[int, str] = {}  # at most one entry per token of the vocabulary
        self._token_widths: dict[int, int] = {}  # characters of a token by itself, likewise
        # text that a token adds after another, at most MAX_CACHED_PAIRS
        self._pair_texts: dict[tuple[int, int], str] = {}
        self.special_tokens = frozenset(
            token for token, added in tokenizer.get_added_tokens_decoder().items() if added.special)
        self.end_tokens = frozenset(end_tokens)
        byte_by_token = {tokenizer.token_to_id(f"<0x{byte:02X}>"): byte for byte in range(0x80, 0x100)}
        # the non-ASCII byte of each token that is decoded as one; empty for most vocabularies
        self._byte_by_token = {token: byte for token, byte in byte_by_token.items()
                               if token is not None and tokenizer.decode([token]) == REPLACEMENT_CHARACTER}
        self._newline_token = tokenizer.token_to_id("<0x0A>")
        self._byte_by_letter = byte_level_alphabet() if "ByteLevel" in repr(tokenizer.decoder) else {}
        self._added_tokens = frozenset(tokenizer.get_added_tokens_decoder())
        self._unknown_token = tokenizer.token_to_id(getattr(tokenizer.model, "unk_token", None) or "<unk>")

    @property
    def path_or_content(self) -> str:
        """Path of the tokenizer's file, or the content of one if it has none."""
        return self._path or self._tokenizer.to_str()

    def tokenize(self, text: str, *, add_special_tokens: bool = True,
                 keep_last: int | None = None) -> tokenizers.Encoding:
        """Tokenize a text; with `keep_last`, keep only that many tokens at its end."""
        # a batch of one, since only methods for batches release the GIL
        encoding = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0]
        if keep_last is not None:
            encoding.truncate(keep_last, direction="left")
        return encoding

    def tokenize_with_offsets(self, text: str, *, add_special_tokens: bool = True) -> tokenizers.Encoding:
        """Tokenize a text with the character offsets of its tokens, which takes longer."""
        return self._tokenizer.encode_batch([text], add_special_tokens=add_special_tokens)[0]

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=skip_special)

    def join_words(self, ids: Sequence[int], texts: Sequence[str]) -> str:
        """Return tokens joined to words. `texts` are the tokens' texts in the input, used for unknown tokens."""
        pieces = [text if token == self._unknown_token else self._tokenizer.id_to_token(token) or text
                  for token, text in zip(ids, texts, strict=True)]
        decoder = self._tokenizer.decoder
        return decoder.decode(pieces) if decoder is not None else " ".join(pieces)

    def token_to_id(self, name: str) -> int | None:
        return self._tokenizer.token_to_id(name)

    def id_to_token(self, token: int) -> str:
        return self._tokenizer.id_to_token(token) or ""

    def decode_token(self, token: int) -> str:
        """Return the text of a token by itself, special or not."""
        text = self._token_texts.get(token)
        if text is None:
            text = self._token_texts[token] = self._tokenizer.decode([token], skip_special_tokens=False)
        return text

    def get_token_bytes(self, token: int) -> bytes | None:
        """Return the bytes of a token in a vocabulary of bytes, where a token may be a part of a character, or of a
        token that is a byte; None if the token is text."""
        if token in self._byte_by_token:
            return bytes([self._byte_by_token[token]])
        if not self._byte_by_letter or token in self._added_tokens:
            return None
        letters = [self._byte_by_letter.get(letter) for letter in self.id_to_token(token)]
        return bytes([byte for byte in letters if byte is not None]) if letters and None not in letters else None

    def decode_resumed(self, prompt: Sequence[int], tokens: Sequence[int]) -> "ResumedText":
        """Decode the first tokens of an output that continues after them."""
        detokenizer = self.create_detokenizer(prompt)
        detokenizer._pair_texts = {}  # a client's tokens must not fill the shared cache
        pieces = tuple([detokenizer.step(token) for token in tokens])
        detokenizer._pair_texts = self._pair_texts
        special_flags = tuple([token in self.special_tokens for token in tokens])
        texts = tuple([self.decode_token(token) if is_special else piece
                       for token, piece, is_special in zip(tokens, pieces, special_flags, strict=True)])
        return ResumedText(tuple(tokens), pieces, texts, special_flags, detokenizer)

    def create_detokenizer(self, prompt: Sequence[int] = ()) -> "Detokenizer":
        shared = (self._tokenizer.decode, self._tokenizer.id_to_token, self.special_tokens, self._token_widths,
                  self._pair_texts)
        detokenizer = (Detokenizer(*shared) if not self._byte_by_token or self._newline_token is None
                       else ByteFallbackDetokenizer(*shared, self._byte_by_token, self._newline_token))
        detokenizer.start_after_prompt(prompt)
        return detokenizer


@dataclass(eq=False)
class Detokenizer:
    """Incremental detokenizer of one sequence. Its pieces consist of whole characters.

    Special tokens are skipped, and so are tokens outside the vocabulary, since a model's logits may be wider than it.

    The concatenated pieces equal the text of decoding all tokens at once, after those of the prompt. A token may decode
    differently after others (a space before a word, bytes that form a character), so a window of tokens is decoded:

        window:   [ tokens of the last piece | tokens held back ]
                    0         read_offset       len(window)
        decoded:  [ seen characters          | the next piece   ]
    """

    _decode: Callable[[list[int]], str]
    _id_to_token: Callable[[int], str | None]  # returns the vocabulary's entry for a token
    _special_tokens: frozenset[int]
    _token_widths: dict[int, int]  # a cache that all sequences of a tokenizer share, like the next
    _pair_texts: dict[tuple[int, int], str]
    _window: list[int] = field(default_factory=list, init=False)
    _read_offset: int = field(default=0, init=False)
    _num_seen_characters: int = field(default=0, init=False)

    def start_after_prompt(self, prompt: Sequence[int]) -> None:
        """Start after a prompt: without tokens before it, the first word would lose its leading space. An incomplete
        character at the end of the prompt is dropped, since the prompt's text can no longer be completed."""
        for token in prompt[-MAX_TOKENS_PER_CHARACTER:]:
            self.step(token)
        del self._window[self._read_offset:]

    def step(self, token: int) -> str:
        """Return the text that this token completes; "" while a character is incomplete. The usual case, a token after
        a single complete one, is decoded from the cache of pairs if possible."""
        if token in self._special_tokens:
            return ""
        window = self._window
        if not self._read_offset == len(window) == 1:
            return self._append_token(token)
        pair = window[0], token
        piece = self._pair_texts.get(pair)
        if piece is None:
            piece = self._append_token(token)
            if piece and window == [token] and len(self._pair_texts) < MAX_CACHED_PAIRS:
                self._pair_texts[pair] = piece
        else:
            window[0] = token
            width = self._token_widths.get(token)  # as `_token_width`, without the call
            self._num_seen_characters = self._token_width(token) if width is None else width
        return piece

    def _append_token(self, token: int) -> str:
        """Add a token to the window, unless it is unknown: after unknown tokens alone a word would lose its space."""
        if self._id_to_token(token) is None:
            return ""
        window = self._window
        window.append(token)
        text = self._decode(window)
        if text.endswith(REPLACEMENT_CHARACTER):
            return self._hold_back_incomplete(text)
        piece = text[self._num_seen_characters:]
        del window[:self._read_offset]
        self._read_offset = len(window)
        self._num_seen_characters = self._token_width(token) if self._read_offset == 1 else len(self._decode(window))
        return piece

    def _token_width(self, token: int) -> int:
        """Return the number of characters of a token by itself. Cached, since nearly every step needs it."""
        width = self._token_widths.get(token)
        if width is None:
            width = self._token_widths[token] = len(self._decode([token]))
        return width

    def finish(self) -> str:
        """Return the text of the tokens that were held back, at the end of the sequence."""
        piece = self._decode(self._window)[self._num_seen_characters:]
        self._window.clear()
        self._read_offset = self._num_seen_characters = 0
        return piece

    def _hold_back_incomplete(self, text: str) -> str:
        """Hold back an incomplete character, but of a long run of invalid bytes only the last, which may become one."""
        window = self._window
        if len(window) - self._read_offset <= 2 * MAX_TOKENS_PER_CHARACTER:
            return ""
        piece = text[self._num_seen_characters:-1]
        del window[:-MAX_TOKENS_PER_CHARACTER]
        self._read_offset = 0
        self._num_seen_characters = max(len(self._decode(window)) - 1, 0)
        return piece


@dataclass(frozen=True, slots=True)
class ResumedText:
    """Text of an output's first tokens, which another stream has sent. It is for the one sequence that
    continues after them, since `detokenizer` has their state."""

    tokens: tuple[int, ...]
    pieces: tuple[str, ...]  # visible text that each token completed
    token_texts: tuple[str, ...]  # the pieces, but of a special token its own text
    special_flags: tuple[bool, ...]
    detokenizer: Detokenizer


@dataclass(eq=False)
class ByteFallbackDetokenizer(Detokenizer):
    """Detokenizer for vocabularies with byte fallback: unknown characters are written as one token per byte (`<0xE7>`).

    The library's decoder replaces a whole run of bytes if one of them is invalid, including characters that were
    already returned. So non-ASCII bytes are never added to the window but decoded here, with one replacement per
    invalid byte, as in sentencepiece. ASCII bytes are treated like other tokens.

    While bytes are held the window is empty. Afterwards it holds a newline in place of their text, so that the leading
    space of the next word is kept.
    """

    _byte_by_token: Mapping[int, int]
    _newline_token: int
    _held_bytes: bytearray = field(default_factory=bytearray, init=False)

    def start_after_prompt(self, prompt: Sequence[int]) -> None:
        super().start_after_prompt(prompt)
        self._flush_bytes()

    def finish(self) -> str:
        return super().finish() + self._flush_bytes()

    def _append_token(self, token: int) -> str:
        byte = self._byte_by_token.get(token)
        if byte is None:
            is_known = self._held_bytes and self._id_to_token(token) is not None
            return (self._flush_bytes() if is_known else "") + super()._append_token(token)
        piece = super().finish()
        self._held_bytes.append(byte)
        piece += pop_characters(self._held_bytes)
        if not self._held_bytes:
            self._restart_window()
        return piece

    def _flush_bytes(self) -> str:
        """Return a replacement for each held byte: no more bytes of their character follow."""
        piece = REPLACEMENT_CHARACTER * len(self._held_bytes)
        if self._held_bytes:
            self._held_bytes.clear()
            self._restart_window()
        return piece

    def _restart_window(self) -> None:
        self._window[:] = [self._newline_token]
        self._read_offset = self._num_seen_characters = 1


def pop_characters(held_bytes: bytearray) -> str:
    """Remove the bytes whose text is certain and return it: a character, or a replacement for each invalid byte."""
    text = ""  # all bytes but the last are the beginning of a character
    while held_bytes:
        try:
            text += held_bytes.decode()
            held_bytes.clear()
        except UnicodeDecodeError as error:
            if error.reason == "unexpected end of data":
                break
            text += REPLACEMENT_CHARACTER
            del held_bytes[0]
    return text


def create_byte_tokenizer() -> Tokenizer:
    """One token per byte under the byte's own number, and `<|end|>` as 256: the tokenizer of the simulated model."""
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=byte_level_alphabet(), merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True, normalized=False)])
    return Tokenizer(tokenizer, end_tokens=[256])


def byte_level_alphabet() -> dict[str, int]:
    """Return the byte of each printable letter of byte-level vocabularies."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    unprintable = sorted(set(range(256)) - set(printable))
    letters = {chr(byte): byte for byte in printable}
    letters.update((chr(256 + index), byte) for index, byte in enumerate(unprintable))
    return letters
