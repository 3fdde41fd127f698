"""The command line `weft`. Errors are reported in one line.

Only this module and launcher/compat/commands.py read settings from environment variables.
"""

import asyncio
import inspect
import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from typing import Annotated, Any, Literal, NoReturn

from cyclopts import App, CycloptsError, Group, Parameter
from cyclopts.validators import Number

from launcher.banner import banner
from launcher.commands import (
    adapters_app,
    bench_command,
    chat_command,
    replay_command,
    simulate_command,
    study_command,
    tune_command,
)
from launcher.compat.migrate import migrated
from launcher.doctor import command as doctor
from launcher.environment import (
    adapter_folder,
    hub_access,
    hub_cache,
    hub_token,
    large_pages,
    machine_file,
    record_folder,
)
from launcher.hub.fetch import Order, fetch, order, what_is_missing
from launcher.hub.resolve import BOX, DEMO, Model, cached, find_model
from launcher.output import PLAIN, Voice
from launcher.settings import GROUPS, POSITIONAL, LaunchConfig, Setting, make_configs
from launcher.supervisor.plan import AdapterStore, make_plan
from launcher.supervisor.runtime_dir import server_folder
from launcher.supervisor.supervisor import Failed, Misconfigured, bind, serve
from router.config import RouterConfig
from shard.config import ShardConfig
from shard.telemetry.traces import check_installed

LONGEST_SOCKET_PATH = 100  # bytes; the kernel allows 107


STUDY = {"dialect": "batching", "port": 8500}
# Defaults that follow from other settings; explicit settings have precedence.
PRESETS: Sequence[tuple[Mapping[str, str], Mapping[str, Any]]] = (
    ({"dialect": "batching"}, STUDY),
    ({"compat": "batching"}, {**STUDY, "max_handlers": 8, "recompute": True}),
    ({"compat": "batching", "batching": "static"}, {"static_equal_lengths": True}),
)


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
    """Serve a model over HTTP. Without a model's name, serve the small demo model that comes with weft."""
    launch, router, shard = make_configs(with_own_settings({**dict(zip(POSITIONAL, words, strict=False)), **given}))
    voice = Voice(as_json=launch.json_output)
    with in_one_line(voice):
        run_server(launch, router, shard, voice)


def run_server(launch: LaunchConfig, router: RouterConfig, shard: ShardConfig, voice: Voice) -> None:
    missing = what_is_missing(launch.model_id, launch.revision, os.environ, client())
    check_readable(router.api_keys, "--api-keys")
    check_readable(router.tokenizer_config_path, "--tokenizer-config-path")
    check_folder(launch.adapter_root, "--adapter-root")
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
    """Return the settings of the adapter store, or None if adapters are not served."""
    if not (launch.adapters or launch.adapter_root or router.adapter_id or router.preloaded_adapter_ids):
        return None
    access = hub_access(os.environ)
    return AdapterStore(
        str(adapter_folder(os.environ)), os.path.abspath(launch.adapter_root) if launch.adapter_root else "",
        int(launch.adapter_disk_gb * 1e9), access.endpoint, client(), access.offline, str(hub_cache(os.environ)),
        access.token)


def with_own_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Add the defaults of a built-in model and of the presets; settings in `given` have precedence."""
    model = BOX.get(given.get("model_id", DEMO))
    own = dict(model.settings if model else {})
    for wanted, preset in PRESETS:
        own |= preset if wanted.items() <= given.items() else {}
    return {**own, **given}


def client() -> str:
    """Return the User-Agent for the Hub."""
    return f"weft/{version('weft')}"


def find_or_fetch(launch: LaunchConfig, missing: Order | None) -> Model:
    if missing:
        fetch(replace(missing, as_json=launch.json_output), hub_token(os.environ))
    return find_model(launch.model_id, launch.revision, hub_cache(os.environ))


def download_command(
        model_id: Annotated[str, Parameter(help="Name of a model at the Hub, such as org/name.")], *,
        revision: Annotated[str, Parameter(help="Branch, tag or commit.")] = "main") -> None:
    """Download the files needed to serve a model into the Hub's cache, or update them, and print the folder."""
    fetch(order(model_id, revision, os.environ, client()), hub_token(os.environ))
    print(cached(model_id, revision, hub_cache(os.environ)))


def check_readable(path: str, flag: str) -> None:
    """Raise Misconfigured if a file cannot be read. The router would only report it after the model's download."""
    try:
        if path:
            os.close(os.open(path, os.O_RDONLY))
    except OSError as error:
        raise Misconfigured(f"cannot read {path} ({flag}): {error.strerror}") from error


def check_folder(path: str, flag: str) -> None:
    if path and not os.path.isdir(path):
        raise Misconfigured(f"there is no folder {path} ({flag})")


def checked(folder: str) -> str:
    if len(os.fsencode(folder)) + len("/shard-00.sock") > LONGEST_SOCKET_PATH:
        raise Misconfigured(
            f"the name of the temporary folder {folder} is too long for sockets; set TMPDIR to a shorter one")
    return folder


# Scheduler settings that `weft simulate` can vary.
TRIED = ("max_concurrent_requests", "max_queue_requests", "max_queue_tokens", "max_queue_ms", "max_passed_over_ms",
         "max_batch_prefill_tokens", "max_batch_total_tokens", "max_batch_size", "batching", "prefill_policy",
         "look_ahead", "static_window_ms", "static_equal_lengths", "recompute", "max_decode_stall_ms",
         "waiting_served_ratio", "max_waiting_tokens")


# Server settings that `weft doctor` checks.
EXAMINED = ("model_id", "revision", "num_shard", "dtype", "device", "hostname", "port")


def doctor_command(*words: str, json: Annotated[bool, Parameter(help="As JSON, for programs.", negative=())] = False,
                   **given: Any) -> None:
    """Check whether this machine can serve a model, with a line for each check. Exits with 1 if there is a problem."""
    order = doctor.Order(**{**dict(zip(POSITIONAL, words, strict=False)), **given})
    raise SystemExit(doctor.run(order, os.environ, as_json=json))


def migrate_command(*line: Annotated[str, Parameter(help="What is run today; begin with -- before it.")]) -> None:
    """Translate a command line of text-generation-launcher or lorax-launcher into one of `weft`, and list what is left
    out."""
    print(migrated(line, os.environ))


def tried() -> list[inspect.Parameter]:
    """Return the flags of the settings in TRIED. They ignore environment variables, which are meant for a server."""
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
    for command, name in ((bench_command, "bench"), (study_command, "study")):  # these print their own help
        app.command(command, name=name, help_flags=[], version_flags=[])
    return app


def fail(voice: Voice, message: str, code: int) -> NoReturn:
    voice.say(" ".join(message.split()), logging.ERROR)
    raise SystemExit(code)


@contextmanager
def in_one_line(voice: Voice = PLAIN) -> Iterator[None]:
    """Report any error in one line and exit with its code."""
    try:
        yield
    except (CycloptsError, ValueError) as error:
        fail(voice, str(error), 2)
    except Failed as error:
        fail(voice, str(error), error.code)
    except OSError as error:  # such as no space left for the folder of the sockets
        fail(voice, str(error), 1)
    except KeyboardInterrupt:  # only before children are started; later, signal handlers stop them in order
        raise SystemExit(130) from None


def run(words: Sequence[str]) -> None:
    with in_one_line():
        make_app()(words, exit_on_error=False, print_error=False)


def main() -> None:
    run(sys.argv[1:])


if __name__ == "__main__":
    main()
