"""Compressed bodies: accepted encodings, and no decompression beyond the limit."""

import asyncio
import gzip
import json
import zlib

import pytest

from router.config import RouterConfig
from router.http.transport.content_encoding import SLICE_BYTES, decompress, decompress_in_slices

BODY_JSON = json.dumps({"inputs": "a loom"}).encode()
RAW_DEFLATE = zlib.compressobj(wbits=-15)
ENCODED_BODIES = {
    "gzip": gzip.compress(BODY_JSON),
    "x-gzip": gzip.compress(BODY_JSON),
    "GZIP": gzip.compress(BODY_JSON),
    "deflate": zlib.compress(BODY_JSON),
    "Deflate": RAW_DEFLATE.compress(BODY_JSON) + RAW_DEFLATE.flush(),  # without zlib's header
    "identity": BODY_JSON,
}


def post_encoded(post, encoding, data, path="/generate", **config):
    status, _, text = post(path, data=data, headers={"Content-Encoding": encoding}, config=RouterConfig(**config))
    return status, json.loads(text)


@pytest.mark.parametrize("encoding", ENCODED_BODIES)
def test_compressed_body_is_accepted(post, encoding):
    assert post_encoded(post, encoding, ENCODED_BODIES[encoding]) == (200, {"generated_text": "weft"})


def test_body_that_is_read_twice_is_decompressed_once(post):
    assert post_encoded(post, "gzip", ENCODED_BODIES["gzip"], "/invocations")[0] == 200


@pytest.mark.parametrize("encoding", ["br", "zstd", "compress", "gzip, gzip", "gzip, identity", "", "*"])
def test_unsupported_encoding_is_rejected(post, encoding):
    status, response = post_encoded(post, encoding, BODY_JSON)
    assert (status, response["error_type"]) == (415, "unsupported_media_type")
    assert response["error"] == f"Content-Encoding must be gzip, deflate or identity, got {encoding!r}"


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
@pytest.mark.parametrize("damage", [
    lambda body: b"", lambda body: body[:3], lambda body: body[:-1], lambda body: body[:-9], lambda body: body + b"x",
    lambda body: body + body, lambda _: BODY_JSON])
def test_corrupt_or_truncated_body_is_rejected(post, encoding, damage):
    status, response = post_encoded(post, encoding, damage(ENCODED_BODIES[encoding]))
    assert (status, response["error_type"]) == (400, "bad_request")
    assert response["error"] == f"the body is not whole, or not in its Content-Encoding, {encoding}"


def test_size_limit_applies_after_decompression(post):
    body = gzip.compress(BODY_JSON.ljust(100_000))
    assert post_encoded(post, "gzip", body, payload_limit=100_000)[0] == 200
    status, response = post_encoded(post, "gzip", body, payload_limit=99_999)
    assert (status, response["error_type"]) == (413, "payload_too_large")
    assert response["error"] == "the body must have at most 99999 bytes once decompressed (--payload-limit)"


@pytest.mark.parametrize("encoding", ["gzip", "identity"])
def test_oversized_encoded_body_is_not_reported_as_decompressed(post, encoding):
    status, response = post_encoded(post, encoding, bytes(100_000), payload_limit=99_999)
    assert status == 413
    assert response["error"] == "the body must have at most 99999 bytes (--payload-limit)"


@pytest.mark.parametrize("size", [0, 1, SLICE_BYTES - 1, SLICE_BYTES, SLICE_BYTES + 1, 40 * SLICE_BYTES])
@pytest.mark.parametrize("window", [31, 15, -15])
def test_decompressed_slices_are_bounded_and_complete(size, window):
    compressor = zlib.compressobj(wbits=window)
    content = bytes(size)
    pieces = [*decompress_in_slices(compressor.compress(content) + compressor.flush(), window)]
    assert b"".join(pieces) == content
    assert all(len(piece) <= SLICE_BYTES for piece in pieces)


def test_incompressible_data_is_decompressed_in_slices():
    content = b"".join(bytes([seed * index % 251 for index in range(1, 8_000)]) for seed in range(1, 60))
    assert b"".join(decompress_in_slices(zlib.compress(content, 0), 15)) == content


def test_decompression_yields_to_other_tasks():
    async def main():
        turns = 0

        async def count_turns():
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)
        task = asyncio.create_task(count_turns())
        await decompress(gzip.compress(bytes(20 * SLICE_BYTES)), "gzip", 20 * SLICE_BYTES)
        task.cancel()
        return turns
    assert asyncio.run(main()) >= 20
