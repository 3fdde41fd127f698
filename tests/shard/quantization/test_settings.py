import pytest

from shard.json_config import Given
from shard.quantization.settings import block, group_size

GIVEN = Given({"none": None, "size": [128, 64]}, "config.json")


@pytest.mark.parametrize("size", [0, -2, None, True, "128"])
def test_a_group_has_a_size(size: object) -> None:
    assert group_size(GIVEN, -1) == -1
    with pytest.raises(ValueError, match="group_size must be -1 or a whole number of at least 1, got"):
        group_size(GIVEN, size)


@pytest.mark.parametrize("size", [[128], [0, 1], "128x128", [1.5, 2]])
def test_a_block_has_two_sides(size: object) -> None:
    assert block(GIVEN, "size") == (128, 64)
    assert block(GIVEN, "none") is None
    with pytest.raises(ValueError, match="size must be two whole numbers of at least 1, got"):
        block(Given({"size": size}, "config.json"), "size")
