"""Conversion of text to token ids and back: one `Tokenizer` per model, one `Detokenizer` per sequence."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

# Output of decoders for bytes that are not, or not yet, a character.
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# A character has at most four bytes, so at most four tokens. More tokens that decode to no text will not become a
# character.
MAX_TOKENS_OF_A_CHARACTER = 4
# Maximum number of cached pairs of adjacent tokens: decoding costs ten times as much as a lookup.
MAX_PAIRS = 100_000


class Tokenizer:
    """Tokenizer of a model, with caches for decoding."""

    def __init__(self, tokenizer: tokenizers.Tokenizer, end_tokens: Iterable[int], path: str = "") -> None:
        """`path` is the path of the tokenizer's file, if it has one."""
        self._tokenizer = tokenizer
        self._path = path
        self._texts: dict[int, str] = {}  # at most one entry per token of the vocabulary
        self._widths: dict[int, int] = {}  # characters of a token by itself, likewise
        self._pairs: dict[tuple[int, int], str] = {}  # text that a token adds after another, at most MAX_PAIRS
        self.special = frozenset(
            token for token, added in tokenizer.get_added_tokens_decoder().items() if added.special)
        self.end_tokens = frozenset(end_tokens)
        self._bytes = high_bytes(tokenizer)
        self._newline = tokenizer.token_to_id("<0x0A>")
        self._unknown = tokenizer.token_to_id(getattr(tokenizer.model, "unk_token", None) or "<unk>")

    @property
    def origin(self) -> str:
        """Path of the tokenizer's file, or the content of one if it has none."""
        return self._path or self._tokenizer.to_str()

    def encoding(self, text: str, *, add_special_tokens: bool = True, last: int | None = None) -> tokenizers.Encoding:
        """Tokenise a text; with `last`, keep only that many tokens at its end.

        Encodes a batch of one, since only methods for batches release the GIL.
        """
        encoding = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0]
        if last is not None:
            encoding.truncate(last, direction="left")
        return encoding

    def located(self, text: str, *, add_special_tokens: bool = True) -> tokenizers.Encoding:
        """Tokenise a text with the character offsets of its tokens, which takes longer."""
        return self._tokenizer.encode_batch([text], add_special_tokens=add_special_tokens)[0]

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return self.encoding(text, add_special_tokens=add_special_tokens).ids

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=skip_special)

    def words(self, ids: Sequence[int], texts: Sequence[str]) -> str:
        """Return tokens joined to words. `texts` are the tokens' texts in the input, used for unknown tokens."""
        pieces = [text if token == self._unknown else self._tokenizer.id_to_token(token) or text
                  for token, text in zip(ids, texts, strict=True)]
        decoder = self._tokenizer.decoder
        return decoder.decode(pieces) if decoder is not None else " ".join(pieces)

    def is_special(self, token: int) -> bool:
        return token in self.special

    def piece(self, token: int) -> str:
        """Return the vocabulary's entry for a token."""
        return self._tokenizer.id_to_token(token) or ""

    def token_text(self, token: int) -> str:
        """Return the text of a token by itself, special or not."""
        text = self._texts.get(token)
        if text is None:
            text = self._texts[token] = self._tokenizer.decode([token], skip_special_tokens=False)
        return text

    def detokenizer(self, prompt: Sequence[int] = ()) -> "Detokenizer":
        """Return a detokenizer of the tokens that follow a prompt."""
        decode, name = self._tokenizer.decode, self._tokenizer.id_to_token
        made = Detokenizer(decode, name, self.special, self._widths, self._pairs)
        if self._bytes and self._newline is not None:
            made = ByteReader(decode, name, self.special, self._widths, self._pairs,
                              high=self._bytes, newline=self._newline)
        made.begin(prompt)
        return made


class Detokenizer:
    """Incremental detokenizer of one sequence. Its pieces consist of whole characters.

    Special tokens are skipped, and so are tokens outside the vocabulary, since a model's logits may be wider than it.

    The concatenated pieces equal the text of decoding all tokens at once, after those of the prompt. A token may decode
    differently after others (a space before a word, bytes that form a character), so a window of tokens is decoded:

        window:   [ tokens of the last piece | tokens held back ]
                    0            known          len(window)
        decoded:  [ seen                     | the next piece   ]
    """

    __slots__ = ("_decode", "_known", "_name", "_pairs", "_seen", "_special", "_widths", "_window")

    def __init__(self, decode: Callable[[list[int]], str], name: Callable[[int], str | None], special: frozenset[int],
                 widths: dict[int, int], pairs: dict[tuple[int, int], str]) -> None:
        """`name` returns the vocabulary's entry for a token, or None.

        `widths` and `pairs` are caches that all sequences of a tokenizer share.
        """
        self._decode = decode
        self._name = name
        self._special = special
        self._widths = widths
        self._pairs = pairs
        self._window: list[int] = []
        self._known = 0
        self._seen = 0  # characters

    def begin(self, prompt: Sequence[int]) -> None:
        """Start after a prompt: without tokens before it, the first word would lose its leading space.

        An incomplete character at the end of the prompt is dropped, since the prompt's text can no longer be completed.
        """
        for token in prompt[-MAX_TOKENS_OF_A_CHARACTER:]:
            self.step(token)
        del self._window[self._known:]

    def step(self, token: int) -> str:
        """Return the text that this token completes; "" while a character is incomplete."""
        if token in self._special:
            return ""
        window = self._window
        if self._known == len(window) == 1:
            return self._second(window[0], token)
        return self._append(token)

    def _second(self, first: int, token: int) -> str:
        """Decode the usual case, a token after a single complete one, from the cache of pairs if possible."""
        piece = self._pairs.get((first, token))
        if piece is None:
            piece = self._append(token)
            if piece and self._window == [token] and len(self._pairs) < MAX_PAIRS:
                self._pairs[first, token] = piece
        else:
            self._window[0] = token
            self._seen = self._width(token)
        return piece

    def _append(self, token: int) -> str:
        """Add a token to the window, unless it is unknown: after unknown tokens alone a word would lose its space."""
        if self._name(token) is None:
            return ""
        self._window.append(token)
        return self._complete(token)

    def _complete(self, token: int) -> str:
        window = self._window
        text = self._decode(window)
        if text.endswith(REPLACEMENT):
            return self._undecided(text)
        piece = text[self._seen:]
        del window[:self._known]
        self._known = len(window)
        self._seen = self._width(token) if self._known == 1 else len(self._decode(window))
        return piece

    def _width(self, token: int) -> int:
        """Return the number of characters of a token by itself. Cached, since nearly every step needs it."""
        width = self._widths.get(token)
        if width is None:
            width = self._widths[token] = len(self._decode([token]))
        return width

    def finish(self) -> str:
        """Return the text of the tokens that were held back, at the end of the sequence."""
        piece = self._decode(self._window)[self._seen:]
        self._window.clear()
        self._known = self._seen = 0
        return piece

    def _undecided(self, text: str) -> str:
        """Hold back an incomplete character; of a long run of invalid bytes, hold back only the last.

        Only the last bytes can still become a character.
        """
        window = self._window
        if len(window) - self._known <= 2 * MAX_TOKENS_OF_A_CHARACTER:
            return ""
        piece = text[self._seen:-1]
        del window[:-MAX_TOKENS_OF_A_CHARACTER]
        self._known = 0
        self._seen = max(len(self._decode(window)) - 1, 0)
        return piece


class ByteReader(Detokenizer):
    """Detokenizer for vocabularies with byte fallback: unknown characters are written as one token per byte (`<0xE7>`).

    The library's decoder replaces a whole run of bytes if one of them is invalid, including characters that were
    already returned. So non-ASCII bytes are never added to the window but decoded here, with one replacement per
    invalid byte, as in sentencepiece. ASCII bytes are treated like other tokens.

    While bytes are held the window is empty. Afterwards it holds a newline in place of their text, so that the leading
    space of the next word is kept.
    """

    __slots__ = ("_bytes", "_held", "_newline")

    def __init__(self, decode: Callable[[list[int]], str], name: Callable[[int], str | None], special: frozenset[int],
                 widths: dict[int, int], pairs: dict[tuple[int, int], str], *, high: Mapping[int, int],
                 newline: int) -> None:
        super().__init__(decode, name, special, widths, pairs)
        self._bytes = high
        self._held = bytearray()
        self._newline = newline

    def begin(self, prompt: Sequence[int]) -> None:
        super().begin(prompt)
        self._end_bytes()

    def finish(self) -> str:
        return super().finish() + self._end_bytes()

    def _append(self, token: int) -> str:
        byte = self._bytes.get(token)
        if byte is not None:
            return self._read(byte)
        if self._held and self._name(token) is not None:
            return self._end_bytes() + super()._append(token)
        return super()._append(token)

    def _read(self, byte: int) -> str:
        piece = super().finish()
        self._held.append(byte)
        piece += characters(self._held)
        if not self._held:
            self._stand_behind_text()
        return piece

    def _end_bytes(self) -> str:
        """Return a replacement for each held byte: no more bytes of their character follow."""
        piece = REPLACEMENT * len(self._held)
        if self._held:
            self._held.clear()
            self._stand_behind_text()
        return piece

    def _stand_behind_text(self) -> None:
        self._window[:] = [self._newline]
        self._known = self._seen = 1


def high_bytes(tokenizer: tokenizers.Tokenizer) -> dict[int, int]:
    """Return the non-ASCII byte of each token that is decoded as one; empty for most vocabularies."""
    named = {tokenizer.token_to_id(f"<0x{byte:02X}>"): byte for byte in range(0x80, 0x100)}
    return {token: byte for token, byte in named.items()
            if token is not None and tokenizer.decode([token]) == REPLACEMENT}


def characters(held: bytearray) -> str:
    """Remove the bytes whose text is certain and return it: a character, or a replacement for each invalid byte.

    All bytes but the last are the beginning of a character.
    """
    text = ""
    while held:
        try:
            text += held.decode()
            held.clear()
        except UnicodeDecodeError as error:
            if error.reason == "unexpected end of data":
                break
            text += REPLACEMENT
            del held[0]
    return text


def byte_tokenizer() -> Tokenizer:
    """One token per byte under the byte's own number, and `<|end|>` as 256: the tokenizer of the simulated model."""
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=byte_letters(), merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True, normalized=False)])
    return Tokenizer(tokenizer, end_tokens=[256])


def byte_letters() -> dict[str, int]:
    """Return the byte of each printable letter of byte-level vocabularies."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = sorted(set(range(256)) - set(printable))
    letters = {chr(byte): byte for byte in printable}
    letters.update((chr(256 + index), byte) for index, byte in enumerate(others))
    return letters
