"""Readers of settings that several kinds of `quantization_config` share; invalid values raise ValueError."""

from shard.json_config import JsonConfig


def parse_group_size(quant_config: JsonConfig, value: object) -> int:
    """Return the checked group size; -1 means that all columns share a scale."""
    if not isinstance(value, int) or isinstance(value, bool) or (value < 1 and value != -1):
        raise ValueError(f"{quant_config.source}: group_size must be -1 or a whole number of at least 1, got {value}")
    return value


def read_block_shape(quant_config: JsonConfig, key: str) -> tuple[int, int] | None:
    """Return the rows and columns of a block, or None without blocks."""
    value = quant_config.get(key)
    match value:
        case None:
            return None
        case [int(rows), int(columns)] if rows > 0 and columns > 0:
            return rows, columns
        case _:
            raise ValueError(f"{quant_config.source}: {key} must be two whole numbers of at least 1, got {value}")
