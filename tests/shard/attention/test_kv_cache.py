from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shard.attention.kv_cache import NUM_RESERVED_BLOCKS, KVCache, TransientKVCache, make_int64_tensor

CPU = torch.device("cpu")


def make_cache(block_size: int = 16, num_blocks: int = 4, dtype: torch.dtype = torch.float32) -> KVCache:
    """Make a cache of three layers, with two heads of dimension 4."""
    return KVCache(3, 2, 4, block_size=block_size, num_blocks=num_blocks, dtype=dtype, device=CPU)


def fill_cache(cache: KVCache, value: float) -> None:
    for rows in cache.keys + cache.values:
        rows.fill_(value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_cache_starts_as_zeros(dtype: torch.dtype) -> None:
    cache = make_cache(dtype=dtype)
    assert {rows.dtype for rows in cache.keys} == {dtype}
    assert not any(rows.any() for rows in cache.keys + cache.values)


def test_memory_is_used_only_once_it_is_written() -> None:
    before = read_resident_bytes()
    cache = make_cache(num_blocks=2**19)
    cache.write(0, torch.ones(1, 8), torch.ones(1, 8), torch.tensor([2**20]))
    assert cache.keys[0].untyped_storage().nbytes() > 2**30
    assert read_resident_bytes() - before < 2**27


def read_resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_keys_and_values_go_to_their_slots_in_their_layer() -> None:
    cache, slots = make_cache(), torch.tensor([17, 3])
    keys, values = torch.randn(2, 8), torch.randn(2, 8)
    cache.write(1, keys, values, slots)
    assert torch.equal(cache.keys[1][slots], keys)
    assert torch.equal(cache.values[1][slots], values)
    assert cache.keys[1].count_nonzero() + cache.values[1].count_nonzero() == 32
    assert not any(rows.any() for rows in (cache.keys[0], cache.values[0], cache.keys[2], cache.values[2]))


def test_gather_unit_is_sixteen_slots_with_keys_and_values() -> None:
    cache = make_cache()
    cache.write(2, torch.full((1, 8), 5.0), torch.full((1, 8), 6.0), torch.tensor([16 * 3 + 2]))
    unit = cache.gather_units[2][3].view(16, 2, 8)
    assert unit[2].tolist() == [[5.0] * 8, [6.0] * 8]
    assert unit.count_nonzero() == 16


@pytest.mark.parametrize("block_size", [16, 48])
def test_zeroing_blocks_affects_all_layers_and_no_other_block(block_size: int) -> None:
    cache = make_cache(block_size)
    fill_cache(cache, torch.nan)
    cache.zero_blocks([2, 0])
    for rows in cache.keys + cache.values:
        blocks = rows.view(-1, block_size, 8)
        assert not blocks[[0, 2]].any()
        assert blocks[[1, 3, 4, 5]].isnan().all()


def test_zeroing_no_blocks_changes_nothing() -> None:
    cache = make_cache()
    fill_cache(cache, 1.0)
    cache.zero_blocks([])
    assert all(rows.all() for rows in cache.keys + cache.values)


@settings(max_examples=25)
@given(st.sampled_from([16, 32, 48]), st.integers(0, 9))
def test_reserved_blocks_follow_those_of_the_router(block_size: int, num_blocks: int) -> None:
    cache = make_cache(block_size, num_blocks)
    assert cache.zero_block == num_blocks
    assert cache.scratch_slot == (num_blocks + 1) * block_size
    assert len(cache.keys[0]) == (num_blocks + NUM_RESERVED_BLOCKS) * block_size


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_allocated_memory_equals_bytes_per_block(dtype: torch.dtype) -> None:
    allocated_bytes = make_cache(32, 5, dtype).keys[0].untyped_storage().nbytes()
    assert allocated_bytes == (5 + NUM_RESERVED_BLOCKS) * KVCache.bytes_per_block(3, 2, 4, 32, dtype)


@settings(max_examples=25)
@given(st.sampled_from([16, 32, 48]), st.permutations(range(6)), st.integers(1, 90), st.integers(0, 5))
def test_gather_units_hold_the_first_slots_and_then_zeros(block_size: int, blocks: list[int], num_places: int,
                                                          extra: int) -> None:
    cache = make_cache(block_size, 6)
    slots = cache.list_slots(blocks, 0, num_places)
    length = (-(-num_places // 16) + extra) * 16
    units = cache.list_gather_units(blocks, 0, num_places, length)
    assert [unit * 16 + place for unit in units for place in range(16)][:num_places] == slots
    assert len(units) == length // 16
    assert all(unit * 16 // block_size == cache.zero_block for unit in units[-(-num_places // 16):])


def test_layers_of_the_shared_cache_use_the_memory_of_one() -> None:
    cache = TransientKVCache(3, 2, 4, block_size=16, num_blocks=4, dtype=torch.float32, device=CPU)
    cache.write(2, torch.ones(1, 8), torch.ones(1, 8), torch.tensor([17]))
    assert cache.keys[0][17].tolist() == cache.values[1][17].tolist() == [1] * 8
    assert len(cache.keys) == len(cache.gather_units) == 3
    cache.zero_blocks(range(4))
    assert not cache.keys[0].any()


@settings(max_examples=25)
@given(st.lists(st.integers(-2**63, 2**63 - 1), max_size=8))
def test_int64_tensor_holds_the_given_integers(values: list[int]) -> None:
    made = make_int64_tensor(values)
    assert made.dtype == torch.int64
    assert made.tolist() == values
