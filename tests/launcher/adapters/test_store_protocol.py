"""Tests of parsing the router's request lines, and of the errors for invalid lines."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.adapters.adapter_files import AdapterFileSummary
from launcher.adapters.errors import AdapterError
from launcher.adapters.store import AdapterVersion
from launcher.adapters.store_protocol import (
    AccessCheckRequest,
    FetchRequest,
    MergeRequest,
    ReplacePinsRequest,
    make_adapter_version_reply,
    parse_request,
    parse_request_line,
)

DIGEST_A, DIGEST_B = "a" * 64, "b" * 64
MERGE_REQUEST = {"op": "merge", "digests": [DIGEST_A, DIGEST_B], "weights": [1, 0.5], "strategy": "ties",
                 "density": 0.5, "sign": "total"}
FETCH_REQUEST = {"op": "fetch", "source": "hub", "name": "org/name"}


def expect_error(request: Any) -> AdapterError:
    with pytest.raises(AdapterError) as refused:
        parse_request(request)
    return refused.value


@pytest.mark.parametrize(("fields", "expected"), [
    (FETCH_REQUEST | {"token": "t", "own_token": True, "fresh": True},
     FetchRequest("hub", "org/name", "t", is_from_settings=True, skips_name_cache=True)),
    (FETCH_REQUEST, FetchRequest("hub", "org/name")),
    (FETCH_REQUEST | {"op": "allowed", "token": "t"}, AccessCheckRequest("hub", "org/name", "t")),
    ({"op": "pin", "digests": [DIGEST_A]}, ReplacePinsRequest((DIGEST_A,))),
    ({"op": "pin", "digests": []}, ReplacePinsRequest(())),
    (MERGE_REQUEST, MergeRequest((DIGEST_A, DIGEST_B), (1.0, 0.5), "ties", 0.5, "total")),
])
def test_requests_are_parsed(fields: dict[str, Any], expected: object) -> None:
    assert parse_request(fields) == expected


@pytest.mark.parametrize(("fields", "message"), [
    ({}, "op must be one of fetch, allowed, pin, merge, names, ping, got None"),
    ({"op": ["fetch"]}, "op must be one of"),
    (FETCH_REQUEST | {"source": "ftp"}, "must be one of hub, local, s3, pbase, got 'ftp'"),
    (FETCH_REQUEST | {"source": "pbase"}, "the source `pbase` is Predibase's registry, which is not served"),
    (FETCH_REQUEST | {"name": ""}, "the name of the adapter is empty"),
    (FETCH_REQUEST | {"name": "x" * 10_240}, "at most 4096 characters, this one has 10240"),
    (FETCH_REQUEST | {"name": 5}, "name must be str, got int"),
    (FETCH_REQUEST | {"fresh": 1}, "fresh must be bool"),
    ({"op": "pin", "digests": ["../../etc"]}, "SHA-256 digests"),
    ({"op": "pin", "digests": [DIGEST_A.upper()]}, "SHA-256 digests"),
    ({"op": "pin"}, "digests must be list"),
    (MERGE_REQUEST | {"weights": [1]}, "a weight for each of its adapters, got 1 for 2"),
    (MERGE_REQUEST | {"digests": [], "weights": []}, "a weight for each"),
    (MERGE_REQUEST | {"weights": [1, float("inf")]}, "a weight must be a number, got inf"),
    (MERGE_REQUEST | {"weights": [1, True]}, "a weight must be a number, got True"),
    (MERGE_REQUEST | {"density": 2}, "density must be from 0 to 1, got 2.0"),
    (MERGE_REQUEST | {"density": None}, "density must be a number, got None"),
])
def test_invalid_requests_are_reported(fields: dict[str, Any], message: str) -> None:
    refused = expect_error(fields)
    assert (message in str(refused), refused.kind) == (True, "invalid")


@pytest.mark.parametrize("token", ["hf_\nX: y", "hf_secret ü", ["hf_secret"], 5])
def test_invalid_token_is_not_repeated_in_the_error(token: Any) -> None:
    assert "hf_" not in str(expect_error(FETCH_REQUEST | {"token": token}))


def test_token_is_not_shown_in_repr() -> None:
    requests = [parse_request(FETCH_REQUEST | {"op": op, "token": "hf_secret"}) for op in ("fetch", "allowed")]
    assert "hf_secret" not in repr(requests)


@pytest.mark.parametrize("line", [
    b"", b"{", b"[]", b"5", b"{}", b'{"id": null}', b'{"id": [1]}', b"\xff", b"[" * 100_000])
def test_line_without_an_id_is_rejected(line: bytes) -> None:
    with pytest.raises(AdapterError, match="a request is a JSON object") as refused:
        parse_request_line(line)
    assert refused.value.kind == "invalid"


@pytest.mark.slow
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
                    lambda inner: st.lists(inner) | st.dictionaries(
                        st.sampled_from(["id", "op", "source", "name", "token", "digests", "weights"]), inner)))
def test_random_lines_are_parsed_or_rejected(value: Any) -> None:
    with suppress(AdapterError):
        number, fields = parse_request_line(json.dumps(value).encode())
        assert type(number) in {int, str}
        parse_request(fields)


def test_merge_key_depends_on_every_parameter() -> None:
    changes = ({}, {"digests": [DIGEST_B, DIGEST_A]}, {"weights": [1, 0.6]}, {"strategy": "linear"}, {"density": 0.6},
               {"sign": "frequency"})
    merges = [parse_request(MERGE_REQUEST | change) for change in changes]
    assert len({merge.content_hash for merge in merges if isinstance(merge, MergeRequest)}) == len(changes)
    assert all(0 <= merge.seed < 2**64 for merge in merges if isinstance(merge, MergeRequest))


def test_version_is_encoded_as_one_object() -> None:
    assert make_adapter_version_reply(AdapterVersion(DIGEST_A, Path("/store/versions") / DIGEST_A,
                                             AdapterFileSummary(5, 6, "org/base")),
                              is_private=True) == {"digest": DIGEST_A, "folder": f"/store/versions/{DIGEST_A}",
                                                   "bytes": 5, "takes": 6, "base": "org/base", "private": True}
