"""Tests of router/grammars/compiler_client.py, with the real process and with a scripted one."""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from contextlib import closing
from typing import Any

import pytest

from router.errors import InvalidRequest, Overloaded
from router.grammars import compiler_client
from router.grammars.compiler_client import COMMAND, GrammarCompiler
from router.grammars.schema import Grammar, read_grammar
from router.text.tokenizer import byte_tokenizer

pytestmark = pytest.mark.slow

# A process that sends a grammar's source back as the result, or misbehaves if the source names a way to do so.
SCRIPTED = """
import json, os, socket, sys, time
parent = socket.socket(fileno=0)
lines = parent.makefile("rb")
print(lines.readline()[:0], file=sys.stderr)
parent.sendall(b"{}\\n")
for line in lines:
    source = json.loads(line)["source"]
    if source == "hang":
        time.sleep(3600)
    if source == "die":
        os._exit(1)
    if source == "grow":
        import resource
        resource.setrlimit(resource.RLIMIT_DATA, (2**27, 2**27))
        lines = [bytearray(2**20) for _ in range(1000)]
    refused = {"refused": "no"} if source == "refuse" else {"grammar": source + str(os.getpid())}
    parent.sendall(json.dumps(refused).encode() + b"\\n")
"""
BYTES = byte_tokenizer().origin
SCRIPT = (sys.executable, "-P", "-c", SCRIPTED)


def of(source: str) -> Grammar:
    return Grammar("regex", source)


def play(story: Callable[[GrammarCompiler], Awaitable[None]], command: tuple[str, ...] = SCRIPT,
         tokenizer: str = BYTES) -> None:
    async def told() -> None:
        with closing(GrammarCompiler(lambda: tokenizer, command)) as compiler:
            await story(compiler)
    asyncio.run(told())


def test_a_grammar_is_compiled_and_a_bad_one_refused_with_its_reason() -> None:
    async def story(compiler: GrammarCompiler) -> None:
        assert await compiler.compile(of("loom|weft")) == "start: /loom|weft/"
        with pytest.raises(InvalidRequest, match=r"the grammar is refused: .*backreferences are not"):
            await compiler.compile(of(r"(a)\1"))
        assert "grammars" in json.loads(await compiler.compile(Grammar("json_schema", '{"type":"object"}')))
    play(story, COMMAND)


def test_nothing_is_started_before_the_first_grammar() -> None:
    async def story(compiler: GrammarCompiler) -> None:
        assert compiler._child is None
    play(story)


def test_what_is_known_is_not_compiled_again() -> None:
    async def story(compiler: GrammarCompiler) -> None:
        first = await compiler.compile(of("a"))
        with pytest.raises(InvalidRequest, match="no"):
            await compiler.compile(of("refuse"))
        await asyncio.wrap_future(compiler._thread.submit(compiler._end_child))
        assert await compiler.compile(of("a")) == first
        with pytest.raises(InvalidRequest, match="no"):
            await compiler.compile(of("refuse"))
        assert compiler._child is None
    play(story)


def test_who_asks_for_the_same_waits_for_the_same() -> None:
    async def story(compiler: GrammarCompiler) -> None:
        first, second = (asyncio.create_task(compiler.compile(of("a"))) for _ in range(2))
        await asyncio.sleep(0)
        assert len(compiler._compiling) == 1
        first.cancel()
        assert (await second).startswith("a")
    play(story)


@pytest.mark.parametrize(("source", "why"), [
    ("hang", "more than 1 seconds"), ("die", "too much memory"), ("grow", "too much memory")])
def test_a_grammar_that_ends_the_process_is_refused_and_those_behind_it_are_compiled(
        monkeypatch: pytest.MonkeyPatch, source: str, why: str) -> None:
    monkeypatch.setattr(compiler_client, "MOST_SECONDS", 1.0 if source == "hang" else 30.0)

    async def story(compiler: GrammarCompiler) -> None:
        before = await compiler.compile(of("a"))
        bad, *good = await asyncio.gather(*map(compiler.compile, [of(source), of("b"), of("c")]),
                                          return_exceptions=True)
        assert isinstance(bad, InvalidRequest)
        assert why in str(bad)
        assert [said[0] for said in map(str, good)] == ["b", "c"]
        assert str(good[0])[1:] == str(good[1])[1:] != before[1:]
    play(story)


def test_too_many_are_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler_client, "MOST_WAITING", 2)

    async def story(compiler: GrammarCompiler) -> None:
        outcomes = await asyncio.gather(*(compiler.compile(of(source)) for source in "abc"), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [str, str, Overloaded]
    play(story)


def test_few_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler_client, "MOST_KNOWN", 2)

    async def story(compiler: GrammarCompiler) -> None:
        for source in "abac":
            await compiler.compile(of(source))
        assert list(compiler._known) == [of("a").digest, of("c").digest]
    play(story)


def test_it_may_be_closed_while_a_grammar_hangs() -> None:
    async def story(compiler: GrammarCompiler) -> None:
        await compiler.compile(of("a"))
        hanging = asyncio.create_task(compiler.compile(of("hang")))
        await asyncio.sleep(0)
        compiler.close()
        with pytest.raises(InvalidRequest):
            await hanging

    async def told() -> None:
        await story(GrammarCompiler(lambda: BYTES, SCRIPT))
    asyncio.run(told())


def test_a_process_that_cannot_start_refuses_every_grammar() -> None:
    async def story(compiler: GrammarCompiler) -> None:
        for source in "ab":
            with pytest.raises(InvalidRequest):
                await compiler.compile(of(source))
    play(story, (sys.executable, "-P", "-c", "raise SystemExit(1)"))


def test_a_tokenizer_that_cannot_be_used_is_the_reason() -> None:
    async def story(compiler: GrammarCompiler) -> None:
        with pytest.raises(InvalidRequest, match="grammars do not go with this model's tokenizer"):
            await compiler.compile(of("a"))
    play(story, COMMAND, '{"version": "1.0"}')


def wide(depth: int, width: int) -> dict[str, Any]:
    if not depth:
        return {"type": "integer"}
    return {"oneOf": [{"type": "object", "properties": {f"p{i}": wide(depth - 1, width)}, "required": [f"p{i}"]}
                      for i in range(width)]}


HOSTILE = {
    "wide oneOf": {"type": "json", "value": wide(4, 7)},
    "many oneOf at once": {"type": "json", "value": {"allOf": [
        {"oneOf": [{"properties": {f"a{i}": {"const": j}}, "required": [f"a{i}"]} for j in range(6)]}
        for i in range(12)]}},
    "nested repetition": {"type": "regex", "value": "((((a{0,60000}){0,60000}){0,60000})b){0,60000}c"},
    "backtracking": {"type": "regex", "value": "(a|aa)*" * 2000 + "b"},
    "alternatives": {"type": "regex", "value": "|".join(f".*{i}.*" for i in range(20_000))},
    "classes": {"type": "regex", "value": r"(\w|\p{L}|[^a]){0,60000}" * 500},
    "references in a circle": {"type": "json", "value": {"$ref": "#"}},
    "references that double": {"type": "json", "value": {"$ref": "#/$defs/d0", "$defs": {
        **{f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(40)}, "d40": {"type": "null"}}}},
    "many properties": {"type": "json", "value": {"properties": {f"p{i}": {"type": "string"} for i in range(6000)}}},
    "many patterns": {"type": "json", "value": {"patternProperties": {f".*{i}.*a": {} for i in range(3000)}}},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_whatever_is_asked_for_there_is_an_answer_soon(name: str) -> None:
    """A result or a rejection will do: some of these grammars are valid."""
    async def story(compiler: GrammarCompiler) -> None:
        await compiler.compile(of("a"))
        grammar = read_grammar("grammar", HOSTILE[name])
        assert grammar is not None
        async with asyncio.timeout(10 * compiler_client.MOST_SECONDS):  # only a stalled machine takes longer
            [outcome] = await asyncio.gather(compiler.compile(grammar), return_exceptions=True)
        assert isinstance(outcome, str | InvalidRequest)
    play(story, COMMAND)
