"""Compressed bodies: accepted encodings, and no decompression beyond the limit."""

import asyncio
import gzip
import json
import zlib

import pytest

from router.config import RouterConfig
from router.http.transport.content_encoding import SLICE, decompress, slices

BODY = json.dumps({"inputs": "a loom"}).encode()
RAW = zlib.compressobj(wbits=-15)
ENCODED = {
    "gzip": gzip.compress(BODY),
    "x-gzip": gzip.compress(BODY),
    "GZIP": gzip.compress(BODY),
    "deflate": zlib.compress(BODY),
    "Deflate": RAW.compress(BODY) + RAW.flush(),  # without zlib's header
    "identity": BODY,
}


def sent(post, encoding, data, path="/generate", **config):
    status, _, text = post(path, data=data, headers={"Content-Encoding": encoding}, config=RouterConfig(**config))
    return status, json.loads(text)


@pytest.mark.parametrize("encoding", ENCODED)
def test_a_compressed_body_is_taken(post, encoding):
    assert sent(post, encoding, ENCODED[encoding]) == (200, {"generated_text": "weft"})


def test_a_body_that_is_read_twice_is_decompressed_once(post):
    assert sent(post, "gzip", ENCODED["gzip"], "/invocations")[0] == 200


@pytest.mark.parametrize("encoding", ["br", "zstd", "compress", "gzip, gzip", "gzip, identity", "", "*"])
def test_another_encoding_is_refused_with_those_that_are_taken(post, encoding):
    status, told = sent(post, encoding, BODY)
    assert (status, told["error_type"]) == (415, "unsupported_media_type")
    assert told["error"] == f"Content-Encoding must be gzip, deflate or identity, got {encoding!r}"


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
@pytest.mark.parametrize("damage", [
    lambda body: b"", lambda body: body[:3], lambda body: body[:-1], lambda body: body[:-9], lambda body: body + b"x",
    lambda body: body + body, lambda _: BODY])
def test_what_is_not_in_its_encoding_or_not_whole_is_refused(post, encoding, damage):
    status, told = sent(post, encoding, damage(ENCODED[encoding]))
    assert (status, told["error_type"]) == (400, "bad_request")
    assert told["error"] == f"the body is not whole, or not in its Content-Encoding, {encoding}"


def test_a_body_may_reach_the_limit_once_decompressed(post):
    body = gzip.compress(BODY.ljust(100_000))
    assert sent(post, "gzip", body, payload_limit=100_000)[0] == 200
    status, told = sent(post, "gzip", body, payload_limit=99_999)
    assert (status, told["error_type"]) == (413, "payload_too_large")
    assert told["error"] == "the body must have at most 99999 bytes once decompressed (--payload-limit)"


@pytest.mark.parametrize("encoding", ["gzip", "identity"])
def test_a_body_that_is_too_long_as_it_is_sent_is_not_called_decompressed(post, encoding):
    status, told = sent(post, encoding, bytes(100_000), payload_limit=99_999)
    assert status == 413
    assert told["error"] == "the body must have at most 99999 bytes (--payload-limit)"


@pytest.mark.parametrize("size", [0, 1, SLICE - 1, SLICE, SLICE + 1, 40 * SLICE])
@pytest.mark.parametrize("window", [31, 15, -15])
def test_slices_are_short_and_together_what_was_compressed(size, window):
    compressor = zlib.compressobj(wbits=window)
    content = bytes(size)
    pieces = [*slices(compressor.compress(content) + compressor.flush(), window)]
    assert b"".join(pieces) == content
    assert all(len(piece) <= SLICE for piece in pieces)


def test_what_does_not_get_shorter_is_read_in_slices_too():
    content = b"".join(bytes([seed * index % 251 for index in range(1, 8_000)]) for seed in range(1, 60))
    assert b"".join(slices(zlib.compress(content, 0), 15)) == content


def test_others_have_their_turn_while_a_body_is_decompressed():
    async def main():
        turns = 0

        async def other():
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)
        task = asyncio.create_task(other())
        await decompress(gzip.compress(bytes(20 * SLICE)), "gzip", 20 * SLICE)
        task.cancel()
        return turns
    assert asyncio.run(main()) >= 20
