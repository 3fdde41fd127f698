"""Tests of adapters in S3 buckets, with a dictionary as storage: names, errors and interrupted downloads."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from support.adapter_files import CONFIG, WEIGHTS, adapter_files

from launcher.adapters.errors import Refused, understood
from launcher.adapters.protocol import Fetch
from launcher.adapters.sources.s3 import Entry, S3Source, read_name
from launcher.hub.client import Unreachable


class Shelf:
    """Fake storage with one bucket, `loras`, and faults on demand."""

    def __init__(self) -> None:
        self.files = {f"team/one/{name}": content for name, content in adapter_files(1).items()}
        self.faults: list[Exception] = []
        self.cuts: list[int] = []
        self.asked: list[tuple[str, int]] = []

    def etag(self, key: str) -> str:
        return f'"{hash(self.files[key])}"'

    def list(self, bucket: str, prefix: str) -> Mapping[str, Entry]:
        if self.faults:
            raise self.faults.pop()
        return {key: Entry(len(content), self.etag(key)) for key, content in self.files.items()
                if bucket == "loras" and key.startswith(prefix)}

    def read(self, bucket: str, key: str, etag: str, start: int) -> Iterator[bytes]:
        self.asked.append((key, start))
        if etag != self.etag(key):
            raise Refused("unreachable", "changed while it was read; try again")
        content = self.files[key][:self.cuts.pop() if self.cuts else None]
        for place in range(start, len(content), 1000):
            yield content[place:place + 1000]


class Bench:
    def __init__(self, folder: Path) -> None:
        self.shelf, self.target, self.num_connected = Shelf(), folder, 0
        self.source = S3Source(self.connect, {}, pauses=(0.0, 0.0))

    def connect(self) -> Shelf:
        self.num_connected += 1
        return self.shelf

    def bring(self, name: str = "s3://loras/team/one") -> dict[str, bytes]:
        with understood("the adapter"), self.source.look(Fetch("s3", name, "hf_token")) as sighting:
            assert (sighting.private, sighting.token) == (False, "")
            sighting.bring(self.target)
        return {path.name: path.read_bytes() for path in self.target.iterdir()}

    def refusal(self, name: str = "s3://loras/team/one") -> Refused:
        with pytest.raises(Refused) as refused:
            self.bring(name)
        return refused.value

    def stamp(self) -> object:
        with self.source.look(Fetch("s3", "s3://loras/team/one")) as sighting:
            return sighting.stamp


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.mark.parametrize(("name", "variables", "place"), [
    ("s3://loras/foobar", {}, ("loras", "foobar")),
    ("s3://loras/foo/bar", {}, ("loras", "foo/bar")),
    ("s3://loras/foo/bar", {"PREDIBASE_MODEL_BUCKET": "bucket"}, ("loras", "foo/bar")),
    ("loras/foobar", {}, ("loras", "foobar")),
    ("loras/foo/bar", {}, ("loras", "foo/bar")),
    ("loras/foo/bar", {"PREDIBASE_MODEL_BUCKET": "bucket"}, ("bucket", "loras/foo/bar")),
    ("foo", {"PREDIBASE_MODEL_BUCKET": "bucket", "PREDIBASE_MODEL_FOLDER": "/models/"}, ("bucket", "models/foo")),
    ("s3://loras/foo/", {}, ("loras", "foo")),
])
def test_names_are_read_as_lorax_does(name: str, variables: dict[str, str], place: tuple[str, str]) -> None:
    assert read_name(name, variables) == place


@pytest.mark.parametrize("name", [
    "s3://loras", "s3://loras/", "loras", "s3:///foo", "s3://lo ras/foo", "s3://a/foo", "s3://lo\nras/foo",
    "s3://loras/f\0oo", "s3://loras/" + "x" * 2000, "s3://../foo", "s3://loras/\ud800"])
def test_what_can_be_no_name_is_not_asked_for(bench: Bench, name: str) -> None:
    assert bench.refusal(name).kind == "invalid"
    assert bench.num_connected == 0


def test_two_files_are_brought_and_the_storage_is_connected_once(bench: Bench) -> None:
    bench.shelf.files["team/one/README.md"] = b"read"
    bench.shelf.files["team/one-more/adapter_config.json"] = b"{}"
    assert bench.bring() == bench.bring() == adapter_files(1)
    assert bench.num_connected == 1


def test_a_key_climbs_nowhere(bench: Bench) -> None:
    assert bench.refusal("s3://loras/../../team/one").kind == "missing"


def test_what_is_not_there_is_told(bench: Bench) -> None:
    refused = bench.refusal("s3://loras/team/two")
    assert (refused.kind, str(refused)) == ("missing", "there is no adapter 's3://loras/team/two'")


def test_pickled_weights_are_told(bench: Bench) -> None:
    bench.shelf.files["team/one/adapter_model.bin"] = bench.shelf.files.pop(f"team/one/{WEIGHTS}")
    assert "is pickled and may run any program" in str(bench.refusal())


def test_weights_of_another_kind_of_adapter_are_not_brought(bench: Bench) -> None:
    bench.shelf.files[f"team/one/{CONFIG}"] = b'{"peft_type": "IA3"}'
    assert bench.refusal().kind == "invalid"
    assert bench.shelf.asked == [(f"team/one/{CONFIG}", 0)]


def test_a_storage_that_fails_for_a_moment_is_asked_again(bench: Bench) -> None:
    bench.shelf.faults = [Unreachable("slow down", heard=True), Unreachable("slow down", heard=True)]
    assert bench.bring() == adapter_files(1)


def test_a_storage_that_fails_on_is_told(bench: Bench) -> None:
    bench.shelf.faults = [Unreachable("slow down", heard=True) for _ in range(9)]
    refused = bench.refusal()
    assert (refused.kind, str(refused)) == ("unreachable", "slow down")


def test_a_file_that_was_cut_off_goes_on(bench: Bench) -> None:
    bench.shelf.cuts = [700, 2000]
    assert bench.bring() == adapter_files(1)
    assert [start for key, start in bench.shelf.asked if key.endswith(WEIGHTS)] == [0, 700]


def test_what_changes_meanwhile_is_told(bench: Bench) -> None:
    with bench.source.look(Fetch("s3", "s3://loras/team/one")) as sighting:
        bench.shelf.files[f"team/one/{CONFIG}"] += b" "
        with pytest.raises(Refused, match="changed while it was read"):
            sighting.bring(bench.target)


def test_a_file_that_does_not_end_is_told(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench.shelf, "read", lambda *_: iter([b"x"] * 10_000))
    assert "is more than its bucket said" in str(bench.refusal())


def test_what_is_the_same_has_the_same_stamp(bench: Bench) -> None:
    first = bench.stamp()
    assert bench.stamp() == first
    bench.shelf.files[f"team/one/{CONFIG}"] += b" "
    assert bench.stamp() != first
