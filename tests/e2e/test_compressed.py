"""Tests of compressed bodies: rejected requests decompress nothing, others at most the body limit."""

import asyncio
import zlib
from typing import Any

import pytest
from support.in_process_server import play

LIMIT = 100_000
KEY = {"Authorization": "Bearer sk-loom"}
GZIP = {"Content-Type": "application/json", "Content-Encoding": "gzip"}


class Counted:
    """Counter of all bytes that zlib decompresses in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.num_bytes = 0
        make = zlib.decompressobj
        monkeypatch.setattr(zlib, "decompressobj", lambda *args, **more: Counting(make(*args, **more), self))


class Counting:
    def __init__(self, decompressor: Any, counted: Counted) -> None:
        self._decompressor, self._counted = decompressor, counted

    def decompress(self, *args: Any) -> bytes:
        made: bytes = self._decompressor.decompress(*args)
        self._counted.num_bytes += len(made)
        return made

    def __getattr__(self, name: str) -> Any:
        return getattr(self._decompressor, name)


@pytest.fixture
def counted(monkeypatch):
    return Counted(monkeypatch)


def bomb() -> bytes:
    """Return 20 MB of JSON compressed to 20 kB."""
    compressor = zlib.compressobj(9, wbits=31)
    return compressor.compress(b'{"inputs":"' + b" " * 20_000_000 + b'"}') + compressor.flush()


@pytest.mark.parametrize(("method", "path", "status"), [
    ("POST", "/generate", 401), ("POST", "/v1/chat/completions", 401), ("POST", "/nowhere", 401),
    ("GET", "/live", 200)])
def test_nothing_is_decompressed_of_what_nobody_may_send_or_nobody_reads(tmp_path, counted, method, path, status):
    async def story(weft):
        answer = await weft.http.request(method, path, data=bomb(), headers=GZIP)
        assert answer.status == status
        assert counted.num_bytes == 0
    play(story, tmp_path, http=True, api_key="sk-loom")


@pytest.mark.parametrize("path", ["/generate", "/generate_stream", "/tokenize", "/invocations", "/inference"])
def test_who_has_a_key_has_no_more_decompressed_than_a_body_may_have(tmp_path, counted, path):
    async def story(weft):
        answer = await weft.http.post(path, data=bomb(), headers=GZIP | KEY)
        assert answer.status == 413
        assert f"at most {LIMIT} bytes" in (await answer.json())["error"]
        assert counted.num_bytes <= LIMIT + 65_536
    play(story, tmp_path, http=True, api_key="sk-loom", payload_limit=LIMIT, dialect="batching")


def test_whoever_is_refused_before_its_body_was_read_is_told_and_has_to_connect_again(tmp_path):
    """The rest of the body may be of any length."""
    async def story(weft):
        reader, writer = await asyncio.open_connection("127.0.0.1", weft.port)
        writer.write(b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                     b"Content-Length: 1000000000\r\n\r\n{")
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 401 ")
        assert b"\r\nConnection: close\r\n" in head
        writer.close()
        await writer.wait_closed()
    play(story, tmp_path, http=True, api_key="sk-loom")


def test_whoever_is_refused_with_a_body_that_is_there_keeps_its_connection(tmp_path):
    async def story(weft):
        reader, writer = await asyncio.open_connection("127.0.0.1", weft.port)
        for _ in range(2):
            writer.write(b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 401 ")
            assert b"Connection: close" not in head
            await reader.readuntil(b"}")
        writer.close()
        await writer.wait_closed()
    play(story, tmp_path, http=True, api_key="sk-loom")
