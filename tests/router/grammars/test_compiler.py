"""Tests of router/grammars/compiler.py."""

import asyncio
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from router.config import RouterConfig
from router.errors import InvalidRequest
from router.grammars.compiler import Grammars
from router.grammars.schema import Grammar
from router.request import Resource
from router.scheduler.plan import ModelFacts
from router.text.tokenizer import Tokenizer, byte_tokenizer

FACTS = ModelFacts("loom", "cpu", "float32", vocabulary_size=512, max_positions=64, block_size=16, num_blocks=4,
                   grammars=True)
ANY = Grammar("regex", "a+")


def endless() -> Tokenizer:
    return Tokenizer(byte_tokenizer()._tokenizer, end_tokens=[512])


def number(kind: str, source: str) -> Resource:
    assert source == "start: /a+/"
    return Resource(kind, 7)


def need(grammar: Grammar | None, **changed: Any) -> Resource | None:
    given = {"config": RouterConfig(), "facts": FACTS, "tokenizer": byte_tokenizer(), "number": number} | changed
    with closing(Grammars(**given)) as grammars:
        return asyncio.run(grammars.need("response_format", grammar))


@pytest.mark.slow
def test_a_grammar_is_compiled_and_numbered() -> None:
    assert need(ANY) == Resource("grammar", 7)


def test_without_a_grammar_nothing_is_needed() -> None:
    assert need(None) is None
    assert need(None, config=RouterConfig(disable_grammar_support=True)) is None


@pytest.mark.parametrize(("changed", "why"), [
    ({"config": RouterConfig(disable_grammar_support=True)}, "grammars are switched off (--disable-grammar-support)"),
    ({"facts": replace(FACTS, grammars=False)}, "this model is served without grammars"),
    ({"number": None}, "this model is served without grammars"),
    ({"tokenizer": endless()}, "this model has no end token, so no answer could end where its grammar does"),
], ids=["switched off", "not taken", "nowhere", "endless"])
def test_why_there_are_no_grammars_is_told(changed: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        need(ANY, **changed)
    assert str(refused.value) == f"`response_format` is given, but {why}; leave it out"
