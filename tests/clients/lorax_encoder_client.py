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

LABELLING_CLIENT, EMBEDDING_CLIENT = (Client(url, timeout=60) for url in sys.argv[1:])
TEXTS = ["Ada lives in London.", "weft", "Bob met Ada and nobody else."]
ENTITY_FIELDS = {"entity_group", "score", "word", "start", "end"}


def expect_error_message(exception_type: type[Exception], call: Callable[[], object]) -> str:
    try:
        call()
    except exception_type as error:
        return str(error)
    raise AssertionError(f"there was no {exception_type.__name__}")


def get_entities(text: str) -> list[dict[str, Any]]:
    return LABELLING_CLIENT.classify(text).entities


def check_labels() -> None:
    for text in TEXTS:
        entities = get_entities(text)
        assert entities
        assert all(set(entity) == ENTITY_FIELDS and 0 < entity["score"] <= 1 for entity in entities)
        assert all(0 <= entity["start"] < entity["end"] <= len(text) for entity in entities)
        assert all(entity["word"] == entity["word"].lower() for entity in entities)


def check_batches() -> None:
    assert [answer.entities
            for answer in LABELLING_CLIENT.classify_batch(TEXTS)] == [get_entities(text) for text in TEXTS]


def check_embeddings() -> None:
    vectors = [EMBEDDING_CLIENT.embed(text).embeddings for text in TEXTS]
    assert {len(vector) for vector in vectors} == {64}
    assert len({*map(tuple, vectors)}) == len(TEXTS)

    async def embed_concurrently() -> list[list[float]]:
        client = AsyncClient(sys.argv[2])
        return [answer.embeddings for answer in await asyncio.gather(*map(client.embed, TEXTS))]
    assert asyncio.run(embed_concurrently()) == vectors


def check_errors() -> None:
    assert "does not make embeddings; it labels tokens" in expect_error_message(ValidationError,
                                                                                lambda: LABELLING_CLIENT.embed("x"))
    assert "does not label tokens; it makes embeddings" in expect_error_message(ValidationError,
                                                                                lambda: EMBEDDING_CLIENT.classify("x"))
    assert "at most 160 tokens" in expect_error_message(ValidationError,
                                                        lambda: LABELLING_CLIENT.classify("Ada " * 200))
    assert "at most 4 texts" in expect_error_message(ValidationError,
                                                     lambda: LABELLING_CLIENT.classify_batch(["x"] * 5))
    assert "does not generate text" in expect_error_message(ValidationError, lambda: EMBEDDING_CLIENT.generate("x"))


for check in (check_labels, check_batches, check_embeddings, check_errors):
    check()
    sys.stdout.write(f"lorax: {check.__name__}\n")
