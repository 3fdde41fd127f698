"""Tests of shard/lora/native_lora_store.py; test_lora_linear.py compares its results with the other stores'."""

import pytest
import torch

from shard.lora import native_lora_store
from shard.lora.native_lora_store import NativeLoraStore
from shard.lora.routing import AdapterRouting, AdapterSlots
from shard.native.library import load_library


def test_adapter_beyond_the_tables_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    if (library := load_library()) is None:
        pytest.skip("there are no compiled kernels here")
    monkeypatch.setattr(native_lora_store, "TABLE_ROWS", 2)
    slots = AdapterSlots()
    store = NativeLoraStore(AdapterRouting(torch.device("cpu"), slots), [range(4)], library)
    for adapter in (1, 2):
        assert store.store_adapter(slots.allocate_slot(adapter, 2), 0, torch.ones(2, 3), torch.ones(4, 2)) == 4 * 14
    with pytest.raises(RuntimeError, match="2 adapters can be loaded at once; lower --max-active-adapters"):
        store.store_adapter(slots.allocate_slot(3, 2), 0, torch.ones(2, 3), torch.ones(4, 2))
