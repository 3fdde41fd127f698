"""Paged attention kernels under Triton's interpreter, on random inputs; `tests/shard/ops/test_triton_support.py`
compiles them for GPUs."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.attention_inputs import Part, Scene
from support.uninitialized_memory import poison_memory
from torch import Tensor

from shard.attention.span import Span
from shard.attention.variant import PLAIN, Variant

pytest.importorskip("triton")  # published for Linux only

from triton import next_power_of_2

from shard.attention import triton
from shard.attention.triton import Plan, Sizes, padded, tiles_of, work_of

GPU_SPLIT = triton.SPLIT
SPLIT = 64  # slots, a quarter of a GPU's: the interpreter is slow, and two tiles test as much as eight
VARIANTS = [PLAIN, Variant(windows=(0, 40)), Variant(windows=(0, SPLIT + 36)), Variant(scale=0.3, softcap=2.0),
            Variant(softcap=1.5, windows=(0, 50))]
CLOSE = {torch.float32: 2e-5, torch.float16: 4e-3}
HEADS = [(1, 1), (2, 2), (1, 7), (2, 4)]  # key/value heads, and query heads for each
EDGES = [1, 2, 15, 16, 17, 31, 32, 33, SPLIT - 1, SPLIT, SPLIT + 1, 2 * SPLIT + 3]  # of blocks, tiles and splits
POISON = float("nan")

lengths = st.lists(st.sampled_from(EDGES), min_size=1, max_size=3)


@pytest.fixture(autouse=True)
def short_splits_and_unwritten_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton, "SPLIT", SPLIT)
    poison_memory(monkeypatch)


def both(scene: dict[str, object], decodes: list[int], chunks: list[tuple[int, int]]) -> list[tuple[Tensor, Tensor]]:
    """Run a step of decodes at these lengths and of chunks (start, end), by the kernels and by the reference, in a
    cache where everything else is NaN. Return pairs of results."""
    found = []
    for backend in ("triton", "reference"):
        here = Scene(backend, **scene)  # type: ignore[arg-type]
        here.soil(POISON)
        deciding, prompts = [here.part(length) for length in decodes], [here.part(end) for _, end in chunks]
        for part, before in [*((part, part.length - 1) for part in deciding),
                             *((part, start) for part, (start, _) in zip(prompts, chunks, strict=True))]:
            here.write(part, 0, before)
        found.append(here.step([(part, part.length - 1) for part in deciding],
                               [(part, start, end) for part, (start, end) in zip(prompts, chunks, strict=True)]))
    return list(zip(*found, strict=True))


@pytest.mark.slow
@settings(max_examples=12)
@given(st.integers(0, 2**32), st.sampled_from(HEADS), st.sampled_from([64, 80, 128, 256]), lengths, lengths,
       st.sampled_from(VARIANTS))
def test_it_agrees_with_the_reference(  # noqa: PLR0917 - drawn arguments
        seed: int, heads: tuple[int, int], head_dim: int, decodes: list[int], ends: list[int],
        variant: Variant) -> None:
    chunks = [(end // 3, end) for end in ends]
    scene = {"kv_heads": heads[0], "group": heads[1], "head_dim": head_dim, "seed": seed, "dtype": torch.float16,
             "variant": variant}
    for ours, theirs in both(scene, decodes, chunks):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=CLOSE[torch.float16])


@pytest.mark.slow
@settings(max_examples=4)
@given(st.integers(0, 2**32), st.sampled_from(HEADS), st.sampled_from([64, 80, 256]),
       st.sampled_from([1, 17, SPLIT + 1]), st.sampled_from(VARIANTS))
def test_it_does_so_in_float32_too(
        seed: int, heads: tuple[int, int], head_dim: int, length: int, variant: Variant) -> None:
    scene = {"kv_heads": heads[0], "group": heads[1], "head_dim": head_dim, "seed": seed, "variant": variant}
    for ours, theirs in both(scene, [length], [(length // 2, length)]):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=CLOSE[torch.float32])


@pytest.mark.slow
@pytest.mark.parametrize("block_size", [16, 32, 128])
def test_blocks_may_be_of_any_size(block_size: int) -> None:
    for ours, theirs in both({"block_size": block_size, "dtype": torch.float16}, [40, 129], [(3, 70)]):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=CLOSE[torch.float16])


@pytest.mark.slow
@settings(max_examples=3)
@given(st.integers(0, 2**32), st.lists(st.integers(1, 150), max_size=3), st.lists(st.integers(1, 70), max_size=2),
       st.sampled_from(VARIANTS))
def test_company_changes_no_bit(seed: int, decodes: list[int], chunks: list[int], variant: Variant) -> None:
    scene = Scene("triton", kv_heads=1, seed=seed, dtype=torch.float16, variant=variant)
    part = scene.part(150)
    alone = [*scene.step(chunks=[(part, 0, 149)]), *scene.step([(part, 149)])]
    same = scene.copy(part)
    company = [(scene.part(length), length - 1) for length in decodes]
    prompts = [(scene.part(length), 0, length) for length in chunks]
    assert torch.equal(scene.step(company, [*prompts, (same, 0, 149)])[-1], alone[0])
    assert torch.equal(scene.step([*company, (same, 149)], prompts)[len(company)], alone[1])


@pytest.mark.slow
@settings(max_examples=3)
@given(st.integers(0, 2**32), st.sets(st.integers(1, 158), max_size=4), st.sampled_from(VARIANTS))
def test_how_a_text_is_cut_changes_no_bit(seed: int, cuts: set[int], variant: Variant) -> None:
    """A decoded token is a chunk of one token, computed with as many rows in a matmul."""
    scene = Scene("triton", kv_heads=1, seed=seed, dtype=torch.float16, variant=variant)
    part = scene.part(160)
    (whole,) = scene.step(chunks=[(part, 0, 160)])
    edges = [0, *sorted(cuts), 159, 160]
    same = scene.copy(part)
    pieces = [scene.step(chunks=[(same, start, end)])[0] if end - start > 1 else scene.step([(same, start)])[0]
              for start, end in pairwise(edges)]
    assert torch.equal(torch.cat(pieces), whole)


@pytest.mark.slow
def test_programs_may_take_turns_with_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A captured launch needs this: its number of splits is not known in advance."""
    scene = Scene("triton", dtype=torch.float16, variant=Variant(windows=(0, SPLIT + 44)))
    decodes = [(part, part.length - 1) for part in map(scene.part, (3 * SPLIT + 5, 1, SPLIT + 1))]
    for part, before in decodes:
        scene.write(part, 0, before)
    expected, plan = scene.step(decodes), scene.attention.plan

    def with_few_programs(*spans: Any) -> Plan:
        made: Any = plan(*spans)
        return replace(made, decodes={window: replace(one, programs=2) for window, one in made.decodes.items()})

    monkeypatch.setattr(scene.attention, "plan", with_few_programs)
    assert all(torch.equal(*pair) for pair in zip(scene.step(decodes), expected, strict=True))


def test_a_row_in_no_span_gets_zeros() -> None:
    scene = Scene("triton", dtype=torch.float16)
    part = scene.part(1)
    plan = scene.attention.plan([part.span(0, 0, 1)], [], 2, scene.cache)
    result = scene.attention.run(part.queries.expand(2, -1, -1).contiguous(), scene.cache, 0, plan)
    assert not result[1].any()


def test_a_chunk_of_nothing_changes_nothing() -> None:
    scene = Scene("triton", dtype=torch.float16)
    part, nothing = scene.part(5), Part(*[torch.empty(0)] * 3, [])
    scene.write(part, 0, 5)
    spans = [part.span(0, 0, 5), Span(5, 0, 0, nothing.blocks)]
    plan = scene.attention.plan([], spans, 5, scene.cache)
    (alone,) = scene.step(chunks=[(part, 0, 5)])
    assert torch.equal(scene.attention.run(part.queries, scene.cache, 1, plan), alone)


def test_queries_may_stand_between_other_numbers() -> None:
    """Queries are the first heads of the fused QKV output."""
    scene = Scene("triton", dtype=torch.float16)
    part = scene.part(20)
    (alone,) = scene.step(chunks=[(part, 0, 20)])
    among = torch.cat([part.queries, part.queries.new_full((20, 3, 32), POISON)], 1)[:, :part.queries.shape[1]]
    plan = scene.attention.plan([], [part.span(0, 0, 20)], 20, scene.cache)
    assert torch.equal(scene.attention.run(among, scene.cache, 1, plan), alone)


@pytest.mark.parametrize(("position", "window", "splits"), [
    (0, 0, [0]), (SPLIT - 1, 0, [0]), (SPLIT, 0, [0, 1]), (3 * SPLIT + 1, 0, [0, 1, 2, 3]), (SPLIT, 1, [1]),
    (SPLIT, 2, [0, 1]), (SPLIT + 20, 18, [1]), (3 * SPLIT + 1, SPLIT + 2, [2, 3]), (5, 9000, [0])])
def test_splits_are_counted_from_the_first_token(position: int, window: int, splits: list[int]) -> None:
    """Splits outside the window are left out."""
    work = list(work_of(Span(3, position, 1, []), 7, window, 32))
    assert work == [number for split in splits for number in (3, 7, position, split)]


@given(st.integers(0, 99), st.integers(0, 500), st.integers(1, 300), st.integers(1, 64))
def test_tiles_make_up_the_chunk(row: int, start: int, length: int, each: int) -> None:
    numbers = list(tiles_of(Span(row, start, length, []), 7, each))
    tiles = [numbers[place:place + 4] for place in range(0, len(numbers), 4)]
    assert [row + token for token in range(length)] == [first + i for first, _, _, size in tiles for i in range(size)]
    assert all((tile[1], tile[2] - tile[0]) == (7, start - row) for tile in tiles)


@given(st.integers(1, 128), st.integers(16, 256), st.sampled_from([torch.float32, torch.bfloat16]))
def test_a_program_holds_at_least_one_token(group: int, head_dim: int, dtype: torch.dtype) -> None:
    sizes = Sizes.of(group, head_dim, dtype)
    assert sizes.rows >= group
    assert sizes.rows == next_power_of_2(sizes.rows)
    assert padded(head_dim) >= head_dim
    assert GPU_SPLIT % sizes.tile == SPLIT % sizes.tile == 0
