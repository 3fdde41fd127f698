"""Exactness of CPU attention: results are compared by `torch.equal`, except with the reference backend."""

from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.attention_inputs import Part, Run, Scene
from torch import Tensor

from shard.attention import cpu
from shard.attention.cpu import Edge, Reach, batched, cut, gathered_length
from shard.attention.span import Span
from shard.attention.variant import PLAIN, Variant

ALL = Reach(0)
DTYPES = [torch.float32, torch.bfloat16]
BORDERS = [64, 128, 256, 512, 1024]  # number of tokens at which the gathered length changes
VARIANTS = [PLAIN, Variant(windows=(0, 40)), Variant(windows=(0, 300)), Variant(scale=0.3, softcap=2.0),
            Variant(softcap=1.5, windows=(0, 100))]


def scenes() -> st.SearchStrategy[Scene]:
    return st.builds(Scene, kv_heads=st.sampled_from([1, 2]), group=st.sampled_from([1, 2, 4, 7, 8]),
                     head_dim=st.sampled_from([32, 64, 128]), dtype=st.sampled_from(DTYPES), seed=st.integers(0, 2**32),
                     variant=st.sampled_from(VARIANTS))


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


# ---------------------------------------------------------------------------------------------------------------------
# Gathered lengths


@pytest.mark.parametrize(("num_places", "length"), [
    (1, 64), (64, 64), (65, 128), (128, 128), (129, 256), (256, 256), (257, 512), (512, 512), (513, 1024), (1024, 1024),
    (1025, 1536), (4000, 4096)])
def test_the_gathered_length_follows_from_the_position(num_places: int, length: int) -> None:
    assert gathered_length(num_places) == length


@settings(max_examples=50)
@given(st.integers(1, 100_000))
def test_the_gathered_length_grows_only_behind_multiples_of_64(num_places: int) -> None:
    assert num_places <= gathered_length(num_places) <= gathered_length(num_places + 1)
    assert num_places % 64 == 0 or gathered_length(num_places) == gathered_length(num_places + 1)


@settings(max_examples=50)
@given(st.integers(0, 2000), st.integers(1, 600), st.integers(0, 50))
def test_pieces_make_up_the_chunk_and_are_of_one_length_each(start: int, length: int, row: int) -> None:
    pieces = list(cut(Span(row, start, length, [])))
    assert pieces[0][:2] == (row, start)
    assert pieces[-1].end == start + length
    assert all((one.row + one.length, one.end) == (two.row, two.start) for one, two in pairwise(pieces))
    assert all(gathered_length(piece.start + 1) == ALL.length(piece) for piece in pieces)


@settings(max_examples=50)
@given(st.lists(st.integers(1, 1500), max_size=40), st.integers(1, 4096))
def test_a_call_is_for_decodes_of_one_length_and_gathers_no_more_than_it_may(ends: list[int], most: int) -> None:
    spans = sorted((Span(i, end - 1, 1, []) for i, end in enumerate(ends)), key=ALL.length)
    batches = list(batched(spans, ALL, most))
    assert [span for batch in batches for span in batch] == spans
    for batch in batches:
        assert len(set(map(ALL.length, batch))) == 1
        assert len(batch) == 1 or len(batch) * ALL.length(batch[0]) <= most


@settings(max_examples=25)
@given(st.lists(st.integers(0, 700), min_size=1, max_size=9))
def test_a_row_looks_as_far_as_its_position(positions: list[int]) -> None:
    length = gathered_length(min(positions) + 1)
    for position, row in zip(positions, Edge(max(positions) + 1, 0).rows(positions, length), strict=True):
        assert row.isfinite().tolist() == [place <= position for place in range(length)]
        assert not row[:position + 1].any()


@settings(max_examples=25)
@given(st.lists(st.integers(0, 700), min_size=1, max_size=9), st.integers(1, 900))
def test_under_a_window_a_row_looks_back_as_far_as_that(places: list[int], window: int) -> None:
    length = gathered_length(min(places) + 1)
    for place, row in zip(places, Edge(max(places) + 1, window).rows(places, length), strict=True):
        assert row.isfinite().tolist() == [place - window < other <= place for other in range(length)]


@settings(max_examples=50)
@given(st.integers(1, 5000), st.integers(0, 10_000), st.integers(1, 600))
def test_under_a_window_all_tokens_of_a_piece_gather_the_same_places(window: int, start: int, length: int) -> None:
    reach = Reach(window)
    for piece in cut(Span(0, start, length, [])):
        first, last = Span(0, piece.start, 1, []), Span(0, piece.end - 1, 1, [])
        assert reach.first(first) == reach.first(last) == reach.first(piece) <= max(0, piece.start - window + 1)
        assert reach.length(first) == reach.length(last) == reach.length(piece)
        assert reach.length(piece) <= window + 3 * 512


# ---------------------------------------------------------------------------------------------------------------------
# Results

parts = st.lists(st.tuples(st.sampled_from([0, 30, 60, 120, 500]), st.integers(1, 80)), min_size=1, max_size=3)


@pytest.mark.slow
@settings(max_examples=20)
@given(st.integers(0, 2**32), st.sampled_from(DTYPES), st.sampled_from([(1, 1), (2, 7), (1, 8), (2, 24)]), parts, parts,
       st.sampled_from(VARIANTS))
def test_it_agrees_with_the_reference(  # noqa: PLR0917 - drawn arguments
        seed: int, dtype: torch.dtype, heads: tuple[int, int], decodes: list[tuple[int, int]],
        chunks: list[tuple[int, int]], variant: Variant) -> None:
    results = []
    for backend in ("cpu", "reference"):
        scene = Scene(backend, kv_heads=heads[0], group=heads[1], dtype=dtype, seed=seed, variant=variant)
        ready = [(filled(scene, start + length), start + length - 1) for start, length in decodes]
        prompts = [(filled(scene, start + length, start), start, start + length) for start, length in chunks]
        results.append(torch.cat(scene.step(ready, prompts)))
    torch.testing.assert_close(*results, rtol=0, atol=1e-5 if dtype == torch.float32 else 0.03)


def filled(scene: Scene, length: int, end: int | None = None) -> Part:
    """Return a part whose first `end` tokens are in the cache; by default, all but the last."""
    part = scene.part(length)
    scene.write(part, 0, length - 1 if end is None else end)
    return part


@pytest.mark.parametrize("block_size", [16, 48, 64])
def test_blocks_may_be_of_any_size(block_size: int) -> None:
    results = []
    for size in (16, block_size):
        scene = Scene(block_size=size, num_blocks=40)
        torch.manual_seed(0)
        part = scene.place(torch.randn(150, 4, 32), torch.randn(150, 64), torch.randn(150, 64))
        results.append(torch.cat([*scene.step(chunks=[(part, 0, 149)]), *scene.step([(part, 149)])]))
    assert torch.equal(*results)


def test_a_row_in_no_span_gets_zeros() -> None:
    scene = Scene()
    part = scene.part(1)
    plan = scene.attention.plan([part.span(0, 0, 1)], [], 2, scene.cache)
    result = scene.attention.run(torch.full((2, 4, 32), torch.nan), scene.cache, 0, plan)
    assert not result[1].any()


def test_layers_share_a_plan() -> None:
    scene = Scene()
    part = scene.part(20)
    scene.cache.write(0, part.values, part.keys, torch.tensor(scene.cache.slots(part.blocks, 0, 20)))
    scene.write(part, 0, 20)
    plan = scene.attention.plan([], [part.span(0, 0, 20)], 20, scene.cache)
    swapped = Part(part.queries, part.values, part.keys, part.blocks)
    for layer, expected in ((0, swapped), (1, part), (0, swapped)):
        (alone,) = Scene().step(chunks=[(expected, 0, 20)])
        assert torch.equal(scene.attention.run(part.queries, scene.cache, layer, plan), alone)


# ---------------------------------------------------------------------------------------------------------------------
# Same request, same bytes


def one_by_one(scene: Scene, part: Part, start: int, end: int) -> Tensor:
    """Decode every token alone and return the results."""
    scene.write(part, 0, start)
    return torch.cat([scene.step([(part, position)])[0] for position in range(start, end)])


@pytest.mark.slow
@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("border", "variant"), [
    *((border, PLAIN) for border in BORDERS), (64, VARIANTS[3]), (256, VARIANTS[4]), (576, VARIANTS[1]),
    (832, VARIANTS[2])], ids=str)
def test_every_way_to_cut_a_prompt_gives_the_same_bits(border: int, variant: Variant, dtype: torch.dtype) -> None:
    """The last tokens are cut, across a change of the gathered length or of where gathering begins; the tokens before
    them come from the prefix cache."""
    scene, start, end = Scene(group=7, dtype=dtype, variant=variant), border - 3, border + 2
    part = scene.part(end)
    expected = one_by_one(scene, part, start, end)
    for cuts in range(2 ** (end - start - 1)):
        ends = [start, *(start + i + 1 for i in range(end - start - 1) if cuts >> i & 1), end]
        chunks = [scene.step(chunks=[(part, one, two)])[0] for one, two in pairwise(ends)]
        assert torch.equal(torch.cat(chunks), expected)


@pytest.mark.slow
@pytest.mark.usefixtures("threads")
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data(), scenes(), st.sampled_from([0, *BORDERS]))
def test_company_and_chunking_change_no_bit(data: st.DataObject, scene: Scene, border: int) -> None:
    """Compare a sequence run alone with random steps beside other sequences, some of them non-finite, in a cache whose
    unowned slots are NaN."""
    start = max(0, border - data.draw(st.integers(0, 20)))
    part = scene.part(start + data.draw(st.integers(1, 30)))
    expected = one_by_one(scene, part, start, part.length)
    scene.soil(torch.nan)
    others, same = [an_other(data.draw, scene) for _ in range(4)], scene.copy(part)
    scene.blot(same, data.draw(st.sampled_from([0.0, 7.0])))
    scene.write(same, 0, start)
    for at, end in pairwise(draw_ends(data.draw, start, part.length)):
        decodes = data.draw(st.lists(decode_of(others), max_size=9))
        chunks = data.draw(st.lists(chunk_of(others), max_size=2))
        if end == at + 1 and data.draw(st.booleans()):
            decodes.insert(place := data.draw(st.integers(0, len(decodes))), (same, at))
        else:
            chunks.insert(place := data.draw(st.integers(0, len(chunks))), (same, at, end))
            place += len(decodes)
        assert torch.equal(scene.step(decodes, chunks)[place], expected[at - start:end - start])


def an_other(draw: st.DrawFn, scene: Scene) -> Part:
    part = scene.part(draw(st.sampled_from([5, 60, 70, 140, 300, 600])))
    if draw(st.booleans()):
        for numbers in (part.queries, part.keys, part.values):
            numbers[draw(st.integers(0, part.length - 1)):] = draw(st.sampled_from([torch.nan, torch.inf]))
    scene.write(part, 0, part.length)
    return part


def decode_of(others: list[Part]) -> st.SearchStrategy[tuple[Part, int]]:
    return st.sampled_from(others).flatmap(lambda part: st.tuples(st.just(part), st.integers(0, part.length - 1)))


@st.composite
def chunk_of(draw: st.DrawFn, others: list[Part]) -> Run:
    part, start = draw(decode_of(others))
    return part, start, draw(st.integers(start + 1, min(part.length, start + 80)))


def draw_ends(draw: st.DrawFn, start: int, end: int) -> list[int]:
    """Draw the ends of chunks, preceded by the first start."""
    inner = draw(st.sets(st.integers(start + 1, end - 1), max_size=6)) if end > start + 1 else set()
    return [start, *sorted(inner), end]


def test_what_is_not_a_number_elsewhere_reaches_no_row() -> None:
    """All blocks but the sequence's own and the zero block are NaN: those of others, free ones, the scratch block."""
    scene = Scene()
    part = scene.part(100)
    expected = torch.cat(scene.step(chunks=[(part, 0, 100)]))
    scene.soil(torch.nan)
    same = scene.copy(part)
    scene.cache.zero(same.blocks)
    assert torch.equal(torch.cat(scene.step(chunks=[(same, 0, 100)])), expected)


def test_the_zero_block_stays_zero_and_is_what_fills_up() -> None:
    scene, part = Scene(), Scene().part(20)
    scene.step(chunks=[(part, 0, 20)])
    zeros = slice(scene.cache.zero_block * 16, scene.cache.zero_block * 16 + 16)
    assert not scene.cache.keys[1][zeros].any()
    scene.cache.values[1][zeros] = torch.nan
    assert scene.step([(part, 19)])[0].isnan().all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_how_many_decodes_share_a_call_changes_no_bit(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(dtype=dtype)
    decodes = [(filled(scene, length), length - 1) for length in (70, 3, 100, 128, 65, 9, 90)]
    together = scene.step(decodes)
    monkeypatch.setattr(cpu, "GATHERED_BYTES", 1)
    assert all(map(torch.equal, scene.step(decodes), together))
    assert all(torch.equal(scene.step([decode])[0], row) for decode, row in zip(decodes, together, strict=True))


def test_more_heads_than_a_tile_holds_change_no_bit_either() -> None:
    scene = Scene(kv_heads=1, group=24)
    part = scene.part(70)
    expected = one_by_one(scene, part, 60, 70)
    others = [(filled(scene, length), length - 1) for length in (80, 5)]
    assert torch.equal(scene.step([*others, (part, 69)])[2], expected[-1:])
    assert torch.equal(scene.step(others, [(part, 60, 70)])[2], expected)
