"""Subcommands implemented by other modules.

The clients of a server run in this process, bench and study replace it, the others run as a child.
"""

import json
import os
import subprocess
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any, Literal, NoReturn

from cyclopts import App, Parameter

from launcher.console_output import format_bytes
from launcher.environment_variables import hub_cache_folder, python_module_command
from launcher.hub.cached_models import format_models_table, iterate_cached_models, remove_cached_model
from router.config import ADAPTER_TOKEN_ENV, API_KEY_ENV

DEFAULT_SERVER_URL = "http://127.0.0.1:3000"
UrlFlag = Annotated[str, Parameter(name="--url", help="URL of the server.")]
PortFlag = Annotated[int | None, Parameter(name="--port", help="Port on this machine, instead of --url.")]
ApiKeyFlag = Annotated[str, Parameter(name="--api-key", help="API key of the server.",
                                      env_var=(API_KEY_ENV, "API_KEY"))]
JsonFlag = Annotated[bool, Parameter(name="--json", help="Print JSON.", negative=())]
TraceArgument = Annotated[
    str, Parameter(help="Recording, or a plain trace: JSON lines with at, prompt_tokens, output_tokens.")]
LikeFlag = Annotated[
    str, Parameter(help="Recording from which step times and settings are taken. Default: the trace itself.")]
SeedFlag = Annotated[int, Parameter(help="Seed for drawing step times from the recorded ones.")]
RoutingPolicyName = Literal["round-robin", "least", "prefix", "adapter"]
CommandArgument = Annotated[str, Parameter(allow_leading_hyphen=True, show=False)]


def chat_command(
        url: UrlFlag = DEFAULT_SERVER_URL, *,
        model: Annotated[str, Parameter(name=("--model", "--adapter"),
                                        help="Model or adapter that answers, if the server has several.")] = "",
        system: Annotated[str, Parameter(help="System prompt.")] = "",
        max_tokens: Annotated[int | None, Parameter(help="Maximum number of tokens in an answer.")] = None,
        temperature: Annotated[float | None, Parameter(help="Sampling temperature; 0 is greedy decoding.")] = None,
        seed: Annotated[int | None, Parameter(help="Sampling seed. The same seed gives the same answers.")] = None,
        port: PortFlag = None, api_key: ApiKeyFlag = "") -> None:
    """Chat with a served model in this terminal, or send it each line of standard input as a question."""
    chat, terminal = import_module("launcher.client.chat_client"), import_module("launcher.client.terminal_chat")
    settings = chat.ChatSettings(resolve_server_url(url, port), model, system, max_tokens, temperature, seed)
    raise SystemExit(terminal.run_chat(settings, api_key))


def explain_command(
        request_id: Annotated[str, Parameter(help="Value of the answer's header x-request-id. Without one, list the "
                                                  "latest requests.")] = "",
        url: UrlFlag = DEFAULT_SERVER_URL, *, port: PortFlag = None, api_key: ApiKeyFlag = "",
        as_json: JsonFlag = False) -> None:
    """Show what a request spent its time on: one of the last 1,000 of a server, or one that still runs."""
    if "://" in request_id:  # the server alone, whose requests are to be listed
        request_id, url = "", request_id
    client = import_module("launcher.client.explain")
    raise SystemExit(client.run_explain_command(resolve_server_url(url, port), request_id, api_key, as_json=as_json))


def top_command(
        url: UrlFlag = DEFAULT_SERVER_URL, *,
        once: Annotated[bool, Parameter(name="--once", help="Watch for a second, print the state and exit.",
                                        negative=())] = False,
        port: PortFlag = None, api_key: ApiKeyFlag = "", as_json: JsonFlag = False) -> None:
    """Watch a server's running and waiting requests, its rates and its cache in this terminal.

    Without a terminal, print a line every second. With --json, print every event of /v1/engine/events as a line, or
    with --once the state.
    """
    client = import_module("launcher.client.top")
    raise SystemExit(client.run_top_command(client.TopSettings(resolve_server_url(url, port), api_key, once, as_json)))


def resolve_server_url(url: str, port: int | None = None) -> str:
    """Return the URL of a server; with `port`, which excludes another URL, that of a server on this machine."""
    if port is not None:
        if url != DEFAULT_SERVER_URL:
            raise ValueError(f"--port {port} and --url {url} name two servers; leave one out")
        return f"http://127.0.0.1:{port}"
    return url if "://" in url else f"http://{url}"


def list_adapters(url: UrlFlag = DEFAULT_SERVER_URL, *, port: PortFlag = None, api_key: ApiKeyFlag = "",
                  as_json: JsonFlag = False) -> None:
    """List the adapters that a server has loaded or used, and their status."""
    run_adapters_command_and_exit(api_key, do="ls", url=resolve_server_url(url, port), as_json=as_json)


def load_adapter(
        adapter: Annotated[str, Parameter(help="Name of the adapter in its source.")], *,
        url: UrlFlag = DEFAULT_SERVER_URL,
        source: Annotated[str, Parameter(help="Source of the adapter. Default: the server's --adapter-source.")] = "",
        alias: Annotated[str, Parameter(help="Second name by which requests may use it.")] = "",
        token: Annotated[str,
                         Parameter(help="Token for its source, where it is private.", env_var=ADAPTER_TOKEN_ENV)] = "",
        port: PortFlag = None, api_key: ApiKeyFlag = "", as_json: JsonFlag = False) -> None:
    """Fetch an adapter from its source again and load it on a server; waits until it is loaded."""
    run_adapters_command_and_exit(api_key, token, do="load", url=resolve_server_url(url, port), adapter=adapter,
                                  source=source, alias=alias, as_json=as_json)


def unload_adapter(adapter: Annotated[str, Parameter(help="Name of the adapter in its source, or its alias.")], *,
                   url: UrlFlag = DEFAULT_SERVER_URL, port: PortFlag = None, api_key: ApiKeyFlag = "",
                   as_json: JsonFlag = False) -> None:
    """Remove an adapter from a server; it is unloaded as soon as no request uses it."""
    run_adapters_command_and_exit(api_key, do="unload", url=resolve_server_url(url, port), adapter=adapter,
                                  as_json=as_json)


def run_adapters_command_and_exit(api_key: str, source_token: str = "", /, *, url: str,
                                  **command_fields: Any) -> NoReturn:
    """Run a command of the client, which is imported here because it needs aiohttp."""
    client = import_module("launcher.client.adapters")
    command = client.AdaptersCommand(url=url, **command_fields)
    raise SystemExit(client.run_adapters_command(command, api_key, source_token))


def make_adapters_app() -> App:
    app = App(name="adapters", help="List, load and unload the adapters of a server.")
    app.command(list_adapters, name="ls")
    app.command(load_adapter, name="load")
    app.command(unload_adapter, name="unload")
    return app


def list_models_command() -> None:
    """List the models in the Hub's cache on this machine, with size, date and revisions."""
    cache_folder = hub_cache_folder(os.environ)
    print(format_models_table(list(iterate_cached_models(cache_folder)), cache_folder))


def remove_model_command(model_id: Annotated[str, Parameter(help="Name of a model in the cache, such as org/name.")]
                         ) -> None:
    """Remove a model with all its revisions from the Hub's cache, which other programs use too."""
    model = remove_cached_model(model_id, hub_cache_folder(os.environ))
    print(f"removed {model.name}, {format_bytes(model.num_bytes)}")


def make_models_app() -> App:
    app = App(name="models", help="List and remove the models in the Hub's cache on this machine.")
    app.default(list_models_command)
    app.command(list_models_command, name=("ls", "list"))
    app.command(remove_model_command, name="rm")
    return app


def replay_command(
        file: Annotated[str, Parameter(help="Recording of a server (weft serve --record-minutes).")]) -> None:
    """Replay a recording and compare the scheduler's decisions. Exits with 1 and the position if they differ."""
    run_module_and_exit("router.recording.replay", file=os.path.abspath(file))


def simulate_command(
        trace: TraceArgument, *, like: LikeFlag = "", seed: SeedFlag = 0,
        replicas: Annotated[int | None, Parameter(help="Number of simulated servers that share the load.")] = None,
        route: Annotated[RoutingPolicyName | None,
                         Parameter(help="How requests are distributed over them. Default: round-robin.")] = None,
        adapter_load_ms: Annotated[float | None,
                                   Parameter(help="Time in milliseconds to load an adapter. Default: 100.")] = None,
        **settings: Any) -> None:
    """Simulate a recorded load under other settings, which are given as flags, and report the latencies."""
    arguments = {"trace": trace, "like": like, "seed": seed, "settings": settings}
    if replicas is None:
        for flag, is_given in (("--route", route is not None), ("--adapter-load-ms", adapter_load_ms is not None),
                               ("--max-active-adapters", "max_active_adapters" in settings)):
            if is_given:
                raise ValueError(f"{flag} is given, but without --replicas there is one server with all adapters "
                                 "loaded; set --replicas, or leave it out")
        run_module_and_exit("router.simulation.simulate", **arguments)
    else:
        run_module_and_exit("router.simulation.replicas", **arguments, replicas=replicas, route=route or "round-robin",
                            adapter_load_ms=100.0 if adapter_load_ms is None else adapter_load_ms)


def tune_command(trace: TraceArgument, *,
                 goal: Annotated[str, Parameter(help="Latency limits, such as ttft=500ms,itl.p50=20ms. Without a "
                                                     "percentile: p99.")],
                 like: LikeFlag = "", seed: SeedFlag = 0) -> None:
    """Find settings under which a recorded load would reach a goal."""
    run_module_and_exit("benchmarks.settings_search", trace=trace, goal=goal, like=like, seed=seed)


def bench_command(*arguments: CommandArgument) -> None:
    """Measure a server under load, compare two servers, or drive shards without a router (--shard)."""
    replace_process_by_module("benchmarks.bench", arguments)


def study_command(*arguments: CommandArgument) -> None:
    """Compare ways of batching, as the effective-batching study did: weft study batching."""
    replace_process_by_module("benchmarks.study", arguments)


def replace_process_by_module(module_name: str, arguments: Sequence[str]) -> NoReturn:
    """Replace this process by a module that has its own command line."""
    command = [*python_module_command(module_name), *arguments]
    os.execv(command[0], command)


def run_module_and_exit(module_name: str, /, **module_settings: Any) -> NoReturn:
    """Run a module as a child and exit with its code."""
    command = [*python_module_command(module_name), json.dumps(module_settings)]
    raise SystemExit(subprocess.run(command, check=False).returncode)
