"""Registry of loaded adapters. An adapter is read and validated completely before any row can use it."""

from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from shard.adapters.adapter_tensors import AdapterTensors, open_adapter
from shard.errors import RejectedMessage
from shard.lora import batch_invariance_check
from shard.lora.lora_linear import LoraLinear
from shard.lora.routing import AdapterRouting, AdapterSlots
from shard.lora.targets import LoraTargetLayers
from shard.ops.unquantized_linear import make_linear


class LoadedAdapters:
    """Registry of loaded adapters. Pass `lora_targets` to the model's loader and `adapter_routing` to its runner."""

    def __init__(self, dtype: torch.dtype, device: torch.device, *, adaptable: bool) -> None:
        """`dtype` is the model's compute dtype. If not `adaptable`, the model takes no adapters."""
        self._slots = AdapterSlots()
        self._dtype, self._device = dtype, device
        self._update_dtype = torch.float32 if device.type == "cpu" else dtype  # compute dtype of the updates
        self.adapter_routing = AdapterRouting(device, self._slots)
        self.lora_targets = LoraTargetLayers(self.adapter_routing if adaptable else None, self._update_dtype, device)

    @property
    def supports_adapters(self) -> bool:
        """Whether the loaded model takes adapters. Valid once the model has been read."""
        return bool(self.lora_targets.linears)

    @property
    def capturable_routing(self) -> AdapterRouting | None:
        """`adapter_routing` if the kernels launched do not depend on which adapters the rows have, else None."""
        is_capturable = self.supports_adapters and all(linear.lora_weights.is_capturable
                                                       for linear in self.lora_targets.linears_and_heads)
        return self.adapter_routing if is_capturable else None

    @property
    def recordable_routing(self) -> AdapterRouting | None:
        """`adapter_routing` if recorded steps may have rows with adapters, else None."""
        is_recordable = self.supports_adapters and all(linear.lora_weights.is_recordable
                                                       for linear in self.lora_targets.linears_and_heads)
        return self.adapter_routing if is_recordable else None

    def find_batch_dependence(self) -> str:
        """Return why an adapter's update depends on the other rows of a batch, or an empty string if it does not."""
        return batch_invariance_check.find_batch_dependence(self.lora_targets.linears_and_heads, self._update_dtype,
                                                            self._device)

    def load(self, adapter: int, folder: Path) -> int:
        """Load the adapter and return its size in bytes. Raises RejectedMessage, and then nothing has changed.

        Called by one thread at a time.
        """
        try:
            with open_adapter(folder) as tensors:
                heads = [(head, weight) for head in self.lora_targets.heads
                         if (weight := read_head_replacement(head, tensors)) is not None]
                # linear, index of its part, lora_a [rank, in], lora_b [out, rank]
                lora_updates = [(linear, index, *part.slice_lora_matrices(*matrices))
                                for linear in self.lora_targets.linears_and_heads
                                for index, part in enumerate(linear.parts)
                                if (matrices := tensors.read_lora_matrices(part.module, part.shape)) is not None]
                embeddings = [(embedding, tensors.read_full_weight(embedding.module, embedding.shape),
                               tensors.read_lora_matrices(embedding.module, embedding.shape[::-1]))
                              for embedding in self.lora_targets.embeddings]
                tensors.check_all_read()
        except ValueError as error:
            raise RejectedMessage(str(error)) from None
        try:
            num_bytes = 0
            if lora_updates:
                slot = self._slots.allocate_slot(adapter, max(len(lora_a) for _, _, lora_a, _ in lora_updates))
                num_bytes += sum(linear.lora_weights.store_adapter(slot, index, lora_a, lora_b)
                                 for linear, index, lora_a, lora_b in lora_updates)
            for head, saved_weight in heads:
                head_weight = saved_weight.to(self._device, self._dtype)
                head.replacements[adapter] = make_linear(head_weight)
                num_bytes += head_weight.nbytes
            for embedding, weight, matrices in embeddings:
                if weight is not None:
                    num_bytes += embedding.set_replacement(adapter, weight)
                if matrices is not None:
                    num_bytes += embedding.store_adapter(adapter, *matrices)
            if heads or any(part is not None for _, *parts in embeddings for part in parts):
                self.adapter_routing.head_or_embedding_adapters.add(adapter)
        except Exception as error:
            self.unload(adapter)
            if not isinstance(error, MemoryError | RuntimeError):  # torch raises RuntimeError when out of memory
                raise
            raise RejectedMessage(
                f"there is no room for the adapter in {folder}: {str(error).splitlines()[0]}") from None
        return num_bytes

    def unload(self, adapter: int) -> None:
        """Unload the adapter, which no step may use any more. Not called at the same time as `load`."""
        if (slot := self._slots.find(adapter)) is not None:
            self._slots.release(adapter)
            for linear in self.lora_targets.linears_and_heads:
                linear.lora_weights.clear_slot(slot)
        self.adapter_routing.head_or_embedding_adapters.discard(adapter)
        for head in self.lora_targets.heads:
            head.replacements.pop(adapter, None)
        for embedding in self.lora_targets.embeddings:
            embedding.remove_adapter(adapter)


def read_head_replacement(head: LoraLinear, tensors: AdapterTensors) -> Tensor | None:
    """Return the adapter's head for this rank's part of the vocabulary, padded with zeros; None if it has none."""
    part = head.parts[0]
    saved = tensors.read_full_weight(part.module, part.shape)
    if saved is None:
        return None
    outputs = part.slices[0].rows
    held = saved[outputs.start:outputs.stop]
    return functional.pad(held, (0, 0, 0, len(outputs) - len(held)))
