"""Tests of shard/sampling/grammar.py, and of batches that mix rows with and without a grammar."""

import json
import re
from collections.abc import Iterable
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from time import thread_time
from typing import Any

import pytest
import torch
from llguidance import LLMatcher
from support.checkpoints.small_checkpoints import make_tiny_checkpoint
from support.model_runs.sampling_sequences import make_random_logits, make_sampling_sequence
from support.shards.scheduler_with_workers import ScheduledRequest, SchedulerWithWorkers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from router.grammars import compiler_process
from router.request import LoadableResource, Request, SamplingParams
from router.text.tokenizer import create_byte_tokenizer
from shard.errors import RejectedMessage
from shard.pb import shard_pb2 as pb
from shard.sampling.grammar import MATCHER_LIMITS, GrammarRegistry, GrammarTokenizer, make_grammar_registry
from shard.sampling.sampler import Sampler, SamplerOutput
from shard.state.sequence import Sequence

END_TOKEN, VOCABULARY_SIZE = 256, 300
GRAMMAR_FROM_REGEX = LLMatcher.grammar_from_regex


@pytest.fixture(scope="module")
def grammar_tokenizer() -> GrammarTokenizer:
    return GrammarTokenizer(create_byte_tokenizer().path_or_content, VOCABULARY_SIZE)


@pytest.fixture
def grammar_registry(grammar_tokenizer: GrammarTokenizer) -> GrammarRegistry:
    return GrammarRegistry(grammar_tokenizer)


def make_constrained_sequence(grammar_id: int, output_bytes: Iterable[int] = b"", **sampling_options: Any) -> Sequence:
    return replace(make_sampling_sequence(output=list(output_bytes), **{"end_tokens": (END_TOKEN,)} | sampling_options),
                   grammar_id=grammar_id)


def get_allowed_tokens(grammar_registry: GrammarRegistry, sequence: Sequence,
                       vocabulary_size: int = VOCABULARY_SIZE) -> set[int]:
    logits = torch.zeros(1, vocabulary_size)
    rows_without_tokens = grammar_registry.mask_logits(logits, [sequence])
    return set() if rows_without_tokens else set(logits[0].isfinite().nonzero()[:, 0].tolist())


def get_letter_tokens(text: str) -> set[int]:
    return set(text.encode())


def test_matcher_limits_equal_those_of_the_router() -> None:
    assert MATCHER_LIMITS == compiler_process.PARSER_LIMITS


def test_only_tokens_that_fit_are_allowed(grammar_registry: GrammarRegistry) -> None:
    grammar_registry.load(1, GRAMMAR_FROM_REGEX("loom|weft"))
    assert get_allowed_tokens(grammar_registry, make_constrained_sequence(1)) == get_letter_tokens("lw")
    assert get_allowed_tokens(grammar_registry, make_constrained_sequence(1, b"we")) == get_letter_tokens("f")


def test_end_token_is_allowed_only_where_the_grammar_may_end(grammar_registry: GrammarRegistry) -> None:
    grammar_registry.load(1, GRAMMAR_FROM_REGEX("a+"))
    assert get_allowed_tokens(grammar_registry, make_constrained_sequence(1)) == get_letter_tokens("a")
    assert get_allowed_tokens(grammar_registry,
                              make_constrained_sequence(1, b"a")) == get_letter_tokens("a") | {END_TOKEN}
    grammar_registry.load(2, GRAMMAR_FROM_REGEX("ab"))
    assert get_allowed_tokens(grammar_registry, make_constrained_sequence(2, b"ab")) == {END_TOKEN}


def test_end_tokens_that_may_be_text_are_allowed_only_at_the_end(grammar_registry: GrammarRegistry) -> None:
    grammar_registry.load(1, GRAMMAR_FROM_REGEX(r"a\nb?"))
    newline = ord("\n")
    assert get_allowed_tokens(grammar_registry,
                              make_constrained_sequence(1, b"a", end_tokens=(END_TOKEN, newline))) == set()
    assert (get_allowed_tokens(grammar_registry, make_constrained_sequence(1, b"a\n", end_tokens=(END_TOKEN, newline)))
            == get_letter_tokens("b") | {END_TOKEN, newline})


def test_grammar_state_advances_with_sampled_tokens(grammar_registry: GrammarRegistry) -> None:
    grammar_registry.load(1, GRAMMAR_FROM_REGEX("abc"))
    sequence = make_constrained_sequence(1)
    for letter in b"abc":
        assert get_allowed_tokens(grammar_registry, sequence) == {letter}
        assert grammar_registry.advance(sequence, letter)
    assert get_allowed_tokens(grammar_registry, sequence) == {END_TOKEN}
    assert grammar_registry.advance(sequence, END_TOKEN)
    assert get_allowed_tokens(grammar_registry, sequence) == {END_TOKEN}


def test_end_token_is_no_beginning_of_special_tokens() -> None:
    """Regression: where a grammar allowed a special token, a text could also end."""
    tokenizer = Tokenizer.from_str(create_byte_tokenizer().path_or_content)
    tokenizer.add_special_tokens(["</think>"])
    grammar_registry = GrammarRegistry(GrammarTokenizer(tokenizer.to_str(), VOCABULARY_SIZE))
    grammar_registry.load(1, "start: /[ab]*/ </think> /c+/")
    special = tokenizer.token_to_id("</think>")
    for output, allowed in ((b"", {*b"ab", special}), (b"ab", {*b"ab", special}), ([*b"a", special], {*b"c"}),
                            ([special, *b"c"], {*b"c", END_TOKEN})):
        sequence = make_constrained_sequence(1, output)
        assert get_allowed_tokens(grammar_registry, sequence) == allowed


def test_token_that_does_not_fit_ends_the_match(grammar_registry: GrammarRegistry) -> None:
    grammar_registry.load(1, GRAMMAR_FROM_REGEX("abc"))
    sequence = make_constrained_sequence(1)
    assert get_allowed_tokens(grammar_registry, sequence)
    assert not grammar_registry.advance(sequence, ord("x"))
    assert get_allowed_tokens(grammar_registry, sequence) == set()


def test_sequences_of_one_grammar_have_separate_states(grammar_registry: GrammarRegistry) -> None:
    grammar_registry.load(1, GRAMMAR_FROM_REGEX("ab|cd"))
    first, second = make_constrained_sequence(1), make_constrained_sequence(1)
    assert (get_allowed_tokens(grammar_registry, first) == get_allowed_tokens(grammar_registry, second)
            == get_letter_tokens("ac"))
    grammar_registry.advance(first, ord("a"))
    assert (get_allowed_tokens(grammar_registry, first),
            get_allowed_tokens(grammar_registry, second)) == (get_letter_tokens("b"), get_letter_tokens("ac"))


def test_matching_again_what_was_generated_takes_a_limited_time_and_fails_no_other_row(
        grammar_registry: GrammarRegistry) -> None:
    grammar_registry.load(1, LLMatcher.grammar_from_lark('start: s\ns: s s | "a"\n'))  # the time grows with the square
    grammar_registry.load(2, GRAMMAR_FROM_REGEX("[ab]*c"))
    costly, cheap = (make_constrained_sequence(1, b"a" * 2000), make_constrained_sequence(2, b"ab" * 2000))
    logits, started_at = torch.zeros(2, VOCABULARY_SIZE), thread_time()
    assert grammar_registry.mask_logits(logits, [costly, cheap]) == {0}
    assert thread_time() - started_at < 10  # without a limit a minute
    assert set(logits[1].isfinite().nonzero()[:, 0].tolist()) == get_letter_tokens("abc")


def test_sequence_keeps_its_state_when_its_grammar_is_unloaded(grammar_registry: GrammarRegistry) -> None:
    grammar_registry.load(1, GRAMMAR_FROM_REGEX("ab"))
    sequence = make_constrained_sequence(1)
    assert get_allowed_tokens(grammar_registry, sequence) == get_letter_tokens("a")
    grammar_registry.unload(1)
    grammar_registry.advance(sequence, ord("a"))
    assert get_allowed_tokens(grammar_registry, sequence) == get_letter_tokens("b")


def test_invalid_grammar_is_rejected(grammar_registry: GrammarRegistry) -> None:
    with pytest.raises(RejectedMessage, match="grammar 7 cannot be loaded"):
        grammar_registry.load(7, GRAMMAR_FROM_REGEX("("))
    with pytest.raises(RejectedMessage, match="grammar 7 cannot be loaded"):
        grammar_registry.load(7, "weft")


def test_forced_text_that_names_a_special_token_is_text() -> None:
    """Regression: its answer failed, since the grammar had no way on."""
    tokenizer = Tokenizer.from_str(create_byte_tokenizer().path_or_content)
    tokenizer.add_special_tokens(["</think>"])
    grammar_registry = GrammarRegistry(GrammarTokenizer(tokenizer.to_str(), VOCABULARY_SIZE))
    grammar_registry.load(1, 'start: "a </think> b"')
    text = b"a </think> b"
    for place, letter in enumerate(text):
        assert get_allowed_tokens(grammar_registry, make_constrained_sequence(1, text[:place])) == {letter}


@pytest.mark.parametrize("size", [200, 257, 5000])
def test_logits_may_be_narrower_or_wider_than_the_vocabulary(size: int) -> None:
    grammar_registry = GrammarRegistry(GrammarTokenizer(create_byte_tokenizer().path_or_content, size))
    grammar_registry.load(1, GRAMMAR_FROM_REGEX("[ab]"))
    logits = torch.zeros(2, size)
    assert grammar_registry.mask_logits(logits, [make_constrained_sequence(1, end_tokens=(0,)),
                                                 make_sampling_sequence()]) == set()
    assert logits[0].isfinite().nonzero()[:, 0].tolist() == [97, 98]
    assert logits[1].isfinite().all()


def make_space_prefixing_tokenizer() -> str:
    """Return a tokenizer that prefixes every text with a space, so that forced text is encoded with one."""
    tokenizer = Tokenizer.from_str(create_byte_tokenizer().path_or_content)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    return tokenizer.to_str()


def test_forced_text_is_right_with_a_space_prefixing_tokenizer() -> None:
    grammar_registry = GrammarRegistry(GrammarTokenizer(make_space_prefixing_tokenizer(), VOCABULARY_SIZE))
    grammar_registry.load(1, LLMatcher.grammar_from_json_schema({"type": "object"}))
    assert get_allowed_tokens(grammar_registry, make_constrained_sequence(1)) == get_letter_tokens("{")


def test_multi_letter_tokens_and_byte_tokens_fit() -> None:
    vocabulary = {letter: number for number, letter in enumerate("abcdefghij")} | {"cd": 10, "abc": 11, "bx": 12}
    vocabulary |= {f"<0x{byte:02X}>": 13 + byte for byte in range(256)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    grammar_registry = GrammarRegistry(GrammarTokenizer(tokenizer.to_str(), 270))
    grammar_registry.load(1, GRAMMAR_FROM_REGEX("(ab|abcd|ü)"))
    fitting = get_allowed_tokens(grammar_registry, make_constrained_sequence(1, end_tokens=(269,)), 270)
    assert fitting == {0, 11, 13 + ord("a"), 13 + "ü".encode()[0]}


def test_folder_without_a_usable_tokenizer_has_no_grammars(tmp_path: Path) -> None:
    assert make_grammar_registry(tmp_path, VOCABULARY_SIZE) is None
    words = Tokenizer(models.WordPiece(vocab={"[UNK]": 0, "loom": 1}, unk_token="[UNK]"))
    words.decoder = decoders.WordPiece()
    words.save(str(tmp_path / "tokenizer.json"))
    assert make_grammar_registry(tmp_path, VOCABULARY_SIZE) is None
    (tmp_path / "tokenizer.json").write_text(create_byte_tokenizer().path_or_content)
    assert make_grammar_registry(tmp_path, VOCABULARY_SIZE) is not None


# -- sampling


def sample(grammar_registry: GrammarRegistry, logits: torch.Tensor, *sequences: Sequence) -> SamplerOutput:
    return Sampler(VOCABULARY_SIZE, grammars=grammar_registry).sample(logits.clone(), list(sequences))


def test_rows_without_a_grammar_do_not_depend_on_those_with_one(grammar_registry: GrammarRegistry) -> None:
    grammar_registry.load(1, GRAMMAR_FROM_REGEX("(loom|weft)+"))
    logits = make_random_logits(32, VOCABULARY_SIZE)
    plain = [make_sampling_sequence(key=key, temperature=1.0, top_n_tokens=3, top_p=0.9) for key in range(32)]
    alone = sample(grammar_registry, logits, *plain)
    mixed = [make_constrained_sequence(1, temperature=1.0) if key % 4 else sequence
             for key, sequence in enumerate(plain)]
    batched = sample(grammar_registry, logits, *mixed)
    for row in range(0, 32, 4):
        for name in ("tokens", "logprobs", "top_tokens", "top_logprobs"):
            assert getattr(batched, name)[row] == getattr(alone, name)[row]
    assert {batched.tokens[row] for row in range(32) if row % 4} <= get_letter_tokens("lw")
    assert all(batched.fits_grammar)


def test_logprobs_are_over_allowed_tokens_unless_raw(grammar_registry: GrammarRegistry) -> None:
    grammar_registry.load(1, GRAMMAR_FROM_REGEX("[ab]"))
    logits = make_random_logits(2, VOCABULARY_SIZE)
    chosen = sample(grammar_registry, logits, make_constrained_sequence(1, top_n_tokens=5),
                    make_constrained_sequence(1, top_n_tokens=5, raw_logprobs=True))
    fitting = logits[0, [97, 98]].log_softmax(-1)
    assert chosen.logprobs[0] == pytest.approx(float(fitting.max()))
    assert set(chosen.top_tokens[0]) == {97, 98}
    raw = logits[1].log_softmax(-1)
    assert chosen.logprobs[1] == pytest.approx(float(raw[chosen.tokens[1]]))
    assert chosen.top_tokens[1] == raw.topk(5).indices.tolist()


def test_row_without_allowed_tokens_fails_alone(grammar_registry: GrammarRegistry) -> None:
    grammar_registry.load(1, GRAMMAR_FROM_REGEX("ab"))
    stuck = make_constrained_sequence(1, b"x")
    chosen = sample(grammar_registry, make_random_logits(3, VOCABULARY_SIZE), make_sampling_sequence(), stuck,
                    make_constrained_sequence(1))
    assert (chosen.fits_grammar, chosen.is_finite) == ([True, False, True], [True] * 3)


def test_banning_all_allowed_tokens_is_no_grammar_failure(grammar_registry: GrammarRegistry) -> None:
    grammar_registry.load(1, GRAMMAR_FROM_REGEX("ab"))
    chosen = sample(grammar_registry, make_random_logits(1, VOCABULARY_SIZE),
                    make_constrained_sequence(1, banned_tokens=(97,)))
    assert (chosen.fits_grammar, chosen.is_finite) == ([True], [False])


# -- a whole model


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.getbasetemp(), "llama")


JSON_SCHEMA = {"type": "object", "required": ["kind", "count", "tags"], "additionalProperties": False, "properties": {
    "kind": {"enum": ["warp", "weft"]}, "count": {"type": "integer", "minimum": 0, "maximum": 99},
    "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2}}}
OUTPUT_REGEX = r"[a-z]{1,5}-[0-9]{2}"
# No flexible whitespace: an untrained model tends to generate much of it.
GRAMMAR_SOURCES = {1: GRAMMAR_FROM_REGEX(OUTPUT_REGEX),
                   2: LLMatcher.grammar_from_json_schema(JSON_SCHEMA, overrides={"whitespace_flexible": False})}


def make_requests(count: int, choose_grammar: Any) -> list[Request]:
    return [Request(f"r{index}", prompt=tuple(range(2, 5 + index)), max_new_tokens=60 if choose_grammar(index) else 12,
                    sampling_key=index, end_tokens=frozenset({1}),
                    sampling=SamplingParams(temperature=1.5 if index % 2 else 0.0, top_n_tokens=2),
                    grammar=choose_grammar(index)) for index in range(count)]


def load_all_grammars(harness: SchedulerWithWorkers) -> None:
    harness.start_next_epoch()
    for number, source in GRAMMAR_SOURCES.items():
        harness.call_all_ranks("load_resource", pb.LoadRequest(kind=pb.KIND_GRAMMAR, id=number, source=source))


def check_text_fits_grammar(text: str, grammar_id: int) -> None:
    if grammar_id == 1:
        assert re.fullmatch(OUTPUT_REGEX, text)
    else:
        parsed = json.loads(text)
        assert set(parsed) == {"kind", "count", "tags"}
        assert parsed["kind"] in {"warp", "weft"}
        assert parsed["count"] in range(100)
        assert all(tag in {True, False} for tag in parsed["tags"])


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.long)])
def test_batches_with_grammars_are_exact_and_outputs_fit(checkpoint: Path, ranks: int) -> None:
    """24 of 32 requests have a grammar; there are preemptions and a loss, in both policies. All requests without a
    grammar, and some with one, are compared with a run alone."""
    pattern = list(islice(cycle([None, LoadableResource("grammar", 1), LoadableResource("grammar", 2),
                                 LoadableResource("grammar", 2)]), 32))
    all_requests = make_requests(32, pattern.__getitem__)
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    with SchedulerWithWorkers(checkpoint, ranks, max_batch_size=32, num_places=32 * 48) as harness:
        assert [info.grammars for info in harness.infos] == [True] * ranks
        load_all_grammars(harness)
        assert list(harness.call_all_ranks("info")[0].loaded_grammars) == [1, 2]
        scheduled_requests = [ScheduledRequest(request, arrival_step=index // 8)
                              for index, request in enumerate(all_requests)]
        outputs = harness.run_together(scheduled_requests, loss_steps=(9,))
        assert harness.run_together(scheduled_requests, prefill_policy="pause") == outputs
        for index in (*range(0, 32, 4), 1, 2, 31):
            assert outputs[index] == harness.run_alone(all_requests[index])
    for request, output in zip(all_requests, outputs, strict=True):
        if request.grammar is not None:
            assert output.end_reason == "eos_token"
            assert output.tokens[-1] == 1
            check_text_fits_grammar(tokenizer.decode(output.tokens[:-1]), request.grammar.id)


@pytest.mark.slow
def test_grammar_without_a_continuation_fails_only_its_sequence(checkpoint: Path,
                                                                monkeypatch: pytest.MonkeyPatch) -> None:
    plain, stuck = make_requests(2, lambda index: LoadableResource("grammar", 1) if index else None)
    with SchedulerWithWorkers(checkpoint) as harness:
        load_all_grammars(harness)
        alone = harness.run_alone(plain)
        monkeypatch.setattr("shard.sampling.grammar.GrammarState.advance", lambda match, token: False)
        output, failed = harness.run_together([ScheduledRequest(plain), ScheduledRequest(stuck)])
        assert output == alone
        assert failed.end_reason == "the grammar had no way on"
        harness.call_all_ranks("unload_resource", pb.UnloadRequest(kind=pb.KIND_GRAMMAR, id=1))
        assert list(harness.call_all_ranks("info")[0].loaded_grammars) == [2]
