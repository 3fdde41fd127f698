"""Tests of adapters in folders below a root: they are copied unchanged, and nothing outside the root is opened."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.checkpoints.adapter_files import CONFIG_FILE, WEIGHTS_FILE, make_adapter_files, write_files

from launcher.adapters.errors import AdapterError, convert_errors_to_adapter_error
from launcher.adapters.sources.interface import FetchableAdapter
from launcher.adapters.sources.local import LocalSource, open_below_root
from launcher.adapters.store_protocol import FetchRequest

FUTURE_TIME_NS = 2 * 10**18  # long after every file was written


class LocalSourceHarness:
    """Root folder with one adapter, and an adapter outside the root that must not be readable."""

    def __init__(self, folder: Path) -> None:
        self.root, self.outside_folder, self.target_folder = folder / "root", folder / "beside", folder / "target"
        write_files(self.root / "team" / "one", make_adapter_files(1))
        write_files(self.outside_folder, make_adapter_files(2))
        self.target_folder.mkdir()
        self.source = LocalSource(str(self.root), lambda: FUTURE_TIME_NS)

    def fetch_files(self, name: str, before_copy: Callable[[], object] = lambda: None) -> dict[str, bytes]:
        with self.source.open_adapter(FetchRequest("local", name)) as version:
            before_copy()
            version.download_files(self.target_folder)
        return {path.name: path.read_bytes() for path in self.target_folder.iterdir()}

    def expect_error(self, name: str) -> AdapterError:
        with pytest.raises(AdapterError) as refused, convert_errors_to_adapter_error("the adapter"):
            self.fetch_files(name)
        assert list(self.target_folder.iterdir()) == []
        return refused.value

    def get_remote_version(self, name: str = "team/one", *, skips_name_cache: bool = False) -> FetchableAdapter:
        with self.source.open_adapter(FetchRequest("local", name, skips_name_cache=skips_name_cache)) as version:
            return version


@pytest.fixture
def harness(tmp_path: Path) -> LocalSourceHarness:
    return LocalSourceHarness(tmp_path)


@pytest.fixture
def opened_paths(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the real path of each opened file."""
    paths: list[str] = []
    real = os.open

    def open_and_record(*arguments: object, **names: object) -> int:
        number = real(*arguments, **names)  # type: ignore[arg-type]  # the arguments of os.open
        paths.append(os.readlink(f"/proc/self/fd/{number}"))
        return number

    monkeypatch.setattr(os, "open", open_and_record)
    return paths


def test_adapter_is_named_by_its_path_below_the_root(harness: LocalSourceHarness) -> None:
    assert harness.fetch_files("team/one") == make_adapter_files(1)


@pytest.mark.parametrize("name", ["team/one/", "./team//one", "team/./one", "{root}/team/one", "{root}//team/one"])
def test_equivalent_paths_name_the_same_adapter(harness: LocalSourceHarness, name: str) -> None:
    assert harness.fetch_files(name.format(root=harness.root)) == make_adapter_files(1)


def test_root_folder_itself_may_be_an_adapter(harness: LocalSourceHarness) -> None:
    write_files(harness.root, make_adapter_files(3))
    assert harness.fetch_files(".") == harness.fetch_files(str(harness.root)) == make_adapter_files(3)


def test_only_config_and_weights_are_copied(harness: LocalSourceHarness) -> None:
    write_files(harness.root / "team" / "one", {"adapter_model.bin": b"pickle", "README.md": b"read"})
    assert harness.fetch_files("team/one") == make_adapter_files(1)


def test_source_is_disabled_without_a_root() -> None:
    with pytest.raises(AdapterError, match="--adapter-root FOLDER") as refused, LocalSource("").open_adapter(
        FetchRequest("local", "a")):
        pass
    assert refused.value.kind == "forbidden"


# -- hostile names


HOSTILE_NAMES = [
    "../beside", "team/../../beside", "team/one/../../../beside", "{beside}", "/etc", "/", "//etc",
    "{root}/../beside", "{root}beside", "\0", "team/one\0", "team/one\0/../../beside", "..", "../", "x" * 4000,
    "x/" * 2000, "\ud800", "~", "~root", "team/one/adapter_config.json", "\uff54eam\uff0fone", "\uff0e\uff0e/beside",
    "..\u2215beside", "%2e%2e/beside", "..\\beside",
    "/proc/self/root", "/dev/fd/0", "team/\n", "s3://team/one", "file:///etc"]


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_hostile_names_open_nothing_outside_the_root(harness: LocalSourceHarness, name: str,
                                                     opened_paths: list[str]) -> None:
    refused = harness.expect_error(name.format(root=harness.root, beside=harness.outside_folder))
    assert refused.kind in {"missing", "forbidden", "invalid"}
    assert "\n" not in str(refused)
    assert [path for path in opened_paths if not Path(path).is_relative_to(harness.root)] == []


@pytest.mark.slow
@given(st.lists(st.sampled_from(["..", ".", "", "team", "one", "beside", "link", "\0", "ü", "/"]), max_size=8))
def test_random_paths_never_lead_outside_the_root(tmp_path_factory: pytest.TempPathFactory, steps: list[str]) -> None:
    harness = LocalSourceHarness(tmp_path_factory.mktemp("bench"))
    (harness.root / "link").symlink_to(harness.outside_folder)
    try:
        assert harness.fetch_files("/".join(steps)) == make_adapter_files(1)
    except AdapterError:
        assert list(harness.target_folder.iterdir()) == []


def get_outside_links(harness: LocalSourceHarness) -> dict[str, tuple[Path, Path]]:
    """Return one link out of the root for each level: its path and its target."""
    return {
        "folder": (harness.root / "team" / "link", harness.outside_folder),
        "above": (harness.root / "link", harness.outside_folder.parent),
        "config": (harness.root / "mixed" / CONFIG_FILE, harness.outside_folder / CONFIG_FILE),
        "weights": (harness.root / "mixed" / WEIGHTS_FILE, harness.outside_folder / WEIGHTS_FILE),
    }


@pytest.mark.parametrize("level", ["folder", "above", "config", "weights"])
def test_link_out_of_the_root_is_not_followed(harness: LocalSourceHarness, level: str, opened_paths: list[str]) -> None:
    write_files(harness.root / "mixed", make_adapter_files(4))
    link, target = get_outside_links(harness)[level]
    link.unlink(missing_ok=True)
    link.symlink_to(target)
    name = {"folder": "team/link", "above": "link/beside"}.get(level, "mixed")
    assert harness.expect_error(name).kind in {"forbidden", "invalid"}
    assert [path for path in opened_paths if not Path(path).is_relative_to(harness.root)] == []


def test_link_within_the_root_is_followed(harness: LocalSourceHarness) -> None:
    """Folders of the Hub's cache consist of such links."""
    (harness.root / "latest").symlink_to("team/one")
    (harness.root / "parts").mkdir()
    for name in make_adapter_files():
        (harness.root / "parts" / name).symlink_to(harness.root / "latest" / name)
    assert harness.fetch_files("latest") == harness.fetch_files("parts") == make_adapter_files(1)


def test_root_may_be_a_link(harness: LocalSourceHarness, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(harness.root)
    harness.source = LocalSource(str(link))
    assert (harness.fetch_files("team/one") == harness.fetch_files(f"{link}/team/one")
            == harness.fetch_files(f"{harness.root}/team/one"))


def test_circular_links_are_reported_as_missing(harness: LocalSourceHarness) -> None:
    (harness.root / "a").symlink_to("b")
    (harness.root / "b").symlink_to("a")
    assert harness.expect_error("a").kind == "missing"


def test_folder_replaced_by_a_link_meanwhile_is_not_followed(harness: LocalSourceHarness) -> None:
    """The change happens after the path was resolved."""
    root = os.open(harness.root, os.O_PATH)
    try:
        (harness.root / "team").rename(harness.root / "old")
        (harness.root / "team").symlink_to(harness.outside_folder.parent)
        with pytest.raises(OSError) as error:  # noqa: PT011 - the errno is checked below
            open_below_root(root, ("team", "beside", CONFIG_FILE))
        (harness.root / "file").symlink_to(harness.outside_folder / CONFIG_FILE)
        with pytest.raises(OSError, match="symbolic links"):
            open_below_root(root, ("file",))
    finally:
        os.close(root)
    assert error.value.errno in {errno.ENOTDIR, errno.ELOOP}


@pytest.mark.parametrize("name", [CONFIG_FILE, WEIGHTS_FILE])
def test_non_regular_files_are_rejected_without_blocking(harness: LocalSourceHarness, name: str) -> None:
    path = harness.root / "team" / "one" / name
    path.unlink()
    os.mkfifo(path)
    assert "is no regular file" in str(harness.expect_error("team/one"))
    path.unlink()
    path.mkdir()
    assert "is no regular file" in str(harness.expect_error("team/one"))


def test_device_file_is_rejected(harness: LocalSourceHarness) -> None:
    (harness.root / "team" / "one" / CONFIG_FILE).unlink()
    (harness.root / "team" / "one" / CONFIG_FILE).symlink_to("/dev/zero")
    assert harness.expect_error("team/one").kind in {"forbidden", "invalid"}


# -- missing and invalid files


def test_missing_adapter_is_reported(harness: LocalSourceHarness) -> None:
    refused = harness.expect_error("team/two")
    assert (refused.kind, str(refused)) == (
        "missing", "there is no adapter 'team/two' below the folder of --adapter-root")


@pytest.mark.parametrize(("file_name", "message"), [(CONFIG_FILE, "the folder 'team/one' has no adapter_config.json"),
                                                    (WEIGHTS_FILE, "has no adapter_model.safetensors")])
def test_missing_file_is_reported(harness: LocalSourceHarness, file_name: str, message: str) -> None:
    (harness.root / "team" / "one" / file_name).unlink()
    refused = harness.expect_error("team/one")
    assert (refused.kind, message in str(refused)) == ("invalid", True)


def test_pickled_weights_are_rejected(harness: LocalSourceHarness) -> None:
    folder = harness.root / "team" / "one"
    (folder / WEIGHTS_FILE).rename(folder / "adapter_model.bin")
    assert "is pickled and may run any program" in str(harness.expect_error("team/one"))


def test_missing_root_is_reported_without_its_path(tmp_path: Path) -> None:
    with (pytest.raises(AdapterError, match="No such file") as refused, convert_errors_to_adapter_error("the adapter"),
          LocalSource(str(tmp_path / "none")).open_adapter(FetchRequest("local", "a"))):
        pass
    assert str(tmp_path) not in str(refused.value)


# -- changes during reading


def overwrite_last_byte(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    os.utime(path, ns=(FUTURE_TIME_NS, FUTURE_TIME_NS))


FILE_CHANGES: dict[str, Callable[[Path], object]] = {
    "another of the same size": overwrite_last_byte,
    "more": lambda path: path.write_bytes(path.read_bytes() + b"more"),
    "less": lambda path: path.write_bytes(path.read_bytes()[:-4]),
    "gone": Path.unlink,
    "replaced": lambda path: write_files(path.parent, {"new": path.read_bytes()})
    and (path.parent / "new").replace(path),
}


@pytest.mark.parametrize("change", FILE_CHANGES)
@pytest.mark.parametrize("name", [CONFIG_FILE, WEIGHTS_FILE])
def test_file_changed_while_read_is_reported(harness: LocalSourceHarness, change: str, name: str) -> None:
    path = harness.root / "team" / "one" / name
    with pytest.raises(AdapterError, match=f"{name} changed while it was read; try again") as refused:
        harness.fetch_files("team/one", lambda: FILE_CHANGES[change](path))
    assert refused.value.kind == "unreachable"


# -- stamps


def test_unchanged_files_have_the_same_stamp(harness: LocalSourceHarness) -> None:
    stamp = harness.get_remote_version().version_stamp
    assert stamp == harness.get_remote_version().version_stamp is not None
    (harness.root / "other").symlink_to("team/one")
    assert harness.get_remote_version("other").version_stamp == stamp


@pytest.mark.parametrize("change", ["another of the same size", "more", "replaced"])
def test_changed_files_have_another_stamp(harness: LocalSourceHarness, change: str) -> None:
    stamp = harness.get_remote_version().version_stamp
    FILE_CHANGES[change](harness.root / "team" / "one" / CONFIG_FILE)
    assert harness.get_remote_version().version_stamp != stamp


def test_fresh_lookup_has_no_stamp(harness: LocalSourceHarness) -> None:
    assert harness.get_remote_version(skips_name_cache=True).version_stamp is None


def test_recently_written_files_have_no_stamp(harness: LocalSourceHarness) -> None:
    """File times are coarse: a second write may get the same time as the first."""
    changed_at_ns = (harness.root / "team" / "one" / CONFIG_FILE).stat().st_ctime_ns
    harness.source = LocalSource(str(harness.root), lambda: changed_at_ns + 10**8)
    assert harness.get_remote_version().version_stamp is None


def test_adapters_directly_below_the_root_are_listed(harness: LocalSourceHarness) -> None:
    for name in ("b", "a"):
        write_files(harness.root / name, make_adapter_files(1))
    (harness.root / "empty").mkdir()
    assert harness.source.list_names() == ["a", "b"]
    assert LocalSource("").list_names() == LocalSource(str(harness.root / "nowhere")).list_names() == []
