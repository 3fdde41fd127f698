"""One sequence as a shard sees it, and the reading of sequences and texts from the columns of a message.

They are checked here as far as that is possible without the shard's state.
"""

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import accumulate, chain, pairwise
from math import isfinite
from typing import Any, TypeVar

from shard.errors import MalformedMessage
from shard.pb import shard_pb2 as pb

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """Limits that no message may exceed."""

    vocabulary_size: int
    max_positions: int
    tokens_per_step: int
    mixed_steps: bool
    generation: bool = True  # whether sequences may enter
    supported_wanted: frozenset[int] = frozenset()  # values of `Wanted` in proto/shard.proto that texts may be run for


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling parameters of one sequence, one field per column of `Sampling` in proto/shard.proto."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 0.0
    typical_p: float = 0.0
    repetition_penalty: float = 0.0
    relative_frequency_penalty: float = 0.0
    watermark: bool = False
    top_n_tokens: int = 0
    raw_logprobs: bool = False
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    min_tokens: int = 0
    end_tokens: tuple[int, ...] = ()
    allowed_tokens: tuple[int, ...] = ()
    banned_tokens: tuple[int, ...] = ()
    biased_tokens: tuple[int, ...] = ()
    biases: tuple[float, ...] = ()


DEFAULT_SAMPLING_PARAMS = SamplingParams()
PLACEHOLDER_TOKEN = -1  # placeholder for a token that is chosen on the device and not known to the host yet
SIGNED_PARAMS = {"relative_frequency_penalty", "frequency_penalty", "presence_penalty", "biases"}


class TokenOccurrences:
    """How often each token id occurs in a sequence from `start_index` on. It is kept with the sequence once a penalty
    uses it, and updated with the tokens since."""

    def __init__(self, start_index: int) -> None:
        self.token_ids = array("q")  # each token once
        self.counts = array("f")
        self._index_by_token: dict[int, int] = {}
        self._next_index = start_index

    def update(self, tokens: list[int]) -> None:
        """Count new tokens; `tokens` has those of the last call, followed by the new ones."""
        for token in tokens[self._next_index:]:
            index = self._index_by_token.setdefault(token, len(self.token_ids))
            if index == len(self.token_ids):
                self.token_ids.append(token)
                self.counts.append(0.0)
            self.counts[index] += 1.0
        self._next_index = len(tokens)


@dataclass(slots=True)
class Sequence:
    """A sequence as the shard holds it: tokens, cache blocks, progress, sampling parameters."""

    id: int
    tokens: list[int]  # prompt and generated, the last one included
    num_prompt_tokens: int
    num_tokens_to_prefill: int  # number of tokens at entry; the sequence is ready when all of them are computed
    num_computed_tokens: int  # tokens whose keys and values are in the cache; counts tokens of steps under way, too
    num_cached_tokens: int  # leading tokens found in the prefix cache when the sequence entered
    blocks: list[int]
    sampling_key: int
    sampling: SamplingParams
    wants_prompt_logprobs: bool
    adapter_id: int
    grammar_id: int
    num_prompt_top_tokens: int = 0  # best candidates wanted beside each prompt logprob
    failure: pb.Failure | None = None  # a failed sequence yields no more tokens
    worker_state: Any = field(default=None, compare=False, repr=False)  # state that the worker keeps with the sequence
    draft_state: Any = field(default=None, compare=False, repr=False)  # state that the draft planner keeps with it
    # by the index from which tokens are counted
    token_counts: dict[int, TokenOccurrences] = field(default_factory=dict, compare=False, repr=False)
    # result of `cuda_graph_sampler.can_sample_in_cuda_graph`
    can_sample_in_cuda_graph: bool | None = field(default=None, compare=False, repr=False)

    @classmethod
    def from_prompt(cls, sequence_id: int, tokens: list[int], blocks: list[int], *, adapter_id: int = 0,
                    sampling: SamplingParams = DEFAULT_SAMPLING_PARAMS) -> "Sequence":
        """Return a sequence of which nothing is computed, for steps that no message asks for."""
        return cls(sequence_id, tokens, len(tokens), len(tokens), 0, 0, blocks, sequence_id, sampling,
                   wants_prompt_logprobs=False, adapter_id=adapter_id, grammar_id=0)

    @property
    def is_prefilled(self) -> bool:
        return self.num_computed_tokens >= self.num_tokens_to_prefill


@dataclass(frozen=True, slots=True)
class PoolingText:
    """Token ids of one text to embed or to label, which is run as a whole, and its adapter."""

    tokens: list[int]
    adapter_id: int = 0


def parse_column(values: Iterable[Value], num_rows: int, default: Value, name: str) -> list[Value]:
    """Return one entry per row; an empty column has the default for every row."""
    entries = list(values) or [default] * num_rows
    if len(entries) != num_rows:
        raise MalformedMessage(f"{name} has {len(entries)} entries for {num_rows} rows")
    return entries


def split_by_counts(values: Iterable[Value], counts: list[int], name: str) -> list[list[Value]]:
    """Split the concatenated values of all rows by the rows' counts."""
    flat_values, ends = list(values), [0, *accumulate(counts)]
    if len(flat_values) != ends[-1]:
        raise MalformedMessage(f"{name} has {len(flat_values)} entries, the counts say {ends[-1]}")
    return [flat_values[start:end] for start, end in pairwise(ends)]


def parse_distinct_ids(values: Iterable[int], name: str) -> list[int]:
    entries = list(values)
    if len(set(entries)) != len(entries):
        raise MalformedMessage(f"{name} are named twice")
    return entries


def parse_sequences(message: pb.Sequences, limits: ModelLimits, block_size: int, num_blocks: int) -> list[Sequence]:
    ids = parse_distinct_ids(message.ids, "sequences")
    num_tokens = parse_column(message.num_tokens, len(ids), 0, "num_tokens")
    tokens = split_by_counts(message.tokens, num_tokens, "tokens")
    blocks = split_by_counts(message.blocks, parse_column(message.num_blocks, len(ids), 0, "num_blocks"), "blocks")
    cached = parse_column(message.num_cached, len(ids), 0, "num_cached")
    rows = zip(
        ids, tokens, parse_column(message.num_prompt_tokens or num_tokens, len(ids), 0, "num_prompt_tokens"),
        num_tokens, cached, cached, blocks, parse_column(message.keys, len(ids), 0, "keys"),
        parse_sampling_params(message.sampling, len(ids)),
        parse_column(message.prompt_logprobs, len(ids), False, "prompt_logprobs"),
        parse_column(message.adapters, len(ids), 0, "adapters"),
        parse_column(message.grammars, len(ids), 0, "grammars"),
        parse_column(message.num_prompt_top_tokens, len(ids), 0, "num_prompt_top_tokens"),
        strict=True)
    sequences = [Sequence(*row) for row in rows]
    for sequence in sequences:
        _check_sequence(sequence, limits, block_size, num_blocks)
    return sequences


def parse_sampling_params(message: pb.Sampling, num_rows: int) -> list[SamplingParams]:
    names = SamplingParams.__dataclass_fields__
    columns = [_parse_sampling_column(message, name, num_rows) for name in names]
    sampling_params = [SamplingParams(*row) for row in zip(*columns, strict=True)]
    for sampling in sampling_params:
        if len(sampling.biases) != len(sampling.biased_tokens):
            raise MalformedMessage(f"{len(sampling.biases)} biases for {len(sampling.biased_tokens)} biased_tokens")
        parse_distinct_ids(sampling.biased_tokens, "biased_tokens")
    return sampling_params


def _parse_sampling_column(message: pb.Sampling, name: str, num_rows: int) -> list[Any]:
    """Parse a column of numbers, or of tuples for a field that holds tuples."""
    values, default = getattr(message, name), getattr(DEFAULT_SAMPLING_PARAMS, name)
    if not all(map(isfinite, values)) or (name not in SIGNED_PARAMS and min(values, default=0) < 0):
        raise MalformedMessage(f"{name} has an entry that is negative or not a number")
    if not isinstance(default, tuple):
        return parse_column(values, num_rows, default, name)
    counts = parse_column(getattr(message, f"num_{name}"), num_rows, 0, f"num_{name}")
    return list(map(tuple, split_by_counts(values, counts, name)))


def _check_sequence(sequence: Sequence, limits: ModelLimits, block_size: int, num_blocks: int) -> None:
    blocks, num_cached_tokens, sampling = sequence.blocks, sequence.num_cached_tokens, sequence.sampling
    listed_tokens = chain(sampling.end_tokens, sampling.allowed_tokens, sampling.banned_tokens, sampling.biased_tokens)
    _check_row(f"sequence {sequence.id}", sequence.tokens, limits, {
        "names a token outside the vocabulary": max(listed_tokens, default=0) >= limits.vocabulary_size,
        "has a prompt of no tokens or of more than it has": not 0 < sequence.num_prompt_tokens <= len(sequence.tokens),
        "is cached to its last token or beyond": num_cached_tokens >= len(sequence.tokens),
        "is cached to the middle of a block": num_cached_tokens % block_size != 0,
        "wants prompt logprobs of cached tokens": sequence.wants_prompt_logprobs and num_cached_tokens > 0,
        "wants candidates without prompt logprobs":
            sequence.num_prompt_top_tokens > 0 and not sequence.wants_prompt_logprobs,
        "has too few blocks for its tokens": len(blocks) * block_size < len(sequence.tokens),
        "names a block twice": len(set(blocks)) != len(blocks),
        "names a block that does not exist": max(blocks, default=0) >= num_blocks,
    })


def parse_pooling_texts(message: pb.EmbedRequest, limits: ModelLimits) -> list[PoolingText]:
    if message.wanted not in pb.Wanted.values() or not message.wanted:
        raise MalformedMessage(f"wanted must be VECTORS or LABELS, got {message.wanted}")
    tokens = split_by_counts(message.tokens, list(message.num_tokens), "tokens")
    if not tokens:
        raise MalformedMessage("an Embed names texts")
    adapters = parse_column(message.adapters, len(tokens), 0, "adapters")
    for index, text_tokens in enumerate(tokens):
        _check_row(f"text {index}", text_tokens, limits, {})
    return list(map(PoolingText, tokens, adapters))


def _check_row(name: str, tokens: list[int], limits: ModelLimits, other_problems: dict[str, bool]) -> None:
    """Raise MalformedMessage for the first problem of a sequence or text: those of its tokens come first."""
    problems = {
        "has no tokens": not tokens,
        f"has {len(tokens)} tokens, the model holds {limits.max_positions}": len(tokens) > limits.max_positions,
        "has a token outside the vocabulary": max(tokens, default=0) >= limits.vocabulary_size,
    }
    for problem, is_present in (problems | other_problems).items():
        if is_present:
            raise MalformedMessage(f"{name} {problem}")
