"""Tests that every failure becomes one line with a known kind."""

import errno
import os

import pytest

from launcher.adapters.errors import MAX_MESSAGE_LENGTH, AdapterError, convert_errors_to_adapter_error, quote_name


def convert_error(error: Exception) -> AdapterError:
    with pytest.raises(AdapterError) as refused, convert_errors_to_adapter_error("the adapter 'a'"):
        raise error
    return refused.value


def test_error_text_is_one_bounded_line() -> None:
    assert str(AdapterError("invalid", "one\n two\t\nthree")) == "one two three"
    assert len(str(AdapterError("invalid", "x" * 10_000))) == MAX_MESSAGE_LENGTH


@pytest.mark.parametrize(("error", "kind", "message"), [
    (AdapterError("no_room", "full"), "no_room", "full"),
    (ValueError("it is wrong"), "invalid", "the adapter 'a' cannot be served: it is wrong"),
    (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "no_room", "the disk is full, so the adapter 'a' was not kept"),
    (OSError(errno.EDQUOT, "quota"), "no_room", "the disk is full"),
    (PermissionError(errno.EACCES, "Permission denied", "/store"), "unreachable", "brought: Permission denied"),
    (ZeroDivisionError("secret"), "unreachable", "could not be brought: ZeroDivisionError"),
])
def test_every_failure_has_a_kind_and_shows_no_path(error: Exception, kind: str, message: str) -> None:
    refused = convert_error(error)
    assert refused.kind == kind
    assert message in str(refused)
    assert "/store" not in str(refused)


@pytest.mark.parametrize("name", ["a\nb", "\x1b[2J", "\ud800", "ü", "x" * 5000])
def test_adapter_name_is_shown_in_printable_ascii(name: str) -> None:
    assert quote_name(name).isascii()
    assert quote_name(name).isprintable()
    assert len(quote_name(name)) <= 200
