"""Merge several adapters into one: `python -P -m shard.adapters.merge_command JSON`.

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
from shard.adapters.config import CONFIG_FILE, read_json_object
from shard.adapters.export import write_adapter_config, write_adapter_tensors
from shard.adapters.merge import MERGE_STRATEGIES, SIGN_METHODS, MergeSettings, merge_matrices, split_factor
from shard.checkpoint.reader import COMPUTE_DTYPES
from shard.checkpoint.safetensors_header import Shape, TensorEntry
from shard.json_config import MAX_FLOAT, JsonConfig

REQUEST_FIELDS = {"folders", "weights", "strategy", "density", "sign", "seed", "into"}
MATRIX_DIMENSIONS = 2  # dimensions
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


class ModuleMatrices(NamedTuple):
    """Names and headers of one adapter's matrices for one module, with the adapter's weight in the merge. The matrices
    are read later.
    """

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


class MergeInput(NamedTuple):
    """One adapter's tensor that enters a merged tensor, and its factor."""

    tensors: AdapterTensors
    name: str
    weight: float


class TensorMerge(NamedTuple):
    """Shape of one merged tensor, and the tensors it is made of."""

    shape: Shape
    inputs: list[MergeInput]


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
    folders = parse_folders(values["folders"])
    return MergeRequest(folders, parse_weights(values["weights"], len(folders)),
                        parse_merge_settings(JsonConfig(values, "merge")), parse_seed(values["seed"]),
                        Path(parse_path("into", values["into"])))


def parse_folders(folders: object) -> tuple[Path, ...]:
    if not isinstance(folders, list) or len(folders) < 2:
        raise ValueError(f"folders must be a list of at least 2, since one adapter is merged with nothing; "
                         f"got {shown(folders)}")
    return tuple(Path(parse_path("folders", folder)) for folder in folders)


def parse_path(name: str, path: object) -> str:
    if not isinstance(path, str) or not path:
        raise ValueError(f"{name} must name a folder, got {shown(path)}")
    return path


def parse_weights(weights: object, count: int) -> tuple[float, ...]:
    if not isinstance(weights, list) or len(weights) != count:
        raise ValueError(f"weights must be a list of {count}, one for each folder; got {shown(weights)}")
    for weight in weights:
        if not isinstance(weight, int | float) or isinstance(weight, bool) or not abs(weight) <= MAX_FLOAT:
            raise ValueError(f"weights must be finite numbers, got {shown(weight)}")
    return tuple(map(float, weights))


def parse_merge_settings(json_config: JsonConfig) -> MergeSettings:
    density = json_config.get_positive_number("density")
    if density > 1:
        raise ValueError(f"{json_config.source}: density must be a number above 0 and at most 1, got {density}")
    return MergeSettings(json_config.require_supported("strategy", json_config.get("strategy"),
                                                       tuple(MERGE_STRATEGIES)), density,
                         json_config.require_supported("sign", json_config.get("sign"), tuple(SIGN_METHODS)))


def parse_seed(seed: object) -> int:
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < NUM_SEEDS:
        raise ValueError(f"seed must be a whole number from 0 to {NUM_SEEDS - 1}, got {shown(seed)}")
    return seed


# ---------------------------------------------------------------------------------------------------------------------
# Modules of the adapters


def iter_module_matrices(folder: Path, weight: float, tensors: AdapterTensors) -> Iterator[tuple[str, ModuleMatrices]]:
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
        matrices = ModuleMatrices(folder, weight, tensors, parts)
        check_matrices(matrices)
        yield module, matrices


def check_matrices(matrices: ModuleMatrices) -> None:
    down, up = matrices.header_entries
    if ((len(down.shape), len(up.shape)) != (MATRIX_DIMENSIONS, MATRIX_DIMENSIONS)
        or not down.shape[0] == up.shape[1] == matrices.rank):
        raise ValueError(
            f"{matrices.folder} has {matrices.names.lora_a} as {list(down.shape)} and {matrices.names.lora_b} as "
            f"{list(up.shape)}; its {CONFIG_FILE} asks for a rank of {matrices.rank}")


def group_by_module(named_matrices: Iterator[tuple[str, ModuleMatrices]]) -> list[list[ModuleMatrices]]:
    """Group shares by module, in the order of the adapters. Reject modules whose ranks or shapes differ."""
    matrices_by_module: dict[str, list[ModuleMatrices]] = {}
    for module, share in named_matrices:
        matrices_by_module.setdefault(module, []).append(share)
    if not matrices_by_module:
        raise ValueError("unable to merge adapters: none of them has any matrix")
    for same in matrices_by_module.values():
        check_same_rank_and_shape(same)
    return [matrices_by_module[module] for module in sorted(matrices_by_module)]


def check_same_rank_and_shape(module_matrices: list[ModuleMatrices]) -> None:
    if len({share.rank for share in module_matrices}) > 1:
        ranks = ", ".join(f"{share.rank} in {share.folder}" for share in module_matrices)
        raise ValueError(f"unable to merge adapters, lora configs have different ranks: {ranks}, for "
                         f"{module_matrices[0].module}")
    if len({share.product_shape for share in module_matrices}) > 1:
        shapes = ", ".join(f"{list(share.product_shape)} in {share.folder}" for share in module_matrices)
        raise ValueError(
            f"unable to merge adapters, they are not of the same model: {module_matrices[0].module} is {shapes}")


# ---------------------------------------------------------------------------------------------------------------------
# Merging


def plan_tensor_merges(modules: list[list[ModuleMatrices]]) -> dict[str, TensorMerge]:
    """Return the inputs of each merged tensor by tensor name, sorted.

    An adapter's weight is multiplied by its scale and split evenly between its two matrices.
    """
    merges: dict[str, TensorMerge] = {}
    for shares in modules:
        factors = [split_factor(share.weight * share.tensors.config.scale_for_module(share.module)) for share in shares]
        for side, name in enumerate((shares[0].names.lora_a, shares[0].names.lora_b)):
            merges[name] = TensorMerge(shares[0].header_entries[side].shape, [
                MergeInput(share.tensors, share.names[side], both[side])
                for share, both in zip(shares, factors, strict=True)])
    return dict(sorted(merges.items()))


def choose_stored_dtype(merges: Mapping[str, TensorMerge]) -> str:
    """Return the dtype of the merged tensors: that of the inputs if all share one 16-bit type, else float32."""
    dtypes = {one.tensors.header_entry(one.name).dtype for mixture in merges.values() for one in mixture.inputs}
    return dtypes.pop() if len(dtypes) == 1 and dtypes <= HALF_DTYPES else FULL_DTYPE


def compute_merged_tensors(merges: Mapping[str, TensorMerge], request: MergeRequest, dtype: str) -> Iterator[Tensor]:
    generator = Generator().manual_seed(request.seed)
    for name, (_, ingredients) in merges.items():
        matrices = [tensors.read_tensor(part) for tensors, part, _ in ingredients]
        result = merge_matrices(matrices, [one.weight for one in ingredients], request.settings,
                                generator).to(COMPUTE_DTYPES[dtype])
        if not bool(result.isfinite().all()):
            raise ValueError(f"unable to merge adapters: {name} has numbers beyond what {dtype} holds with weights of "
                             f"{', '.join(map(str, request.weights))}")
        yield result


def read_copied_settings(folders: tuple[Path, ...]) -> dict[str, Any]:
    """Return the settings that are copied from the first adapter; ranks and scales are not among them."""
    first = read_json_object(folders[0] / CONFIG_FILE)
    copied = {name: first.get(name) for name in ("base_model_name_or_path", "task_type")}
    return {name: word for name, word in copied.items() if isinstance(word, str)} | {
        "fan_in_fan_out": bool(first.get("fan_in_fan_out"))}


def merge_adapters(request: MergeRequest) -> None:
    """Write the merged adapter to `request.output_folder`. Raises ValueError or OSError."""
    with ExitStack() as stack:
        shares = (pair for folder, weight in zip(request.folders, request.weights, strict=True)
                  for pair in iter_module_matrices(folder, weight, stack.enter_context(open_adapter(folder))))
        modules = group_by_module(shares)
        merges = plan_tensor_merges(modules)
        dtype = choose_stored_dtype(merges)
        write_adapter_tensors(request.output_folder, dtype, {name: one.shape for name, one in merges.items()},
                              compute_merged_tensors(merges, request, dtype))
    write_adapter_config(request.output_folder, read_copied_settings(request.folders),
                         {shares[0].module: shares[0].rank for shares in modules})


def main() -> None:
    try:
        merge_adapters(parse_merge_request(sys.argv[1]))
    except (ValueError, OSError) as error:
        raise SystemExit(" ".join(str(error).splitlines())) from None


if __name__ == "__main__":
    main()
