"""Tests that every failure becomes one line with a known kind."""

import errno
import os

import pytest

from launcher.adapters.errors import LONGEST, Refused, called, understood


def refusal(error: Exception) -> Refused:
    with pytest.raises(Refused) as refused, understood("the adapter 'a'"):
        raise error
    return refused.value


def test_a_reason_is_one_line_of_some_length() -> None:
    assert str(Refused("invalid", "one\n two\t\nthree")) == "one two three"
    assert len(str(Refused("invalid", "x" * 10_000))) == LONGEST


@pytest.mark.parametrize(("error", "kind", "why"), [
    (Refused("no_room", "full"), "no_room", "full"),
    (ValueError("it is wrong"), "invalid", "the adapter 'a' cannot be served: it is wrong"),
    (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "no_room", "the disk is full, so the adapter 'a' was not kept"),
    (OSError(errno.EDQUOT, "quota"), "no_room", "the disk is full"),
    (PermissionError(errno.EACCES, "Permission denied", "/store"), "unreachable", "brought: Permission denied"),
    (ZeroDivisionError("secret"), "unreachable", "could not be brought: ZeroDivisionError"),
])
def test_every_failure_has_a_kind_and_shows_no_path(error: Exception, kind: str, why: str) -> None:
    refused = refusal(error)
    assert refused.kind == kind
    assert why in str(refused)
    assert "/store" not in str(refused)


@pytest.mark.parametrize("name", ["a\nb", "\x1b[2J", "\ud800", "ü", "x" * 5000])
def test_a_name_is_shown_in_characters_that_change_nothing(name: str) -> None:
    assert called(name).isascii()
    assert called(name).isprintable()
    assert len(called(name)) <= 200
