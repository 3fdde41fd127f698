"""Tests that errors of boto3 become errors of the store, with a fake boto3 that records its calls."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from launcher.adapters.errors import Refused
from launcher.adapters.sources import bucket
from launcher.adapters.sources.bucket import NEEDS, connect
from launcher.adapters.sources.s3 import Entry
from launcher.hub.client import Unreachable


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


class Client:
    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.fault: Exception | None = None

    def list_objects_v2(self, **asked: Any) -> dict[str, Any]:
        self._note(asked)
        return {"Contents": [{"Key": "a/b", "Size": 5, "ETag": '"x"'}]} if asked["Prefix"] == "a" else {}

    def get_object(self, **asked: Any) -> dict[str, Any]:
        self._note(asked)
        return {"Body": SimpleNamespace(iter_chunks=lambda size: iter([b"ab", b"c"]))}

    def _note(self, asked: dict[str, Any]) -> None:
        self.asked.append(asked)
        if self.fault:
            raise self.fault


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    """Install a fake client in modules named like boto3's."""
    client = Client()
    errors: Any = ModuleType("botocore.exceptions")
    for error in (BotoCoreError, ParamValidationError, ClientError):
        setattr(errors, error.__name__, error)
    boto3: Any = ModuleType("boto3")
    boto3.client = lambda kind, **settings: client.asked.append({"kind": kind} | settings) or client
    config: Any = ModuleType("botocore.config")
    config.Config = dict
    modules = {"boto3": boto3, "botocore": ModuleType("botocore"), "botocore.config": config,
               "botocore.exceptions": errors}
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return client


def test_without_boto3_it_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(Refused, match="needs pip install 'weft") as refused:
        connect({})
    assert (str(refused.value), refused.value.kind) == (NEEDS, "invalid")


@pytest.mark.parametrize(("variables", "address"), [
    ({}, None), ({"S3_ENDPOINT_URL": "http://minio:9000"}, "http://minio:9000"),
    ({"R2_ACCOUNT_ID": "me"}, "https://me.r2.cloudflarestorage.com")])
def test_the_storage_may_be_elsewhere(client: Client, variables: dict[str, str], address: str | None) -> None:
    connect(variables)
    assert (client.asked[0]["kind"], client.asked[0]["endpoint_url"]) == ("s3", address)


def test_an_address_that_is_none_is_told(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise ValueError("Invalid endpoint: secret")

    monkeypatch.setattr(sys.modules["boto3"], "client", refuse)
    with pytest.raises(Refused, match="cannot be set up: ValueError"):
        connect({})


def test_files_are_listed_by_key(client: Client) -> None:
    storage = connect({})
    assert storage.list("loras", "a") == {"a/b": Entry(5, '"x"')}
    assert storage.list("loras", "b") == {}
    assert client.asked[1] == {"Bucket": "loras", "Prefix": "a"}


@pytest.mark.parametrize(("start", "asked"), [(0, {}), (7, {"Range": "bytes=7-"})])
def test_a_file_is_read_only_if_it_is_still_the_same(client: Client, start: int, asked: dict[str, str]) -> None:
    assert b"".join(connect({}).read("loras", "a/b", '"x"', start)) == b"abc"
    assert client.asked[1] == {"Bucket": "loras", "Key": "a/b", "IfMatch": '"x"'} | asked


@pytest.mark.parametrize(("fault", "kind", "why"), [
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
def test_what_boto3_raises_is_told_in_our_words(client: Client, fault: Exception, kind: str, why: str) -> None:
    """An error without a kind is temporary."""
    client.fault = fault
    storage = connect({})
    for ask in (lambda: storage.list("loras", "a"), lambda: list(storage.read("loras", "a", "x", 0))):
        with pytest.raises((Refused, Unreachable), match=why) as told:
            ask()
        assert getattr(told.value, "kind", "") == kind
        assert "AKIASECRET" not in str(told.value)


def test_nothing_of_boto3_is_loaded_before_somebody_asks() -> None:
    assert not hasattr(bucket, "boto3")
