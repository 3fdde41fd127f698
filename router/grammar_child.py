"""A process that compiles grammars: `python -P -m router.grammar_child`. It may hang, grow or die, and comes anew.

Its standard input is a socket, on which it answers lines of JSON with lines of JSON. The first is a tokenizer, as the
path of its file or the text in it: `{"tokenizer": ...}`, answered with `{}`. Every other one is a grammar, `{"kind":
..., "source": ...}`, answered with `{"grammar": ...}`, which is what shards are told to load. What cannot be done is
answered with `{"refused": WHY}`. Knows nothing of requests, limits or shards.
"""

import json
import resource
import signal
import socket
from collections.abc import Callable
from functools import partial
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, regex_to_lark

MOST_BYTES = 512 * 1024 * 1024  # beyond what the table of tokens takes
LONGEST = 5.0  # seconds: what takes longer has lost its parent, which would have ended it
# As the shards have them: what needs more in a single step of an answer would hold up everybody's.
LIMITS: Any = {"step_lexer_fuel": 50_000, "step_max_items": 20_000, "max_lexer_states": 20_000}
# Blanks and lines of any length would be a way to go on for ever. Nothing is left out in silence.
JSON_OPTIONS: Any = {
    "whitespace_flexible": True, "whitespace_pattern": r"( |\n[ \t]{0,40})?", "coerce_one_of": False, "lenient": False}


class Unusable(Exception):
    """What was asked for cannot be done."""


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
    r"""With `\d` for the digits 0 to 9: there are 700 more, and nobody means them."""
    return LLMatcher.grammar_from_lark(f"start: /{regex_to_lark(source, 'd')}/")


def check(matcher: LLMatcher) -> None:
    """Warnings are about what would be obeyed in part. The first step of an answer is tried."""
    wrongs = [matcher.get_error()] if matcher.is_error() else matcher.get_grammar_warnings()
    if wrongs:
        raise Unusable("; ".join(wrongs))
    may_begin = any(matcher.compute_bitmask())
    if matcher.is_error():
        raise Unusable(f"it is too complex: {matcher.get_error().splitlines()[0]}")
    if not may_begin:
        raise Unusable("there is no text that fits it")


def bound_memory() -> None:
    """From here on: what takes more is ended by its own allocation that fails."""
    with open("/proc/self/status", encoding="ascii") as status:
        taken = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmData:"))
    resource.setrlimit(resource.RLIMIT_DATA, (taken + MOST_BYTES, taken + MOST_BYTES))


def answer(work: Callable[[], str]) -> bytes:
    signal.setitimer(signal.ITIMER_REAL, LONGEST)  # nobody handles the signal, so it ends the process
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
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's, meant for the parent
    with socket.socket(fileno=0) as parent:
        try:
            serve(parent)
        except Unusable as unusable:
            parent.sendall(json.dumps({"refused": str(unusable)}).encode() + b"\n")


if __name__ == "__main__":
    main()
