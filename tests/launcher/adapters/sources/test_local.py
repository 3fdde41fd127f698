"""Tests of adapters in folders below a root: they are copied unchanged, and nothing outside the root is opened."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.adapter_files import CONFIG, WEIGHTS, adapter_files, write

from launcher.adapters.errors import Refused, understood
from launcher.adapters.protocol import Fetch
from launcher.adapters.remote_version import Sighting
from launcher.adapters.sources.local import LocalSource, open_below

LATER = 2 * 10**18  # long after every file was written


class Bench:
    """Root folder with one adapter, and an adapter outside the root that must not be readable."""

    def __init__(self, folder: Path) -> None:
        self.root, self.beside, self.target = folder / "root", folder / "beside", folder / "target"
        write(self.root / "team" / "one", adapter_files(1))
        write(self.beside, adapter_files(2))
        self.target.mkdir()
        self.source = LocalSource(str(self.root), lambda: LATER)

    def bring(self, name: str, meanwhile: Callable[[], object] = lambda: None) -> dict[str, bytes]:
        with self.source.look(Fetch("local", name)) as sighting:
            meanwhile()
            sighting.bring(self.target)
        return {path.name: path.read_bytes() for path in self.target.iterdir()}

    def refusal(self, name: str) -> Refused:
        with pytest.raises(Refused) as refused, understood("the adapter"):
            self.bring(name)
        assert list(self.target.iterdir()) == []
        return refused.value

    def look(self, name: str = "team/one", *, fresh: bool = False) -> Sighting:
        with self.source.look(Fetch("local", name, fresh=fresh)) as sighting:
            return sighting


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the real path of each opened file."""
    found: list[str] = []
    real = os.open

    def noted(*arguments: object, **names: object) -> int:
        number = real(*arguments, **names)  # type: ignore[arg-type]  # the arguments of os.open
        found.append(os.readlink(f"/proc/self/fd/{number}"))
        return number

    monkeypatch.setattr(os, "open", noted)
    return found


def test_an_adapter_is_named_by_its_way_from_the_root(bench: Bench) -> None:
    assert bench.bring("team/one") == adapter_files(1)


@pytest.mark.parametrize("name", ["team/one/", "./team//one", "team/./one", "{root}/team/one", "{root}//team/one"])
def test_a_way_may_be_written_in_several_ways(bench: Bench, name: str) -> None:
    assert bench.bring(name.format(root=bench.root)) == adapter_files(1)


def test_the_root_itself_may_be_one(bench: Bench) -> None:
    write(bench.root, adapter_files(3))
    assert bench.bring(".") == bench.bring(str(bench.root)) == adapter_files(3)


def test_only_the_two_files_are_taken(bench: Bench) -> None:
    write(bench.root / "team" / "one", {"adapter_model.bin": b"pickle", "README.md": b"read"})
    assert bench.bring("team/one") == adapter_files(1)


def test_without_a_root_the_source_is_closed() -> None:
    with pytest.raises(Refused, match="--adapter-root FOLDER") as refused, LocalSource("").look(Fetch("local", "a")):
        pass
    assert refused.value.kind == "forbidden"


# -- hostile names


HOSTILE = [
    "../beside", "team/../../beside", "team/one/../../../beside", "{beside}", "/etc", "/", "//etc",
    "{root}/../beside", "{root}beside", "\0", "team/one\0", "team/one\0/../../beside", "..", "../", "x" * 4000,
    "x/" * 2000, "\ud800", "~", "~root", "team/one/adapter_config.json", "\uff54eam\uff0fone", "\uff0e\uff0e/beside",
    "..\u2215beside", "%2e%2e/beside", "..\\beside",
    "/proc/self/root", "/dev/fd/0", "team/\n", "s3://team/one", "file:///etc"]


@pytest.mark.parametrize("name", HOSTILE)
def test_no_name_leads_out_of_the_root(bench: Bench, name: str, opened: list[str]) -> None:
    refused = bench.refusal(name.format(root=bench.root, beside=bench.beside))
    assert refused.kind in {"missing", "forbidden", "invalid"}
    assert "\n" not in str(refused)
    assert [path for path in opened if not Path(path).is_relative_to(bench.root)] == []


@pytest.mark.slow
@given(st.lists(st.sampled_from(["..", ".", "", "team", "one", "beside", "link", "\0", "ü", "/"]), max_size=8))
def test_no_way_leads_out_of_the_root(tmp_path_factory: pytest.TempPathFactory, steps: list[str]) -> None:
    bench = Bench(tmp_path_factory.mktemp("bench"))
    (bench.root / "link").symlink_to(bench.beside)
    try:
        assert bench.bring("/".join(steps)) == adapter_files(1)
    except Refused:
        assert list(bench.target.iterdir()) == []


def links(bench: Bench) -> dict[str, tuple[Path, Path]]:
    """Return one link out of the root for each level: its path and its target."""
    return {
        "folder": (bench.root / "team" / "link", bench.beside),
        "above": (bench.root / "link", bench.beside.parent),
        "config": (bench.root / "mixed" / CONFIG, bench.beside / CONFIG),
        "weights": (bench.root / "mixed" / WEIGHTS, bench.beside / WEIGHTS),
    }


@pytest.mark.parametrize("level", ["folder", "above", "config", "weights"])
def test_a_link_that_leads_out_is_not_followed(bench: Bench, level: str, opened: list[str]) -> None:
    write(bench.root / "mixed", adapter_files(4))
    link, target = links(bench)[level]
    link.unlink(missing_ok=True)
    link.symlink_to(target)
    name = {"folder": "team/link", "above": "link/beside"}.get(level, "mixed")
    assert bench.refusal(name).kind in {"forbidden", "invalid"}
    assert [path for path in opened if not Path(path).is_relative_to(bench.root)] == []


def test_a_link_within_the_root_is_followed(bench: Bench) -> None:
    """Folders of the Hub's cache consist of such links."""
    (bench.root / "latest").symlink_to("team/one")
    (bench.root / "parts").mkdir()
    for name in adapter_files():
        (bench.root / "parts" / name).symlink_to(bench.root / "latest" / name)
    assert bench.bring("latest") == bench.bring("parts") == adapter_files(1)


def test_the_root_may_be_a_link(bench: Bench, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(bench.root)
    bench.source = LocalSource(str(link))
    assert bench.bring("team/one") == bench.bring(f"{link}/team/one") == bench.bring(f"{bench.root}/team/one")


def test_links_in_a_circle_lead_nowhere(bench: Bench) -> None:
    (bench.root / "a").symlink_to("b")
    (bench.root / "b").symlink_to("a")
    assert bench.refusal("a").kind == "missing"


def test_a_folder_that_becomes_a_link_meanwhile_is_not_followed(bench: Bench) -> None:
    """The change happens after the path was resolved."""
    root = os.open(bench.root, os.O_PATH)
    try:
        (bench.root / "team").rename(bench.root / "old")
        (bench.root / "team").symlink_to(bench.beside.parent)
        with pytest.raises(OSError) as error:  # noqa: PT011 - the errno is checked below
            open_below(root, ("team", "beside", CONFIG))
        (bench.root / "file").symlink_to(bench.beside / CONFIG)
        with pytest.raises(OSError, match="symbolic links"):
            open_below(root, ("file",))
    finally:
        os.close(root)
    assert error.value.errno in {errno.ENOTDIR, errno.ELOOP}


@pytest.mark.parametrize("name", [CONFIG, WEIGHTS])
def test_what_is_no_regular_file_is_refused_without_waiting(bench: Bench, name: str) -> None:
    path = bench.root / "team" / "one" / name
    path.unlink()
    os.mkfifo(path)
    assert "is no regular file" in str(bench.refusal("team/one"))
    path.unlink()
    path.mkdir()
    assert "is no regular file" in str(bench.refusal("team/one"))


def test_a_device_is_refused(bench: Bench) -> None:
    (bench.root / "team" / "one" / CONFIG).unlink()
    (bench.root / "team" / "one" / CONFIG).symlink_to("/dev/zero")
    assert bench.refusal("team/one").kind in {"forbidden", "invalid"}


# -- missing and invalid files


def test_what_is_not_there_is_missing(bench: Bench) -> None:
    refused = bench.refusal("team/two")
    assert (refused.kind, str(refused)) == (
        "missing", "there is no adapter 'team/two' below the folder of --adapter-root")


@pytest.mark.parametrize(("lost", "why"), [
    (CONFIG, "the folder 'team/one' has no adapter_config.json"), (WEIGHTS, "has no adapter_model.safetensors")])
def test_a_file_that_lacks_is_told(bench: Bench, lost: str, why: str) -> None:
    (bench.root / "team" / "one" / lost).unlink()
    refused = bench.refusal("team/one")
    assert (refused.kind, why in str(refused)) == ("invalid", True)


def test_pickled_weights_are_refused(bench: Bench) -> None:
    folder = bench.root / "team" / "one"
    (folder / WEIGHTS).rename(folder / "adapter_model.bin")
    assert "is pickled and may run any program" in str(bench.refusal("team/one"))


def test_a_root_that_is_gone_is_told(tmp_path: Path) -> None:
    with (pytest.raises(Refused, match="No such file") as refused, understood("the adapter"),
          LocalSource(str(tmp_path / "none")).look(Fetch("local", "a"))):
        pass
    assert str(tmp_path) not in str(refused.value)


# -- changes during reading


def overwrite(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    os.utime(path, ns=(LATER, LATER))


CHANGES: dict[str, Callable[[Path], object]] = {
    "another of the same size": overwrite,
    "more": lambda path: path.write_bytes(path.read_bytes() + b"more"),
    "less": lambda path: path.write_bytes(path.read_bytes()[:-4]),
    "gone": Path.unlink,
    "replaced": lambda path: write(path.parent, {"new": path.read_bytes()}) and (path.parent / "new").replace(path),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", [CONFIG, WEIGHTS])
def test_what_changes_while_it_is_read_is_told(bench: Bench, change: str, name: str) -> None:
    path = bench.root / "team" / "one" / name
    with pytest.raises(Refused, match=f"{name} changed while it was read; try again") as refused:
        bench.bring("team/one", lambda: CHANGES[change](path))
    assert refused.value.kind == "unreachable"


# -- stamps


def test_files_that_are_as_they_were_have_the_same_stamp(bench: Bench) -> None:
    stamp = bench.look().stamp
    assert stamp == bench.look().stamp is not None
    (bench.root / "other").symlink_to("team/one")
    assert bench.look("other").stamp == stamp


@pytest.mark.parametrize("change", ["another of the same size", "more", "replaced"])
def test_files_that_changed_have_another(bench: Bench, change: str) -> None:
    stamp = bench.look().stamp
    CHANGES[change](bench.root / "team" / "one" / CONFIG)
    assert bench.look().stamp != stamp


def test_who_asks_anew_is_given_no_stamp(bench: Bench) -> None:
    assert bench.look(fresh=True).stamp is None


def test_what_was_written_a_moment_ago_has_none(bench: Bench) -> None:
    """File times are coarse: a second write may get the same time as the first."""
    written = (bench.root / "team" / "one" / CONFIG).stat().st_ctime_ns
    bench.source = LocalSource(str(bench.root), lambda: written + 10**8)
    assert bench.look().stamp is None
