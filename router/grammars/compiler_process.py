"""Process that compiles grammars, `python -P -m router.grammars.compiler_process`; restarted if it hangs or dies.

Its standard input is a socket, on which each line of JSON is answered with a line of JSON. The first line holds a
tokenizer, as the path or the content of its file: `{"tokenizer": ...}`, answered with `{}`. Every other line holds a
grammar, `{"kind": ..., "source": ...}`, answered with `{"grammar": ...}` in the form that shards load. Failures are
answered with `{"refused": WHY}`.
"""

import json
import resource
import signal
import socket
from collections.abc import Callable
from functools import partial
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, regex_to_lark

MOST_BYTES = 512 * 1024 * 1024  # beyond the memory of the tokenizer
LONGEST = 5.0  # seconds; takes effect only after the parent has died, since the parent kills the process earlier
# Same limits as on the shards: a grammar that needs more in a single step would delay all sequences of the batch.
LIMITS: Any = {"step_lexer_fuel": 50_000, "step_max_items": 20_000, "max_lexer_states": 20_000}
# Whitespace is bounded, since a model could generate it for ever. Unsupported keywords are errors, not ignored.
JSON_OPTIONS: Any = {
    "whitespace_flexible": True, "whitespace_pattern": r"( |\n[ \t]{0,40})?", "coerce_one_of": False, "lenient": False}


class Unusable(Exception):
    """The tokenizer or the grammar cannot be used."""


def read_tokenizer(tokenizer: str) -> LLTokenizer:
    try:
        return LLTokenizer(tokenizer)
    except ValueError as error:
        raise Unusable(f"grammars do not go with this model's tokenizer: {error}") from error


def compiled(tokenizer: LLTokenizer, kind: str, source: str) -> str:
    try:
        grammar = (of_regex(source) if kind == "regex"
                   else LLMatcher.grammar_from_json_schema(source, overrides=JSON_OPTIONS))
    except ValueError as error:
        raise Unusable(str(error)) from error
    check(LLMatcher(tokenizer, grammar, log_level=0, limits=LLParserLimits(**LIMITS)))
    return grammar


def of_regex(source: str) -> str:
    r"""Convert a regular expression. `\d` matches only 0 to 9, not the 700 other digits of Unicode."""
    return LLMatcher.grammar_from_lark(f"start: /{regex_to_lark(source, 'd')}/")


def check(matcher: LLMatcher) -> None:
    """Raise Unusable for errors, for warnings (partial support), and if the first step fails or allows no token."""
    wrongs = [matcher.get_error()] if matcher.is_error() else matcher.get_grammar_warnings()
    if wrongs:
        raise Unusable("; ".join(wrongs))
    may_begin = any(matcher.compute_bitmask())
    if matcher.is_error():
        raise Unusable(f"it is too complex: {matcher.get_error().splitlines()[0]}")
    if not may_begin:
        raise Unusable("there is no text that fits it")


def bound_memory() -> None:
    """Limit the process to MOST_BYTES more than it has allocated by now; larger allocations fail."""
    with open("/proc/self/status", encoding="ascii") as status:
        taken = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmData:"))
    resource.setrlimit(resource.RLIMIT_DATA, (taken + MOST_BYTES, taken + MOST_BYTES))


def answer(work: Callable[[], str]) -> bytes:
    signal.setitimer(signal.ITIMER_REAL, LONGEST)  # SIGALRM has no handler, so it ends the process
    try:
        said = {"grammar": work()}
    except Unusable as unusable:
        said = {"refused": str(unusable)}
    except MemoryError:
        said = {"refused": "it takes too much memory"}
    signal.setitimer(signal.ITIMER_REAL, 0)
    return json.dumps(said).encode() + b"\n"


def serve(parent: socket.socket) -> None:
    with parent.makefile("rb") as lines:
        tokenizer = read_tokenizer(**json.loads(lines.readline()))
        bound_memory()
        parent.sendall(b"{}\n")
        for line in lines:
            parent.sendall(answer(partial(compiled, tokenizer, **json.loads(line))))


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in the terminal is meant for the parent
    with socket.socket(fileno=0) as parent:
        try:
            serve(parent)
        except Unusable as unusable:
            parent.sendall(json.dumps({"refused": str(unusable)}).encode() + b"\n")


if __name__ == "__main__":
    main()
