import pytest

from shard.json_config import Given

GIVEN = Given({"size": 3, "empty": None, "on": True, "inner": {"bits": 8}}, "config.json")


def test_the_first_name_that_says_something_counts() -> None:
    assert GIVEN.get("missing", "empty", "size") == 3
    assert GIVEN.get("missing", "empty") is None


@pytest.mark.parametrize("value", [None, 0, -1, 1.5, "3", True])
def test_a_count_is_a_whole_number_of_at_least_one(value: object) -> None:
    with pytest.raises(ValueError, match=f"config.json: size must be a whole number of at least 1, got {value}"):
        Given({"size": value}, "config.json").count("size")


def test_defaults_are_for_what_is_not_there() -> None:
    given = GIVEN.with_defaults(size=5, empty=6, other=7, nothing=None)
    assert [given.get(name) for name in ("size", "empty", "other", "nothing", "on")] == [3, 6, 7, None, True]
    assert given.source == "config.json"


def test_what_is_usual_does_not_count_where_a_file_says_null() -> None:
    told = GIVEN.usually(size=16, empty=32, depth=2)
    assert (told.get("size"), told.get("empty"), told.get("depth")) == (3, None, 2)
    assert GIVEN.get("depth") is None


def test_a_flag_that_is_not_there_has_its_default() -> None:
    assert GIVEN.flag("on", default=False) is True
    assert GIVEN.flag("empty", default=True) is True


def test_an_object_within_is_empty_where_there_is_none() -> None:
    assert GIVEN.within("inner").get("bits") == 8
    assert GIVEN.within("nothing").get("bits") is None


def test_a_value_that_is_not_supported_is_named_with_those_that_are() -> None:
    with pytest.raises(ValueError, match=r"config.json: inner: bits 8 is not supported; supported: 2, 4$"):
        GIVEN.within("inner").one_of("bits", 8, (2, 4))


def test_what_is_no_object_is_named() -> None:
    with pytest.raises(ValueError, match=r"config.json: size must be an object, got 3"):
        GIVEN.within("size")
