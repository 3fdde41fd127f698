"""Encoding of text, and decoding as a whole and token by token."""

import threading

import pytest
import tokenizers
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers

from router.text.tokenizer import REPLACEMENT, Detokenizer, Tokenizer, byte_tokenizer

BYTES = byte_tokenizer()
# Bytes that begin, continue and break characters, and the special token.
ragged = st.lists(st.sampled_from([*b"a\xc3\xa9\xe4\xbd\xa0\xf0\x9f\x98\x80\xff\xef\xbf\xbd", 256]), max_size=40)
letters = st.one_of(st.integers(0, 0xD7FF), st.integers(0xE000, 0x10FFFF)).map(chr)


def word_tokenizer():
    """Return a tokenizer like sentencepiece's: words begin with a blank, except the first; byte tokens in hex."""
    vocabulary = {"<unk>": 0, "▁warp": 1, "▁weft": 2, "s": 3, "▁": 4}
    vocabulary |= {f"<0x{byte:02X}>": 5 + byte for byte in range(256)}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence([
        decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return Tokenizer(tokenizer, end_tokens=[])


def pieces(tokenizer, ids, prompt=()):
    detokenizer = tokenizer.detokenizer(prompt)
    return [*map(detokenizer.step, ids), detokenizer.finish()]


@pytest.mark.slow
@given(st.lists(letters, max_size=20).map("".join))
def test_every_byte_is_a_token_under_its_own_number(text):
    assert BYTES.encode(text) == list(text.encode())
    assert BYTES.decode(BYTES.encode(text)) == text


def test_the_end_token_is_read_in_text_and_skipped_in_output():
    ids = BYTES.encode("warp<|end|>")
    assert ids[-1] == 256
    assert BYTES.is_special(256)
    assert not BYTES.is_special(255)
    assert BYTES.decode(ids) == "warp"
    assert BYTES.decode(ids, skip_special=False) == "warp<|end|>"


def test_its_origin_makes_the_same_tokenizer_elsewhere():
    assert tokenizers.Tokenizer.from_str(BYTES.origin).encode("warp").ids == BYTES.encode("warp")


def test_end_tokens_are_told():
    assert BYTES.end_tokens == {256}


def test_a_token_by_itself_has_a_text():
    assert [BYTES.token_text(token) for token in (104, 256, 0xC3)] == ["h", "<|end|>", REPLACEMENT]
    assert BYTES.token_text(104) == "h"


def test_a_token_has_its_place_in_the_vocabulary():
    assert (BYTES.piece(0x20), BYTES.piece(256), BYTES.piece(999)) == ("Ġ", "<|end|>", "")


def test_the_last_tokens_of_a_text_can_be_had():
    assert BYTES.encoding("weaving", last=3).ids == list(b"ing")
    assert BYTES.encoding("weaving", last=30).ids == list(b"weaving")


@pytest.mark.slow
@given(ragged)
@example([0xFF] * 9 + [0xE4, 0xBD, 0xA0])  # the run is cut while a character is under way
@example([0xE4, 0xBD] * 20)
def test_pieces_together_are_the_decoded_whole(ids):
    assert "".join(pieces(BYTES, ids)) == BYTES.decode(ids)


@pytest.mark.slow
@given(st.text("aé你😀\N{REPLACEMENT CHARACTER} "))
def test_no_piece_holds_a_replacement_that_the_text_does_not_have(text):
    parts = pieces(BYTES, BYTES.encode(text))
    assert sum(part.count(REPLACEMENT) for part in parts) == text.count(REPLACEMENT)
    assert "".join(parts) == text


def test_a_character_is_held_back_until_it_is_whole():
    assert pieces(BYTES, list("é😀!".encode())) == ["", "é", "", "", "", "😀", "!", ""]


def test_what_is_held_back_at_the_end_is_told_by_finish():
    assert pieces(BYTES, [104, 0xF0, 0x9F]) == ["h", "", "", REPLACEMENT]


def test_special_tokens_do_not_part_a_character():
    assert pieces(BYTES, [0xC3, 256, 0xA9]) == ["", "", "é", ""]


def test_a_long_run_of_broken_bytes_takes_neither_memory_nor_time():
    decoded = []
    def decode(ids):
        decoded.append(len(ids))
        return BYTES.decode(ids)
    detokenizer = Detokenizer(decode, str, frozenset(), {}, {})
    text = "".join(detokenizer.step(0xFF) for _ in range(1000)) + detokenizer.finish()
    assert text == REPLACEMENT * 1000
    assert max(decoded) < 10


@pytest.mark.slow
@given(st.lists(st.sampled_from(["warp", "weft", "wefts", "é", "你", "😀"]), max_size=12).map(" ".join))
def test_blanks_belong_where_the_whole_text_has_them(text):
    tokenizer = word_tokenizer()
    assert "".join(pieces(tokenizer, tokenizer.encode(text))) == tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.slow
@given(st.lists(st.sampled_from(["warp", "weft", "wefts", "é"]), min_size=1, max_size=6), st.data())
def test_text_goes_on_where_the_prompt_ended(words, data):
    tokenizer = word_tokenizer()
    text = " ".join(words)
    prompt = " ".join(words[:data.draw(st.integers(1, len(words)))])
    ids, begun = tokenizer.encode(text), tokenizer.encode(prompt)
    assert prompt + "".join(pieces(tokenizer, ids[len(begun):], begun)) == text


def bytes_and(*parts):
    """Return tokens of the word tokenizer: byte tokens for bytes, and integers as they are."""
    return [token for part in parts for token in ([part] if isinstance(part, int) else [5 + byte for byte in part])]


@pytest.mark.parametrize(("ids", "text"), [
    (bytes_and(1, "é".encode(), b"\xff", 3), "warpé\ufffds"),
    (bytes_and(b"\xff", "é".encode(), 1), "\ufffdé warp"),
    (bytes_and(b"\xe4\xbd", "你".encode()), "\ufffd\ufffd你"),
    (bytes_and(1, b"\n\xc3\n", "é".encode(), b"A"), "warp\n\ufffd\néA"),
    (bytes_and(b" ", 1, b"\xff", 0, b"\xa9", 2), " warp\ufffd<unk>\ufffd weft"),
])
def test_a_broken_byte_harms_no_character_around_it(ids, text):
    """Regression: all bytes of the run were replaced, so a character already sent was repeated as two replacements."""
    tokenizer = word_tokenizer()
    assert "".join(pieces(tokenizer, ids)) == text
    assert "".join(pieces(tokenizer, ids)) == text, "what is remembered of tokens is the same"


def test_characters_made_of_bytes_come_when_they_are_whole():
    ids = bytes_and(1, "é😀".encode(), 2)
    assert pieces(word_tokenizer(), ids) == ["warp", "", "é", "", "", "", "😀", " weft", ""]


def test_half_a_character_at_the_end_of_a_prompt_stays_there():
    tokenizer = word_tokenizer()
    assert pieces(tokenizer, bytes_and(b"\xa9", 1), bytes_and(1, b"\xc3")) == [REPLACEMENT, " warp", ""]


@pytest.mark.parametrize("last", [0xC3, 256, 300])
def test_of_the_prompt_nothing_is_told_again(last):
    assert "".join(pieces(BYTES, [0xA9, 104], [97, last])) == REPLACEMENT + "h"


def test_tokens_unknown_to_the_tokenizer_are_no_text():
    """A model's logits are often wider than its tokenizer's vocabulary."""
    assert pieces(BYTES, [104, 300, 0xFF, *[300] * 20, 105])[0] == "h"
    assert "".join(pieces(BYTES, [104, 300, 105])) == "hi"


@pytest.mark.slow
@pytest.mark.parametrize("tokenizer", [BYTES, word_tokenizer()])
@given(tokens=st.lists(st.sampled_from([1, 2, 3, 70, 511, 2**32 - 1]), max_size=20))
def test_tokens_unknown_to_the_tokenizer_disturb_no_other(tokenizer, tokens):
    known = [token for token in tokens if token < 511]
    assert "".join(pieces(tokenizer, tokens)) == tokenizer.decode(tokens) == tokenizer.decode(known)


def test_a_token_unknown_to_the_tokenizer_has_no_text_by_itself():
    assert [tokenizer.token_text(511) for tokenizer in (BYTES, word_tokenizer())] == ["", ""]


@pytest.mark.slow
def test_other_threads_run_while_a_long_text_is_encoded():
    done = threading.Event()
    def encode():
        BYTES.encoding("weft " * 40_000)
        done.set()
    thread = threading.Thread(target=encode)
    thread.start()
    turns = 0
    while not done.wait(0.001):
        turns += 1
    thread.join()
    assert turns > 3


def test_words_are_made_of_pieces_and_what_is_unknown_is_shown_as_it_stands_there():
    pieces = {"[UNK]": 0, "un": 1, "##known": 2, "words": 3}
    tokenizer = tokenizers.Tokenizer(models.WordPiece(pieces, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece()
    assert Tokenizer(tokenizer, ()).words([1, 2, 0, 3], ["un", "known", "\u2603", "words"]) == "unknown \u2603 words"
