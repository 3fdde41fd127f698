"""The command line `weft`: flags in, one line out when something is wrong.

With launcher/foreign/commands.py the only place where environment variables count. Knows no setting by its meaning.
"""

import asyncio
import inspect
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from typing import Annotated, Any, Literal, NoReturn

from cyclopts import App, CycloptsError, Group, Parameter
from cyclopts.validators import Number

from launcher import doctor
from launcher.banner import banner
from launcher.environment import (
    adapter_folder,
    hub_access,
    hub_cache,
    hub_token,
    large_pages,
    machine_file,
    record_folder,
)
from launcher.fetch import Order, fetch, order, what_is_missing
from launcher.folder import server_folder
from launcher.foreign.migrate import migrated
from launcher.model import BOX, DEMO, Model, cached, find_model
from launcher.plan import AdapterStore, make_plan, python_module
from launcher.processes import Failed, bind, serve
from launcher.settings import GROUPS, POSITIONAL, LaunchConfig, Setting, make_configs
from launcher.voice import PLAIN, Voice
from router.config import ADAPTER_TOKEN, API_KEY, RouterConfig
from shard.config import ShardConfig
from shard.traces import check_installed

ADAPTERS = "router.http.adapters_client"
LONGEST_SOCKET_PATH = 100  # bytes; the kernel allows 107


DIALECTS: Mapping[str, Mapping[str, Any]] = {"batching": {"port": 8500}}


def parameter(setting: Setting, group: Group, *, variables: bool = True) -> inspect.Parameter:
    rules = setting.field.metadata
    kind = Literal[rules["choices"]] if rules["choices"] else setting.type
    bounds = None if rules["low"] is rules["high"] is None else Number(gte=rules["low"], lte=rules["high"])
    about = Parameter(name=setting.flags, help=rules["help"], env_var=setting.variables if variables else (),
                      validator=bounds, group=group)
    how = inspect.Parameter.POSITIONAL_OR_KEYWORD if setting.name in POSITIONAL else inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(
        setting.name, how, default=setting.field.default, annotation=Annotated[kind, about])


def serve_command(*words: str, **given: Any) -> None:
    """Serve a model over HTTP. Without a name it is a small one that comes with weft, for a first try."""
    launch, router, shard = make_configs(with_own_settings({**dict(zip(POSITIONAL, words, strict=False)), **given}))
    voice = Voice(as_json=launch.json_output)
    with in_one_line(voice):
        run_server(launch, router, shard, voice)


def run_server(launch: LaunchConfig, router: RouterConfig, shard: ShardConfig, voice: Voice) -> None:
    missing = what_is_missing(launch.model_id, launch.revision, os.environ, client())
    check_readable(router.api_keys, "--api-keys")
    check_readable(router.tokenizer_config_path, "--tokenizer-config-path")
    check_installed(launch.traces)
    shard = replace(shard, memory=str(machine_file(os.environ, version("weft"))))
    with bind(router.hostname, router.port) as listener:
        model = find_or_fetch(launch, missing)

        def greet(served: dict[str, Any]) -> None:
            keyed = bool(router.api_key or router.api_keys)
            voice.greet(banner(listener, launch.num_shard, model, served, keyed=keyed))

        with server_folder() as folder:
            plan = make_plan(router, shard, launch.num_shard, checked(folder), model,
                             environment=large_pages(os.environ), record_folder=str(record_folder(os.environ)),
                             adapters=adapter_store(launch, router), logs=launch.logs, traces=launch.traces)
            asyncio.run(serve(plan, listener, greet, router.shutdown_timeout, voice))


def adapter_store(launch: LaunchConfig, router: RouterConfig) -> AdapterStore | None:
    """Nothing where adapters are not served."""
    if not (launch.adapters or launch.adapter_root or router.adapter_id or router.preloaded_adapter_ids):
        return None
    access = hub_access(os.environ)
    return AdapterStore(
        str(adapter_folder(os.environ)), os.path.abspath(launch.adapter_root) if launch.adapter_root else "",
        int(launch.adapter_disk_gb * 1e9), access.endpoint, client(), access.offline, str(hub_cache(os.environ)),
        access.token)


def with_own_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """A model that comes with weft, or a dialect, may have settings of its own, which are used unless others are
    given."""
    model = BOX.get(given.get("model_id", DEMO))
    return {**(model.settings if model else {}), **DIALECTS.get(given.get("dialect", ""), {}), **given}


def client() -> str:
    """What we call ourselves at the Hub."""
    return f"weft/{version('weft')}"


def find_or_fetch(launch: LaunchConfig, missing: Order | None) -> Model:
    if missing:
        fetch(replace(missing, as_json=launch.json_output), hub_token(os.environ))
    return find_model(launch.model_id, launch.revision, hub_cache(os.environ))


def download_command(
        model_id: Annotated[str, Parameter(help="Name of a model at the Hub, such as org/name.")], *,
        revision: Annotated[str, Parameter(help="Branch, tag or commit.")] = "main") -> None:
    """Download what serving a model needs into the Hub's cache, or what is new of it, and print the folder."""
    fetch(order(model_id, revision, os.environ, client()), hub_token(os.environ))
    print(cached(model_id, revision, hub_cache(os.environ)))


def chat_command(
        *, url: Annotated[str, Parameter(help="Where the server is.")] = "http://127.0.0.1:3000",
        model: Annotated[str, Parameter(help="What to ask for, where a server has several.")] = "",
        system: Annotated[str, Parameter(help="What the model is told before all questions.")] = "",
        max_tokens: Annotated[int | None, Parameter(help="Most tokens of an answer.")] = None,
        temperature: Annotated[float | None, Parameter(help="0 always takes the likeliest token.")] = None,
        seed: Annotated[int | None, Parameter(help="The same seed gives the same answers.")] = None,
        api_key: Annotated[str, Parameter(help="Key that the server asks for.", env_var=(API_KEY, "API_KEY"))] = "",
) -> None:
    """Chat with a served model in this terminal, or ask it what comes on standard input, a question on each line."""
    with left_to_the_child(signal.SIGINT):
        run_module("router.http.client", {API_KEY: api_key}, url=url, model=model, system=system,
                   max_tokens=max_tokens, temperature=temperature, seed=seed)


Server = Annotated[str, Parameter(name="--url", help="Where the server is.")]
Key = Annotated[str, Parameter(name="--api-key", help="Key that the server asks for.", env_var=(API_KEY, "API_KEY"))]
AsJson = Annotated[bool, Parameter(name="--json", help="As JSON, for programs.", negative=())]
LOCAL = "http://127.0.0.1:3000"


def list_adapters(*, url: Server = LOCAL, api_key: Key = "", as_json: AsJson = False) -> None:
    """The adapters that a server knows, and how things are with them."""
    run_module(ADAPTERS, {API_KEY: api_key}, do="ls", url=url, as_json=as_json)


def load_adapter(
        adapter: Annotated[str, Parameter(help="As its source names it.")], *, url: Server = LOCAL,
        source: Annotated[str, Parameter(help="Where it comes from; by default the server's --adapter-source.")] = "",
        alias: Annotated[str, Parameter(help="What requests may call it, too.")] = "",
        token: Annotated[str, Parameter(help="Token for its source, where it is private.", env_var=ADAPTER_TOKEN)] = "",
        api_key: Key = "", as_json: AsJson = False) -> None:
    """Have a server fetch an adapter anew and load it, and wait until it is there."""
    run_module(ADAPTERS, {API_KEY: api_key, ADAPTER_TOKEN: token}, do="load", url=url, adapter=adapter, source=source,
               alias=alias, as_json=as_json)


def unload_adapter(
        adapter: Annotated[str, Parameter(help="As its source names it, or its alias.")], *, url: Server = LOCAL,
        api_key: Key = "", as_json: AsJson = False) -> None:
    """Have a server forget an adapter; it leaves as soon as nobody needs it."""
    run_module(ADAPTERS, {API_KEY: api_key}, do="unload", url=url, adapter=adapter, as_json=as_json)


def adapters_app() -> App:
    app = App(name="adapters", help="List, load and unload the adapters of a server.")
    app.command(list_adapters, name="ls")
    app.command(load_adapter, name="load")
    app.command(unload_adapter, name="unload")
    return app


@contextmanager
def left_to_the_child(number: signal.Signals) -> Iterator[None]:
    """A signal from the terminal reaches both of us. A handler, unlike an ignored signal, is not inherited."""
    before = signal.signal(number, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(number, before)


def check_readable(path: str, flag: str) -> None:
    """The router reads it when the model has been found, which is late to hear of a name that was mistyped."""
    try:
        if path:
            os.close(os.open(path, os.O_RDONLY))
    except OSError as error:
        raise Failed(f"cannot read {path} ({flag}): {error.strerror}") from error


def checked(folder: str) -> str:
    if len(folder) + len("/shard-00.sock") > LONGEST_SOCKET_PATH:
        raise Failed(f"the name of the temporary folder {folder} is too long for sockets; set TMPDIR to a shorter one")
    return folder


Trace = Annotated[str, Parameter(help="Recording, or a plain trace: JSON lines with at, prompt_tokens, output_tokens.")]
Like = Annotated[str, Parameter(help="Recording whose shards and settings are assumed; by default the trace itself.")]
Seed = Annotated[int, Parameter(help="Where the luck of the recorded steps begins.")]
# Settings that the core decides by, and that may be tried in simulation.
TRIED = ("max_concurrent_requests", "max_queue_requests", "max_queue_tokens", "max_queue_ms", "max_passed_over_ms",
         "max_batch_prefill_tokens", "max_batch_total_tokens", "max_batch_size", "batching", "prefill_policy",
         "look_ahead", "static_window_ms", "static_equal_lengths", "recompute", "max_decode_stall_ms",
         "waiting_served_ratio", "max_waiting_tokens")


def replay_command(file: Annotated[str, Parameter(help="Recording, as the router wrote it.")]) -> None:
    """Play a recording again: does the scheduler decide the same? Ends with 1 if not, and says where."""
    run_module("router.replay", file=os.path.abspath(file))


def simulate_command(trace: Trace, *, like: Like = "", seed: Seed = 0, **settings: Any) -> None:
    """What a recorded load would feel like under other settings, which are given as flags."""
    run_module("router.simulate", trace=trace, like=like, seed=seed, settings=settings)


def tune_command(
        trace: Trace, *, goal: Annotated[str, Parameter(help="Such as ttft=500ms,itl.p50=20ms; p99 unless told.")],
        like: Like = "", seed: Seed = 0) -> None:
    """Find settings under which a recorded load would reach a goal."""
    run_module("router.tune", trace=trace, goal=goal, like=like, seed=seed)


# Settings of a server that decide whether it can start here.
EXAMINED = ("model_id", "revision", "num_shard", "dtype", "device", "hostname", "port")


def doctor_command(*words: str, json: Annotated[bool, Parameter(help="As JSON, for programs.", negative=())] = False,
                   **given: Any) -> None:
    """Is this machine fit to serve, and this model? A line for everything looked at; ends with 1 if there is a problem.
    """
    order = doctor.Order(**{**dict(zip(POSITIONAL, words, strict=False)), **given})
    raise SystemExit(doctor.run(order, os.environ, as_json=json))


def migrate_command(*line: Annotated[str, Parameter(help="What is run today; begin with -- before it.")]) -> None:
    """What `weft` is to be told instead of a command line of text-generation-launcher or lorax-launcher, and what is
    left out."""
    print(migrated(line, os.environ))


def run_module(name: str, secrets: Mapping[str, str] | None = None, /, **order: Any) -> NoReturn:
    """What is secret goes by variables: whoever lists processes sees arguments."""
    command, environment = [*python_module(name), json.dumps(order)], {**os.environ, **(secrets or {})}
    raise SystemExit(subprocess.run(command, env=environment, check=False).returncode)


def tried() -> list[inspect.Parameter]:
    """Flags for the settings that may be tried. Variables of the environment are meant for a server, not for these."""
    settings = [setting for setting in GROUPS["Server"] if setting.name in TRIED]
    return [parameter(setting, Group("Settings to try"), variables=False) for setting in settings]


def examined() -> list[inspect.Parameter]:
    group = Group("Settings of the server")
    found = [parameter(item, group) for settings in GROUPS.values() for item in settings if item.name in EXAMINED]
    return [*found, inspect.signature(doctor_command).parameters["json"]]


def make_app() -> App:
    app = App(name="weft", help="Serve large language models.", version=lambda: version("weft"),
              result_action="return_value")
    groups = [(Group(title, sort_key=place), settings) for place, (title, settings) in enumerate(GROUPS.items())]
    parameters = [parameter(setting, group) for group, settings in groups for setting in settings]
    serve_command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    app.command(serve_command, name="serve")
    app.command(chat_command, name="chat")
    app.command(download_command, name="download")
    app.command(replay_command, name="replay")
    known = inspect.signature(simulate_command).parameters
    simulate_command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [*(known[name] for name in ("trace", "like", "seed")), *tried()])
    app.command(simulate_command, name="simulate")
    app.command(tune_command, name="tune")
    doctor_command.__signature__ = inspect.Signature(examined())  # type: ignore[attr-defined]
    app.command(doctor_command, name="doctor")
    app.command(migrate_command, name="migrate")
    app.command(adapters_app())
    return app


def fail(voice: Voice, message: str, code: int) -> NoReturn:
    voice.say(" ".join(message.split()), logging.ERROR)
    raise SystemExit(code)


@contextmanager
def in_one_line(voice: Voice = PLAIN) -> Iterator[None]:
    """Whatever goes wrong is told in one line, with an exit code."""
    try:
        yield
    except (CycloptsError, ValueError) as error:
        fail(voice, str(error), 2)
    except Failed as error:
        fail(voice, str(error), error.code)
    except OSError as error:  # such as no space left for the folder of the sockets
        fail(voice, str(error), 1)
    except KeyboardInterrupt:  # before the children are there to be stopped in order
        raise SystemExit(130) from None


def run(words: Sequence[str]) -> None:
    with in_one_line():
        make_app()(words, exit_on_error=False, print_error=False)


def main() -> None:
    run(sys.argv[1:])


if __name__ == "__main__":
    main()
