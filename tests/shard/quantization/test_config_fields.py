import pytest

from shard.json_config import JsonConfig
from shard.quantization.config_fields import parse_group_size, read_block_shape

JSON_CONFIG = JsonConfig({"none": None, "size": [128, 64]}, "config.json")


@pytest.mark.parametrize("size", [0, -2, None, True, "128"])
def test_invalid_group_size_is_rejected(size: object) -> None:
    assert parse_group_size(JSON_CONFIG, -1) == -1
    with pytest.raises(ValueError, match="group_size must be -1 or a whole number of at least 1, got"):
        parse_group_size(JSON_CONFIG, size)


@pytest.mark.parametrize("size", [[128], [0, 1], "128x128", [1.5, 2]])
def test_block_size_must_be_two_numbers(size: object) -> None:
    assert read_block_shape(JSON_CONFIG, "size") == (128, 64)
    assert read_block_shape(JSON_CONFIG, "none") is None
    with pytest.raises(ValueError, match="size must be two whole numbers of at least 1, got"):
        read_block_shape(JsonConfig({"size": size}, "config.json"), "size")
