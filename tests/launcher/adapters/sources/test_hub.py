"""Tests of adapters from a fake Hub: access by token, downloads, and the use of the cache without the Hub."""

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.adapter_files import CONFIG, WEIGHTS, adapter_files, write
from support.fake_hub import COMMIT, FakeHub

from launcher.adapters.errors import Refused, understood
from launcher.adapters.protocol import Allowed, Fetch
from launcher.adapters.sources import hub as module
from launcher.adapters.sources.hub import HubSettings, HubSource, read_name

OTHERS = {"README.md": b"read", "tokenizer.json": b"{}", "adapter_model.bin": b"pickle"}
OTHER_COMMIT = "f" * 40


class Bench:
    """Fake Hub, and a source that retries without pauses."""

    def __init__(self, fake: FakeHub, folder: Path) -> None:
        self.fake, self.folder = fake, folder
        self.downloads, self.cache = folder / "downloads", folder / "cache"
        self.source = self.make()

    def make(self, *, offline: str = "", own_token: str = "") -> HubSource:
        settings = HubSettings(self.fake.url, "weft/1", offline, self.downloads, self.cache, own_token)
        return HubSource(settings, pauses=(0.0, 0.0))

    def bring(self, name: str = "org/name", token: str = "", *,
              own_token: bool = False) -> tuple[dict[str, bytes], bool]:
        """Return the files, and whether they are private. The files stay on disk, like a version in the store."""
        with (understood("the adapter"),
              self.source.look(Fetch("hub", name, token, own_token=own_token)) as sighting):
            target = self.folder / f"version-{len(list(self.folder.iterdir()))}"
            target.mkdir()
            try:
                sighting.bring(target)
            except BaseException:
                shutil.rmtree(target)
                raise
            return {path.name: path.read_bytes() for path in target.iterdir()}, sighting.private

    def refusal(self, name: str = "org/name", token: str = "") -> Refused:
        with pytest.raises(Refused) as refused:
            self.bring(name, token)
        assert "hf_" not in str(refused.value)
        return refused.value

    def blobs(self) -> list[Path]:
        return list(self.downloads.glob("*/blobs/*"))


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Bench]:
    monkeypatch.setenv("NO_PROXY", "*")
    with FakeHub(adapter_files(1) | OTHERS) as fake:
        yield Bench(fake, tmp_path)


# -- access


def test_two_files_are_downloaded_without_a_token(bench: Bench) -> None:
    assert bench.bring(token="hf_mine") == (adapter_files(1), False)
    assert bench.fake.num_asked("Bearer") == 0
    assert not any(bench.fake.num_asked(name) for name in OTHERS)


def test_the_download_is_no_copy(bench: Bench) -> None:
    bench.bring()
    assert [blob.stat().st_nlink for blob in bench.blobs()] == [2, 2]


@pytest.mark.parametrize("closed", ["private_for", "gated_for"])
def test_what_a_token_opens_is_private(bench: Bench, closed: str) -> None:
    setattr(bench.fake, closed, "hf_mine")
    assert bench.bring(token="hf_mine") == (adapter_files(1), True)


@pytest.mark.parametrize("token", ["", "hf_other"])
def test_what_is_not_shown_might_as_well_not_be(bench: Bench, token: str) -> None:
    bench.fake.private_for = "hf_mine"
    refused, none = bench.refusal(token=token), bench.refusal("org/none", token)
    assert refused.kind == none.kind == "missing"
    assert str(refused).replace("org/name", "org/none") == str(none)


@pytest.mark.parametrize("token", ["", "hf_other"])
def test_a_gate_is_told(bench: Bench, token: str) -> None:
    bench.fake.gated_for = "hf_mine"
    refused = bench.refusal(token=token)
    assert (refused.kind, "org/name is gated: ask for access at" in str(refused)) == ("forbidden", True)


def test_the_servers_token_opens_only_what_its_operator_named(bench: Bench) -> None:
    bench.fake.private_for = "hf_servers"
    bench.source = bench.make(own_token="hf_servers")
    assert bench.refusal().kind == bench.refusal(token="hf_other").kind == "missing"
    assert bench.bring(token="hf_other", own_token=True) == (adapter_files(1), True)


@pytest.mark.parametrize("closed", ["private_for", "gated_for"])
def test_whether_a_token_opens_it_is_one_question(bench: Bench, closed: str) -> None:
    setattr(bench.fake, closed, "hf_mine")
    bench.source.check_allowed(Allowed("hub", "org/name", "hf_mine"))
    assert len(bench.fake.asked) == 1
    for token in ("", "hf_other"):
        with pytest.raises(Refused) as refused:
            bench.source.check_allowed(Allowed("hub", "org/name", token))
        assert refused.value.kind == ("missing" if closed == "private_for" else "forbidden")


def test_a_hub_that_does_not_answer_allows_nothing(bench: Bench) -> None:
    bench.fake.answers.append(503)
    with pytest.raises(Refused, match="503") as refused:
        bench.source.check_allowed(Allowed("hub", "org/name", "hf_mine"))
    assert refused.value.kind == "unreachable"


# -- names


@pytest.mark.parametrize(("name", "path", "revision"), [
    ("org/name", "org/name", "main"), ("name", "name", "main"), ("org/name@v1.2", "org/name", "v1.2"),
    ("org/name@refs/pr/1", "org/name", "refs/pr/1"), (f"org/name@{COMMIT}", "org/name", COMMIT)])
def test_a_name_may_have_a_revision(name: str, path: str, revision: str) -> None:
    assert read_name(name) == (path, revision)


@pytest.mark.parametrize("name", [
    "../name", "org/../name", "/etc/passwd", "org/name/more", "org//name", "org\\name", "org/na\0me", "org/name\n",
    "örg/name",
    "org/name@", "org/name@../../x", "org/name@a\nb", "org/name@/x", "@main", "x" * 5000, "org/--", "\ud800", "http://x/y",
    "org/name?x=1", "org/name#x", "org/name@main?x", "org/name%2e%2e"])
def test_what_can_be_no_name_is_not_asked_for(bench: Bench, name: str) -> None:
    assert bench.refusal(name).kind == "invalid"
    assert (bench.fake.asked, bench.blobs()) == ([], [])


def test_a_revision_that_is_none_is_told(bench: Bench) -> None:
    refused = bench.refusal("org/name@v9")
    assert (refused.kind, str(refused)) == ("missing", "the adapter org/name has no revision 'v9'")


def test_a_commit_is_downloaded_by_its_name(bench: Bench) -> None:
    assert bench.bring(f"org/name@{COMMIT}")[0] == adapter_files(1)


# -- unusable files


@pytest.mark.parametrize(("lost", "why"), [
    (CONFIG, "org/name at http://.* has no adapter_config.json"), (WEIGHTS, "adapter_model.bin, which is pickled")])
def test_what_is_no_adapter_is_not_downloaded(bench: Bench, lost: str, why: str) -> None:
    del bench.fake.files[lost]
    with pytest.raises(Refused, match=why):
        bench.bring()
    assert bench.fake.num_asked("resolve") == 0


def test_weights_of_another_kind_of_adapter_are_not_downloaded(bench: Bench) -> None:
    bench.fake.files[CONFIG] = b'{"peft_type": "IA3"}'
    assert "peft_type must be LORA, got 'IA3'" in str(bench.refusal())
    assert (bench.fake.num_asked("GET", "/store"), bench.blobs()) == (0, [])


def test_weights_that_are_too_large_are_not_downloaded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(module.check_sizes.__globals__["MOST_BYTES"], WEIGHTS, 1000)
    assert "adapter_model.safetensors must have at most 1.0 kB, it has" in str(bench.refusal())
    assert bench.fake.num_asked("GET", "/store") == 0


def test_what_arrives_damaged_is_of_no_use(bench: Bench) -> None:
    bench.fake.damaged.add(WEIGHTS)
    refused = bench.refusal()
    assert (refused.kind, "arrived damaged" in str(refused)) == ("unreachable", True)
    bench.fake.damaged.clear()
    assert bench.bring()[0] == adapter_files(1)


def test_a_download_that_nobody_kept_goes(bench: Bench) -> None:
    """The downloaded files were no adapter and were deleted."""
    with bench.source.look(Fetch("hub", "org/name")) as sighting:
        (bench.folder / "version").mkdir()
        sighting.bring(bench.folder / "version")
        for path in (bench.folder / "version").iterdir():
            path.unlink()
    assert bench.blobs() == []


def test_a_download_that_goes_in_the_last_moment_is_brought_again(
        bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    real, blobs = os.link, iter([True, False, False])

    def link(path: Path, target: Path) -> None:
        if next(blobs):
            path.unlink()
        real(path, target)

    monkeypatch.setattr(os, "link", link)
    assert bench.bring()[0] == adapter_files(1)


def test_where_there_are_no_hard_links_a_copy_will_do(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(path: Path, target: Path) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)
    assert bench.bring()[0] == adapter_files(1)
    assert bench.blobs() == []


# -- interruptions


def test_a_download_that_was_cut_off_goes_on(bench: Bench) -> None:
    bench.fake.cuts[WEIGHTS] = 700
    assert bench.bring()[0] == adapter_files(1)
    assert bench.fake.num_asked("/store", "bytes=700-") == 1


def test_a_download_that_failed_is_gone_on_with_by_the_next(bench: Bench) -> None:
    bench.source = HubSource(bench.source._access, pauses=())
    bench.fake.cuts[WEIGHTS] = 700
    assert bench.refusal().kind == "unreachable"
    assert bench.bring()[0] == adapter_files(1)
    assert bench.fake.num_asked("/store", "bytes=700-") == 1


def test_a_full_disk_leaves_no_beginning(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    assert bench.refusal().kind == "no_room"
    assert bench.blobs() == []


# -- without the Hub


def fill_cache(bench: Bench) -> None:
    folder = bench.cache / "models--org--name"
    write(folder / "snapshots" / COMMIT, adapter_files(2))
    write(folder / "refs", {"main": COMMIT.encode()})


def nearby(bench: Bench, *, own_token: bool = False) -> tuple[dict[str, bytes], bool] | None:
    sighting = bench.source.nearby(Fetch("hub", "org/name", own_token=own_token))
    if sighting is None:
        return None
    target = bench.folder / "nearby"
    target.mkdir()
    sighting.bring(target)
    return {path.name: path.read_bytes() for path in target.iterdir()}, sighting.private


def test_nothing_is_asked_where_a_variable_forbids_it(bench: Bench) -> None:
    bench.source = bench.make(offline="HF_HUB_OFFLINE")
    refused = bench.refusal()
    assert (refused.kind, "HF_HUB_OFFLINE is set" in str(refused)) == ("missing", True)
    with pytest.raises(Refused, match="HF_HUB_OFFLINE"):
        bench.source.check_allowed(Allowed("hub", "org/name"))
    assert bench.fake.asked == []


def test_what_was_public_is_found_again(bench: Bench) -> None:
    bench.bring()
    assert nearby(bench) == (adapter_files(1), False)


def test_what_was_private_is_not(bench: Bench) -> None:
    bench.fake.private_for = "hf_mine"
    bench.bring(token="hf_mine")
    assert nearby(bench) is None


def test_what_became_private_is_not_public_any_more(bench: Bench) -> None:
    bench.bring()
    bench.fake.private_for = "hf_mine"
    bench.bring(token="hf_mine")
    assert nearby(bench) is None


def test_what_others_downloaded_is_the_operators(bench: Bench) -> None:
    """The cache does not record whether the files are public."""
    fill_cache(bench)
    assert nearby(bench) is None
    assert nearby(bench, own_token=True) == (adapter_files(2), True)


def test_where_the_hub_is_never_asked_what_others_downloaded_is_what_there_is(bench: Bench) -> None:
    fill_cache(bench)
    bench.source = bench.make(offline="HF_HUB_OFFLINE")
    assert nearby(bench) == (adapter_files(2), False)


def test_what_is_the_same_has_the_same_stamp(bench: Bench) -> None:
    def stamp(token: str = "") -> object:
        with bench.source.look(Fetch("hub", "org/name", token)) as sighting:
            return sighting.stamp

    first = stamp()
    bench.fake.refs["main"] = OTHER_COMMIT
    bench.fake.refs[OTHER_COMMIT] = OTHER_COMMIT
    assert stamp() == first
    bench.fake.files[CONFIG] += b" "
    assert stamp() != first
