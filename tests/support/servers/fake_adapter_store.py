"""Fake adapter store in place of the store process: versions by name, one of which needs a token."""

import asyncio
from collections.abc import Mapping
from typing import Any


class FakeAdapterStore:
    def __init__(self, *names: str) -> None:
        self.requests: list[dict[str, Any]] = []
        self.digest_by_name = {name: f"d-{name}" for name in names or ("a", "b", "secret")}
        self.allowed_tokens = {"key"}
        self.request_received = asyncio.Event()  # set by every request but `pin`
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.is_closed = False

    async def send_request(self, **request: Any) -> Mapping[str, Any]:
        self.requests.append(request)
        if request["op"] == "pin":
            return {}
        self.request_received.set()
        await self.may_answer.wait()
        return getattr(self, request["op"])(request)  # type: ignore[no-any-return]

    def fetch(self, request: dict[str, Any]) -> Mapping[str, Any]:
        name = request["name"]
        if name == "broken":
            return {"error": "it has no end", "kind": "invalid"}
        if name == "away":
            return {"error": "the Hub does not answer", "kind": "unreachable"}
        if name not in self.digest_by_name or not self._has_access(request):
            return {"error": f"there is no {name}", "kind": "missing"}
        return make_version_answer(self.digest_by_name[name]) | {"private": name == "secret"}

    def allowed(self, request: dict[str, Any]) -> Mapping[str, Any]:
        return {"allowed": True} if self._has_access(request) else {"error": "you may not", "kind": "missing"}

    def names(self, _: dict[str, Any]) -> Mapping[str, Any]:
        return {"names": sorted(self.digest_by_name)}

    def merge(self, request: dict[str, Any]) -> Mapping[str, Any]:
        return make_version_answer("m-" + "".join(request["digests"]))

    def _has_access(self, request: dict[str, Any]) -> bool:
        return request["name"] != "secret" or request["token"] in self.allowed_tokens or request.get("own_token", False)

    async def close(self) -> None:
        self.is_closed = True

    def requests_of(self, op: str) -> list[dict[str, Any]]:
        return [request for request in self.requests if request["op"] == op]


def make_version_answer(digest: str) -> dict[str, Any]:
    return {"digest": digest, "folder": f"/versions/{digest}", "takes": 40, "bytes": 10, "base": ""}
