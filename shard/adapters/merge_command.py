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

from shard.adapters.config import FILE, read_object
from shard.adapters.export import write_config, write_tensors
from shard.adapters.files import DOWN, PREFIX, AdapterTensors, Parts, opened_adapter
from shard.adapters.merge import SIGNS, STRATEGIES, Merging, merged, roots
from shard.checkpoint.reader import COMPUTED
from shard.checkpoint.safetensors_header import Entry, Shape
from shard.json_config import MOST, Given

FIELDS = {"folders", "weights", "strategy", "density", "sign", "seed", "into"}
MATRIX = 2  # dimensions
NUM_SEEDS = 2**64
NARROW, WIDE = {"BF16", "F16"}, "F32"


@dataclass(frozen=True, slots=True)
class Order:
    folders: tuple[Path, ...]
    weights: tuple[float, ...]
    merging: Merging
    seed: int
    into: Path


class Share(NamedTuple):
    """Matrices of one adapter for one module, with the adapter's weight in the merge."""

    folder: Path
    weight: float
    tensors: AdapterTensors
    parts: Parts

    @property
    def module(self) -> str:
        """Name of the module in this adapter."""
        name = self.parts.down.removeprefix(PREFIX)
        return next(name.removesuffix(end) for end in DOWN if name.endswith(end))

    @property
    def rank(self) -> int:
        return self.tensors.config.rank_of(self.module)

    @property
    def entries(self) -> tuple[Entry, Entry]:
        return self.tensors.entry(self.parts.down), self.tensors.entry(self.parts.up)

    @property
    def shape(self) -> Shape:
        """Shape of the product of both matrices: [out, in]."""
        down, up = self.entries
        return up.shape[0], down.shape[1]


class Ingredient(NamedTuple):
    tensors: AdapterTensors
    name: str
    weight: float


class Mixture(NamedTuple):
    shape: Shape
    ingredients: list[Ingredient]


# ---------------------------------------------------------------------------------------------------------------------
# Arguments


def read_order(text: str) -> Order:
    """Parse the command's JSON argument. Raises ValueError."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"an order to merge is JSON: {shown(str(error))}") from None
    if not isinstance(values, dict) or values.keys() != FIELDS:
        raise ValueError(f"an order to merge is an object of {', '.join(sorted(FIELDS))}, got {shown(values)}")
    folders = read_folders(values["folders"])
    return Order(folders, read_weights(values["weights"], len(folders)), read_merging(Given(values, "merge")),
                 read_seed(values["seed"]), Path(read_path("into", values["into"])))


def read_folders(folders: object) -> tuple[Path, ...]:
    if not isinstance(folders, list) or len(folders) < 2:
        raise ValueError(f"folders must be a list of at least 2, since one adapter is merged with nothing; "
                         f"got {shown(folders)}")
    return tuple(Path(read_path("folders", folder)) for folder in folders)


def read_path(name: str, path: object) -> str:
    if not isinstance(path, str) or not path:
        raise ValueError(f"{name} must name a folder, got {shown(path)}")
    return path


def read_weights(weights: object, count: int) -> tuple[float, ...]:
    if not isinstance(weights, list) or len(weights) != count:
        raise ValueError(f"weights must be a list of {count}, one for each folder; got {shown(weights)}")
    for weight in weights:
        if not isinstance(weight, int | float) or isinstance(weight, bool) or not abs(weight) <= MOST:
            raise ValueError(f"weights must be finite numbers, got {shown(weight)}")
    return tuple(map(float, weights))


def read_merging(given: Given) -> Merging:
    density = given.number("density")
    if density > 1:
        raise ValueError(f"{given.source}: density must be a number above 0 and at most 1, got {density}")
    return Merging(given.one_of("strategy", given.get("strategy"), tuple(STRATEGIES)), density,
                   given.one_of("sign", given.get("sign"), tuple(SIGNS)))


def read_seed(seed: object) -> int:
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < NUM_SEEDS:
        raise ValueError(f"seed must be a whole number from 0 to {NUM_SEEDS - 1}, got {shown(seed)}")
    return seed


# ---------------------------------------------------------------------------------------------------------------------
# Modules of the adapters


def shares_of(folder: Path, weight: float, tensors: AdapterTensors) -> Iterator[tuple[str, Share]]:
    """Yield the adapter's matrices by unprefixed module name. Reject an adapter with any other tensor."""
    if tensors.strangers:
        raise ValueError(f"unable to merge adapters: {folder} has {tensors.strangers[0]}, which is no matrix of a LoRA")
    for module, parts in tensors.modules.items():
        if parts.whole:
            raise ValueError(f"unable to merge adapters: {folder} has {parts.whole}, a weight as a whole "
                             f"(modules_to_save), which is no sum that others could be added to")
        if not (parts.down and parts.up):
            raise ValueError(f"{folder} has {parts.down or parts.up} without the other matrix of {module}")
        share = Share(folder, weight, tensors, parts)
        check_matrices(share)
        yield module, share


def check_matrices(share: Share) -> None:
    down, up = share.entries
    if (len(down.shape), len(up.shape)) != (MATRIX, MATRIX) or not down.shape[0] == up.shape[1] == share.rank:
        raise ValueError(f"{share.folder} has {share.parts.down} as {list(down.shape)} and {share.parts.up} as "
                         f"{list(up.shape)}; its {FILE} asks for a rank of {share.rank}")


def by_module(shares: Iterator[tuple[str, Share]]) -> list[list[Share]]:
    """Group shares by module, in the order of the adapters. Reject modules whose ranks or shapes differ."""
    found: dict[str, list[Share]] = {}
    for module, share in shares:
        found.setdefault(module, []).append(share)
    if not found:
        raise ValueError("unable to merge adapters: none of them has any matrix")
    for same in found.values():
        check_alike(same)
    return [found[module] for module in sorted(found)]


def check_alike(shares: list[Share]) -> None:
    if len({share.rank for share in shares}) > 1:
        ranks = ", ".join(f"{share.rank} in {share.folder}" for share in shares)
        raise ValueError(f"unable to merge adapters, lora configs have different ranks: {ranks}, for "
                         f"{shares[0].module}")
    if len({share.shape for share in shares}) > 1:
        shapes = ", ".join(f"{list(share.shape)} in {share.folder}" for share in shares)
        raise ValueError(f"unable to merge adapters, they are not of the same model: {shares[0].module} is {shapes}")


# ---------------------------------------------------------------------------------------------------------------------
# Merging


def mixtures(modules: list[list[Share]]) -> dict[str, Mixture]:
    """Return the inputs of each merged tensor by tensor name, sorted.

    An adapter's weight is multiplied by its scale and split evenly between its two matrices.
    """
    found: dict[str, Mixture] = {}
    for shares in modules:
        factors = [roots(share.weight * share.tensors.config.scale_of(share.module)) for share in shares]
        for side, name in enumerate((shares[0].parts.down, shares[0].parts.up)):
            found[name] = Mixture(shares[0].entries[side].shape, [
                Ingredient(share.tensors, share.parts[side], both[side])
                for share, both in zip(shares, factors, strict=True)])
    return dict(sorted(found.items()))


def stored_type(found: Mapping[str, Mixture]) -> str:
    """Return the dtype of the merged tensors: that of the inputs if all share one 16-bit type, else float32."""
    dtypes = {one.tensors.entry(one.name).dtype for mixture in found.values() for one in mixture.ingredients}
    return dtypes.pop() if len(dtypes) == 1 and dtypes <= NARROW else WIDE


def mixed(found: Mapping[str, Mixture], order: Order, dtype: str) -> Iterator[Tensor]:
    generator = Generator().manual_seed(order.seed)
    for name, (_, ingredients) in found.items():
        matrices = [tensors.read(part) for tensors, part, _ in ingredients]
        result = merged(matrices, [one.weight for one in ingredients], order.merging, generator).to(COMPUTED[dtype])
        if not bool(result.isfinite().all()):
            raise ValueError(f"unable to merge adapters: {name} has numbers beyond what {dtype} holds with weights of "
                             f"{', '.join(map(str, order.weights))}")
        yield result


def about(folders: tuple[Path, ...]) -> dict[str, Any]:
    """Return the settings that are copied from the first adapter; ranks and scales are not among them."""
    first = read_object(folders[0] / FILE)
    words = {name: first.get(name) for name in ("base_model_name_or_path", "task_type")}
    return {name: word for name, word in words.items() if isinstance(word, str)} | {
        "fan_in_fan_out": bool(first.get("fan_in_fan_out"))}


def merge(order: Order) -> None:
    """Write the merged adapter to `order.into`. Raises ValueError or OSError."""
    with ExitStack() as stack:
        shares = (pair for folder, weight in zip(order.folders, order.weights, strict=True)
                  for pair in shares_of(folder, weight, stack.enter_context(opened_adapter(folder))))
        modules = by_module(shares)
        found = mixtures(modules)
        dtype = stored_type(found)
        write_tensors(order.into, dtype, {name: one.shape for name, one in found.items()}, mixed(found, order, dtype))
    write_config(order.into, about(order.folders), {shares[0].module: shares[0].rank for shares in modules})


def main() -> None:
    try:
        merge(read_order(sys.argv[1]))
    except (ValueError, OSError) as error:
        raise SystemExit(" ".join(str(error).splitlines())) from None


if __name__ == "__main__":
    main()
