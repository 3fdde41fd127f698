"""Tests of compressed bodies: rejected requests decompress nothing, others at most the body limit."""

import asyncio
import zlib
from typing import Any

import pytest
from support.servers.in_process_server import play_scenario

BODY_LIMIT_BYTES = 100_000
API_KEY_HEADERS = {"Authorization": "Bearer sk-loom"}
GZIP_HEADERS = {"Content-Type": "application/json", "Content-Encoding": "gzip"}


class DecompressionCounter:
    """Counter of all bytes that zlib decompresses in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.num_bytes = 0
        make_decompressor = zlib.decompressobj
        monkeypatch.setattr(zlib, "decompressobj",
                            lambda *args, **more: CountingDecompressor(make_decompressor(*args, **more), self))


class CountingDecompressor:
    def __init__(self, decompressor: Any, counter: DecompressionCounter) -> None:
        self._decompressor, self._counter = decompressor, counter

    def decompress(self, *args: Any) -> bytes:
        decompressed: bytes = self._decompressor.decompress(*args)
        self._counter.num_bytes += len(decompressed)
        return decompressed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._decompressor, name)


@pytest.fixture
def decompression_counter(monkeypatch):
    return DecompressionCounter(monkeypatch)


def make_gzip_bomb() -> bytes:
    """Return 20 MB of JSON compressed to 20 kB."""
    compressor = zlib.compressobj(9, wbits=31)
    return compressor.compress(b'{"inputs":"' + b" " * 20_000_000 + b'"}') + compressor.flush()


@pytest.mark.parametrize(("method", "path", "status"), [
    ("POST", "/generate", 401), ("POST", "/v1/chat/completions", 401), ("POST", "/nowhere", 401),
    ("GET", "/live", 200)])
def test_unauthorized_or_unread_bodies_are_not_decompressed(tmp_path, decompression_counter, method, path, status):
    async def scenario(weft):
        answer = await weft.http_session.request(method, path, data=make_gzip_bomb(), headers=GZIP_HEADERS)
        assert answer.status == status
        assert decompression_counter.num_bytes == 0
    play_scenario(scenario, tmp_path, http=True, api_key="sk-loom")


@pytest.mark.parametrize("path", ["/generate", "/generate_stream", "/tokenize", "/invocations", "/inference"])
def test_authorized_bodies_are_decompressed_only_up_to_the_limit(tmp_path, decompression_counter, path):
    async def scenario(weft):
        answer = await weft.http_session.post(path, data=make_gzip_bomb(), headers=GZIP_HEADERS | API_KEY_HEADERS)
        assert answer.status == 413
        assert f"at most {BODY_LIMIT_BYTES} bytes" in (await answer.json())["error"]
        assert decompression_counter.num_bytes <= BODY_LIMIT_BYTES + 65_536
    play_scenario(scenario, tmp_path, http=True, api_key="sk-loom", payload_limit=BODY_LIMIT_BYTES, dialect="batching")


def test_rejection_before_the_body_is_read_closes_the_connection(tmp_path):
    """The rest of the body may be of any length."""
    async def scenario(weft):
        reader, writer = await asyncio.open_connection("127.0.0.1", weft.port)
        writer.write(b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                     b"Content-Length: 1000000000\r\n\r\n{")
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 401 ")
        assert b"\r\nConnection: close\r\n" in head
        writer.close()
        await writer.wait_closed()
    play_scenario(scenario, tmp_path, http=True, api_key="sk-loom")


def test_rejection_after_a_complete_body_keeps_the_connection(tmp_path):
    async def scenario(weft):
        reader, writer = await asyncio.open_connection("127.0.0.1", weft.port)
        for _ in range(2):
            writer.write(b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 401 ")
            assert b"Connection: close" not in head
            await reader.readuntil(b"}")
        writer.close()
        await writer.wait_closed()
    play_scenario(scenario, tmp_path, http=True, api_key="sk-loom")
