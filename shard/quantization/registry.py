"""Registry of quantized checkpoint formats by `quant_method` in config.json. To add one, add a file to this package and
a line here."""

from collections.abc import Callable, Mapping

from shard.json_config import JsonConfig
from shard.quantization.compressed_tensors import parse_compressed_tensors_config
from shard.quantization.fp8 import parse_fp8_config
from shard.quantization.gptq_and_awq import parse_awq_config, parse_gptq_config
from shard.quantization.quantization_format import QuantizationFormat

CONFIG_PARSERS: dict[str, Callable[[JsonConfig], QuantizationFormat]] = {
    "gptq": parse_gptq_config,
    "awq": parse_awq_config,
    "fp8": parse_fp8_config,
    "compressed-tensors": parse_compressed_tensors_config,
}


def parse_quantization_config(quantization_config: object, config_path: str) -> QuantizationFormat | None:
    """Return the format described by `quantization_config`, or None without one."""
    if quantization_config is None:
        return None
    if not isinstance(quantization_config, Mapping):
        raise ValueError(f"{config_path}: quantization_config must be an object, got {quantization_config!r}")
    method = str(quantization_config.get("quant_method") or "something that quant_method does not name")
    if method not in CONFIG_PARSERS:
        raise ValueError(
            f"{config_path}: weights quantized as {method} are not supported; supported: {', '.join(CONFIG_PARSERS)}, "
            f"and weights that are not quantized")
    return CONFIG_PARSERS[method](JsonConfig(dict(quantization_config), f"{config_path}: quantization_config"))
