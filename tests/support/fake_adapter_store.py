"""Fake adapter store in place of the store process: versions by name, one of which needs a token."""

import asyncio
from collections.abc import Mapping
from typing import Any


class Store:
    def __init__(self, *names: str) -> None:
        self.questions: list[dict[str, Any]] = []
        self.digests = {name: f"d-{name}" for name in names or ("a", "b", "secret")}
        self.tokens = {"key"}
        self.is_asked = asyncio.Event()  # set by every question but `pin`
        self.let_go = asyncio.Event()
        self.let_go.set()
        self.is_closed = False

    async def ask(self, **question: Any) -> Mapping[str, Any]:
        self.questions.append(question)
        if question["op"] == "pin":
            return {}
        self.is_asked.set()
        await self.let_go.wait()
        return getattr(self, question["op"])(question)  # type: ignore[no-any-return]

    def fetch(self, question: dict[str, Any]) -> Mapping[str, Any]:
        name = question["name"]
        if name == "broken":
            return {"error": "it has no end", "kind": "invalid"}
        if name == "away":
            return {"error": "the Hub does not answer", "kind": "unreachable"}
        if name not in self.digests or not self._may(question):
            return {"error": f"there is no {name}", "kind": "missing"}
        return version(self.digests[name]) | {"private": name == "secret"}

    def allowed(self, question: dict[str, Any]) -> Mapping[str, Any]:
        return {"allowed": True} if self._may(question) else {"error": "you may not", "kind": "missing"}

    def merge(self, question: dict[str, Any]) -> Mapping[str, Any]:
        return version("m-" + "".join(question["digests"]))

    def _may(self, question: dict[str, Any]) -> bool:
        return question["name"] != "secret" or question["token"] in self.tokens or question.get("own_token", False)

    async def close(self) -> None:
        self.is_closed = True

    def asked(self, op: str) -> list[dict[str, Any]]:
        return [question for question in self.questions if question["op"] == op]


def version(digest: str) -> dict[str, Any]:
    return {"digest": digest, "folder": f"/versions/{digest}", "takes": 40, "bytes": 10, "base": ""}
