import pytest

from shard.given import Given

GIVEN = Given({"size": 3, "empty": None, "on": True}, "config.json")


def test_the_first_name_that_is_there_counts() -> None:
    assert GIVEN.get("missing", "empty", "size") == 3
    assert GIVEN.get("missing", "empty") is None


@pytest.mark.parametrize("value", [0, -1, 1.5, "3", True])
def test_a_count_is_a_whole_number_of_at_least_one(value: object) -> None:
    with pytest.raises(ValueError, match=r"config.json: size must be a whole number of at least 1, got"):
        Given({"size": value}, "config.json").count("size")


def test_defaults_are_for_what_is_not_there() -> None:
    given = GIVEN.with_defaults(size=5, empty=6, other=7, nothing=None)
    assert [given.get(name) for name in ("size", "empty", "other", "nothing", "on")] == [3, 6, 7, None, True]
    assert given.source == "config.json"
