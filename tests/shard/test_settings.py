import pytest

from shard.quantization.settings import Given

GIVEN = Given({"bits": 4, "none": None, "size": [128, 64], "inner": {"bits": 8}}, "config.json")


def test_the_first_name_that_is_there_counts() -> None:
    assert GIVEN.get("w_bit", "none", "bits") == 4
    assert GIVEN.get("none") is None
    assert GIVEN.within("inner").get("bits") == 8
    assert GIVEN.within("nothing").get("bits") is None


def test_a_value_that_is_not_supported_is_named_with_those_that_are() -> None:
    with pytest.raises(ValueError, match=r"config.json: inner: bits 8 is not supported; supported: 2, 4$"):
        GIVEN.within("inner").one_of("bits", 8, (2, 4))


def test_what_is_no_object_is_named() -> None:
    with pytest.raises(ValueError, match=r"config.json: bits must be an object, got 4"):
        GIVEN.within("bits")


@pytest.mark.parametrize("size", [0, -2, None, True, "128"])
def test_a_group_has_a_size(size: object) -> None:
    assert GIVEN.group_size(-1) == -1
    with pytest.raises(ValueError, match="group_size must be -1 or a whole number of at least 1, got"):
        GIVEN.group_size(size)


@pytest.mark.parametrize("size", [[128], [0, 1], "128x128", [1.5, 2]])
def test_a_block_has_two_sides(size: object) -> None:
    assert GIVEN.block("size") == (128, 64)
    assert GIVEN.block("none") is None
    with pytest.raises(ValueError, match="size must be two whole numbers of at least 1, got"):
        Given({"size": size}, "config.json").block("size")
