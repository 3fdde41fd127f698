import math
from importlib.util import find_spec

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.model_runs.attention_inputs import LAYER, AttentionHarness, AttentionSequence
from torch import Tensor

from shard.attention.backend import DEFAULT_ATTENTION_OPTIONS, AttentionOptions

BACKENDS = ["reference", "cpu", pytest.param("triton", marks=pytest.mark.skipif(
    find_spec("triton") is None, reason="it comes for Linux only"))]


def compute_textbook_attention(sequence: AttentionSequence, position: int, group: int,
                               variant: AttentionOptions = DEFAULT_ATTENTION_OPTIONS) -> Tensor:
    """Compute one token's attention in float64, head by head and key by key: [heads * head_dim]."""
    first = max(0, position + 1 - variant.sliding_windows[LAYER]) if variant.sliding_windows else 0
    scale = variant.scale or 1 / math.sqrt(sequence.queries.shape[2])

    def compute_unnormalized_weight(query: Tensor, key: Tensor) -> float:
        score = float(sum(query * key)) * scale
        return math.exp(variant.softcap * math.tanh(score / variant.softcap) if variant.softcap else score)

    heads, head_dim = sequence.queries.shape[1:]
    out = torch.zeros(heads, head_dim, dtype=torch.float64)
    for head in range(heads):
        columns = slice(head // group * head_dim, (head // group + 1) * head_dim)
        query, attended_keys = (sequence.queries[position, head].double(),
                                sequence.keys[first:position + 1, columns].double())
        weights = [compute_unnormalized_weight(query, key) for key in attended_keys]
        for softmax_weight, value in zip(weights, sequence.values[first:position + 1, columns], strict=True):
            out[head] += softmax_weight / sum(weights) * value.double()
    return out.flatten()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("kv_heads", "group"), [(1, 1), (2, 1), (1, 3), (2, 2)])
def test_attention_matches_the_textbook_formula(backend: str, kv_heads: int, group: int) -> None:
    harness = AttentionHarness(backend, kv_heads=kv_heads, group=group)
    sequence = harness.make_random_sequence(9)
    (chunk,) = harness.run_step(chunks=[(sequence, 0, 8)])
    (decode,) = harness.run_step(decodes=[(sequence, 8)])
    for position, row in enumerate([*chunk, decode[0]]):
        torch.testing.assert_close(row.double(), compute_textbook_attention(sequence, position, group), rtol=0,
                                   atol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("variant", [AttentionOptions(sliding_windows=(0, 3)), AttentionOptions(scale=0.7),
                                     AttentionOptions(softcap=1.5), AttentionOptions(0.2, 0.5, (7, 4))], ids=str)
def test_attention_variants_match_the_textbook_formula(backend: str, variant: AttentionOptions) -> None:
    harness = AttentionHarness(backend, variant=variant)
    sequence = harness.make_random_sequence(9)
    (chunk,) = harness.run_step(chunks=[(sequence, 0, 8)])
    (decode,) = harness.run_step(decodes=[(sequence, 8)])
    for position, row in enumerate([*chunk, decode[0]]):
        torch.testing.assert_close(row.double(), compute_textbook_attention(sequence, position, 2, variant), rtol=0,
                                   atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_result_has_the_dtype_of_the_inputs(dtype: torch.dtype) -> None:
    harness = AttentionHarness("reference", dtype=dtype)
    (chunk,) = harness.run_step(chunks=[(harness.make_random_sequence(3), 0, 3)])
    assert chunk.dtype == dtype


def test_a_row_in_no_span_gets_zeros() -> None:
    harness = AttentionHarness("reference")
    sequence = harness.make_random_sequence(1)
    plan = harness.attention.plan([sequence.make_span(0, 0, 1)], [], 2, harness.cache)
    result = harness.attention.run(sequence.queries.expand(2, -1, -1), harness.cache, 0, plan)
    assert not result[1].any()


@pytest.mark.slow
@settings(max_examples=15)
@given(st.integers(0, 2**32), st.lists(st.integers(1, 70), max_size=4), st.lists(st.integers(1, 70), max_size=2))
def test_result_does_not_depend_on_other_rows(seed: int, decodes: list[int], chunks: list[int]) -> None:
    """The prompt is always cut in the same way: with other cuts the reference may have other bits."""
    harness = AttentionHarness("reference", seed=seed)
    sequence = harness.make_random_sequence(40)
    alone = [*harness.run_step(chunks=[(sequence, 0, 25)]), *harness.run_step(chunks=[(sequence, 25, 39)]),
             *harness.run_step([(sequence, 39)])]
    sequence_copy = harness.copy_sequence(sequence)
    other_sequences = [(harness.make_random_sequence(length), length) for length in decodes]
    other_decodes = [(other, length - 1) for other, length in other_sequences]
    other_chunks = [(harness.make_random_sequence(length), 0, length) for length in chunks]
    assert torch.equal(harness.run_step(other_decodes, [*other_chunks, (sequence_copy, 0, 25)])[-1], alone[0])
    assert torch.equal(harness.run_step(other_decodes, [(sequence_copy, 25, 39), *other_chunks])[len(other_decodes)],
                       alone[1])
    assert torch.equal(harness.run_step([*other_decodes, (sequence_copy, 39)], other_chunks)[len(other_decodes)],
                       alone[2])
