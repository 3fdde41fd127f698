import pytest

from shard.json_config import JsonConfig

JSON_CONFIG = JsonConfig({"size": 3, "empty": None, "on": True, "inner": {"bits": 8}}, "config.json")


def test_first_key_with_a_value_is_used() -> None:
    assert JSON_CONFIG.get("missing", "empty", "size") == 3
    assert JSON_CONFIG.get("missing", "empty") is None


@pytest.mark.parametrize("value", [None, 0, -1, 1.5, "3", True])
def test_positive_int_must_be_a_whole_number_of_at_least_one(value: object) -> None:
    with pytest.raises(ValueError, match=f"config.json: size must be a whole number of at least 1, got {value}"):
        JsonConfig({"size": value}, "config.json").get_positive_int("size")


def test_defaults_apply_to_absent_and_null_keys() -> None:
    config = JSON_CONFIG.with_defaults(size=5, empty=6, other=7, nothing=None)
    assert [config.get(name) for name in ("size", "empty", "other", "nothing", "on")] == [3, 6, 7, None, True]
    assert config.source == "config.json"


def test_defaults_for_absent_keys_do_not_replace_null() -> None:
    config = JSON_CONFIG.with_defaults_for_absent_keys(size=16, empty=32, depth=2)
    assert (config.get("size"), config.get("empty"), config.get("depth")) == (3, None, 2)
    assert JSON_CONFIG.get("depth") is None


def test_absent_bool_has_its_default() -> None:
    assert JSON_CONFIG.get_bool("on", default=False) is True
    assert JSON_CONFIG.get_bool("empty", default=True) is True


def test_absent_subconfig_is_empty() -> None:
    assert JSON_CONFIG.get_subconfig("inner").get("bits") == 8
    assert JSON_CONFIG.get_subconfig("nothing").get("bits") is None


def test_unsupported_value_is_rejected_with_the_supported_ones() -> None:
    with pytest.raises(ValueError, match=r"config.json: inner: bits 8 is not supported; supported: 2, 4$"):
        JSON_CONFIG.get_subconfig("inner").require_supported("bits", 8, (2, 4))


def test_subconfig_that_is_no_object_is_rejected_by_name() -> None:
    with pytest.raises(ValueError, match=r"config.json: size must be an object, got 3"):
        JSON_CONFIG.get_subconfig("size")
