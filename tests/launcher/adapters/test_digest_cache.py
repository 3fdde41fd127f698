"""Tests of the cache of digests and of its keys, which depend on the token."""

from launcher.adapters.digest_cache import Digests, known_by


def test_the_latest_are_kept() -> None:
    digests = Digests(2)
    for key in "abab":
        digests.put(key, key.upper())
    digests.put("c", "C")
    assert [digests.get(key) for key in "abc"] == ["", "B", "C"]
    digests.drop("b")
    digests.drop("b")
    assert digests.get("b") == ""


def test_what_a_token_opened_is_known_to_it_alone_and_the_token_is_not_kept() -> None:
    keys = {known_by("hub", "org/name", token) for token in ("", "hf_one", "hf_two")}
    assert len(keys) == 3
    assert "hf_" not in repr(keys)
    assert known_by("hub", "org/name", "") != known_by("s3", "org/name", "")
