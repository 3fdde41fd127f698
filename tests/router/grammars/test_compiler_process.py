"""Tests of router/grammars/compiler_process.py, run in this process except where a process would end."""

import json
import re
import socket
import threading
from pathlib import Path

import pytest
from llguidance import LLMatcher, LLTokenizer

from router.grammars import compiler_process
from router.grammars.compiler_process import (
    GrammarCompileError,
    answer_request,
    compile_grammar,
    load_tokenizer,
    serve_requests,
)
from router.grammars.parameters import Grammar, make_choice_grammar, make_context_free_grammar
from router.processes import worker_process
from router.text.tokenizer import create_byte_tokenizer

TOKENIZER = load_tokenizer(create_byte_tokenizer().path_or_content)
LOOM_SCHEMA = {"type": "object", "properties": {"loom": {"type": "integer"}}, "required": ["loom"],
               "additionalProperties": False}


def compile_schema(schema: object) -> str:
    return compile_grammar(TOKENIZER, "json_schema", json.dumps(schema))


def matches_grammar(grammar: str, text: str) -> bool:
    matcher = LLMatcher(TOKENIZER, grammar, log_level=0)
    return matcher.try_consume_tokens(list(text.encode())) == len(text.encode()) and matcher.is_accepting()


@pytest.mark.parametrize(("text", "is_fitting"), [
    ('{"loom":1}', True), ('{ "loom" : 1 }', True), ('{\n    "loom": 1\n}', True), ('{"loom":"x"}', False),
    ("{}", False), ('{"loom":1,"weft":2}', False), ('{"loom":1}}', False), ('{   "loom":1}', False),
    ('{\n\n"loom":1}', False)])
def test_schema_is_enforced_with_little_whitespace(text: str, is_fitting: bool) -> None:
    assert matches_grammar(compile_schema(LOOM_SCHEMA), text) == is_fitting


@pytest.mark.parametrize(("pattern", "texts"), [
    (r"^(loom|weft)$", ["loom", "weft", "loomweft", ""]), (r"\d{2,3}", ["1", "12", "1234"]),
    (r"((25[0-5]|2[0-4]\d|[01]?\d\d?)\.){3}(25[0-5]|2[0-4]\d|[01]?\d\d?)", ["192.168.0.1", "300.1.1.1", "1.1.1"]),
    (r"[\d.]+", ["1.5", "d"]), (r"\\d", ["\\d", "1"]), (r"[^\d/]", ["/", "1", "d"]), ("a\nb", ["a\nb"]),
    (r"(?i)über", ["ÜBER", "uber"]), (r"a.b", ["a\nb", "axb"]), (r"a/b", ["a/b"])])
def test_regex_matches_the_whole_text_as_in_python(pattern: str, texts: list[str]) -> None:
    grammar = compile_grammar(TOKENIZER, "regex", pattern)
    assert [matches_grammar(grammar, text) for text in texts] == [bool(re.fullmatch(pattern, text)) for text in texts]


@pytest.mark.parametrize(("grammar", "fitting", "others"), [
    (make_choice_grammar("c", ["a\x7f\x85"]), ["a\x7f\x85"], ["a"]),
    (make_choice_grammar("c", ["yes", 'a "b"\n', "a.b(c)*\\", "\u00e9\u2603\U0001f600", "yes"]),
     ["yes", 'a "b"\n', "a.b(c)*\\", "\u00e9\u2603\U0001f600"], ["ye", "yesyes", "axb(c)*\\", ""]),
    (make_context_free_grammar("g", 'start: "(" start ")" | "x"'), ["x", "(x)", "((x))"], ["(x", "x)", ""]),
    (make_context_free_grammar("g", 'root ::= "(" root ")" | [a-c]+\n'), ["abc", "(a)", "((cc))"], ["(x)", "(a"])])
def test_context_free_grammar_is_enforced(grammar: Grammar, fitting: list[str], others: list[str]) -> None:
    compiled = compile_grammar(TOKENIZER, grammar.kind, grammar.source)
    assert [text for text in fitting + others if matches_grammar(compiled, text)] == fitting


@pytest.mark.parametrize(("text", "unfit_index"), [("", None), ("ab", None), ("abc", None), ("ax", 1), ("abcd", 3)])
def test_output_so_far_is_matched_with_the_grammar(text: str, unfit_index: int | None) -> None:
    answer = answer_request(TOKENIZER, {"kind": "regex", "source": "abc", "tokens": [*text.encode()]})
    assert answer == ({"grammar": compile_grammar(TOKENIZER, "regex", "abc")} if unfit_index is None
                      else {"unfit_index": unfit_index})


@pytest.mark.parametrize("source", ["start: nowhere", "root ::= nowhere", "nonsense", "start: /(/", 'start: "a'])
def test_broken_context_free_grammar_is_rejected(source: str) -> None:
    with pytest.raises(GrammarCompileError):
        compile_grammar(TOKENIZER, "grammar", source)


def test_digit_class_matches_only_ascii_digits() -> None:
    """Regression: random tokens produced digits of Ol Chiki, and some newer than Python's Unicode tables."""
    digits = ("7", "\u0663", "\u1c54")
    assert [matches_grammar(compile_grammar(TOKENIZER, "regex", r"\d"), text)
            for text in digits] == [True, False, False]
    pattern = compile_schema({"type": "string", "pattern": r"^\d$"})
    assert [matches_grammar(pattern, f'"{text}"') for text in digits] == [True, False, False]


@pytest.mark.parametrize(("schema", "reason"), [
    ({"not": {"type": "string"}}, "not"), ({"uniqueItems": True}, "uniqueItems"), ({"if": {}, "then": {}}, "if"),
    ({"contains": {}}, "contains"), ({"dependencies": {"a": ["b"]}}, "dependencies"), ({"$dynamicRef": "#x"}, "namic"),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf"), ({"$ref": "https://example.com/x"}, "example.com"),
    ({"type": "thread"}, "thread"), ({"type": "integer", "minimum": 5, "maximum": 3}, "minimum"),
    ({"type": "string", "format": "knot"}, "knot"), ({"pattern": "(?=a)"}, "look-around")], ids=str)
def test_unsupported_schema_is_rejected_with_its_reason(schema: object, reason: str) -> None:
    with pytest.raises(GrammarCompileError, match=reason):
        compile_schema(schema)


@pytest.mark.parametrize("pattern", [r"(a)\1", r"(?<!a)b", "(", r"\bloom\b"])
def test_unsupported_regex_is_rejected(pattern: str) -> None:
    with pytest.raises(GrammarCompileError):
        compile_grammar(TOKENIZER, "regex", pattern)


def test_grammar_that_matches_nothing_is_rejected() -> None:
    with pytest.raises(GrammarCompileError):
        compile_grammar(TOKENIZER, "regex", r"[a&&b]")


def test_one_of_with_disjoint_alternatives_is_supported() -> None:
    """Pydantic writes such schemas for discriminated unions."""
    parts = [{"type": "object", "properties": {"kind": {"const": kind}}, "required": ["kind"]} for kind in ("a", "b")]
    assert matches_grammar(compile_schema({"oneOf": parts, "discriminator": {"propertyName": "kind"}}), '{"kind":"b"}')


def test_compiler_options_inside_a_schema_are_ignored() -> None:
    with pytest.raises(GrammarCompileError, match="not"):
        compile_schema({"x-guidance": {"lenient": True}, "not": {}})


def test_tokenizer_without_bytes_is_rejected() -> None:
    with pytest.raises(GrammarCompileError, match="tokenizer"):
        load_tokenizer('{"version": "1.0"}')


def test_process_answers_lines_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler_process, "limit_memory", lambda _: None)
    monkeypatch.setattr(worker_process.signal, "setitimer", lambda *_: None)
    parent, child = socket.socketpair()
    with parent, child, parent.makefile("rb") as lines:
        thread = threading.Thread(target=serve_requests, args=[child])
        thread.start()
        for message in ({"tokenizer": create_byte_tokenizer().path_or_content}, {"kind": "regex", "source": "a"},
                        {"kind": "regex", "source": "("}, {"kind": "json_schema", "source": "{}"}):
            parent.sendall(json.dumps(message).encode() + b"\n")
        assert [list(json.loads(lines.readline())) for _ in range(4)] == [[], ["grammar"], ["refused"], ["grammar"]]
        parent.shutdown(socket.SHUT_WR)
        thread.join()


def test_a_tokenizer_is_read_from_its_text_or_its_file(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(create_byte_tokenizer().path_or_content)
    for tokenizer in (TOKENIZER, load_tokenizer(str(tmp_path / "tokenizer.json"))):
        assert isinstance(tokenizer, LLTokenizer)
        assert tokenizer.vocab_size == 257
