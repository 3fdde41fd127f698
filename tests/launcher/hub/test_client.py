"""Tests of the requests to a Hub and of the interpretation of its answers."""

import json
from collections.abc import Iterator
from email.message import Message
from io import BytesIO
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request

import pytest
from support.servers.fake_hub import COMMIT, FakeHub

from launcher.hub.client import HubClient, ServerUnreachableError, TokenSafeRedirectHandler, parse_listing

FILES = {"config.json": b"{}", "model.safetensors": b"0123456789", "sub/config.json": b"{}"}
ERROR_CASES = [
    ((404, "RepoNotFound"), "", "there is no model org/name at .*, or it is private: .* set HF_TOKEN to a token"),
    ((401, "RepoNotFound"), "", "there is no model org/name at "),
    ((401, ""), "", "there is no model org/name at "),
    ((404, "RepoNotFound"), "t", "there is no model org/name at "),
    ((404, "RevisionNotFound"), "", r"org/name has no revision v2 \(--revision: a branch, a tag or a commit\)"),
    ((401, "GatedRepo"), "", "org/name is gated: ask for access at .*/org/name, and set HF_TOKEN to a token of your"),
    ((403, "GatedRepo"), "t", "org/name is gated: .* the account of the token that is set does not have it"),
    ((401, ""), "t", r"refuses the token \(401\): set HF_TOKEN to a token that may read org/name"),
    ((403, ""), "t", r"forbids it \(403\): set HF_TOKEN to a token that may read org/name"),
    ((418, ""), "", "answers 418 I'm a Teapot: it gives no cause"),
    ((404, "EntryNotFound"), "", "answers 404 Not Found: EntryNotFound"),
]


@pytest.fixture
def fake_hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    monkeypatch.setenv("NO_PROXY", "*")
    with FakeHub(FILES) as fake:
        yield fake


def make_hub_client(fake_hub: FakeHub, token: str = "", name: str = "org/name") -> HubClient:
    return HubClient(fake_hub.url, name, token, "weft/1")


def read_weights(fake_hub: FakeHub, start: int = 0) -> list[tuple[int, bytes]]:
    client = make_hub_client(fake_hub, "t")
    return list(client.read_chunks(client.fetch_file_metadata("model.safetensors", COMMIT), COMMIT, start))


def test_listing_has_the_commit_and_the_top_level_files(fake_hub: FakeHub) -> None:
    listing = make_hub_client(fake_hub).fetch_listing("main")
    assert (listing.commit, listing.file_names) == (COMMIT, ("config.json", "model.safetensors"))


def test_revision_with_slashes_is_escaped(fake_hub: FakeHub) -> None:
    with pytest.raises(ValueError, match="no revision refs/pr/1"):
        make_hub_client(fake_hub).fetch_listing("refs/pr/1")
    assert fake_hub.received_requests[0].path == "/api/models/org/name/revision/refs%2Fpr%2F1"


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_file_metadata_has_etag_and_size(fake_hub: FakeHub, name: str) -> None:
    file = make_hub_client(fake_hub).fetch_file_metadata(name, COMMIT)
    assert (file.name, file.etag, file.num_bytes) == (name, fake_hub.compute_etag(name), len(FILES[name]))


def test_file_metadata_takes_one_request_to_the_hub(fake_hub: FakeHub) -> None:
    make_hub_client(fake_hub).fetch_file_metadata("model.safetensors", COMMIT)
    assert fake_hub.count_requests("HEAD") == 1


def test_file_can_be_read_from_an_offset(fake_hub: FakeHub) -> None:
    assert (read_weights(fake_hub), read_weights(fake_hub, 4)) == ([(0, b"0123456789")], [(4, b"456789")])


def test_storage_without_ranges_sends_from_the_start(fake_hub: FakeHub) -> None:
    fake_hub.supports_ranges = False
    assert read_weights(fake_hub, 4) == [(0, b"0123456789")]


def test_token_is_sent_to_the_hub_but_not_to_the_storage(fake_hub: FakeHub) -> None:
    read_weights(fake_hub)
    make_hub_client(fake_hub, "t").fetch_file_metadata("config.json", COMMIT)
    assert {request.token for request in fake_hub.received_requests if request.path.startswith("/store")} == {""}
    assert {request.token for request in fake_hub.received_requests
            if not request.path.startswith("/store")} == {"Bearer t"}
    assert fake_hub.count_requests("/cached/") == 1
    assert {request.user_agent for request in fake_hub.received_requests} == {"weft/1"}


@pytest.mark.parametrize(("answer", "token", "line"), ERROR_CASES)
def test_rejections_say_what_to_do(fake_hub: FakeHub, answer: tuple[int, str], token: str, line: str) -> None:
    status, code = answer
    fake_hub.scripted_answers.append((status, {"X-Error-Code": code} if code else {}))
    with pytest.raises(ValueError, match=line):
        make_hub_client(fake_hub, token).fetch_listing("v2")


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_temporary_errors_are_unreachable_rather_than_rejections(fake_hub: FakeHub, status: int) -> None:
    fake_hub.scripted_answers.append((status, {"Retry-After": "7"}))
    with pytest.raises(ServerUnreachableError, match=f"the Hub at .* answers {status} ") as error:
        make_hub_client(fake_hub).fetch_listing("main")
    assert (error.value.has_response, error.value.retry_after_seconds) == (True, 7.0)


def test_unreachable_hub_is_reported_with_its_address() -> None:
    with pytest.raises(ServerUnreachableError,
                       match=r"cannot reach the Hub at http://127.0.0.1:9: .*Connection refused") as error:
        HubClient("http://127.0.0.1:9", "org/name", "", "weft/1").fetch_listing("main")
    assert not error.value.has_response


def test_file_without_valid_metadata_is_not_downloaded(fake_hub: FakeHub) -> None:
    fake_hub.scripted_answers.append((200, {"ETag": '"../../x"'}))
    with pytest.raises(ServerUnreachableError, match=r"does not say what config.json is: ETag '../../x', size '0'"):
        make_hub_client(fake_hub).fetch_file_metadata("config.json", COMMIT)


def test_redirect_from_https_to_http_is_not_followed() -> None:
    with pytest.raises(HTTPError, match="leads from https to http") as refused:
        TokenSafeRedirectHandler().redirect_request(Request("https://hub"), BytesIO(), 302, "", Message(),
                                                    "http://elsewhere")
    refused.value.close()


@pytest.mark.parametrize("text", [
    b"<html>", b"[]", b"{}", b'{"sha": "x"}', b'{"sha": "../..", "siblings": []}', b'{"sha": 5, "siblings": []}',
    b'{"sha": null, "siblings": [{}]}', pytest.param(b"[" * 100_000, id="deep")])
def test_invalid_listing_is_reported(text: bytes) -> None:
    with pytest.raises(ServerUnreachableError,
                       match=r"https://hub (answers with something else|names a commit that is none)"):
        parse_listing(text, "https://hub")


@pytest.mark.parametrize("name", [
    "../config.json", "a/b", "/etc/passwd", ".", "..", ".hidden", "x" * 200, "a\0b", "\uff41", 5])
def test_unsafe_file_names_are_left_out(name: Any) -> None:
    text = json.dumps({"sha": COMMIT, "siblings": [{"rfilename": name}]}).encode()
    assert parse_listing(text, "https://hub").file_names == ()
