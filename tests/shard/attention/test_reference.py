import math
from importlib.util import find_spec

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.attention_inputs import LAYER, Part, Scene
from torch import Tensor

from shard.attention.variant import PLAIN, Variant

BACKENDS = ["reference", "cpu", pytest.param("triton", marks=pytest.mark.skipif(
    find_spec("triton") is None, reason="it comes for Linux only"))]


def textbook(part: Part, position: int, group: int, variant: Variant = PLAIN) -> Tensor:
    """Compute one token's attention in float64, head by head and key by key: [heads * head_dim]."""
    first = max(0, position + 1 - variant.windows[LAYER]) if variant.windows else 0
    scale = variant.scale or 1 / math.sqrt(part.queries.shape[2])

    def weight(query: Tensor, key: Tensor) -> float:
        score = float(sum(query * key)) * scale
        return math.exp(variant.softcap * math.tanh(score / variant.softcap) if variant.softcap else score)

    heads, head_dim = part.queries.shape[1:]
    out = torch.zeros(heads, head_dim, dtype=torch.float64)
    for head in range(heads):
        columns = slice(head // group * head_dim, (head // group + 1) * head_dim)
        query, seen = part.queries[position, head].double(), part.keys[first:position + 1, columns].double()
        weights = [weight(query, key) for key in seen]
        for share, value in zip(weights, part.values[first:position + 1, columns], strict=True):
            out[head] += share / sum(weights) * value.double()
    return out.flatten()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("kv_heads", "group"), [(1, 1), (2, 1), (1, 3), (2, 2)])
def test_attention_is_that_of_the_textbook(backend: str, kv_heads: int, group: int) -> None:
    scene = Scene(backend, kv_heads=kv_heads, group=group)
    part = scene.part(9)
    (chunk,) = scene.step(chunks=[(part, 0, 8)])
    (decode,) = scene.step(decodes=[(part, 8)])
    for position, row in enumerate([*chunk, decode[0]]):
        torch.testing.assert_close(row.double(), textbook(part, position, group), rtol=0, atol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("variant", [
    Variant(windows=(0, 3)), Variant(scale=0.7), Variant(softcap=1.5), Variant(0.2, 0.5, (7, 4))], ids=str)
def test_what_models_vary_is_as_in_the_textbook_too(backend: str, variant: Variant) -> None:
    scene = Scene(backend, variant=variant)
    part = scene.part(9)
    (chunk,) = scene.step(chunks=[(part, 0, 8)])
    (decode,) = scene.step(decodes=[(part, 8)])
    for position, row in enumerate([*chunk, decode[0]]):
        torch.testing.assert_close(row.double(), textbook(part, position, 2, variant), rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_numbers_stay_of_their_type(dtype: torch.dtype) -> None:
    scene = Scene("reference", dtype=dtype)
    (chunk,) = scene.step(chunks=[(scene.part(3), 0, 3)])
    assert chunk.dtype == dtype


def test_a_row_in_no_span_gets_zeros() -> None:
    scene = Scene("reference")
    part = scene.part(1)
    plan = scene.attention.plan([part.span(0, 0, 1)], [], 2, scene.cache)
    result = scene.attention.run(part.queries.expand(2, -1, -1), scene.cache, 0, plan)
    assert not result[1].any()


@pytest.mark.slow
@settings(max_examples=15)
@given(st.integers(0, 2**32), st.lists(st.integers(1, 70), max_size=4), st.lists(st.integers(1, 70), max_size=2))
def test_company_changes_no_bit(seed: int, decodes: list[int], chunks: list[int]) -> None:
    """The prompt is always cut in the same way: with other cuts the reference may have other bits."""
    scene = Scene("reference", seed=seed)
    part = scene.part(40)
    alone = [*scene.step(chunks=[(part, 0, 25)]), *scene.step(chunks=[(part, 25, 39)]), *scene.step([(part, 39)])]
    same = scene.copy(part)
    others = [(scene.part(length), length) for length in decodes]
    company = [(other, length - 1) for other, length in others]
    prompts = [(scene.part(length), 0, length) for length in chunks]
    assert torch.equal(scene.step(company, [*prompts, (same, 0, 25)])[-1], alone[0])
    assert torch.equal(scene.step(company, [(same, 25, 39), *prompts])[len(company)], alone[1])
    assert torch.equal(scene.step([*company, (same, 39)], prompts)[len(company)], alone[2])
