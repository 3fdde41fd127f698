"""Prompts that fill in the middle, with small tokenizers of every family; the oracle is the text that the families'
authors document, as `tokenizers` encodes it."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as LibraryTokenizer

from router.errors import InvalidRequest
from router.text.infill import INFILL_MARKS, InfillEncoder, InfillPrompt, require_infill
from router.text.tokenizer import Tokenizer, create_byte_tokenizer

CODE = ["def add(a, b):\n    return a + b\n", "    for index in range(10):\n        print(index)\n", "x = {'a': 1}\n"]
CODELLAMA_MARKS = INFILL_MARKS[3]
OTHER_MARKS = [marks for marks in INFILL_MARKS if marks is not CODELLAMA_MARKS]
TEXTS = st.text("ab (:\n\t=é\u7e54", max_size=12) | st.sampled_from(CODE)


def make_tokenizer(marks, *, has_beginning=True, are_special=False, seed=0):
    """Return a tokenizer of bytes with merges of some code, in a random order."""
    tokenizer = LibraryTokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    lines = CODE * 3
    random.Random(seed).shuffle(lines)
    tokenizer.train_from_iterator(lines[:5], trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    return finish_tokenizer(tokenizer, marks, has_beginning=has_beginning, are_special=are_special)


def make_sentencepiece_tokenizer(*, prepends=True):
    """Return a tokenizer like that of CodeLlama: it puts a space before a text, and writes line breaks as bytes."""
    names = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", *"abdefinprtx(:=", "\u2581a", "in",
             "\u2581in", "\u2581\u2581"]
    merges = [("\u2581", "a"), ("i", "n"), ("\u2581", "in"), ("\u2581", "\u2581")]
    tokenizer = LibraryTokenizer(models.BPE({name: index for index, name in enumerate(names)}, merges,
                                            byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    replace = normalizers.Replace(" ", "\u2581")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), replace] if prepends else [replace])
    return finish_tokenizer(tokenizer, [*CODELLAMA_MARKS, "\u2581<EOT>"], has_beginning=True, are_special=True)


def finish_tokenizer(tokenizer, names, *, has_beginning, are_special):
    tokenizer.add_special_tokens([AddedToken("<s>", normalized=False)])
    tokenizer.add_tokens([AddedToken(name, special=are_special, normalized=False) for name in names])
    if has_beginning:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))])
    return tokenizer


@given(prefix=TEXTS, suffix=TEXTS, marks=st.sampled_from(OTHER_MARKS), options=st.fixed_dictionaries({
    "seed": st.integers(0, 3), "has_beginning": st.booleans(), "are_special": st.booleans()}))
def test_prompt_is_the_text_with_marks(prefix, suffix, marks, options):
    library = make_tokenizer(marks, **options)
    encoder = InfillEncoder.create_if_supported(Tokenizer(library, []), 10_000)
    text = f"{marks[0]}{prefix}{marks[1]}{suffix}{marks[2]}"
    assert [*encoder.encode(InfillPrompt(prefix, suffix))] == library.encode(text).ids


@given(prefix=TEXTS, suffix=TEXTS)
def test_suffix_of_codellama_begins_without_a_space(prefix, suffix):
    """The oracle is the tokenizer without its step that puts a space before a text."""
    library, plain = make_sentencepiece_tokenizer(), make_sentencepiece_tokenizer(prepends=False)
    begin, *marks = map(library.token_to_id, ("<s>", *CODELLAMA_MARKS))
    encoder = InfillEncoder.create_if_supported(Tokenizer(library, []), 10_000)
    assert [*encoder.encode(InfillPrompt(prefix, suffix))] == [
        begin, marks[0], *library.encode(prefix, add_special_tokens=False).ids,
        marks[1], *plain.encode(suffix, add_special_tokens=False).ids, marks[2]]


def test_text_also_ends_with_the_marks_and_with_the_end_of_the_family():
    library = make_sentencepiece_tokenizer()
    encoder = InfillEncoder.create_if_supported(Tokenizer(library, []), 10_000)
    assert [library.id_to_token(token) for token in encoder.end_tokens] == [*CODELLAMA_MARKS, "\u2581<EOT>"]


def test_model_without_the_tokens_fills_nothing_in():
    assert InfillEncoder.create_if_supported(create_byte_tokenizer(), 10_000) is None
    library = make_tokenizer(INFILL_MARKS[0][:2])
    assert InfillEncoder.create_if_supported(Tokenizer(library, []), 10_000) is None
    library = make_tokenizer(INFILL_MARKS[0])
    assert InfillEncoder.create_if_supported(Tokenizer(library, []), library.get_vocab_size() - 1) is None
    with pytest.raises(InvalidRequest, match=r"`suffix` is given, but this model does not support insert: its tokenizer"
                                             r" has no tokens around a place to fill, such as <\|fim_middle\|>"):
        require_infill(None)
