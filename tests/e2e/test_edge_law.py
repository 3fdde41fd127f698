"""The law of the HTTP edge: whatever body a client sends to whatever route, the router's loop does not stand, so that
another client's stream and probes are late by 100 ms and a step at most; and the router's memory comes back.

What counts is the time that the loop itself computed without a pause, by the router's own watch: on a busy machine
everything is late."""

import asyncio
import gzip
import io
import json
import re
import zlib
from collections.abc import Callable, Coroutine, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest
from support.servers.weft_process import SIMULATED_MODEL, WeftProcess, run_weft_process

from router.config import RouterConfig
from router.http.docs import ROUTE_SECTIONS

API_KEY = "sk-edge"
PAYLOAD_LIMIT = RouterConfig().payload_limit
LONGEST_TEXT = "the loom and the weaver " * 600  # close to the longest prompt of the simulated model
HUGE_TEXT = "the loom and the weaver " * (PAYLOAD_LIMIT // 24 - 10)
MAX_STANDSTILL_BUCKET = "0.128"  # 100 ms and a step of 20
MEMORY_TOLERANCE = 1.1
NUM_CONNECTIONS = 32
DELAY_PATTERN = re.compile(r'^weft_event_loop_delay_seconds_bucket\{part="computing",le="([^"]+)"\} (\d+)$',
                           re.MULTILINE)
ENCODERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": lambda body: gzip.compress(body, 1), "deflate": lambda body: zlib.compress(body, 1)}
# The field of each route's body that holds its text, or its list.
MESSAGE_ROUTES = ("/v1/chat/completions", "/chat_tokenize", "/v1/messages", "/v1/messages/count_tokens", "/api/chat")
INPUTS_ROUTES = ("/generate", "/generate_stream", "/", "/invocations", "/tokenize", "/embed", "/classify")
FIELD_BY_ROUTE = dict.fromkeys(MESSAGE_ROUTES, "messages") | dict.fromkeys(INPUTS_ROUTES, "inputs") | {
    "/v1/completions": "prompt", "/vertex": "instances", "/detokenize": "tokens", "/v1/responses": "input",
    "/v1/embeddings": "input", "/classify_batch": "inputs", "/rerank": "documents", "/v1/rerank": "documents",
    "/v2/rerank": "documents", "/score": "text_2", "/v1/score": "text_2", "/v1/adapters": "id",
    "/v1/load_lora_adapter": "lora_name", "/v1/unload_lora_adapter": "lora_name", "/api/generate": "prompt",
    "/api/embed": "input", "/api/embeddings": "prompt", "/api/show": "model", "/api/pull": "model",
    "/api/push": "model", "/api/create": "model", "/api/copy": "source",
    "/v1/engine/simulate": "requests"}
# What the other fields of a body must be.
OTHER_FIELDS = {
    "/v1/messages": {"max_tokens": 1}, "/api/chat": {"model": "weft"}, "/api/generate": {"model": "weft"},
    "/api/embed": {"model": "weft"}, "/api/embeddings": {"model": "weft"}, "/score": {"text_1": "a"},
    "/v1/score": {"text_1": "a"}, "/rerank": {"query": "a"}, "/v1/rerank": {"query": "a"},
    "/v2/rerank": {"query": "a"}, "/v1/adapters": {"source": "local"},
    "/v1/load_lora_adapter": {"lora_path": "a"}}
SHORT_ROUTES = ("/generate", "/v1/chat/completions", "/tokenize", "/v1/messages")  # all in the long form
POST_ROUTES = sorted({route.path for routes in ROUTE_SECTIONS.values() for route in routes if route.method == "POST"})


class Attack(NamedTuple):
    name: str
    body: bytes
    encoding: str = ""


def make_legal_body(path: str, text: str) -> bytes:
    field = FIELD_BY_ROUTE[path]
    value: object = text
    if field == "messages":
        value = [{"role": "user", "content": text}]
    elif path == "/vertex":
        value = [{"inputs": text, "parameters": {"max_new_tokens": 1}}]
    elif field == "requests":
        value = [{"at": 0.0, "prompt_tokens": 100, "output_tokens": 10}] * 256
    elif field == "tokens":
        value = [1] * len(text)
    elif field in {"documents", "text_2"} or path == "/classify_batch":
        value = [text]
    limits = {"max_tokens": 1, "parameters": {"max_new_tokens": 1}, "options": {"num_predict": 1},
              "max_output_tokens": 1, "stream": False}
    return json.dumps({field: value} | limits | OTHER_FIELDS.get(path, {})).encode()


def iter_attacks(path: str) -> Iterator[Attack]:
    """Yield the largest legal body of a route, and large ones that are not legal, each in another way."""
    field = FIELD_BY_ROUTE[path]
    yield Attack("legal", make_legal_body(path, LONGEST_TEXT))
    yield Attack("huge text", make_legal_body(path, HUGE_TEXT)[:PAYLOAD_LIMIT])
    yield Attack("deep", b'{"%s": ' % field.encode() + b"[" * (PAYLOAD_LIMIT - 100))
    yield Attack("no text", b"\xff" * PAYLOAD_LIMIT)
    yield Attack("too large", b" " * 3 * PAYLOAD_LIMIT)
    yield Attack("bomb", compress_zeros(), "gzip")


@cache
def compress_zeros() -> bytes:
    return gzip.compress(bytes(100_000_000))


def iter_many_values(path: str) -> Iterator[Attack]:
    """Yield bodies of many small values, of which objects are made before anything is checked."""
    field = FIELD_BY_ROUTE[path].encode()
    yield Attack("many fields", b"{" + b",".join(b'"field%d":0' % i for i in range(PAYLOAD_LIMIT // 16)) + b"}")
    yield Attack("many numbers", b'{"%s": [' % field + b"0," * (PAYLOAD_LIMIT // 2 - 50) + b"0]}")


def compress_attacks(attacks: Iterable[Attack], encoding: str) -> list[Attack]:
    return [Attack(attack.name, ENCODERS[encoding](attack.body), encoding) for attack in attacks if not attack.encoding]


class EdgeClient:
    """Client of a server, with a stream that decodes all the time."""

    def __init__(self, weft: WeftProcess, http: aiohttp.ClientSession) -> None:
        self._weft, self._http = weft, http
        [self._router_pid] = weft.find_child_pids("router")

    async def stream_for_ever(self) -> None:
        while True:
            body = {"inputs": "a", "parameters": {"max_new_tokens": 8000}}
            async with self._http.post("/generate_stream", json=body, headers=self.headers()) as answer:
                async for _ in answer.content:
                    pass

    def headers(self, *, has_key: bool = True) -> dict[str, str]:
        return {"Authorization": f"Bearer {API_KEY}"} if has_key else {}

    async def send(self, path: str, attack: Attack, *, has_key: bool = True) -> int:
        """Send a body on a connection of its own; return the status, or 0 if the connection was closed."""
        headers = self.headers(has_key=has_key) | {"Content-Type": "application/json", "Connection": "close"}
        if attack.encoding:
            headers["Content-Encoding"] = attack.encoding
        try:
            async with self._http.post(path, data=io.BytesIO(attack.body), headers=headers) as answer:
                async for _ in answer.content.iter_chunked(65536):
                    pass
                return answer.status
        except aiohttp.ClientError:
            return 0

    async def count_standstills(self) -> int:
        """Return how often the loop computed for longer than allowed."""
        async with self._http.get("/metrics", headers=self.headers()) as answer:
            counts = dict(DELAY_PATTERN.findall(await answer.text()))
        return int(counts["+Inf"]) - int(counts[MAX_STANDSTILL_BUCKET])

    def read_resident_bytes(self) -> int:
        return int(next(line.split()[1] for line in Path(f"/proc/{self._router_pid}/status").read_text().splitlines()
                        if line.startswith("VmRSS"))) * 1024


def run_edge_law(tmp_path: Path, scenario: Callable[[EdgeClient], Coroutine[Any, Any, None]]) -> None:
    async def main(weft: WeftProcess) -> None:
        connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=300)
        async with aiohttp.ClientSession(weft.url, connector=connector, timeout=timeout,
                                         auto_decompress=False) as http:
            client = EdgeClient(weft, http)
            streaming = asyncio.create_task(client.stream_for_ever())
            try:
                await scenario(client)
                assert not streaming.done()
            finally:
                streaming.cancel()
                await asyncio.wait([streaming])

    with run_weft_process(tmp_path, SIMULATED_MODEL, "--api-key", API_KEY, "--shutdown-timeout", "0") as weft:
        asyncio.run(main(weft))


async def attack_route(client: EdgeClient, path: str, attacks: Iterable[Attack], *, has_key: bool = True,
                       num_connections: int = 1) -> list[str]:
    """Send each body from so many connections at once; return those during which the loop stood."""
    faults = []
    for attack in attacks:
        num_before = await client.count_standstills()
        statuses = await asyncio.gather(*(client.send(path, attack, has_key=has_key) for _ in range(num_connections)))
        num_standstills = await client.count_standstills() - num_before
        line = f"{path} {attack.name} {attack.encoding} key={has_key} x{num_connections}: {sorted(set(statuses))}"
        print(line, num_standstills)
        if num_standstills:
            faults.append(line)
    return faults


def test_every_route_with_a_body_is_attacked() -> None:
    assert sorted(FIELD_BY_ROUTE) == POST_ROUTES


def test_no_body_stops_the_loop(tmp_path: Path) -> None:
    async def scenario(client: EdgeClient) -> None:
        faults = [fault for path in SHORT_ROUTES for fault in await attack_route(client, path, iter_attacks(path))]
        assert not faults
    run_edge_law(tmp_path, scenario)


@pytest.mark.long
def test_no_body_of_many_values_stops_the_loop(tmp_path: Path) -> None:
    async def scenario(client: EdgeClient) -> None:
        faults = [fault for path in POST_ROUTES for fault in await attack_route(client, path, iter_many_values(path))]
        assert not faults
    run_edge_law(tmp_path, scenario)


@pytest.mark.long
@pytest.mark.timeout(3000)
def test_no_body_on_any_route_stops_the_loop_and_memory_comes_back(tmp_path: Path) -> None:
    async def scenario(client: EdgeClient) -> None:
        faults = []
        for path in POST_ROUTES:  # the first round fills caches
            faults += await attack_route(client, path, iter_attacks(path))
        resident_bytes = client.read_resident_bytes()
        for path in POST_ROUTES:
            attacks = [*iter_attacks(path)]
            for encoding in ("gzip", "deflate"):
                faults += await attack_route(client, path, compress_attacks(attacks, encoding))
            faults += await attack_route(client, path, attacks, has_key=False)
        for path in POST_ROUTES:
            faults += await attack_route(client, path, iter_attacks(path), num_connections=NUM_CONNECTIONS)
        assert not faults
        assert client.read_resident_bytes() <= MEMORY_TOLERANCE * resident_bytes
    run_edge_law(tmp_path, scenario)
