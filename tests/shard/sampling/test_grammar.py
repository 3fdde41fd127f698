"""Tests of shard/sampling/grammar.py, and of batches that mix rows with and without a grammar."""

import json
import re
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pytest
import torch
from llguidance import LLMatcher
from support.core_with_workers import Loom, Thread
from support.small_checkpoints import tiny_checkpoint
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from router.grammars import compiler_process
from router.request import Request, Resource, SamplingParams
from router.text.tokenizer import byte_tokenizer
from shard.errors import Refused
from shard.pb import shard_pb2 as pb
from shard.sampling.grammar import LIMITS, Grammars, Table, read_grammars
from shard.sampling.sampler import Chosen, Sampler
from shard.state.sequence import Sequence
from tests.shard.asking import asking, random_logits

END, SIZE = 256, 300
PATTERN = LLMatcher.grammar_from_regex


@pytest.fixture(scope="module")
def table() -> Table:
    return Table(byte_tokenizer().origin, SIZE)


@pytest.fixture
def grammars(table: Table) -> Grammars:
    return Grammars(table)


def bound(number: int, output: bytes = b"", **more: Any) -> Sequence:
    return replace(asking(output=list(output), **{"end_tokens": (END,)} | more), grammar=number)


def allowed(grammars: Grammars, sequence: Sequence, size: int = SIZE) -> set[int]:
    logits = torch.zeros(1, size)
    lost = grammars.mask(logits, [sequence])
    return set() if lost else set(logits[0].isfinite().nonzero()[:, 0].tolist())


def letters(text: str) -> set[int]:
    return set(text.encode())


def test_limits_are_those_that_the_router_tries_grammars_with() -> None:
    assert LIMITS == compiler_process.LIMITS


def test_only_tokens_that_fit_may_come(grammars: Grammars) -> None:
    grammars.load(1, PATTERN("loom|weft"))
    assert allowed(grammars, bound(1)) == letters("lw")
    assert allowed(grammars, bound(1, b"we")) == letters("f")


def test_the_end_may_come_exactly_where_the_grammar_may_end(grammars: Grammars) -> None:
    grammars.load(1, PATTERN("a+"))
    assert allowed(grammars, bound(1)) == letters("a")
    assert allowed(grammars, bound(1, b"a")) == letters("a") | {END}
    grammars.load(2, PATTERN("ab"))
    assert allowed(grammars, bound(2, b"ab")) == {END}


def test_end_tokens_that_are_text_elsewhere_wait_for_the_end(grammars: Grammars) -> None:
    grammars.load(1, PATTERN(r"a\nb?"))
    newline = ord("\n")
    assert allowed(grammars, bound(1, b"a", end_tokens=(END, newline))) == set()
    assert allowed(grammars, bound(1, b"a\n", end_tokens=(END, newline))) == letters("b") | {END, newline}


def test_a_match_goes_on_with_the_tokens_that_are_chosen(grammars: Grammars) -> None:
    grammars.load(1, PATTERN("abc"))
    sequence = bound(1)
    for letter in b"abc":
        assert allowed(grammars, sequence) == {letter}
        assert grammars.advance(sequence, letter)
    assert allowed(grammars, sequence) == {END}
    assert grammars.advance(sequence, END)
    assert allowed(grammars, sequence) == {END}


def test_a_token_that_does_not_fit_ends_the_match(grammars: Grammars) -> None:
    grammars.load(1, PATTERN("abc"))
    sequence = bound(1)
    assert allowed(grammars, sequence)
    assert not grammars.advance(sequence, ord("x"))
    assert allowed(grammars, sequence) == set()


def test_two_sequences_of_one_grammar_do_not_meet(grammars: Grammars) -> None:
    grammars.load(1, PATTERN("ab|cd"))
    first, second = bound(1), bound(1)
    assert allowed(grammars, first) == allowed(grammars, second) == letters("ac")
    grammars.advance(first, ord("a"))
    assert (allowed(grammars, first), allowed(grammars, second)) == (letters("b"), letters("ac"))


def test_a_sequence_keeps_its_match_when_the_grammar_is_unloaded(grammars: Grammars) -> None:
    grammars.load(1, PATTERN("ab"))
    sequence = bound(1)
    assert allowed(grammars, sequence) == letters("a")
    grammars.unload(1)
    grammars.advance(sequence, ord("a"))
    assert allowed(grammars, sequence) == letters("b")


def test_a_grammar_that_makes_no_sense_is_refused(grammars: Grammars) -> None:
    with pytest.raises(Refused, match="grammar 7 cannot be loaded"):
        grammars.load(7, PATTERN("("))
    with pytest.raises(Refused, match="grammar 7 cannot be loaded"):
        grammars.load(7, "weft")


@pytest.mark.parametrize("size", [200, 257, 5000])
def test_logits_may_be_narrower_or_wider_than_the_vocabulary(size: int) -> None:
    grammars = Grammars(Table(byte_tokenizer().origin, size))
    grammars.load(1, PATTERN("[ab]"))
    logits = torch.zeros(2, size)
    assert grammars.mask(logits, [bound(1, end_tokens=(0,)), asking()]) == set()
    assert logits[0].isfinite().nonzero()[:, 0].tolist() == [97, 98]
    assert logits[1].isfinite().all()


def prefixing() -> str:
    """Return a tokenizer that prefixes every text with a space, so that forced text is encoded with one."""
    tokenizer = Tokenizer.from_str(byte_tokenizer().origin)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    return tokenizer.to_str()


def test_text_that_must_come_is_no_other_whatever_a_tokenizer_puts_before_it() -> None:
    grammars = Grammars(Table(prefixing(), SIZE))
    grammars.load(1, LLMatcher.grammar_from_json_schema({"type": "object"}))
    assert allowed(grammars, bound(1)) == letters("{")


def test_tokens_of_several_letters_and_bytes_of_letters_fit() -> None:
    vocabulary = {letter: number for number, letter in enumerate("abcdefghij")} | {"cd": 10, "abc": 11, "bx": 12}
    vocabulary |= {f"<0x{byte:02X}>": 13 + byte for byte in range(256)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    grammars = Grammars(Table(tokenizer.to_str(), 270))
    grammars.load(1, PATTERN("(ab|abcd|ü)"))
    fitting = allowed(grammars, bound(1, end_tokens=(269,)), 270)
    assert fitting == {0, 11, 13 + ord("a"), 13 + "ü".encode()[0]}


def test_a_folder_without_a_tokenizer_that_can_be_used_has_no_grammars(tmp_path: Path) -> None:
    assert read_grammars(tmp_path, SIZE) is None
    words = Tokenizer(models.WordPiece(vocab={"[UNK]": 0, "loom": 1}, unk_token="[UNK]"))
    words.decoder = decoders.WordPiece()
    words.save(str(tmp_path / "tokenizer.json"))
    assert read_grammars(tmp_path, SIZE) is None
    (tmp_path / "tokenizer.json").write_text(byte_tokenizer().origin)
    assert read_grammars(tmp_path, SIZE) is not None


# -- sampling


def choose(grammars: Grammars, logits: torch.Tensor, *sequences: Sequence) -> Chosen:
    return Sampler(SIZE, grammars=grammars).choose(logits.clone(), list(sequences))


def test_rows_without_a_grammar_keep_their_bits(grammars: Grammars) -> None:
    grammars.load(1, PATTERN("(loom|weft)+"))
    logits = random_logits(32, SIZE)
    plain = [asking(key=key, temperature=1.0, top_n_tokens=3, top_p=0.9) for key in range(32)]
    alone = choose(grammars, logits, *plain)
    mixed = [bound(1, temperature=1.0) if key % 4 else sequence for key, sequence in enumerate(plain)]
    together = choose(grammars, logits, *mixed)
    for row in range(0, 32, 4):
        for name in ("tokens", "logprobs", "top_tokens", "top_logprobs"):
            assert getattr(together, name)[row] == getattr(alone, name)[row]
    assert {together.tokens[row] for row in range(32) if row % 4} <= letters("lw")
    assert all(together.fitting)


def test_logprobs_are_among_what_fits_unless_raw_ones_are_wanted(grammars: Grammars) -> None:
    grammars.load(1, PATTERN("[ab]"))
    logits = random_logits(2, SIZE)
    chosen = choose(grammars, logits, bound(1, top_n_tokens=5), bound(1, top_n_tokens=5, raw_logprobs=True))
    fitting = logits[0, [97, 98]].log_softmax(-1)
    assert chosen.logprobs[0] == pytest.approx(float(fitting.max()))
    assert set(chosen.top_tokens[0]) == {97, 98}
    raw = logits[1].log_softmax(-1)
    assert chosen.logprobs[1] == pytest.approx(float(raw[chosen.tokens[1]]))
    assert chosen.top_tokens[1] == raw.topk(5).indices.tolist()


def test_a_row_without_a_way_on_fails_by_itself(grammars: Grammars) -> None:
    grammars.load(1, PATTERN("ab"))
    stuck = bound(1, b"x")
    chosen = choose(grammars, random_logits(3, SIZE), asking(), stuck, bound(1))
    assert (chosen.fitting, chosen.finite) == ([True, False, True], [True] * 3)


def test_bans_that_leave_nothing_are_no_fault_of_the_grammar(grammars: Grammars) -> None:
    grammars.load(1, PATTERN("ab"))
    chosen = choose(grammars, random_logits(1, SIZE), bound(1, banned_tokens=(97,)))
    assert (chosen.fitting, chosen.finite) == ([True], [False])


# -- a whole model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.getbasetemp(), "llama")


SCHEMA = {"type": "object", "required": ["kind", "count", "tags"], "additionalProperties": False, "properties": {
    "kind": {"enum": ["warp", "weft"]}, "count": {"type": "integer", "minimum": 0, "maximum": 99},
    "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2}}}
REGEX = r"[a-z]{1,5}-[0-9]{2}"
# No flexible whitespace: an untrained model tends to generate much of it.
SOURCES = {1: PATTERN(REGEX), 2: LLMatcher.grammar_from_json_schema(SCHEMA, overrides={"whitespace_flexible": False})}


def requests(count: int, grammar_of: Any) -> list[Request]:
    return [Request(
        f"r{index}", prompt=tuple(range(2, 5 + index)), max_new_tokens=60 if grammar_of(index) else 12, key=index,
        end_tokens=frozenset({1}), sampling=SamplingParams(temperature=1.5 if index % 2 else 0.0, top_n_tokens=2),
        grammar=grammar_of(index)) for index in range(count)]


def load_all(loom: Loom) -> None:
    loom.next_epoch()
    for number, source in SOURCES.items():
        loom.everywhere("load", pb.LoadRequest(kind=pb.KIND_GRAMMAR, id=number, source=source))


def check_text(text: str, number: int) -> None:
    if number == 1:
        assert re.fullmatch(REGEX, text)
    else:
        said = json.loads(text)
        assert set(said) == {"kind", "count", "tags"}
        assert said["kind"] in {"warp", "weft"}
        assert said["count"] in range(100)
        assert all(tag in {True, False} for tag in said["tags"])


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("ranks", [1, 2])
def test_with_grammars_beside_them_others_keep_their_bits_and_answers_fit(folder: Path, ranks: int) -> None:
    """24 of 32 requests have a grammar; there are preemptions and a loss, in both policies. All requests without a
    grammar, and some with one, are compared with a run alone."""
    pattern = list(islice(cycle([None, Resource("grammar", 1), Resource("grammar", 2), Resource("grammar", 2)]), 32))
    everyone = requests(32, pattern.__getitem__)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    with Loom(folder, ranks, max_batch_size=32, num_places=32 * 48) as loom:
        assert [info.grammars for info in loom.infos] == [True] * ranks
        load_all(loom)
        assert list(loom.everywhere("info")[0].loaded_grammars) == [1, 2]
        threads = [Thread(request, arrival=index // 8) for index, request in enumerate(everyone)]
        heard = loom.weave(threads, losses=(9,))
        assert loom.weave(threads, prefill_policy="pause") == heard
        for index in (*range(0, 32, 4), 1, 2, 31):
            assert heard[index] == loom.alone(everyone[index])
    for request, woven in zip(everyone, heard, strict=True):
        if request.grammar is not None:
            assert woven.end == "eos_token"
            assert woven.tokens[-1] == 1
            check_text(tokenizer.decode(woven.tokens[:-1]), request.grammar.id)


@pytest.mark.slow
def test_a_grammar_that_finds_no_way_on_fails_its_sequence_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, stuck = requests(2, lambda index: Resource("grammar", 1) if index else None)
    with Loom(folder) as loom:
        load_all(loom)
        alone = loom.alone(plain)
        monkeypatch.setattr("shard.sampling.grammar.Match.advance", lambda match, token: False)
        others, failed = loom.weave([Thread(plain), Thread(stuck)])
        assert others == alone
        assert failed.end == "the grammar had no way on"
        loom.everywhere("unload", pb.UnloadRequest(kind=pb.KIND_GRAMMAR, id=1))
        assert list(loom.everywhere("info")[0].loaded_grammars) == [2]
