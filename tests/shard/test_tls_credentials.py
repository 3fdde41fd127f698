from pathlib import Path

import pytest
from support.host_credentials import SECRET, make_self_signed, make_signed

from shard.tls_credentials import format_address, is_local_address, list_exposed_files, load_credentials


def test_credentials_hold_the_secret_without_its_line_end(tmp_path: Path) -> None:
    credentials = load_credentials(make_self_signed(tmp_path))
    assert credentials.secret == SECRET
    assert credentials.accepts(SECRET)
    assert not any(credentials.accepts(wrong) for wrong in ("", SECRET[:-1], "\ud800", None, 1))


def test_key_and_secret_that_any_user_may_read_are_named(tmp_path: Path) -> None:
    folder = make_self_signed(tmp_path)
    (tmp_path / "tls.key").chmod(0o640)
    (tmp_path / "secret").chmod(0o644)
    assert list_exposed_files(folder) == ["secret"]
    (tmp_path / "secret").chmod(0o600)
    assert list_exposed_files(folder) == []


def test_certificate_of_another_ca_of_the_operator_is_taken(tmp_path: Path) -> None:
    make_self_signed(tmp_path / "ca")
    assert load_credentials(make_signed(tmp_path / "host", tmp_path / "ca")).secret == SECRET


def test_renewed_files_are_loaded_unless_they_do_not_work(tmp_path: Path) -> None:
    credentials = load_credentials(make_self_signed(tmp_path))
    make_self_signed(tmp_path, secret="another-secret-of-the-hosts")
    renewed = credentials.reload()
    assert renewed.accepts("another-secret-of-the-hosts")
    assert renewed.certificate == (tmp_path / "tls.crt").read_bytes() != credentials.certificate
    (tmp_path / "tls.key").unlink()
    assert renewed.reload() == renewed


def test_secret_and_key_are_not_shown(tmp_path: Path) -> None:
    shown = repr(load_credentials(make_self_signed(tmp_path)))
    assert SECRET not in shown
    assert "PRIVATE" not in shown


@pytest.mark.parametrize("name", ["tls.crt", "tls.key", "ca.crt", "secret"])
def test_missing_file_is_named(tmp_path: Path, name: str) -> None:
    make_self_signed(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(ValueError, match=rf"cannot read {tmp_path}/{name} \(--shard-credentials\): No such file"):
        load_credentials(str(tmp_path))


@pytest.mark.parametrize(("secret", "rule"), [
    ("short", "must hold at least 16 characters, it has 5"),
    ("a secret with\nsixteen letters", "ASCII letters, digits and signs only, no blanks")], ids=["short", "blank"])
def test_unusable_secret_is_rejected(tmp_path: Path, secret: str, rule: str) -> None:
    make_self_signed(tmp_path)
    (tmp_path / "secret").write_text(secret)
    with pytest.raises(ValueError, match=rule):
        load_credentials(str(tmp_path))


def break_name(folder: Path) -> None:
    make_self_signed(folder, name="other.example.org")


def break_key(folder: Path) -> None:
    make_self_signed(folder / "other")
    (folder / "tls.key").write_bytes((folder / "other" / "tls.key").read_bytes())


def break_ca(folder: Path) -> None:
    make_self_signed(folder / "other")
    (folder / "ca.crt").write_bytes((folder / "other" / "tls.crt").read_bytes())


def break_text(folder: Path) -> None:
    (folder / "ca.crt").write_text("no certificate")


@pytest.mark.parametrize(("spoil", "cause"), [
    (break_name, "Hostname mismatch, certificate is not valid for 'weft-shard'"), (break_key, "KEY_VALUES_MISMATCH"),
    (break_ca, "certificate verify failed"), (break_text, "no start line|not enough data|NO_CERTIFICATE")],
    ids=lambda value: getattr(value, "__name__", ""))
def test_credentials_that_no_host_would_accept_are_rejected_at_once(tmp_path: Path, spoil, cause: str) -> None:
    make_self_signed(tmp_path)
    spoil(tmp_path)
    with pytest.raises(ValueError, match=f"tls.crt must be a certificate for weft-shard.*({cause})"):
        load_credentials(str(tmp_path))


@pytest.mark.parametrize(("address", "is_local"), [
    ("unix:/tmp/shard.sock", True), ("127.0.0.1:1", True), ("127.8.8.8:1", True), ("[::1]:1", True),
    ("0.0.0.0:1", False), ("[::]:1", False), ("10.0.0.1:1", False), ("localhost:1", False), ("", False)])
def test_only_sockets_and_loopback_numbers_are_local(address: str, is_local: bool) -> None:
    assert is_local_address(address) == is_local


def test_ipv6_addresses_get_brackets() -> None:
    assert (format_address("10.0.0.1", 5), format_address("fd00::1", 5)) == ("10.0.0.1:5", "[fd00::1]:5")
