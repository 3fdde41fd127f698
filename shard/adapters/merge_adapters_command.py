"""Merge several adapters into one: `python -P -m shard.adapters.merge_adapters_command JSON`.

    {"folders": ["/one", "/other"], "weights": [0.7, 0.3], "strategy": "ties", "density": 0.5, "sign": "total",
     "seed": 0, "into": "/both"}

`into` must be an existing, empty folder. The same input produces the same bytes. Nothing is written to stdout; an error
is one line on stderr, with exit code 1.

The matrices equal those of PEFT's `add_weighted_adapter`, module by module, but three things are kept that PEFT loses:
modules that the first adapter does not change (layers_to_transform, exclude_modules), ranks that differ between
modules, and the scale, which PEFT multiplies by the square root of the rank if the first adapter is rank-stabilised.
Weights in modules_to_save, which PEFT would take from the base, are rejected. The base model is not needed.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as shown
from typing import Any, NamedTuple

from torch import Generator, Tensor

from shard.adapters.adapter_tensors import LORA_A_SUFFIXES, PEFT_PREFIX, AdapterTensors, ModuleTensorNames, open_adapter
from shard.adapters.config import CONFIG_FILE, load_json_object
from shard.adapters.merge_strategies import MERGE_STRATEGIES, SIGN_METHODS, MergeSettings, merge_matrices, split_factor
from shard.adapters.peft_export import write_adapter_config, write_adapter_tensors
from shard.checkpoint.reader import COMPUTE_DTYPES
from shard.checkpoint.safetensors_file import Shape, TensorEntry
from shard.json_config import MAX_FLOAT, JsonConfig

REQUEST_FIELDS = {"folders", "weights", "strategy", "density", "sign", "seed", "into"}
NUM_SEEDS = 2**64
HALF_DTYPES, FULL_DTYPE = {"BF16", "F16"}, "F32"


@dataclass(frozen=True, slots=True)
class MergeRequest:
    """The parsed argument of the command: adapters with their weights, settings, and the folder to write to."""

    folders: tuple[Path, ...]
    weights: tuple[float, ...]
    settings: MergeSettings
    seed: int
    output_folder: Path


class WeightedAdapterModule(NamedTuple):
    """Names and headers of one adapter's matrices for one module, to be read later, and the adapter's weight."""

    folder: Path
    weight: float
    tensors: AdapterTensors
    names: ModuleTensorNames

    @property
    def module(self) -> str:
        """Name of the module in this adapter."""
        name = self.names.lora_a.removeprefix(PEFT_PREFIX)
        return next(name.removesuffix(end) for end in LORA_A_SUFFIXES if name.endswith(end))

    @property
    def rank(self) -> int:
        return self.tensors.config.rank_for_module(self.module)

    @property
    def header_entries(self) -> tuple[TensorEntry, TensorEntry]:
        return self.tensors.header_entry(self.names.lora_a), self.tensors.header_entry(self.names.lora_b)

    @property
    def product_shape(self) -> Shape:
        """Shape of the product of both matrices: [out, in]."""
        down, up = self.header_entries
        return up.shape[0], down.shape[1]


class WeightedTensor(NamedTuple):
    """One adapter's tensor that enters a merged tensor, and its factor."""

    tensors: AdapterTensors
    name: str
    weight: float


# ---------------------------------------------------------------------------------------------------------------------
# Arguments


def parse_merge_request(text: str) -> MergeRequest:
    """Parse the command's JSON argument. Raises ValueError."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"an order to merge is JSON: {shown(str(error))}") from None
    if not isinstance(values, dict) or values.keys() != REQUEST_FIELDS:
        raise ValueError(f"an order to merge is an object of {', '.join(sorted(REQUEST_FIELDS))}, got {shown(values)}")
    folders, weights, seed = values["folders"], values["weights"], values["seed"]
    if not isinstance(folders, list) or len(folders) < 2:
        raise ValueError(f"folders must be a list of at least 2, since one adapter is merged with nothing; "
                         f"got {shown(folders)}")
    input_folders = tuple(parse_folder_path("folders", folder) for folder in folders)
    if not isinstance(weights, list) or len(weights) != len(folders):
        raise ValueError(f"weights must be a list of {len(folders)}, one for each folder; got {shown(weights)}")
    for weight in weights:
        if not isinstance(weight, int | float) or isinstance(weight, bool) or not abs(weight) <= MAX_FLOAT:
            raise ValueError(f"weights must be finite numbers, got {shown(weight)}")
    config = JsonConfig(values, "merge")
    density = config.get_positive_number("density")
    if density > 1:
        raise ValueError(f"{config.source}: density must be a number above 0 and at most 1, got {density}")
    settings = MergeSettings(
        config.require_supported("strategy", config.get("strategy"), tuple(MERGE_STRATEGIES)), density,
        config.require_supported("sign", config.get("sign"), tuple(SIGN_METHODS)))
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < NUM_SEEDS:
        raise ValueError(f"seed must be a whole number from 0 to {NUM_SEEDS - 1}, got {shown(seed)}")
    return MergeRequest(input_folders, tuple(map(float, weights)), settings, seed,
                        parse_folder_path("into", values["into"]))


def parse_folder_path(name: str, path: object) -> Path:
    if not isinstance(path, str) or not path:
        raise ValueError(f"{name} must name a folder, got {shown(path)}")
    return Path(path)


# ---------------------------------------------------------------------------------------------------------------------
# Modules of the adapters


def iter_module_matrices(folder: Path, weight: float,
                         tensors: AdapterTensors) -> Iterator[tuple[str, WeightedAdapterModule]]:
    """Yield the adapter's matrices by unprefixed module name. Reject an adapter with any other tensor."""
    if tensors.unrecognized_names:
        raise ValueError(
            f"unable to merge adapters: {folder} has {tensors.unrecognized_names[0]}, which is no matrix of a LoRA")
    for module, parts in tensors.names_by_module.items():
        if parts.full_weight:
            raise ValueError(f"unable to merge adapters: {folder} has {parts.full_weight}, a weight as a whole "
                             f"(modules_to_save), which is no sum that others could be added to")
        if not (parts.lora_a and parts.lora_b):
            raise ValueError(f"{folder} has {parts.lora_a or parts.lora_b} without the other matrix of {module}")
        matrices = WeightedAdapterModule(folder, weight, tensors, parts)
        down, up = matrices.header_entries
        if not len(down.shape) == len(up.shape) == 2 or not down.shape[0] == up.shape[1] == matrices.rank:
            raise ValueError(f"{folder} has {parts.lora_a} as {list(down.shape)} and {parts.lora_b} as "
                             f"{list(up.shape)}; its {CONFIG_FILE} asks for a rank of {matrices.rank}")
        yield module, matrices


def group_by_module(named_matrices: Iterator[tuple[str, WeightedAdapterModule]]) -> list[list[WeightedAdapterModule]]:
    """Group shares by module, in the order of the adapters. Reject modules whose ranks or shapes differ."""
    matrices_by_module: dict[str, list[WeightedAdapterModule]] = {}
    for module, share in named_matrices:
        matrices_by_module.setdefault(module, []).append(share)
    if not matrices_by_module:
        raise ValueError("unable to merge adapters: none of them has any matrix")
    for shares in matrices_by_module.values():
        if len({share.rank for share in shares}) > 1:
            ranks = ", ".join(f"{share.rank} in {share.folder}" for share in shares)
            raise ValueError(f"unable to merge adapters, lora configs have different ranks: {ranks}, for "
                             f"{shares[0].module}")
        if len({share.product_shape for share in shares}) > 1:
            shapes = ", ".join(f"{list(share.product_shape)} in {share.folder}" for share in shares)
            raise ValueError(
                f"unable to merge adapters, they are not of the same model: {shares[0].module} is {shapes}")
    return [matrices_by_module[module] for module in sorted(matrices_by_module)]


# ---------------------------------------------------------------------------------------------------------------------
# Merging


def plan_tensor_merges(modules: list[list[WeightedAdapterModule]]) -> dict[str, list[WeightedTensor]]:
    """Return the inputs of each merged tensor by tensor name, sorted.

    An adapter's weight is multiplied by its scale and split evenly between its two matrices.
    """
    merges: dict[str, list[WeightedTensor]] = {}
    for shares in modules:
        factors = [split_factor(share.weight * share.tensors.config.scale_for_module(share.module)) for share in shares]
        for side, name in enumerate((shares[0].names.lora_a, shares[0].names.lora_b)):
            merges[name] = [WeightedTensor(share.tensors, share.names[side], both[side])
                            for share, both in zip(shares, factors, strict=True)]
    return dict(sorted(merges.items()))


def compute_merged_tensors(merges: Mapping[str, list[WeightedTensor]], request: MergeRequest,
                           dtype: str) -> Iterator[Tensor]:
    generator = Generator().manual_seed(request.seed)
    for name, inputs in merges.items():
        matrices = [tensors.read_tensor(input_name) for tensors, input_name, _ in inputs]
        result = merge_matrices(matrices, [one.weight for one in inputs], request.settings,
                                generator).to(COMPUTE_DTYPES[dtype])
        if not bool(result.isfinite().all()):
            raise ValueError(f"unable to merge adapters: {name} has numbers beyond what {dtype} holds with weights of "
                             f"{', '.join(map(str, request.weights))}")
        yield result


def merge_adapters(request: MergeRequest) -> None:
    """Write the merged adapter to `request.output_folder`. Raises ValueError or OSError."""
    with ExitStack() as stack:
        shares = (pair for folder, weight in zip(request.folders, request.weights, strict=True)
                  for pair in iter_module_matrices(folder, weight, stack.enter_context(open_adapter(folder))))
        modules = group_by_module(shares)
        merges = plan_tensor_merges(modules)
        # The dtype of the inputs if all share one 16-bit type, else float32.
        dtypes = {one.tensors.header_entry(one.name).dtype for inputs in merges.values() for one in inputs}
        dtype = dtypes.pop() if len(dtypes) == 1 and dtypes <= HALF_DTYPES else FULL_DTYPE
        shapes = {name: inputs[0].tensors.header_entry(inputs[0].name).shape for name, inputs in merges.items()}
        write_adapter_tensors(request.output_folder, dtype, shapes, compute_merged_tensors(merges, request, dtype))
    # Settings but ranks and scales are copied from the first adapter.
    first = load_json_object(request.folders[0] / CONFIG_FILE)
    copied: dict[str, Any] = {name: first[name] for name in ("base_model_name_or_path", "task_type")
                              if isinstance(first.get(name), str)}
    copied["fan_in_fan_out"] = bool(first.get("fan_in_fan_out"))
    write_adapter_config(request.output_folder, copied, {shares[0].module: shares[0].rank for shares in modules})


def main() -> None:
    try:
        merge_adapters(parse_merge_request(sys.argv[1]))
    except (ValueError, OSError) as error:
        raise SystemExit(" ".join(str(error).splitlines())) from None


if __name__ == "__main__":
    main()
