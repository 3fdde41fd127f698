"""Tests of the requests to a Hub and of the interpretation of its answers."""

import json
from collections.abc import Iterator
from email.message import Message
from io import BytesIO
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request

import pytest
from support.fake_hub import COMMIT, FakeHub

from launcher.hub.client import Hub, Redirects, Unreachable, read_listing

FILES = {"config.json": b"{}", "model.safetensors": b"0123456789", "sub/config.json": b"{}"}
CAUSES = [
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
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    monkeypatch.setenv("NO_PROXY", "*")
    with FakeHub(FILES) as fake:
        yield fake


def hub(fake: FakeHub, token: str = "", name: str = "org/name") -> Hub:
    return Hub(fake.url, name, token, "weft/1")


def read(fake: FakeHub, start: int = 0) -> list[tuple[int, bytes]]:
    asked = hub(fake, "t")
    return list(asked.read(asked.file("model.safetensors", COMMIT), COMMIT, start))


def test_a_listing_has_the_commit_and_the_files_that_are_in_no_folder(fake: FakeHub) -> None:
    listing = hub(fake).listing("main")
    assert (listing.commit, listing.names) == (COMMIT, ("config.json", "model.safetensors"))


def test_a_revision_with_folders_is_one_part_of_the_address(fake: FakeHub) -> None:
    with pytest.raises(ValueError, match="no revision refs/pr/1"):
        hub(fake).listing("refs/pr/1")
    assert fake.asked[0].path == "/api/models/org/name/revision/refs%2Fpr%2F1"


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_file_is_named_by_its_content_whether_it_is_small_or_large(fake: FakeHub, name: str) -> None:
    file = hub(fake).file(name, COMMIT)
    assert (file.name, file.etag, file.size) == (name, fake.etag(name), len(FILES[name]))


def test_what_a_file_is_only_the_hub_itself_is_asked(fake: FakeHub) -> None:
    hub(fake).file("model.safetensors", COMMIT)
    assert fake.num_asked("HEAD") == 1


def test_a_file_can_be_read_from_some_place_on(fake: FakeHub) -> None:
    assert (read(fake), read(fake, 4)) == ([(0, b"0123456789")], [(4, b"456789")])


def test_a_store_that_cannot_skip_begins_at_the_beginning(fake: FakeHub) -> None:
    fake.ranges = False
    assert read(fake, 4) == [(0, b"0123456789")]


def test_the_token_goes_to_the_hub_and_not_to_the_store(fake: FakeHub) -> None:
    read(fake)
    hub(fake, "t").file("config.json", COMMIT)
    assert {asked.token for asked in fake.asked if asked.path.startswith("/store")} == {""}
    assert {asked.token for asked in fake.asked if not asked.path.startswith("/store")} == {"Bearer t"}
    assert fake.num_asked("/cached/") == 1
    assert {asked.client for asked in fake.asked} == {"weft/1"}


@pytest.mark.parametrize(("answer", "token", "line"), CAUSES)
def test_a_refusal_says_what_to_do(fake: FakeHub, answer: tuple[int, str], token: str, line: str) -> None:
    status, code = answer
    fake.answers.append((status, {"X-Error-Code": code} if code else {}))
    with pytest.raises(ValueError, match=line):
        hub(fake, token).listing("v2")


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_what_may_be_otherwise_in_a_moment_is_no_refusal(fake: FakeHub, status: int) -> None:
    fake.answers.append((status, {"Retry-After": "7"}))
    with pytest.raises(Unreachable, match=f"the Hub at .* answers {status} ") as told:
        hub(fake).listing("main")
    assert (told.value.heard, told.value.seconds) == (True, 7.0)


def test_a_hub_that_is_not_there_is_told_with_its_address() -> None:
    with pytest.raises(Unreachable, match=r"cannot reach the Hub at http://127.0.0.1:9: .*Connection refused") as told:
        Hub("http://127.0.0.1:9", "org/name", "", "weft/1").listing("main")
    assert not told.value.heard


def test_a_file_that_the_hub_cannot_describe_is_not_downloaded(fake: FakeHub) -> None:
    fake.answers.append((200, {"ETag": '"../../x"'}))
    with pytest.raises(Unreachable, match=r"does not say what config.json is: ETag '../../x', size '0'"):
        hub(fake).file("config.json", COMMIT)


def test_a_page_that_leads_from_https_to_http_is_not_followed() -> None:
    with pytest.raises(HTTPError, match="leads from https to http") as refused:
        Redirects().redirect_request(Request("https://hub"), BytesIO(), 302, "", Message(), "http://elsewhere")
    refused.value.close()


@pytest.mark.parametrize("text", [
    b"<html>", b"[]", b"{}", b'{"sha": "x"}', b'{"sha": "../..", "siblings": []}', b'{"sha": 5, "siblings": []}',
    b'{"sha": null, "siblings": [{}]}', pytest.param(b"[" * 100_000, id="deep")])
def test_an_answer_that_is_no_listing_is_told(text: bytes) -> None:
    with pytest.raises(Unreachable, match=r"https://hub (answers with something else|names a commit that is none)"):
        read_listing(text, "https://hub")


@pytest.mark.parametrize("name", [
    "../config.json", "a/b", "/etc/passwd", ".", "..", ".hidden", "x" * 200, "a\0b", "\uff41", 5])
def test_names_that_lead_elsewhere_are_left_out(name: Any) -> None:
    text = json.dumps({"sha": COMMIT, "siblings": [{"rfilename": name}]}).encode()
    assert read_listing(text, "https://hub").names == ()
