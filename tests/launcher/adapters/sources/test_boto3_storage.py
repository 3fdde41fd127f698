"""Tests that errors of boto3 become errors of the store, with a fake boto3 that records its calls."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from launcher.adapters.errors import AdapterError
from launcher.adapters.sources import boto3_storage
from launcher.adapters.sources.boto3_storage import BOTO3_MISSING_ERROR, connect_to_s3
from launcher.adapters.sources.s3 import BucketEntry
from launcher.hub.client import ServerUnreachableError


class BotoCoreError(Exception):
    """Base class of boto3's errors, including connection errors."""


class ParamValidationError(BotoCoreError):
    pass


class NoCredentialsError(BotoCoreError):
    pass


class EndpointConnectionError(BotoCoreError):
    pass


class ClientError(Exception):
    def __init__(self, code: str, status: int) -> None:
        super().__init__("the key AKIASECRET is wrong")
        self.response = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}


class FakeBoto3Client:
    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []
        self.error: Exception | None = None

    def list_objects_v2(self, **parameters: Any) -> dict[str, Any]:
        self._record_call(parameters)
        return {"Contents": [{"Key": "a/b", "Size": 5, "ETag": '"x"'}]} if parameters["Prefix"] == "a" else {}

    def get_object(self, **parameters: Any) -> dict[str, Any]:
        self._record_call(parameters)
        return {"Body": SimpleNamespace(iter_chunks=lambda size: iter([b"ab", b"c"]))}

    def _record_call(self, parameters: dict[str, Any]) -> None:
        self.calls.append(parameters)
        if self.error:
            raise self.error


@pytest.fixture
def boto3_client(monkeypatch: pytest.MonkeyPatch) -> FakeBoto3Client:
    """Install a fake client in modules named like boto3's."""
    client = FakeBoto3Client()
    errors: Any = ModuleType("botocore.exceptions")
    for error in (BotoCoreError, ParamValidationError, ClientError):
        setattr(errors, error.__name__, error)
    boto3: Any = ModuleType("boto3")
    boto3.client = lambda kind, **settings: client.calls.append({"kind": kind} | settings) or client
    config: Any = ModuleType("botocore.config")
    config.Config = dict
    modules = {"boto3": boto3, "botocore": ModuleType("botocore"), "botocore.config": config,
               "botocore.exceptions": errors}
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return client


def test_missing_boto3_is_reported_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(AdapterError, match="needs pip install 'weft") as refused:
        connect_to_s3({})
    assert (str(refused.value), refused.value.kind) == (BOTO3_MISSING_ERROR, "invalid")


@pytest.mark.parametrize(("variables", "address"), [
    ({}, None), ({"S3_ENDPOINT_URL": "http://minio:9000"}, "http://minio:9000"),
    ({"R2_ACCOUNT_ID": "me"}, "https://me.r2.cloudflarestorage.com")])
def test_endpoint_comes_from_the_environment(boto3_client: FakeBoto3Client, variables: dict[str, str],
                                             address: str | None) -> None:
    connect_to_s3(variables)
    assert (boto3_client.calls[0]["kind"], boto3_client.calls[0]["endpoint_url"]) == ("s3", address)


def test_invalid_endpoint_is_reported_without_its_value(boto3_client: FakeBoto3Client,
                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_invalid_endpoint(*_: object, **__: object) -> None:
        raise ValueError("Invalid endpoint: secret")

    monkeypatch.setattr(sys.modules["boto3"], "client", raise_invalid_endpoint)
    with pytest.raises(AdapterError, match="cannot be set up: ValueError"):
        connect_to_s3({})


def test_files_are_listed_by_key(boto3_client: FakeBoto3Client) -> None:
    storage = connect_to_s3({})
    assert storage.list_entries("loras", "a") == {"a/b": BucketEntry(5, '"x"')}
    assert storage.list_entries("loras", "b") == {}
    assert boto3_client.calls[1] == {"Bucket": "loras", "Prefix": "a"}


@pytest.mark.parametrize(("start", "range_arguments"), [(0, {}), (7, {"Range": "bytes=7-"})])
def test_file_is_read_only_while_its_etag_matches(boto3_client: FakeBoto3Client, start: int,
                                                  range_arguments: dict[str, str]) -> None:
    assert b"".join(connect_to_s3({}).read_object("loras", "a/b", '"x"', start)) == b"abc"
    assert boto3_client.calls[1] == {"Bucket": "loras", "Key": "a/b", "IfMatch": '"x"'} | range_arguments


@pytest.mark.parametrize(("fault", "kind", "message"), [
    (ClientError("NoSuchKey", 404), "missing", "there is no 's3://loras/a'"),
    (ClientError("NoSuchBucket", 404), "missing", "there is no 's3://loras/a'"),
    (ClientError("PreconditionFailed", 412), "unreachable", "changed while it was read; try again"),
    (ClientError("AccessDenied", 403), "forbidden", r"may not read 's3://loras/a' \(AccessDenied\)"),
    (ClientError("InvalidAccessKeyId", 403), "forbidden", "InvalidAccessKeyId"),
    (ClientError("SlowDown", 503), "", "answers 503 SlowDown"),
    (NoCredentialsError(), "forbidden", "the server has no credentials"),
    (ParamValidationError(), "invalid", "no name of a bucket and a key"),
    (EndpointConnectionError("AKIASECRET"), "", "cannot reach 's3://loras/a': EndpointConnectionError"),
])
def test_boto3_errors_become_adapter_errors(boto3_client: FakeBoto3Client, fault: Exception, kind: str,
                                            message: str) -> None:
    """An error without a kind is temporary."""
    boto3_client.error = fault
    storage = connect_to_s3({})
    for read in (lambda: storage.list_entries("loras", "a"), lambda: list(storage.read_object("loras", "a", "x", 0))):
        with pytest.raises((AdapterError, ServerUnreachableError), match=message) as error:
            read()
        assert getattr(error.value, "kind", "") == kind
        assert "AKIASECRET" not in str(error.value)


def test_boto3_is_not_imported_before_use() -> None:
    assert not hasattr(boto3_storage, "boto3")
