"""Process that compiles grammars, `python -P -m router.grammars.compiler_process`; restarted if it hangs or dies.

Its standard input is a socket, on which each line of JSON is answered with a line of JSON. The first line holds a
tokenizer, as the path or the content of its file: `{"tokenizer": ...}`, answered with `{}`. Every other line holds a
grammar, `{"kind": ..., "source": ...}`, answered with `{"grammar": ...}` in the form that shards load. It may hold the
output so far, `"tokens": [...]`; if that does not fit, the answer is `{"unfit_index": ...}`. Failures are answered with
`{"refused": WHY}`.
"""

import json
import socket
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, regex_to_lark
from llguidance.gbnf_to_lark import any_to_lark

from router.grammars.output_grammar_writer import OutputGrammarWriter
from router.processes.worker_process import WorkerAnswer, answer_requests, limit_memory, set_up_worker_process

NICENESS = 5  # a third of the share of a processor that router and shards have: a grammar delays its own request
MAX_EXTRA_BYTES = 512 * 1024 * 1024  # beyond the memory of the tokenizer
# Same limits as on the shards: a grammar that needs more in a single step would delay all sequences of the batch.
PARSER_LIMITS: Any = {"step_lexer_fuel": 50_000, "step_max_items": 20_000, "max_lexer_states": 20_000}
# Whitespace is bounded, since a model could generate it for ever. Unsupported keywords are errors, not ignored.
JSON_SCHEMA_OPTIONS: Any = {
    "whitespace_flexible": True, "whitespace_pattern": r"( |\n[ \t]{0,40})?", "coerce_one_of": False, "lenient": False}


# By the kind of a grammar. `\d` of a regular expression matches only 0 to 9, not the 700 other digits of Unicode.
GRAMMAR_READERS: Mapping[str, Callable[[str], str]] = {
    "json_schema": lambda source: LLMatcher.grammar_from_json_schema(source, overrides=JSON_SCHEMA_OPTIONS),
    "regex": lambda source: LLMatcher.grammar_from_lark(f"start: /{regex_to_lark(source, 'd')}/"),
    "grammar": lambda source: LLMatcher.grammar_from_lark(convert_to_lark(source)),
}
OUTPUT_KIND = "output"  # of grammars that are made of others


class GrammarCompileError(Exception):
    """The tokenizer or the grammar cannot be used."""


def convert_to_lark(source: str) -> str:
    """Return a grammar of GBNF as one of Lark, and one of Lark unchanged. Raises ValueError."""
    try:
        return str(any_to_lark(source))
    except Exception as error:  # the converter raises plain ones, too
        raise ValueError(str(error) or type(error).__name__) from error


def load_tokenizer(tokenizer: str) -> LLTokenizer:
    try:
        return LLTokenizer(tokenizer)
    except ValueError as error:
        raise GrammarCompileError(f"grammars do not go with this model's tokenizer: {error}") from error


@lru_cache(1)
def find_special_tokens(tokenizer: LLTokenizer) -> Mapping[str, int]:
    """Return the tokens that no text is encoded to, by their names. Others call some of them added tokens."""
    return {tokenizer.decode_str([token]): token for token in range(tokenizer.vocab_size)
            if tokenizer.is_special_token(token)}


def compile_grammar(tokenizer: LLTokenizer, kind: str, source: str) -> str:
    """Return the grammar in the form that shards load. Raises GrammarCompileError for errors, for warnings (partial
    support), and if the first step fails or allows no token."""
    try:
        if kind == OUTPUT_KIND:
            writer = OutputGrammarWriter(find_special_tokens(tokenizer), GRAMMAR_READERS)
            grammar = writer.to_compiled_json(json.loads(source))
        else:
            grammar = GRAMMAR_READERS[kind](source)
    except ValueError as error:
        raise GrammarCompileError(str(error)) from error
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=LLParserLimits(**PARSER_LIMITS))
    messages = [matcher.get_error()] if matcher.is_error() else matcher.get_grammar_warnings()
    if messages:
        raise GrammarCompileError("; ".join(messages))
    allows_first_token = any(matcher.compute_bitmask())
    if matcher.is_error():
        raise GrammarCompileError(f"it is too complex: {matcher.get_error().splitlines()[0]}")
    if not allows_first_token:
        raise GrammarCompileError("there is no text that fits it")
    return grammar


def count_fitting_tokens(tokenizer: LLTokenizer, grammar: str, tokens: Sequence[int]) -> int:
    """Return how many of the first tokens fit a compiled grammar."""
    return LLMatcher(tokenizer, grammar, log_level=0,
                     limits=LLParserLimits(**PARSER_LIMITS)).try_consume_tokens([*tokens])


def answer_request(tokenizer: LLTokenizer, request: Mapping[str, Any]) -> WorkerAnswer:
    tokens = request.get("tokens", ())
    try:
        grammar = compile_grammar(tokenizer, request["kind"], request["source"])
        num_fitting = count_fitting_tokens(tokenizer, grammar, tokens) if tokens else 0
        return {"grammar": grammar} if num_fitting == len(tokens) else {"unfit_index": num_fitting}
    except GrammarCompileError as unusable:
        return {"refused": str(unusable)}
    except MemoryError:
        return {"refused": "it takes too much memory"}


def serve_requests(parent: socket.socket) -> None:
    with parent.makefile("rb") as lines:
        tokenizer = load_tokenizer(**json.loads(lines.readline()))
        limit_memory(MAX_EXTRA_BYTES)
        parent.sendall(b"{}\n")
        answer_requests(parent, lines, partial(answer_request, tokenizer))


def main() -> None:
    with set_up_worker_process(NICENESS) as parent:
        try:
            serve_requests(parent)
        except GrammarCompileError as unusable:
            parent.sendall(json.dumps({"refused": str(unusable)}).encode() + b"\n")


if __name__ == "__main__":
    main()
