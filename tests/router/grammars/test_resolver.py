"""Tests of router/grammars/resolver.py."""

import asyncio
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from router.config import RouterConfig
from router.errors import InvalidRequest
from router.grammars.parameters import Grammar
from router.grammars.resolver import GrammarResolver
from router.model_info import ModelInfo
from router.request import LoadableResource
from router.text.tokenizer import Tokenizer, create_byte_tokenizer

MODEL_INFO = ModelInfo("loom", "cpu", "float32", vocabulary_size=512, max_positions=64, block_size=16, num_blocks=4,
                       grammars=True)
REGEX_GRAMMAR = Grammar("regex", "a+")


def make_tokenizer_without_end_token() -> Tokenizer:
    return Tokenizer(create_byte_tokenizer()._tokenizer, end_tokens=[512])


def make_grammar_resource(kind: str, source: str) -> LoadableResource:
    assert source == "start: /a+/"
    return LoadableResource(kind, 7)


def resolve_grammar(grammar: Grammar, **overrides: Any) -> LoadableResource:
    arguments = {"config": RouterConfig(), "model_info": MODEL_INFO, "tokenizer": create_byte_tokenizer(),
                 "get_resource": make_grammar_resource} | overrides
    with closing(GrammarResolver(**arguments)) as grammars:
        return asyncio.run(grammars.resolve_grammar("response_format", grammar))


@pytest.mark.slow
def test_grammar_is_compiled_and_gets_a_resource_number() -> None:
    assert resolve_grammar(REGEX_GRAMMAR) == LoadableResource("grammar", 7)


@pytest.mark.parametrize(("changed", "reason"), [
    ({"config": RouterConfig(disable_grammar_support=True)}, "grammars are switched off (--disable-grammar-support)"),
    ({"model_info": replace(MODEL_INFO, grammars=False)}, "this model is served without grammars"),
    ({"get_resource": None}, "this model is served without grammars"),
    ({"tokenizer": make_tokenizer_without_end_token()},
     "this model has no end token, so no answer could end where its grammar does"),
], ids=["switched off", "not taken", "nowhere", "endless"])
def test_unsupported_grammar_is_rejected_with_the_reason(changed: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        resolve_grammar(REGEX_GRAMMAR, **changed)
    assert str(refused.value) == f"`response_format` is given, but {reason}; leave it out"
