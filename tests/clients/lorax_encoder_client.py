"""Checks of encoders with LoRAX's own client: `python lorax_encoder_client.py LABELS VECTORS`.

LABELS and VECTORS are the URLs of two servers with `--compat lorax`: the first labels tokens, the second makes
embeddings. The client's asynchronous `classify` is left out: it parses a list as an object and fails with LoRAX's own
server too.
"""

import asyncio
import sys
from collections.abc import Callable
from typing import Any

from lorax import AsyncClient, Client
from lorax.errors import ValidationError

LABELS, VECTORS = (Client(url, timeout=60) for url in sys.argv[1:])
TEXTS = ["Ada lives in London.", "weft", "Bob met Ada and nobody else."]
FIELDS = {"entity_group", "score", "word", "start", "end"}


def refused(kind: type[Exception], call: Callable[[], object]) -> str:
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError(f"there was no {kind.__name__}")


def entities(text: str) -> list[dict[str, Any]]:
    return LABELS.classify(text).entities


def labels() -> None:
    for text in TEXTS:
        found = entities(text)
        assert found
        assert all(set(entity) == FIELDS and 0 < entity["score"] <= 1 for entity in found)
        assert all(0 <= entity["start"] < entity["end"] <= len(text) for entity in found)
        assert all(entity["word"] == entity["word"].lower() for entity in found)


def batches() -> None:
    assert [answer.entities for answer in LABELS.classify_batch(TEXTS)] == [entities(text) for text in TEXTS]


def embeddings() -> None:
    vectors = [VECTORS.embed(text).embeddings for text in TEXTS]
    assert {len(vector) for vector in vectors} == {64}
    assert len({*map(tuple, vectors)}) == len(TEXTS)

    async def ask() -> list[list[float]]:
        client = AsyncClient(sys.argv[2])
        return [answer.embeddings for answer in await asyncio.gather(*map(client.embed, TEXTS))]
    assert asyncio.run(ask()) == vectors


def errors() -> None:
    assert "does not make embeddings; it labels tokens" in refused(ValidationError, lambda: LABELS.embed("x"))
    assert "does not label tokens; it makes embeddings" in refused(ValidationError, lambda: VECTORS.classify("x"))
    assert "at most 160 tokens" in refused(ValidationError, lambda: LABELS.classify("Ada " * 200))
    assert "at most 4 texts" in refused(ValidationError, lambda: LABELS.classify_batch(["x"] * 5))
    assert "does not generate text" in refused(ValidationError, lambda: VECTORS.generate("x"))


for check in (labels, batches, embeddings, errors):
    check()
    sys.stdout.write(f"lorax: {check.__name__}\n")
