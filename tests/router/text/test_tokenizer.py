"""Encoding of text, and decoding as a whole and token by token."""

import threading

import pytest
import tokenizers
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers

from router.text.tokenizer import REPLACEMENT_CHARACTER, Detokenizer, Tokenizer, create_byte_tokenizer

BYTE_TOKENIZER = create_byte_tokenizer()
# Bytes that begin, continue and break characters, and the special token.
ragged_tokens = st.lists(st.sampled_from([*b"a\xc3\xa9\xe4\xbd\xa0\xf0\x9f\x98\x80\xff\xef\xbf\xbd", 256]), max_size=40)
characters = st.one_of(st.integers(0, 0xD7FF), st.integers(0xE000, 0x10FFFF)).map(chr)


def make_word_tokenizer():
    """Return a tokenizer like sentencepiece's: words begin with a blank, except the first; byte tokens in hex."""
    vocabulary = {"<unk>": 0, "▁warp": 1, "▁weft": 2, "s": 3, "▁": 4}
    vocabulary |= {f"<0x{byte:02X}>": 5 + byte for byte in range(256)}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence([
        decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return Tokenizer(tokenizer, end_tokens=[])


def decode_pieces(tokenizer, ids, prompt=()):
    detokenizer = tokenizer.create_detokenizer(prompt)
    return [*map(detokenizer.step, ids), detokenizer.finish()]


@pytest.mark.slow
@given(st.lists(characters, max_size=20).map("".join))
def test_every_byte_is_a_token_with_its_own_id(text):
    assert BYTE_TOKENIZER.tokenize(text).ids == list(text.encode())
    assert BYTE_TOKENIZER.decode(BYTE_TOKENIZER.tokenize(text).ids) == text


def test_end_token_is_recognized_in_text_and_skipped_in_output():
    ids = BYTE_TOKENIZER.tokenize("warp<|end|>").ids
    assert ids[-1] == 256
    assert 256 in BYTE_TOKENIZER.special_tokens
    assert 255 not in BYTE_TOKENIZER.special_tokens
    assert BYTE_TOKENIZER.decode(ids) == "warp"
    assert BYTE_TOKENIZER.decode(ids, skip_special=False) == "warp<|end|>"


def test_tokenizer_can_be_rebuilt_from_its_origin():
    assert (tokenizers.Tokenizer.from_str(BYTE_TOKENIZER.path_or_content).encode("warp").ids
            == BYTE_TOKENIZER.tokenize("warp").ids)


def test_byte_tokenizer_has_one_end_token():
    assert BYTE_TOKENIZER.end_tokens == {256}


def test_single_token_has_a_text():
    assert [BYTE_TOKENIZER.decode_token(token) for token in (104, 256, 0xC3)] == ["h", "<|end|>", REPLACEMENT_CHARACTER]
    assert BYTE_TOKENIZER.decode_token(104) == "h"


def test_token_has_a_vocabulary_piece():
    assert (BYTE_TOKENIZER.id_to_token(0x20), BYTE_TOKENIZER.id_to_token(256),
            BYTE_TOKENIZER.id_to_token(999)) == ("Ġ", "<|end|>", "")


def test_encoding_can_be_limited_to_the_last_tokens():
    assert BYTE_TOKENIZER.tokenize("weaving", keep_last=3).ids == list(b"ing")
    assert BYTE_TOKENIZER.tokenize("weaving", keep_last=30).ids == list(b"weaving")


@pytest.mark.slow
@given(ragged_tokens)
@example([0xFF] * 9 + [0xE4, 0xBD, 0xA0])  # the run is cut while a character is under way
@example([0xE4, 0xBD] * 20)
def test_pieces_join_to_the_decoded_text(ids):
    assert "".join(decode_pieces(BYTE_TOKENIZER, ids)) == BYTE_TOKENIZER.decode(ids)


@pytest.mark.slow
@given(st.text("aé你😀\N{REPLACEMENT CHARACTER} "))
def test_pieces_contain_no_additional_replacement_characters(text):
    parts = decode_pieces(BYTE_TOKENIZER, BYTE_TOKENIZER.tokenize(text).ids)
    assert sum(part.count(REPLACEMENT_CHARACTER) for part in parts) == text.count(REPLACEMENT_CHARACTER)
    assert "".join(parts) == text


def test_character_is_held_back_until_it_is_complete():
    assert decode_pieces(BYTE_TOKENIZER, list("é😀!".encode())) == ["", "é", "", "", "", "😀", "!", ""]


def test_held_back_bytes_are_returned_by_finish():
    assert decode_pieces(BYTE_TOKENIZER, [104, 0xF0, 0x9F]) == ["h", "", "", REPLACEMENT_CHARACTER]


def test_special_token_does_not_split_a_character():
    assert decode_pieces(BYTE_TOKENIZER, [0xC3, 256, 0xA9]) == ["", "", "é", ""]


def test_long_run_of_broken_bytes_takes_bounded_memory_and_time():
    decoded = []

    def decode(ids):
        decoded.append(len(ids))
        return BYTE_TOKENIZER.decode(ids)
    detokenizer = Detokenizer(decode, str, frozenset(), {}, {})
    text = "".join(detokenizer.step(0xFF) for _ in range(1000)) + detokenizer.finish()
    assert text == REPLACEMENT_CHARACTER * 1000
    assert max(decoded) < 10


@pytest.mark.slow
@given(st.lists(st.sampled_from(["warp", "weft", "wefts", "é", "你", "😀"]), max_size=12).map(" ".join))
def test_blanks_are_placed_as_in_the_whole_text(text):
    tokenizer = make_word_tokenizer()
    ids = tokenizer.tokenize(text).ids
    assert "".join(decode_pieces(tokenizer, ids)) == tokenizer.decode(ids) == text


@pytest.mark.slow
@given(st.lists(st.sampled_from(["warp", "weft", "wefts", "é"]), min_size=1, max_size=6), st.data())
def test_text_continues_where_the_prompt_ended(words, data):
    tokenizer = make_word_tokenizer()
    text = " ".join(words)
    prompt = " ".join(words[:data.draw(st.integers(1, len(words)))])
    ids, begun = tokenizer.tokenize(text).ids, tokenizer.tokenize(prompt).ids
    assert prompt + "".join(decode_pieces(tokenizer, ids[len(begun):], begun)) == text


def make_token_ids(*parts):
    """Return tokens of the word tokenizer: byte tokens for bytes, and integers as they are."""
    return [token for part in parts for token in ([part] if isinstance(part, int) else [5 + byte for byte in part])]


@pytest.mark.parametrize(("ids", "text"), [
    (make_token_ids(1, "é".encode(), b"\xff", 3), "warpé\ufffds"),
    (make_token_ids(b"\xff", "é".encode(), 1), "\ufffdé warp"),
    (make_token_ids(b"\xe4\xbd", "你".encode()), "\ufffd\ufffd你"),
    (make_token_ids(1, b"\n\xc3\n", "é".encode(), b"A"), "warp\n\ufffd\néA"),
    (make_token_ids(b" ", 1, b"\xff", 0, b"\xa9", 2), " warp\ufffd<unk>\ufffd weft"),
])
def test_broken_byte_does_not_damage_neighbouring_characters(ids, text):
    """Regression: all bytes of the run were replaced, so a character already sent was repeated as two replacements."""
    tokenizer = make_word_tokenizer()
    assert "".join(decode_pieces(tokenizer, ids)) == text
    assert "".join(decode_pieces(tokenizer, ids)) == text, "what is remembered of tokens is the same"


def test_characters_made_of_byte_tokens_appear_when_complete():
    ids = make_token_ids(1, "é😀".encode(), 2)
    assert decode_pieces(make_word_tokenizer(), ids) == ["warp", "", "é", "", "", "", "😀", " weft", ""]


def test_incomplete_character_at_the_end_of_a_prompt_is_not_completed():
    tokenizer = make_word_tokenizer()
    assert decode_pieces(tokenizer, make_token_ids(b"\xa9", 1),
                         make_token_ids(1, b"\xc3")) == [REPLACEMENT_CHARACTER, " warp", ""]


@pytest.mark.parametrize("last", [0xC3, 256, 300])
def test_prompt_text_is_not_repeated(last):
    assert "".join(decode_pieces(BYTE_TOKENIZER, [0xA9, 104], [97, last])) == REPLACEMENT_CHARACTER + "h"


def test_tokens_beyond_the_vocabulary_have_no_text():
    """A model's logits are often wider than its tokenizer's vocabulary."""
    assert decode_pieces(BYTE_TOKENIZER, [104, 300, 0xFF, *[300] * 20, 105])[0] == "h"
    assert "".join(decode_pieces(BYTE_TOKENIZER, [104, 300, 105])) == "hi"


@pytest.mark.slow
@pytest.mark.parametrize("tokenizer", [BYTE_TOKENIZER, make_word_tokenizer()])
@given(tokens=st.lists(st.sampled_from([1, 2, 3, 70, 511, 2**32 - 1]), max_size=20))
def test_tokens_beyond_the_vocabulary_do_not_affect_others(tokenizer, tokens):
    known = [token for token in tokens if token < 511]
    assert "".join(decode_pieces(tokenizer, tokens)) == tokenizer.decode(tokens) == tokenizer.decode(known)


def test_single_token_beyond_the_vocabulary_has_no_text():
    assert [tokenizer.decode_token(511) for tokenizer in (BYTE_TOKENIZER, make_word_tokenizer())] == ["", ""]


@pytest.mark.slow
def test_other_threads_run_while_a_long_text_is_encoded():
    done = threading.Event()

    def encode():
        BYTE_TOKENIZER.tokenize("weft " * 40_000)
        done.set()
    thread = threading.Thread(target=encode)
    thread.start()
    turns = 0
    while not done.wait(0.001):
        turns += 1
    thread.join()
    assert turns > 3


def test_wordpieces_are_joined_and_unknown_words_shown_as_in_the_text():
    pieces = {"[UNK]": 0, "un": 1, "##known": 2, "words": 3}
    tokenizer = tokenizers.Tokenizer(models.WordPiece(pieces, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece()
    assert Tokenizer(tokenizer, ()).join_words([1, 2, 0, 3],
                                               ["un", "known", "\u2603", "words"]) == "unknown \u2603 words"


def test_bytes_of_tokens_are_known_in_vocabularies_of_bytes():
    tokenizer = create_byte_tokenizer()
    assert [tokenizer.get_token_bytes(token) for token in (97, 0xC3, 0x20, 256)] == [b"a", b"\xc3", b" ", None]
    text_bytes = "h\u00e9\u2603 \n".encode()
    assert b"".join(map(tokenizer.get_token_bytes, text_bytes)) == text_bytes
