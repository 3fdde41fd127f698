"""Subcommands implemented by other modules: bench and study by exec, the others as a child whose exit code is returned.
"""

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, NoReturn

from cyclopts import App, Parameter

from launcher.supervisor.plan import python_module
from router.config import ADAPTER_TOKEN, API_KEY

ADAPTERS = "router.client.adapters"
LOCAL = "http://127.0.0.1:3000"
Server = Annotated[str, Parameter(name="--url", help="Where the server is.")]
Key = Annotated[str, Parameter(name="--api-key", help="Key that the server asks for.", env_var=(API_KEY, "API_KEY"))]
AsJson = Annotated[bool, Parameter(name="--json", help="As JSON, for programs.", negative=())]
Trace = Annotated[str, Parameter(help="Recording, or a plain trace: JSON lines with at, prompt_tokens, output_tokens.")]
Like = Annotated[str, Parameter(help="Recording whose shards and settings are assumed; by default the trace itself.")]
Seed = Annotated[int, Parameter(help="Where the luck of the recorded steps begins.")]
Words = Annotated[str, Parameter(allow_leading_hyphen=True, show=False)]


def chat_command(
        *, url: Server = LOCAL,
        model: Annotated[str, Parameter(help="What to ask for, where a server has several.")] = "",
        system: Annotated[str, Parameter(help="What the model is told before all questions.")] = "",
        max_tokens: Annotated[int | None, Parameter(help="Most tokens of an answer.")] = None,
        temperature: Annotated[float | None, Parameter(help="0 always takes the likeliest token.")] = None,
        seed: Annotated[int | None, Parameter(help="The same seed gives the same answers.")] = None,
        api_key: Key = "") -> None:
    """Chat with a served model in this terminal, or send it each line of standard input as a question."""
    with left_to_the_child(signal.SIGINT):
        run_module("router.client.terminal", {API_KEY: api_key}, url=url, model=model, system=system,
                   max_tokens=max_tokens, temperature=temperature, seed=seed)


def list_adapters(*, url: Server = LOCAL, api_key: Key = "", as_json: AsJson = False) -> None:
    """List the adapters of a server and their status."""
    run_module(ADAPTERS, {API_KEY: api_key}, do="ls", url=url, as_json=as_json)


def load_adapter(
        adapter: Annotated[str, Parameter(help="As its source names it.")], *, url: Server = LOCAL,
        source: Annotated[str, Parameter(help="Where it comes from; by default the server's --adapter-source.")] = "",
        alias: Annotated[str, Parameter(help="What requests may call it, too.")] = "",
        token: Annotated[str, Parameter(help="Token for its source, where it is private.", env_var=ADAPTER_TOKEN)] = "",
        api_key: Key = "", as_json: AsJson = False) -> None:
    """Fetch an adapter from its source again and load it on a server; waits until it is loaded."""
    run_module(ADAPTERS, {API_KEY: api_key, ADAPTER_TOKEN: token}, do="load", url=url, adapter=adapter, source=source,
               alias=alias, as_json=as_json)


def unload_adapter(
        adapter: Annotated[str, Parameter(help="As its source names it, or its alias.")], *, url: Server = LOCAL,
        api_key: Key = "", as_json: AsJson = False) -> None:
    """Remove an adapter from a server; it is unloaded as soon as no request uses it."""
    run_module(ADAPTERS, {API_KEY: api_key}, do="unload", url=url, adapter=adapter, as_json=as_json)


def adapters_app() -> App:
    app = App(name="adapters", help="List, load and unload the adapters of a server.")
    app.command(list_adapters, name="ls")
    app.command(load_adapter, name="load")
    app.command(unload_adapter, name="unload")
    return app


def replay_command(file: Annotated[str, Parameter(help="Recording, as the router wrote it.")]) -> None:
    """Replay a recording and compare the scheduler's decisions. Exits with 1 and the position if they differ."""
    run_module("router.recording.replay", file=os.path.abspath(file))


def simulate_command(trace: Trace, *, like: Like = "", seed: Seed = 0, **settings: Any) -> None:
    """Simulate a recorded load under other settings, which are given as flags, and report the latencies."""
    run_module("router.simulation.simulate", trace=trace, like=like, seed=seed, settings=settings)


def tune_command(
        trace: Trace, *, goal: Annotated[str, Parameter(help="Such as ttft=500ms,itl.p50=20ms; p99 unless told.")],
        like: Like = "", seed: Seed = 0) -> None:
    """Find settings under which a recorded load would reach a goal."""
    run_module("router.simulation.tune", trace=trace, goal=goal, like=like, seed=seed)


def bench_command(*words: Words) -> None:
    """Measure a server under load, compare two servers, or drive shards without a router (--shard)."""
    run_words("benchmarks.bench", words)


def study_command(*words: Words) -> None:
    """Compare ways of batching, as the effective-batching study did: weft study batching."""
    run_words("benchmarks.study", words)


@contextmanager
def left_to_the_child(number: signal.Signals) -> Iterator[None]:
    """Ignore a signal in this process only: the terminal sends it to the child as well.

    A handler that does nothing is used because, unlike SIG_IGN, the child does not inherit it.
    """
    before = signal.signal(number, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(number, before)


def run_words(name: str, words: Sequence[str]) -> NoReturn:
    """Replace this process by a module that has its own command line."""
    command = [*python_module(name), *words]
    os.execv(command[0], command)


def run_module(name: str, secrets: Mapping[str, str] | None = None, /, **order: Any) -> NoReturn:
    """Run a module as a child and exit with its code.

    Secrets are passed as variables, since other users can read the arguments of a process.
    """
    command, environment = [*python_module(name), json.dumps(order)], {**os.environ, **(secrets or {})}
    raise SystemExit(subprocess.run(command, env=environment, check=False).returncode)
