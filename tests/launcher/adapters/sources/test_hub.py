"""Tests of adapters from a fake Hub: access by token, downloads, and the use of the cache without the Hub."""

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.checkpoints.adapter_files import CONFIG_FILE, WEIGHTS_FILE, make_adapter_files, write_files
from support.servers.fake_hub import COMMIT, FakeHub

from launcher.adapters.errors import AdapterError, convert_errors_to_adapter_error
from launcher.adapters.sources import hub as module
from launcher.adapters.sources.hub import HubSource, HubSourceSettings, parse_hub_adapter_name
from launcher.adapters.store_protocol import AccessCheckRequest, FetchRequest

UNUSED_FILES = {"README.md": b"read", "tokenizer.json": b"{}", "adapter_model.bin": b"pickle"}
OTHER_COMMIT = "f" * 40


class HubSourceHarness:
    """Fake Hub, and a source that retries without pauses."""

    def __init__(self, fake_hub: FakeHub, folder: Path) -> None:
        self.fake_hub, self.folder = fake_hub, folder
        self.downloads, self.cache = folder / "downloads", folder / "cache"
        self.source = self.make_source()

    def make_source(self, *, offline: str = "", own_token: str = "") -> HubSource:
        settings = HubSourceSettings(self.fake_hub.url, "weft/1", offline, self.downloads, self.cache, own_token)
        return HubSource(settings, pauses=(0.0, 0.0))

    def fetch_files(self, name: str = "org/name", token: str = "", *,
                    own_token: bool = False) -> tuple[dict[str, bytes], bool]:
        """Return the files, and whether they are private. The files stay on disk, like a version in the store."""
        with (convert_errors_to_adapter_error("the adapter"), self.source.open_adapter(
            FetchRequest("hub", name, token, is_from_settings=own_token)) as version):
            target = self.folder / f"version-{len(list(self.folder.iterdir()))}"
            target.mkdir()
            try:
                version.download_files(target)
            except BaseException:
                shutil.rmtree(target)
                raise
            return {path.name: path.read_bytes() for path in target.iterdir()}, version.is_private

    def expect_error(self, name: str = "org/name", token: str = "") -> AdapterError:
        with pytest.raises(AdapterError) as refused:
            self.fetch_files(name, token)
        assert "hf_" not in str(refused.value)
        return refused.value

    def list_blobs(self) -> list[Path]:
        return list(self.downloads.glob("*/blobs/*"))


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubSourceHarness]:
    monkeypatch.setenv("NO_PROXY", "*")
    with FakeHub(make_adapter_files(1) | UNUSED_FILES) as fake:
        yield HubSourceHarness(fake, tmp_path)


# -- access


def test_only_the_two_files_are_downloaded_without_a_token(harness: HubSourceHarness) -> None:
    assert harness.fetch_files(token="hf_mine") == (make_adapter_files(1), False)
    assert harness.fake_hub.count_requests("Bearer") == 0
    assert not any(harness.fake_hub.count_requests(name) for name in UNUSED_FILES)


def test_download_is_hard_linked_rather_than_copied(harness: HubSourceHarness) -> None:
    harness.fetch_files()
    assert [blob.stat().st_nlink for blob in harness.list_blobs()] == [2, 2]


@pytest.mark.parametrize("closed", ["private_token", "gated_token"])
def test_adapter_that_needs_a_token_is_private(harness: HubSourceHarness, closed: str) -> None:
    setattr(harness.fake_hub, closed, "hf_mine")
    assert harness.fetch_files(token="hf_mine") == (make_adapter_files(1), True)


@pytest.mark.parametrize("token", ["", "hf_other"])
def test_inaccessible_and_missing_adapters_give_the_same_error(harness: HubSourceHarness, token: str) -> None:
    harness.fake_hub.private_token = "hf_mine"
    refused, none = harness.expect_error(token=token), harness.expect_error("org/none", token)
    assert refused.kind == none.kind == "missing"
    assert str(refused).replace("org/name", "org/none") == str(none)


@pytest.mark.parametrize("token", ["", "hf_other"])
def test_gated_adapter_is_reported_as_forbidden(harness: HubSourceHarness, token: str) -> None:
    harness.fake_hub.gated_token = "hf_mine"
    refused = harness.expect_error(token=token)
    assert (refused.kind, "org/name is gated: ask for access at" in str(refused)) == ("forbidden", True)


def test_server_token_is_used_only_for_adapters_named_by_the_operator(harness: HubSourceHarness) -> None:
    harness.fake_hub.private_token = "hf_servers"
    harness.source = harness.make_source(own_token="hf_servers")
    assert harness.expect_error().kind == harness.expect_error(token="hf_other").kind == "missing"
    assert harness.fetch_files(token="hf_other", own_token=True) == (make_adapter_files(1), True)


@pytest.mark.parametrize("closed", ["private_token", "gated_token"])
def test_access_check_takes_one_request(harness: HubSourceHarness, closed: str) -> None:
    setattr(harness.fake_hub, closed, "hf_mine")
    harness.source.check_access(AccessCheckRequest("hub", "org/name", "hf_mine"))
    assert len(harness.fake_hub.received_requests) == 1
    for token in ("", "hf_other"):
        with pytest.raises(AdapterError) as refused:
            harness.source.check_access(AccessCheckRequest("hub", "org/name", token))
        assert refused.value.kind == ("missing" if closed == "private_token" else "forbidden")


def test_access_check_fails_if_the_hub_does_not_answer(harness: HubSourceHarness) -> None:
    harness.fake_hub.scripted_answers.append(503)
    with pytest.raises(AdapterError, match="503") as refused:
        harness.source.check_access(AccessCheckRequest("hub", "org/name", "hf_mine"))
    assert refused.value.kind == "unreachable"


# -- names


@pytest.mark.parametrize(("name", "path", "revision"), [
    ("org/name", "org/name", "main"), ("name", "name", "main"), ("org/name@v1.2", "org/name", "v1.2"),
    ("org/name@refs/pr/1", "org/name", "refs/pr/1"), (f"org/name@{COMMIT}", "org/name", COMMIT)])
def test_adapter_name_may_include_a_revision(name: str, path: str, revision: str) -> None:
    assert parse_hub_adapter_name(name) == (path, revision)


@pytest.mark.parametrize("name", [
    "../name", "org/../name", "/etc/passwd", "org/name/more", "org//name", "org\\name", "org/na\0me", "org/name\n",
    "örg/name",
    "org/name@", "org/name@../../x", "org/name@a\nb", "org/name@/x", "@main", "x" * 5000, "org/--", "\ud800",
    "http://x/y",
    "org/name?x=1", "org/name#x", "org/name@main?x", "org/name%2e%2e"])
def test_invalid_names_are_rejected_without_a_request(harness: HubSourceHarness, name: str) -> None:
    assert harness.expect_error(name).kind == "invalid"
    assert (harness.fake_hub.received_requests, harness.list_blobs()) == ([], [])


def test_missing_revision_is_reported(harness: HubSourceHarness) -> None:
    refused = harness.expect_error("org/name@v9")
    assert (refused.kind, str(refused)) == ("missing", "the adapter org/name has no revision 'v9'")


def test_commit_can_be_named_as_the_revision(harness: HubSourceHarness) -> None:
    assert harness.fetch_files(f"org/name@{COMMIT}")[0] == make_adapter_files(1)


# -- unusable files


@pytest.mark.parametrize(("file_name", "message"), [(CONFIG_FILE, "org/name at http://.* has no adapter_config.json"),
                                                    (WEIGHTS_FILE, "adapter_model.bin, which is pickled")])
def test_incomplete_adapter_is_not_downloaded(harness: HubSourceHarness, file_name: str, message: str) -> None:
    del harness.fake_hub.files[file_name]
    with pytest.raises(AdapterError, match=message):
        harness.fetch_files()
    assert harness.fake_hub.count_requests("resolve") == 0


def test_adapter_of_another_peft_type_is_not_downloaded(harness: HubSourceHarness) -> None:
    harness.fake_hub.files[CONFIG_FILE] = b'{"peft_type": "IA3"}'
    assert "peft_type must be LORA, got 'IA3'" in str(harness.expect_error())
    assert (harness.fake_hub.count_requests("GET", "/store"), harness.list_blobs()) == (0, [])


def test_too_large_weights_are_not_downloaded(harness: HubSourceHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(module.check_adapter_file_sizes.__globals__["MAX_FILE_BYTES"], WEIGHTS_FILE, 1000)
    assert "adapter_model.safetensors must have at most 1.0 kB, it has" in str(harness.expect_error())
    assert harness.fake_hub.count_requests("GET", "/store") == 0


def test_damaged_download_is_rejected_and_can_be_repeated(harness: HubSourceHarness) -> None:
    harness.fake_hub.corrupted_files.add(WEIGHTS_FILE)
    refused = harness.expect_error()
    assert (refused.kind, "arrived damaged" in str(refused)) == ("unreachable", True)
    harness.fake_hub.corrupted_files.clear()
    assert harness.fetch_files()[0] == make_adapter_files(1)


def test_unused_download_is_deleted(harness: HubSourceHarness) -> None:
    """The downloaded files were no adapter and were deleted."""
    with harness.source.open_adapter(FetchRequest("hub", "org/name")) as version:
        (harness.folder / "version").mkdir()
        version.download_files(harness.folder / "version")
        for path in (harness.folder / "version").iterdir():
            path.unlink()
    assert harness.list_blobs() == []


def test_download_deleted_before_linking_is_repeated(
        harness: HubSourceHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    real, blobs = os.link, iter([True, False, False])

    def unlink_first_then_link(path: Path, target: Path) -> None:
        if next(blobs):
            path.unlink()
        real(path, target)

    monkeypatch.setattr(os, "link", unlink_first_then_link)
    assert harness.fetch_files()[0] == make_adapter_files(1)


def test_files_are_copied_where_hard_links_fail(harness: HubSourceHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_not_permitted(path: Path, target: Path) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", raise_not_permitted)
    assert harness.fetch_files()[0] == make_adapter_files(1)
    assert harness.list_blobs() == []


# -- interruptions


def test_interrupted_download_resumes(harness: HubSourceHarness) -> None:
    harness.fake_hub.cut_after_bytes[WEIGHTS_FILE] = 700
    assert harness.fetch_files()[0] == make_adapter_files(1)
    assert harness.fake_hub.count_requests("/store", "bytes=700-") == 1


def test_failed_download_is_resumed_by_the_next_fetch(harness: HubSourceHarness) -> None:
    harness.source = HubSource(harness.source._settings, pauses=())
    harness.fake_hub.cut_after_bytes[WEIGHTS_FILE] = 700
    assert harness.expect_error().kind == "unreachable"
    assert harness.fetch_files()[0] == make_adapter_files(1)
    assert harness.fake_hub.count_requests("/store", "bytes=700-") == 1


def test_full_disk_leaves_no_partial_download(harness: HubSourceHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_disk_full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", raise_disk_full)
    assert harness.expect_error().kind == "no_room"
    assert harness.list_blobs() == []


# -- without the Hub


def fill_hub_cache(harness: HubSourceHarness) -> None:
    folder = harness.cache / "models--org--name"
    write_files(folder / "snapshots" / COMMIT, make_adapter_files(2))
    write_files(folder / "refs", {"main": COMMIT.encode()})


def fetch_local_copy(harness: HubSourceHarness, *, own_token: bool = False) -> tuple[dict[str, bytes], bool] | None:
    version = harness.source.find_local_copy(FetchRequest("hub", "org/name", is_from_settings=own_token))
    if version is None:
        return None
    target = harness.folder / "nearby"
    target.mkdir()
    version.download_files(target)
    return {path.name: path.read_bytes() for path in target.iterdir()}, version.is_private


def test_offline_variable_prevents_all_requests(harness: HubSourceHarness) -> None:
    harness.source = harness.make_source(offline="HF_HUB_OFFLINE")
    refused = harness.expect_error()
    assert (refused.kind, "HF_HUB_OFFLINE is set" in str(refused)) == ("missing", True)
    with pytest.raises(AdapterError, match="HF_HUB_OFFLINE"):
        harness.source.check_access(AccessCheckRequest("hub", "org/name"))
    assert harness.fake_hub.received_requests == []


def test_downloaded_public_adapter_is_found_without_the_hub(harness: HubSourceHarness) -> None:
    harness.fetch_files()
    assert fetch_local_copy(harness) == (make_adapter_files(1), False)


def test_downloaded_private_adapter_is_not_found_without_the_hub(harness: HubSourceHarness) -> None:
    harness.fake_hub.private_token = "hf_mine"
    harness.fetch_files(token="hf_mine")
    assert fetch_local_copy(harness) is None


def test_adapter_that_became_private_is_not_found_without_the_hub(harness: HubSourceHarness) -> None:
    harness.fetch_files()
    harness.fake_hub.private_token = "hf_mine"
    harness.fetch_files(token="hf_mine")
    assert fetch_local_copy(harness) is None


def test_hub_cache_of_others_is_used_only_for_the_operator(harness: HubSourceHarness) -> None:
    """The cache does not record whether the files are public."""
    fill_hub_cache(harness)
    assert fetch_local_copy(harness) is None
    assert fetch_local_copy(harness, own_token=True) == (make_adapter_files(2), True)


def test_hub_cache_of_others_is_used_when_offline(harness: HubSourceHarness) -> None:
    fill_hub_cache(harness)
    harness.source = harness.make_source(offline="HF_HUB_OFFLINE")
    assert fetch_local_copy(harness) == (make_adapter_files(2), False)


def test_stamp_changes_only_with_the_files(harness: HubSourceHarness) -> None:
    def get_stamp(token: str = "") -> object:
        with harness.source.open_adapter(FetchRequest("hub", "org/name", token)) as version:
            return version.version_stamp

    first = get_stamp()
    harness.fake_hub.refs["main"] = OTHER_COMMIT
    harness.fake_hub.refs[OTHER_COMMIT] = OTHER_COMMIT
    assert get_stamp() == first
    harness.fake_hub.files[CONFIG_FILE] += b" "
    assert get_stamp() != first
