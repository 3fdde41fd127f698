"""Grammars made of others: texts with special tokens, free text up to a mark, and grammars of every kind."""

import json
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer
from tokenizers import AddedToken, Tokenizer

from router.grammars.compiler_process import GrammarCompileError, compile_grammar
from router.text.tokenizer import create_byte_tokenizer

MARKS = ["<think>", "</think>", "<call>", "[THINK]"]
SCHEMA = json.dumps({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"],
                     "additionalProperties": False})
ANSWER: Any = ["json_schema", SCHEMA]
THOUGHTS: Any = ["sequence", ["text", "<think>"], ["until", "</think>"], ["blank"]]


def make_tokenizer(marks: list[str]) -> LLTokenizer:
    """Return the tokenizer of bytes, with these special tokens."""
    tokenizer = Tokenizer.from_str(create_byte_tokenizer().path_or_content)
    tokenizer.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in marks])
    return LLTokenizer(tokenizer.to_str())


TOKENIZERS = {"special tokens": make_tokenizer(MARKS), "plain text": make_tokenizer([])}


def fits(tokenizer: LLTokenizer, node: Any, text: str, *, has_special_tokens: bool = True) -> bool:
    """Return whether a text fits in whole. The marks in it are special tokens where the tokenizer has them."""
    matcher = LLMatcher(tokenizer, compile_grammar(tokenizer, "output", json.dumps(node)), log_level=0)
    tokens = tokenizer.tokenize_str(text, parse_special=True) if has_special_tokens else list(text.encode())
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize(("text", "is_fitting"), [
    ('{"a": 1}', True), ('<think>Well, {"b": 2}\n\u00e9\U0001f600</think>{"a": 1}', True), ("<think></think>", False),
    ('<think>\nx\n</think>\n\n{"a": 1}', True), ("<think>x", False), ('<think>x</think>y{"a": 1}', False),
    ('<think>x{"a": 1}', False), ('x</think>{"a": 1}', False), ('<think>x</think>\n\n\n\n\n{"a": 1}', False),
    ('<think>x</think>{"a": 1}</think>', False)])
def test_answer_may_follow_free_thoughts(name: str, text: str, is_fitting: bool) -> None:
    assert fits(TOKENIZERS[name], ["sequence", ["optional", THOUGHTS], ANSWER], text) == is_fitting


def test_no_text_stands_for_a_special_token() -> None:
    node = ["sequence", ["optional", THOUGHTS], ANSWER]
    text = '<think>x</think>{"a": 1}'
    assert [fits(tokenizer, node, text, has_special_tokens=False) for tokenizer in TOKENIZERS.values()] == [False, True]
    special = TOKENIZERS["special tokens"]
    matcher = LLMatcher(special, compile_grammar(special, "output", json.dumps(node)), log_level=0)
    tokens = [*special.tokenize_str("<think>", parse_special=True), *b"x</think"]
    assert matcher.try_consume_tokens(tokens) == len(tokens)
    assert matcher.try_consume_tokens([*b">"]) == 0, "a reader of the text would see the end of the thoughts"


@pytest.mark.parametrize("name", TOKENIZERS)
def test_calls_and_answers_exclude_each_other(name: str) -> None:
    call: Any = ["sequence", ["text", "<call>\n"], ["json_schema", '{"const": "f"}'], ["text", "\n<call>"]]
    node = ["choice", ["repeat", call, ["text", ", "]], ANSWER]
    one = '<call>\n"f"\n<call>'
    for text, is_fitting in ((one, True), (f"{one}, {one}, {one}", True), ('{"a": 1}', True), ('"f"', False),
                             (f'{one}{{"a": 1}}', False), (f"{one}, ", False), ("", False)):
        assert fits(TOKENIZERS[name], node, text) == is_fitting, text


@pytest.mark.parametrize(("grammar", "texts"), [
    (["regex", r"\s*\d+"], ["1", "  12"]), (["grammar", 'start: "(" start ")" | "x"'], ["x", "((x))"]),
    (["grammar", 'root ::= "<" [a-c]+ ">"'], ["<ab>"]), (["output", json.dumps(["text", "a\"/\x85"])], ['a"/\x85'])])
def test_grammar_of_every_kind_is_a_part(grammar: Any, texts: list[str]) -> None:
    node = ["sequence", ["text", "<call>"], ["blank"], grammar]
    for tokenizer in TOKENIZERS.values():
        assert all(fits(tokenizer, node, f"<call>{text}") for text in texts)
        assert not fits(tokenizer, node, "<call>-")


@pytest.mark.parametrize("node", [["thread"], ["json_schema", '{"not": {}}'], ["sequence", ["regex", "("]]])
def test_broken_parts_are_rejected(node: Any) -> None:
    with pytest.raises(GrammarCompileError):
        compile_grammar(TOKENIZERS["plain text"], "output", json.dumps(node))
