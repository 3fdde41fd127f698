"""Registry of quantised checkpoint formats by `quant_method` in config.json.

To add one, add a file to this package and a line here.
"""

from collections.abc import Callable, Mapping
from typing import Any

from shard.json_config import Given
from shard.quantization.awq import read_awq
from shard.quantization.compressed_tensors import read_compressed
from shard.quantization.format import Format
from shard.quantization.fp8 import read_fp8
from shard.quantization.gptq import read_gptq

METHODS: dict[str, Callable[[Given], Format]] = {
    "gptq": read_gptq,
    "awq": read_awq,
    "fp8": read_fp8,
    "compressed-tensors": read_compressed,
}


def read_quantization(values: object, source: str) -> Format | None:
    """Return the format described by `quantization_config`, or None without one."""
    if values is None:
        return None
    if not isinstance(values, Mapping):
        raise ValueError(f"{source}: quantization_config must be an object, got {values!r}")
    method = method_of(values)
    if method not in METHODS:
        raise ValueError(f"{source}: weights quantised as {method} are not supported; supported: {', '.join(METHODS)}, "
                         f"and weights that are not quantised")
    return METHODS[method](Given(dict(values), f"{source}: quantization_config"))


def method_of(values: Mapping[str, Any]) -> str:
    return str(values.get("quant_method") or "something that quant_method does not name")
