"""Tests of parsing the router's request lines, and of the errors for invalid lines."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.adapters.contents import Contents
from launcher.adapters.errors import Refused
from launcher.adapters.protocol import Allowed, Fetch, Merge, Pin, described, read_id, read_order
from launcher.adapters.store import Version

A, B = "a" * 64, "b" * 64
MERGE = {"op": "merge", "digests": [A, B], "weights": [1, 0.5], "strategy": "ties", "density": 0.5, "sign": "total"}
FETCH = {"op": "fetch", "source": "hub", "name": "org/name"}


def refusal(told: Any) -> Refused:
    with pytest.raises(Refused) as refused:
        read_order(told)
    return refused.value


@pytest.mark.parametrize(("told", "order"), [
    (FETCH | {"token": "t", "own_token": True, "fresh": True},
     Fetch("hub", "org/name", "t", own_token=True, fresh=True)),
    (FETCH, Fetch("hub", "org/name")),
    (FETCH | {"op": "allowed", "token": "t"}, Allowed("hub", "org/name", "t")),
    ({"op": "pin", "digests": [A]}, Pin((A,))),
    ({"op": "pin", "digests": []}, Pin(())),
    (MERGE, Merge((A, B), (1.0, 0.5), "ties", 0.5, "total")),
])
def test_a_request_is_read(told: dict[str, Any], order: object) -> None:
    assert read_order(told) == order


@pytest.mark.parametrize(("told", "why"), [
    ({}, "op must be one of fetch, allowed, pin, merge, got None"),
    ({"op": ["fetch"]}, "op must be one of"),
    (FETCH | {"source": "ftp"}, "must be one of hub, local, s3, pbase, got 'ftp'"),
    (FETCH | {"source": "pbase"}, "the source `pbase` is Predibase's registry, which is not served"),
    (FETCH | {"name": ""}, "the name of the adapter is empty"),
    (FETCH | {"name": "x" * 10_240}, "at most 4096 characters, this one has 10240"),
    (FETCH | {"name": 5}, "name must be str, got int"),
    (FETCH | {"fresh": 1}, "fresh must be bool"),
    ({"op": "pin", "digests": ["../../etc"]}, "SHA-256 digests"),
    ({"op": "pin", "digests": [A.upper()]}, "SHA-256 digests"),
    ({"op": "pin"}, "digests must be list"),
    (MERGE | {"weights": [1]}, "a weight for each of its adapters, got 1 for 2"),
    (MERGE | {"digests": [], "weights": []}, "a weight for each"),
    (MERGE | {"weights": [1, float("inf")]}, "a weight must be a number, got inf"),
    (MERGE | {"weights": [1, True]}, "a weight must be a number, got True"),
    (MERGE | {"density": 2}, "density must be from 0 to 1, got 2.0"),
    (MERGE | {"density": None}, "density must be a number, got None"),
])
def test_what_is_wrong_with_a_request_is_told(told: dict[str, Any], why: str) -> None:
    refused = refusal(told)
    assert (why in str(refused), refused.kind) == (True, "invalid")


@pytest.mark.parametrize("token", ["hf_\nX: y", "hf_secret ü", ["hf_secret"], 5])
def test_a_token_that_is_none_is_not_repeated(token: Any) -> None:
    assert "hf_" not in str(refusal(FETCH | {"token": token}))


def test_a_token_is_not_shown() -> None:
    orders = [read_order(FETCH | {"op": op, "token": "hf_secret"}) for op in ("fetch", "allowed")]
    assert "hf_secret" not in repr(orders)


@pytest.mark.parametrize("line", [
    b"", b"{", b"[]", b"5", b"{}", b'{"id": null}', b'{"id": [1]}', b"\xff", b"[" * 100_000])
def test_a_line_without_an_id_is_told(line: bytes) -> None:
    with pytest.raises(Refused, match="a request is a JSON object") as refused:
        read_id(line)
    assert refused.value.kind == "invalid"


@pytest.mark.slow
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
                    lambda inner: st.lists(inner) | st.dictionaries(
                        st.sampled_from(["id", "op", "source", "name", "token", "digests", "weights"]), inner)))
def test_whatever_a_line_holds_it_is_read_or_refused(value: Any) -> None:
    with suppress(Refused):
        number, told = read_id(json.dumps(value).encode())
        assert type(number) in {int, str}
        read_order(told)


def test_a_merge_is_known_by_everything_that_decides_it() -> None:
    changes = ({}, {"digests": [B, A]}, {"weights": [1, 0.6]}, {"strategy": "linear"}, {"density": 0.6},
               {"sign": "frequency"})
    merges = [read_order(MERGE | change) for change in changes]
    assert len({merge.key for merge in merges if isinstance(merge, Merge)}) == len(changes)
    assert all(0 <= merge.seed < 2**64 for merge in merges if isinstance(merge, Merge))


def test_a_version_is_told_as_one_object() -> None:
    assert described(Version(A, Path("/store/versions") / A, Contents(5, 6, "org/base")), private=True) == {
        "digest": A, "folder": f"/store/versions/{A}", "bytes": 5, "takes": 6, "base": "org/base", "private": True}
