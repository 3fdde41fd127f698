"""Tests of router/grammars/compiler_client.py, with the real process and with a scripted one."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from router.errors import InvalidRequest, Overloaded
from router.grammars import compiler_client
from router.grammars.compiler_client import COMPILER_COMMAND, GrammarCompiler
from router.grammars.parameters import Grammar, parse_grammar
from router.processes import worker_process
from router.text.tokenizer import create_byte_tokenizer

pytestmark = pytest.mark.slow

# A process that sends a grammar's source back as the result, or misbehaves if the source names a way to do so.
COMPILER_SCRIPT = """
import json, os, socket, sys, time
parent = socket.socket(fileno=0)
lines = parent.makefile("rb")
print(lines.readline()[:0], file=sys.stderr)
parent.sendall(b"{}\\n")
for line in lines:
    source = json.loads(line)["source"]
    if source == "hang":
        time.sleep(3600)
    if source == "burn":
        while True:
            pass
    if source.startswith("wait"):
        time.sleep(0.3)
    if source.startswith("die once ") and not os.path.exists(source[9:]):
        open(source[9:], "w").close()
        os._exit(1)
    if source == "die":
        os._exit(1)
    if source == "grow":
        import resource
        resource.setrlimit(resource.RLIMIT_DATA, (2**27, 2**27))
        lines = [bytearray(2**20) for _ in range(1000)]
    refused = {"refused": "no"} if source == "refuse" else {"grammar": source + str(os.getpid())}
    parent.sendall(json.dumps(refused).encode() + b"\\n")
"""
BYTE_TOKENIZER_JSON = create_byte_tokenizer().path_or_content
SCRIPTED_COMMAND = (sys.executable, "-P", "-c", COMPILER_SCRIPT)


def make_regex_grammar(source: str) -> Grammar:
    return Grammar("regex", source)


def run_scenario(scenario: Callable[[GrammarCompiler], Awaitable[None]], command: tuple[str, ...] = SCRIPTED_COMMAND,
                 tokenizer: str = BYTE_TOKENIZER_JSON) -> None:
    async def main() -> None:
        with closing(GrammarCompiler(lambda: tokenizer, command)) as compiler:
            await scenario(compiler)
    asyncio.run(main())


def test_valid_grammar_is_compiled_and_invalid_one_is_rejected_with_its_reason() -> None:
    async def scenario(compiler: GrammarCompiler) -> None:
        assert await compiler.compile(make_regex_grammar("loom|weft")) == "start: /loom|weft/"
        with pytest.raises(InvalidRequest, match=r"the grammar is refused: .*backreferences are not"):
            await compiler.compile(make_regex_grammar(r"(a)\1"))
        assert "grammars" in json.loads(await compiler.compile(Grammar("json_schema", '{"type":"object"}')))
    run_scenario(scenario, COMPILER_COMMAND)


def test_no_process_is_started_before_the_first_grammar() -> None:
    async def scenario(compiler: GrammarCompiler) -> None:
        assert all(worker.process is None for worker in compiler._workers)
    run_scenario(scenario)


def test_known_results_are_not_compiled_again() -> None:
    async def scenario(compiler: GrammarCompiler) -> None:
        first = await compiler.compile(make_regex_grammar("a"))
        with pytest.raises(InvalidRequest, match="no"):
            await compiler.compile(make_regex_grammar("refuse"))
        await asyncio.wrap_future(compiler._executor.submit(compiler._workers[0].close_process))
        assert await compiler.compile(make_regex_grammar("a")) == first
        with pytest.raises(InvalidRequest, match="no"):
            await compiler.compile(make_regex_grammar("refuse"))
        assert compiler._workers[0].process is None
    run_scenario(scenario)


def test_only_the_beginning_of_a_long_reason_is_kept() -> None:
    """Reasons quote the grammar; whole ones of 128 grammars took half a gigabyte."""
    async def scenario(compiler: GrammarCompiler) -> None:
        with pytest.raises(InvalidRequest):
            await compiler.compile(make_regex_grammar("a " * 10_000 + "("))
        [answer] = compiler._cached_results.values()
        assert 0 < len(answer["refused"]) <= worker_process.MAX_REASON_CHARACTERS
    run_scenario(scenario, COMPILER_COMMAND)


def test_concurrent_requests_for_one_grammar_share_one_compilation() -> None:
    async def scenario(compiler: GrammarCompiler) -> None:
        first, second = (asyncio.create_task(compiler.compile(make_regex_grammar("a"))) for _ in range(2))
        await asyncio.sleep(0)
        assert len(compiler._jobs) == 1
        first.cancel()
        assert (await second).startswith("a")
    run_scenario(scenario)


@pytest.mark.parametrize(("source", "reason"), [
    ("hang", "more than 1 seconds"), ("burn", "more than 1 seconds"), ("die", "too much memory"),
    ("grow", "too much memory")])
def test_grammar_that_kills_the_process_is_rejected_and_queued_ones_are_compiled(
        monkeypatch: pytest.MonkeyPatch, source: str, reason: str) -> None:
    monkeypatch.setattr(compiler_client, "MAX_COMPILE_SECONDS", 1.0 if source in {"hang", "burn"} else 30.0)
    monkeypatch.setattr(compiler_client, "MAX_STALLED_SECONDS", 1.5 if source == "hang" else 60.0)
    monkeypatch.setattr(compiler_client, "NUM_WORKERS", 1)

    async def scenario(compiler: GrammarCompiler) -> None:
        before = await compiler.compile(make_regex_grammar("a"))
        bad, *good = await asyncio.gather(*map(compiler.compile, [make_regex_grammar(source), make_regex_grammar("b"),
                                                                  make_regex_grammar("c")]), return_exceptions=True)
        assert isinstance(bad, InvalidRequest)
        assert reason in str(bad)
        assert [result[0] for result in map(str, good)] == ["b", "c"]
        assert str(good[0])[1:] == str(good[1])[1:] != before[1:]
    run_scenario(scenario)


def test_process_that_died_by_accident_is_replaced_and_the_grammar_compiled(tmp_path: Path) -> None:
    """A kill of the idle process had every tenant get "too much memory" for that grammar for minutes."""
    async def scenario(compiler: GrammarCompiler) -> None:
        assert (await compiler.compile(make_regex_grammar(f"die once {tmp_path / 'died'}"))).startswith("die once ")
        process = compiler._workers[0].process
        assert process is not None
        process._process.kill()
        assert (await compiler.compile(make_regex_grammar("a"))).startswith("a")
    run_scenario(scenario)


def test_process_that_cannot_be_started_is_named_and_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(11, "no more processes")

    async def scenario(compiler: GrammarCompiler) -> None:
        monkeypatch.setattr(worker_process, "WorkerProcess", fail)
        outcomes = await asyncio.gather(*(compiler.compile(make_regex_grammar(source)) for source in "abcd"),
                                        return_exceptions=True)
        assert all("does not start: [Errno 11] no more processes; try again" in str(outcome) for outcome in outcomes)
        assert {*map(type, outcomes)} == {Overloaded}  # not the grammar's fault
        monkeypatch.undo()
        assert (await compiler.compile(make_regex_grammar("a"))).startswith("a")
    run_scenario(scenario)


def test_only_verdicts_about_the_grammar_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler_client, "MAX_COMPILE_SECONDS", 0.3)
    monkeypatch.setattr(compiler_client, "MAX_STALLED_SECONDS", 0.4)

    async def scenario(compiler: GrammarCompiler) -> None:
        sources = ("hang", "die", "refuse")
        for source in sources:
            with pytest.raises(InvalidRequest):
                await compiler.compile(make_regex_grammar(source))
        assert [source for source in sources if make_regex_grammar(source).digest in compiler._cached_results] == [
            "die", "refuse"]
    run_scenario(scenario)


def test_stalled_process_has_its_time_of_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler_client, "MAX_COMPILE_SECONDS", 0.1)

    async def scenario(compiler: GrammarCompiler) -> None:
        assert (await compiler.compile(make_regex_grammar("wait"))).startswith("wait")
    run_scenario(scenario)


def test_tenants_take_turns_and_grammars_are_compiled_two_at_a_time() -> None:
    """25 grammars of one tenant made another's wait for 49 seconds."""
    async def scenario(compiler: GrammarCompiler) -> None:
        finished: list[str] = []

        async def compile_one(source: str, tenant_name: str) -> None:
            processes.add((await compiler.compile(make_regex_grammar(source), tenant_name)).removeprefix(source))
            finished.append(source)
        processes: set[str] = set()
        sources = [f"wait {number}." for number in range(8)]
        tasks = [asyncio.create_task(compile_one(source, "busy")) for source in sources]
        await asyncio.sleep(0)
        await compile_one("a.", "other")
        await asyncio.gather(*tasks)
        assert finished.index("a.") <= 3
        assert {*finished} == {*sources, "a."}
        assert len(processes) == 2
    run_scenario(scenario)


def test_grammar_that_another_tenant_waits_for_is_compiled_in_the_turn_of_either() -> None:
    async def scenario(compiler: GrammarCompiler) -> None:
        tasks = [asyncio.create_task(compiler.compile(make_regex_grammar(f"wait {number}."), "busy"))
                 for number in range(6)]
        await asyncio.sleep(0)
        await compiler.compile(make_regex_grammar("wait 5."), "other")
        assert not tasks[4].done()
        await asyncio.gather(*tasks)
    run_scenario(scenario)


def test_grammar_that_nobody_waits_for_any_more_is_not_compiled() -> None:
    async def scenario(compiler: GrammarCompiler) -> None:
        tasks = [asyncio.create_task(compiler.compile(make_regex_grammar(f"wait {number}."))) for number in range(4)]
        await asyncio.sleep(0.1)
        tasks[2].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        kept = [make_regex_grammar(f"wait {number}.").digest in compiler._cached_results for number in range(4)]
        assert kept == [True, True, False, True]
        assert not compiler._jobs
        assert compiler._semaphore.is_unused
    run_scenario(scenario)


def test_one_tenant_cannot_fill_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler_client, "MAX_PENDING_PER_TENANT", 2)

    async def scenario(compiler: GrammarCompiler) -> None:
        requests = [(source, "busy") for source in "abcde"] + [("f", "other")]
        outcomes = await asyncio.gather(*(compiler.compile(make_regex_grammar(source), tenant_name)
                                          for source, tenant_name in requests), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [str, str, str, str, Overloaded, str]
    run_scenario(scenario)


def test_request_waits_for_a_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler_client, "MAX_WAIT_SECONDS", 0.1)

    async def scenario(compiler: GrammarCompiler) -> None:
        with pytest.raises(Overloaded, match=r"for 0\.1 seconds"):
            await compiler.compile(make_regex_grammar("wait"))
    run_scenario(scenario)


def test_too_many_waiting_grammars_are_rejected_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler_client, "MAX_PENDING_GRAMMARS", 2)

    async def scenario(compiler: GrammarCompiler) -> None:
        outcomes = await asyncio.gather(*(compiler.compile(make_regex_grammar(source)) for source in "abc"),
                                        return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [str, str, Overloaded]
    run_scenario(scenario)


def test_least_recently_used_result_is_evicted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler_client, "MAX_CACHED_RESULTS", 2)

    async def scenario(compiler: GrammarCompiler) -> None:
        for source in "abac":
            await compiler.compile(make_regex_grammar(source))
        assert list(compiler._cached_results) == [make_regex_grammar("a").digest, make_regex_grammar("c").digest]
    run_scenario(scenario)


def test_compiler_can_be_closed_while_a_grammar_hangs() -> None:
    async def scenario(compiler: GrammarCompiler) -> None:
        await compiler.compile(make_regex_grammar("a"))
        hanging = asyncio.create_task(compiler.compile(make_regex_grammar("hang")))
        await asyncio.sleep(0)
        compiler.close()
        with pytest.raises(InvalidRequest):
            await hanging

    async def main() -> None:
        await scenario(GrammarCompiler(lambda: BYTE_TOKENIZER_JSON, SCRIPTED_COMMAND))
    asyncio.run(main())


def test_every_grammar_is_rejected_if_the_process_cannot_start() -> None:
    async def scenario(compiler: GrammarCompiler) -> None:
        for source in "ab":
            with pytest.raises(InvalidRequest):
                await compiler.compile(make_regex_grammar(source))
    run_scenario(scenario, (sys.executable, "-P", "-c", "raise SystemExit(1)"))


def test_grammar_is_rejected_if_the_tokenizer_is_unsupported() -> None:
    async def scenario(compiler: GrammarCompiler) -> None:
        with pytest.raises(InvalidRequest, match="grammars do not go with this model's tokenizer"):
            await compiler.compile(make_regex_grammar("a"))
    run_scenario(scenario, COMPILER_COMMAND, '{"version": "1.0"}')


def make_wide_schema(depth: int, width: int) -> dict[str, Any]:
    if not depth:
        return {"type": "integer"}
    return {"oneOf": [{"type": "object", "properties": {f"p{i}": make_wide_schema(depth - 1, width)},
                       "required": [f"p{i}"]} for i in range(width)]}


HOSTILE_GRAMMARS = {
    "wide oneOf": {"type": "json", "value": make_wide_schema(4, 7)},
    "many oneOf at once": {"type": "json", "value": {"allOf": [
        {"oneOf": [{"properties": {f"a{i}": {"const": j}}, "required": [f"a{i}"]} for j in range(6)]}
        for i in range(12)]}},
    "nested repetition": {"type": "regex", "value": "((((a{0,60000}){0,60000}){0,60000})b){0,60000}c"},
    "backtracking": {"type": "regex", "value": "(a|aa)*" * 2000 + "b"},
    "alternatives": {"type": "regex", "value": "|".join(f".*{i}.*" for i in range(20_000))},
    "classes": {"type": "regex", "value": r"(\w|\p{L}|[^a]){0,60000}" * 500},
    "repetition without an end": {"type": "regex", "value": "{" + "1" * 200_000},
    "references in a circle": {"type": "json", "value": {"$ref": "#"}},
    "references that double": {"type": "json", "value": {"$ref": "#/$defs/d0", "$defs": {
        **{f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(40)}, "d40": {"type": "null"}}}},
    "many properties": {"type": "json", "value": {"properties": {f"p{i}": {"type": "string"} for i in range(6000)}}},
    "many patterns": {"type": "json", "value": {"patternProperties": {f".*{i}.*a": {} for i in range(3000)}}},
}


HOSTILE_CONTEXT_FREE_GRAMMARS = {
    "left recursion": 'start: start start "a" | start "b" | ""',
    "doubling": "\n".join(["start: r0", *(f"r{i}: r{i + 1} r{i + 1}" for i in range(60)), 'r60: "a"?']),
    "many rules": "\n".join(["start: r0", *(f'r{i}: "x{i}" r{i + 1}' for i in range(5000)), 'r5000: "a"']),
    "deep nesting": "start: " + "(" * 20_000 + '"a"' + ")" * 20_000,
    "GBNF": "root ::= " + " | ".join(f'"a{i}" root' for i in range(20_000))}


@pytest.mark.parametrize("name", HOSTILE_CONTEXT_FREE_GRAMMARS)
def test_hostile_context_free_grammar_is_answered_within_the_time_limit(name: str) -> None:
    async def scenario(compiler: GrammarCompiler) -> None:
        await compiler.compile(make_regex_grammar("a"))
        grammar = Grammar("grammar", HOSTILE_CONTEXT_FREE_GRAMMARS[name])
        async with asyncio.timeout(10 * compiler_client.MAX_COMPILE_SECONDS):
            [outcome] = await asyncio.gather(compiler.compile(grammar), return_exceptions=True)
        assert isinstance(outcome, str | InvalidRequest)
        await compiler.compile(make_regex_grammar("b"))  # the compiler goes on
    run_scenario(scenario, COMPILER_COMMAND)


@pytest.mark.parametrize("name", HOSTILE_GRAMMARS)
def test_hostile_grammar_is_answered_within_the_time_limit(name: str) -> None:
    """A result or a rejection will do: some of these grammars are valid."""
    async def scenario(compiler: GrammarCompiler) -> None:
        await compiler.compile(make_regex_grammar("a"))
        grammar = parse_grammar("grammar", HOSTILE_GRAMMARS[name])
        assert grammar is not None
        async with asyncio.timeout(10 * compiler_client.MAX_COMPILE_SECONDS):  # only a stalled machine takes longer
            [outcome] = await asyncio.gather(compiler.compile(grammar), return_exceptions=True)
        assert isinstance(outcome, str | InvalidRequest)
    run_scenario(scenario, COMPILER_COMMAND)


def test_compiling_process_is_isolated_from_the_network_where_the_system_allows_it() -> None:
    program = "import sys; from router.processes.network_isolation import leave_network; sys.exit(not leave_network())"
    is_allowed = subprocess.run([sys.executable, "-Pc", program], check=False).returncode == 0

    async def scenario(compiler: GrammarCompiler) -> None:
        await compiler.compile(make_regex_grammar("loom"))
        process = next(worker.process for worker in compiler._workers if worker.process is not None)
        namespaces = {os.readlink(f"/proc/{pid}/ns/net") for pid in (process._process.pid, "self")}
        assert len(namespaces) == 1 + is_allowed
    run_scenario(scenario, COMPILER_COMMAND)
