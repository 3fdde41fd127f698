"""Tests of the cache of digests and of its keys, which depend on the token."""

from launcher.adapters.adapter_digest_cache import AdapterDigestCache, make_name_key


def test_most_recent_digests_are_kept() -> None:
    digests = AdapterDigestCache(2)
    for key in "abab":
        digests.put(key, key.upper())
    digests.put("c", "C")
    assert [digests.get(key) for key in "abc"] == ["", "B", "C"]
    digests.remove("b")
    digests.remove("b")
    assert digests.get("b") == ""


def test_cache_keys_differ_by_token_and_do_not_contain_it() -> None:
    keys = {make_name_key("hub", "org/name", token) for token in ("", "hf_one", "hf_two")}
    assert len(keys) == 3
    assert "hf_" not in repr(keys)
    assert make_name_key("hub", "org/name", "") != make_name_key("s3", "org/name", "")
