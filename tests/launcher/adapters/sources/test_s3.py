"""Tests of adapters in S3 buckets, with a dictionary as storage: names, errors and interrupted downloads."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from support.checkpoints.adapter_files import CONFIG_FILE, WEIGHTS_FILE, make_adapter_files

from launcher.adapters.errors import AdapterError, convert_errors_to_adapter_error
from launcher.adapters.sources.s3 import BucketEntry, S3Source, parse_s3_adapter_name
from launcher.adapters.store_protocol import FetchRequest
from launcher.hub.client import ServerUnreachableError


class FakeBucketStorage:
    """Fake storage with one bucket, `loras`, and faults on demand."""

    def __init__(self) -> None:
        self.files = {f"team/one/{name}": content for name, content in make_adapter_files(1).items()}
        self.errors: list[Exception] = []
        self.cut_after_bytes: list[int] = []
        self.reads: list[tuple[str, int]] = []

    def compute_etag(self, key: str) -> str:
        return f'"{hash(self.files[key])}"'

    def list_entries(self, bucket: str, prefix: str) -> Mapping[str, BucketEntry]:
        if self.errors:
            raise self.errors.pop()
        return {key: BucketEntry(len(content), self.compute_etag(key)) for key, content in self.files.items()
                if bucket == "loras" and key.startswith(prefix)}

    def read_object(self, bucket: str, key: str, etag: str, start_offset: int) -> Iterator[bytes]:
        self.reads.append((key, start_offset))
        if etag != self.compute_etag(key):
            raise AdapterError("unreachable", "changed while it was read; try again")
        content = self.files[key][:self.cut_after_bytes.pop() if self.cut_after_bytes else None]
        for offset in range(start_offset, len(content), 1000):
            yield content[offset:offset + 1000]


class S3SourceHarness:
    def __init__(self, folder: Path) -> None:
        self.storage, self.target_folder, self.num_connections = FakeBucketStorage(), folder, 0
        self.source = S3Source(self.connect, {}, pauses=(0.0, 0.0))

    def connect(self) -> FakeBucketStorage:
        self.num_connections += 1
        return self.storage

    def fetch_files(self, name: str = "s3://loras/team/one") -> dict[str, bytes]:
        with convert_errors_to_adapter_error("the adapter"), self.source.open_adapter(
            FetchRequest("s3", name, "hf_token")) as version:
            assert (version.is_private, version.required_token) == (False, "")
            version.download_files(self.target_folder)
        return {path.name: path.read_bytes() for path in self.target_folder.iterdir()}

    def expect_error(self, name: str = "s3://loras/team/one") -> AdapterError:
        with pytest.raises(AdapterError) as refused:
            self.fetch_files(name)
        return refused.value

    def get_stamp(self) -> object:
        with self.source.open_adapter(FetchRequest("s3", "s3://loras/team/one")) as version:
            return version.version_stamp


@pytest.fixture
def harness(tmp_path: Path) -> S3SourceHarness:
    return S3SourceHarness(tmp_path)


@pytest.mark.parametrize(("name", "variables", "location"), [
    ("s3://loras/foobar", {}, ("loras", "foobar")),
    ("s3://loras/foo/bar", {}, ("loras", "foo/bar")),
    ("s3://loras/foo/bar", {"PREDIBASE_MODEL_BUCKET": "bucket"}, ("loras", "foo/bar")),
    ("loras/foobar", {}, ("loras", "foobar")),
    ("loras/foo/bar", {}, ("loras", "foo/bar")),
    ("loras/foo/bar", {"PREDIBASE_MODEL_BUCKET": "bucket"}, ("bucket", "loras/foo/bar")),
    ("foo", {"PREDIBASE_MODEL_BUCKET": "bucket", "PREDIBASE_MODEL_FOLDER": "/models/"}, ("bucket", "models/foo")),
    ("s3://loras/foo/", {}, ("loras", "foo")),
])
def test_names_are_parsed_like_lorax(name: str, variables: dict[str, str], location: tuple[str, str]) -> None:
    assert parse_s3_adapter_name(name, variables) == location


@pytest.mark.parametrize("name", [
    "s3://loras", "s3://loras/", "loras", "s3:///foo", "s3://lo ras/foo", "s3://a/foo", "s3://lo\nras/foo",
    "s3://loras/f\0oo", "s3://loras/" + "x" * 2000, "s3://../foo", "s3://loras/\ud800"])
def test_invalid_names_are_rejected_without_a_connection(harness: S3SourceHarness, name: str) -> None:
    assert harness.expect_error(name).kind == "invalid"
    assert harness.num_connections == 0


def test_two_files_are_fetched_over_one_connection(harness: S3SourceHarness) -> None:
    harness.storage.files["team/one/README.md"] = b"read"
    harness.storage.files["team/one-more/adapter_config.json"] = b"{}"
    assert harness.fetch_files() == harness.fetch_files() == make_adapter_files(1)
    assert harness.num_connections == 1


@pytest.mark.parametrize("key", ["../../team/one", "team/../team/one", "team/./one", "team//one"])
def test_key_that_stands_for_another_key_is_rejected(harness: S3SourceHarness, key: str) -> None:
    assert harness.expect_error(f"s3://loras/{key}").kind == "invalid"
    assert harness.num_connections == 0


def test_missing_adapter_is_reported(harness: S3SourceHarness) -> None:
    refused = harness.expect_error("s3://loras/team/two")
    assert (refused.kind, str(refused)) == ("missing", "there is no adapter 's3://loras/team/two'")


def test_pickled_weights_are_rejected(harness: S3SourceHarness) -> None:
    harness.storage.files["team/one/adapter_model.bin"] = harness.storage.files.pop(f"team/one/{WEIGHTS_FILE}")
    assert "is pickled and may run any program" in str(harness.expect_error())


def test_adapter_of_another_peft_type_is_not_downloaded(harness: S3SourceHarness) -> None:
    harness.storage.files[f"team/one/{CONFIG_FILE}"] = b'{"peft_type": "IA3"}'
    assert harness.expect_error().kind == "invalid"
    assert harness.storage.reads == [(f"team/one/{CONFIG_FILE}", 0)]


def test_temporary_storage_errors_are_retried(harness: S3SourceHarness) -> None:
    harness.storage.errors = [ServerUnreachableError("slow down", has_response=True),
                              ServerUnreachableError("slow down", has_response=True)]
    assert harness.fetch_files() == make_adapter_files(1)


def test_persistent_storage_error_is_reported(harness: S3SourceHarness) -> None:
    harness.storage.errors = [ServerUnreachableError("slow down", has_response=True) for _ in range(9)]
    refused = harness.expect_error()
    assert (refused.kind, str(refused)) == ("unreachable", "slow down")


def test_interrupted_read_resumes(harness: S3SourceHarness) -> None:
    harness.storage.cut_after_bytes = [700, 2000]
    assert harness.fetch_files() == make_adapter_files(1)
    assert [start for key, start in harness.storage.reads if key.endswith(WEIGHTS_FILE)] == [0, 700]


def test_file_changed_meanwhile_is_reported(harness: S3SourceHarness) -> None:
    with harness.source.open_adapter(FetchRequest("s3", "s3://loras/team/one")) as version:
        harness.storage.files[f"team/one/{CONFIG_FILE}"] += b" "
        with pytest.raises(AdapterError, match="changed while it was read"):
            version.download_files(harness.target_folder)


def test_file_longer_than_announced_is_reported(harness: S3SourceHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness.storage, "read_object", lambda *_: iter([b"x"] * 10_000))
    assert "is more than its bucket said" in str(harness.expect_error())


def test_stamp_changes_only_with_the_files(harness: S3SourceHarness) -> None:
    first = harness.get_stamp()
    assert harness.get_stamp() == first
    harness.storage.files[f"team/one/{CONFIG_FILE}"] += b" "
    assert harness.get_stamp() != first
