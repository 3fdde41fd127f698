"""Tests of the adapters that requests may name."""

import pytest

from launcher.adapters.allow_list import AdapterAllowList
from launcher.adapters.errors import AdapterError

BUCKET_VARIABLES = {"PREDIBASE_MODEL_BUCKET": "loras", "PREDIBASE_MODEL_FOLDER": "/team/"}


def is_allowed(location: str, *entries: str, environment: dict[str, str] | None = None) -> bool:
    try:
        AdapterAllowList(entries, environment or {}).check(location)
    except AdapterError:
        return False
    return True


@pytest.mark.parametrize(("location", "entries", "expected"), [
    ("hub://org/one", (), True), ("local://one", (), True), ("s3://loras/one", (), False),
    ("hub://org/one", ("hub",), True), ("local://one", ("hub",), False), ("s3://loras/one", ("s3",), True),
    ("hub://org/one", ("hub://org",), True), ("hub://org-two/one", ("hub://org",), False),
    ("hub://org/one", ("hub://org/one",), True), ("hub://org/one-more", ("hub://org/one",), False),
    ("s3://loras/team/one", ("s3://loras/team",), True), ("s3://loras/teams/one", ("s3://loras/team",), False),
    ("s3://payroll/one", ("s3://loras", "hub"), False), ("s3://loras/one", ("hub", "s3://loras"), True),
])
def test_entry_allows_a_source_or_what_is_below_it(location: str, entries: tuple[str, ...], expected: bool) -> None:
    assert is_allowed(location, *entries) == expected


@pytest.mark.parametrize(("location", "expected"), [
    ("s3://loras/team/one", True), ("s3://loras/other/one", False), ("s3://payroll/team/one", False)])
def test_bucket_of_the_variables_is_allowed_by_default_and_no_other(location: str, expected: bool) -> None:
    assert is_allowed(location, environment=BUCKET_VARIABLES) == expected
    assert not is_allowed(location, "hub", environment=BUCKET_VARIABLES)


@pytest.mark.parametrize("entry", ["", "pbase", "hub:org", "hub://", "s3://loras/", "s3://a b", "local://one", "HUB",
                                   "s3://a/../b", "s3://a/."])
def test_invalid_entry_is_rejected(entry: str) -> None:
    with pytest.raises(ValueError, match="--allowed-adapters takes hub, local, s3"):
        AdapterAllowList([entry], {})


@pytest.mark.parametrize("bucket", ["s3://loras", "lo ras", "loras/.."])
def test_invalid_variables_are_named(bucket: str) -> None:
    with pytest.raises(ValueError, match="PREDIBASE_MODEL_BUCKET and PREDIBASE_MODEL_FOLDER must be names of a bucket"):
        AdapterAllowList([], {"PREDIBASE_MODEL_BUCKET": bucket})
    AdapterAllowList(["hub"], {"PREDIBASE_MODEL_BUCKET": bucket})
