"""The command line `weft`. Errors are reported in one line.

Only this module and launcher/compat_commands.py read settings from environment variables.
"""

import asyncio
import inspect
import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import partial
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

from cyclopts import App, CycloptsError, Group, Parameter
from cyclopts.config import Dict as ConfigDict
from cyclopts.validators import Number

from launcher.banner import describe_adapters, make_banner, serves_adapters
from launcher.command_line.config_file import CONFIG_FLAG, find_config_path, load_config_file
from launcher.command_line.delegated_subcommands import (
    bench_command,
    chat_command,
    explain_command,
    make_adapters_app,
    make_models_app,
    replay_command,
    simulate_command,
    study_command,
    top_command,
    tune_command,
)
from launcher.command_line.error_messages import (
    COMMANDS_WITH_SETTINGS,
    DEPLOY_COMMAND,
    DOCTOR_COMMAND,
    RUN_COMMAND,
    SERVE_COMMAND,
    describe_error,
    name_flags_as_given,
)
from launcher.command_line.lora_modules import convert_json_adapter_ids
from launcher.command_line.run_command import FIXED_SETTINGS, run_model
from launcher.command_line.setting_origins import describe_settings, record_setting_sources
from launcher.command_line.start_checks import check_server_settings, check_socket_path_length, list_start_warnings
from launcher.compat.migrate import RefusedFlagsError, translate_command_line
from launcher.console_output import PLAIN_OUTPUT, ConsoleOutput
from launcher.doctor import command as doctor
from launcher.environment_variables import (
    adapter_store_folder,
    get_machine_probes_path,
    hub_cache_folder,
    huge_page_variables,
    python_module_command,
    read_hub_access,
    read_hub_token,
    recordings_folder,
)
from launcher.hosts.config_consistency import collect_host_facts
from launcher.hosts.coordinator import HostCoordinator
from launcher.hosts.group_plan import GroupPlan, make_group_plan
from launcher.hosts.member import serve_member
from launcher.hosts.node_rank import find_group_variable
from launcher.hub.config_check import check_model_config, check_weight_files
from launcher.hub.download_runner import DownloadRequest, find_needed_download, make_download_request, run_download
from launcher.hub.resolve import (
    BUILTIN_MODELS,
    DEMO_MODEL,
    ResolvedModel,
    find_cached_model,
    find_model,
)
from launcher.ray_serve.options import RayOptions, check_ray_installed, make_server_settings
from launcher.settings import (
    COMMON_SETTINGS,
    POSITIONAL_SETTINGS,
    SETTING_GROUPS,
    SETTINGS_BY_NAME,
    LaunchConfig,
    Setting,
    iterate_settings,
    make_configs,
)
from launcher.supervisor.launch_plan import AdapterStoreConfig, LaunchPlan, make_plan
from launcher.supervisor.runtime_dir import create_runtime_folder
from launcher.supervisor.supervisor import EXIT_MARGIN_SECONDS, LaunchError, bind_listener, serve
from router.config import LOCAL_SOURCE, RouterConfig
from shard.config import ShardConfig
from shard.tls_credentials import CREDENTIALS_FLAG, list_exposed_files

# The first flag of each setting, by all its flags, without their hyphens.
SERVE_FLAG_NAMES = {flag.removeprefix("--"): setting.flags[0].removeprefix("--")
                    for setting in SETTINGS_BY_NAME.values() for flag in setting.flags if flag.startswith("--")}
HELP_ALL_FLAG = "--help-all"
RAY_OPTION_NAMES = tuple(option.name for option in fields(RayOptions))
RAY_ENGINE = "ray"  # what `weft deploy` can deploy on


BATCHING_STUDY_DEFAULTS = {"dialect": "batching", "port": 8500}
# Defaults that follow from other settings; explicit settings have precedence.
CONDITIONAL_DEFAULTS: Sequence[tuple[Mapping[str, str], Mapping[str, Any]]] = (
    ({"dialect": "batching"}, BATCHING_STUDY_DEFAULTS),
    ({"compat": "batching"}, {**BATCHING_STUDY_DEFAULTS, "max_handlers": 8, "recompute": True}),
    ({"compat": "batching", "batching": "static"}, {"static_equal_lengths": True}),
)


def make_flag_parameter(setting: Setting, group: Group, *, read_variables: bool = True, is_shown: bool = True,
                        is_short: bool = False) -> inspect.Parameter:
    """Return the flag of a setting. A short description is the first sentence of its help, without its variables."""
    metadata = setting.field.metadata
    value_type = Literal[metadata["choices"]] if metadata["choices"] else setting.type
    bounds = None if metadata["low"] is metadata["high"] is None else Number(gte=metadata["low"], lte=metadata["high"])
    description = f"{metadata['help'].split('. ')[0].removesuffix('.')}." if is_short else metadata["help"]
    has_empty_choice = "" in (metadata["choices"] or ())  # a default, which nobody types
    if has_empty_choice:
        description += f" [choices: {', '.join(filter(None, metadata['choices']))}]"
    annotation = Parameter(
        name=setting.flags, help=description, show_choices=not has_empty_choice, validator=bounds, group=group,
        env_var=setting.environment_variables if read_variables else (), show=is_shown, show_env_var=not is_short)
    parameter_kind = (inspect.Parameter.POSITIONAL_OR_KEYWORD if setting.name in POSITIONAL_SETTINGS
                      else inspect.Parameter.KEYWORD_ONLY)
    return inspect.Parameter(
        setting.name, parameter_kind, default=setting.field.default, annotation=Annotated[value_type, annotation])


def serve_command(*positional: str, **settings: Any) -> None:
    """Serve a model over HTTP. Without a model's name, serve the small demo model that comes with weft."""
    given_settings = merge_settings(positional, settings)
    all_settings = add_default_settings(given_settings)
    launch, router, shard = make_configs(all_settings)
    output = ConsoleOutput(as_json=launch.json_output)
    with report_errors_in_one_line(output):
        run_server(launch, router, shard, output,
                   describe_settings(launch, router, shard, all_settings.keys() - given_settings.keys()))


def run_command(*positional: str, **settings: Any) -> None:
    """Serve a model on a free port and chat with it in this terminal; the server stops with the chat.

    Takes the settings of `weft serve`. Without a model's name, the small demo model answers.
    """
    raise SystemExit(run_model(merge_settings(positional, settings),
                               [*python_module_command("launcher.cli"), SERVE_COMMAND]))


def deploy_ray_command(*positional: str, address: str = "auto", app_name: str = "weft", **settings: Any) -> None:
    """Serve a model on a Ray cluster: replicas of `weft serve` behind Ray Serve. Repeated, it updates them in turn.

    Takes the settings of `weft serve`; --hostname and --port are those of Ray's HTTP proxies.
    """
    check_ray_installed()
    named = merge_settings(positional, settings)
    options = RayOptions(**{name: named.pop(name) for name in RAY_OPTION_NAMES if name in named})
    _, router, _ = make_configs(add_default_settings(named))
    if not router.port:
        raise ValueError("--port must be at least 1 on Ray, whose proxies have the same one everywhere, got 0")
    ray_serve = import_module("launcher.ray_serve.deploy")
    try:
        ray_serve.deploy(ray_serve.RayTarget(address, app_name, router.hostname, router.port), options,
                         make_server_settings(named, (*python_module_command("launcher.cli")[1:], SERVE_COMMAND)))
    except ray_serve.DeploymentFailed as error:
        raise LaunchError(str(error)) from None


def merge_settings(positional: Sequence[str], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return all settings by name, those without a flag too. `--config` is none: it is read before the command line is
    parsed."""
    named = dict(zip(POSITIONAL_SETTINGS, positional, strict=False))
    named |= {name: value for name, value in settings.items() if name != "config"}
    if len(model_id := named.get("model_id", "")) > 1:
        named["model_id"] = model_id.rstrip("/") or "/"  # a shell writes it behind a folder, clients do not
    return convert_json_adapter_ids(named)


def run_server(launch: LaunchConfig, router: RouterConfig, shard: ShardConfig, output: ConsoleOutput,
               described_settings: Sequence[Mapping[str, Any]]) -> None:
    """Run a server until it is stopped. `described_settings` are all settings with their sources, to be shown."""
    needed_download = find_needed_download(launch.model_id, launch.revision, os.environ, make_user_agent())
    check_server_settings(launch, router, shard.device)
    for warning in list_start_warnings(launch, router):
        output.warn(warning)
    shard = replace(shard, memory=str(get_machine_probes_path(os.environ, version("weft"))))
    group = make_group_plan(launch, os.environ)
    if group is None and (variable := find_group_variable(launch, os.environ)):
        output.warn(f"{variable}={os.environ[variable]} is ignored: without {CREDENTIALS_FLAG} this host serves alone")
    if group is not None:
        launch = replace(launch, num_shard=group.num_shard)
        output.log(group.describe())
        if exposed := list_exposed_files(launch.shard_credentials):
            output.warn(f"all users of this host may read {' and '.join(exposed)} in {launch.shard_credentials} "
                        f"({CREDENTIALS_FLAG}); use chmod o=")
    if group is not None and not group.node.is_first:
        model = find_or_download_model(launch, needed_download, shard.quantize)
        run_group_member(launch, router, shard, model, group=group, output=output)
        return
    with bind_listener(router.hostname, router.port) as listener:
        model = find_or_download_model(launch, needed_download, shard.quantize)

        def print_banner(ready_message: dict[str, Any]) -> None:
            key_example = "$WEFT_API_KEY" if router.api_key else "KEY" if router.api_keys else ""
            output.print_banner(make_banner(listener, launch.num_shard, model, ready_message, key_example=key_example,
                                            adapters=describe_adapters(launch, router), quantize=shard.quantize,
                                            has_page=router.ui))

        with create_runtime_folder() as folder:
            plan = make_server_plan(launch, router, shard, model, runtime_folder=check_socket_path_length(folder),
                                    group=group, described_settings=described_settings)
            remote_hosts = None if group is None else HostCoordinator(
                group, collect_host_facts(plan.shard_specs[0].settings, group, version("weft")),
                get_address_files=partial(group.list_address_files, folder), model_label=model.folder, output=output)
            asyncio.run(serve(plan, listener, print_banner, router.shutdown_delay + router.shutdown_timeout, output,
                              logs_stop=launch.log_level in {"debug", "info"}, remote_hosts=remote_hosts))


def run_group_member(launch: LaunchConfig, router: RouterConfig, shard: ShardConfig, model: ResolvedModel, *,
                     group: GroupPlan, output: ConsoleOutput) -> None:
    """Run the shards of a host that is not the first one of its group."""
    with create_runtime_folder() as folder:
        plan = make_server_plan(launch, router, shard, model, runtime_folder=folder, group=group)
        asyncio.run(serve_member(group, collect_host_facts(plan.shard_specs[0].settings, group, version("weft")),
                                 plan.shard_specs, output=output, seconds_to_finish=router.shutdown_delay
                                 + router.shutdown_timeout + EXIT_MARGIN_SECONDS))  # node 0's router has as long


def make_server_plan(launch: LaunchConfig, router: RouterConfig, shard: ShardConfig, model: ResolvedModel, *,
                     runtime_folder: str, group: GroupPlan | None,
                     described_settings: Sequence[Mapping[str, Any]] = ()) -> LaunchPlan:
    return make_plan(router, shard, launch.num_shard, runtime_folder, model,
                     shard_environment=huge_page_variables(os.environ),
                     record_folder=str(recordings_folder(os.environ)),
                     adapter_store=make_adapter_store_config(launch, router), logs=launch.logging_settings,
                     traces=launch.trace_settings, placement=None if group is None else group.placement,
                     described_settings=described_settings)


def make_adapter_store_config(launch: LaunchConfig, router: RouterConfig) -> AdapterStoreConfig | None:
    """Return the settings of the adapter store, or None if adapters are not served."""
    if not serves_adapters(launch, router):
        return None
    access = read_hub_access(os.environ)
    return AdapterStoreConfig(str(adapter_store_folder(os.environ)),
                              os.path.abspath(launch.adapter_root) if launch.adapter_root else "",
                              int(launch.adapter_disk_gb * 1e9), access.endpoint, make_user_agent(),
                              access.offline_variable, str(hub_cache_folder(os.environ)),
                              launch.allowed_adapters, access.token)


def add_default_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Add the defaults of a built-in model and of the presets; the given `settings` have precedence."""
    model = BUILTIN_MODELS.get(settings.get("model_id", DEMO_MODEL))
    defaults = dict(model.default_settings if model else {})
    for condition, preset in CONDITIONAL_DEFAULTS:
        defaults |= preset if condition.items() <= settings.items() else {}
    if settings.get("adapter_root") and settings.get("compat") != "lorax":
        defaults["adapter_source"] = LOCAL_SOURCE
    return {**defaults, **settings}


def make_user_agent() -> str:
    """Return the User-Agent for the Hub."""
    return f"weft/{version('weft')}"


def find_or_download_model(launch: LaunchConfig, needed_download: DownloadRequest | None,
                           quantize: str) -> ResolvedModel:
    if needed_download:
        run_download(replace(needed_download, as_json=launch.json_output), read_hub_token(os.environ))
    model = find_model(launch.model_id, launch.revision, hub_cache_folder(os.environ))
    if model.name not in BUILTIN_MODELS:
        check_model_config(Path(model.folder), launch.num_shard, quantize)
        check_weight_files(Path(model.folder))
    return model


def download_command(
        model_id: Annotated[str, Parameter(help="Name of a model at the Hub, such as org/name.")], *,
        revision: Annotated[str, Parameter(help="Branch, tag or commit.")] = "main") -> None:
    """Download the files needed to serve a model into the Hub's cache, or update them, and print the folder."""
    run_download(make_download_request(model_id, revision, os.environ, make_user_agent()), read_hub_token(os.environ))
    print(find_cached_model(model_id, revision, hub_cache_folder(os.environ)))


# Scheduler settings that `weft simulate` can vary.
SIMULATE_SETTINGS = ("max_concurrent_requests", "max_queue_requests", "max_queue_tokens", "max_queue_ms",
                     "max_passed_over_ms", "max_batch_prefill_tokens", "max_batch_total_tokens", "max_batch_size",
                     "batching", "prefill_policy", "look_ahead", "static_window_ms", "static_equal_lengths",
                     "recompute", "max_decode_stall_ms", "waiting_served_ratio", "max_waiting_tokens",
                     "max_active_adapters")


def doctor_command(*positional: str,
                   json: Annotated[bool, Parameter(help="Print JSON.", negative=())] = False,
                   **settings: Any) -> None:
    """Check whether this machine can serve a model, with a line for each check. Exits with 1 if there is a problem.

    Takes the settings of `weft serve`.
    """
    server_settings = doctor.DoctorSettings(*make_configs(add_default_settings(merge_settings(positional, settings))))
    raise SystemExit(doctor.run_doctor(server_settings, os.environ, as_json=json))


def completion_command(
        shell: Annotated[Literal["bash", "zsh", "fish"], Parameter(help="Shell to complete in.")]) -> None:
    """Print a script that lets a shell complete commands and flags: source <(weft completion bash)."""
    print(make_app(shows_all=True).generate_completion(prog_name="weft", shell=shell))


def migrate_command(*line: Annotated[str, Parameter(
        help="The command line that is run today, or the one of docker run.", allow_leading_hyphen=True)]) -> None:
    """Translate a command line of text-generation-launcher or lorax-launcher into one of `weft`, and list what is left
    out. A refused flag is left out, too, and the exit code is 2."""
    try:
        print(translate_command_line(line, os.environ))
    except RefusedFlagsError as error:
        print(error.translated_line, flush=True)
        raise


def make_simulate_flags() -> list[inspect.Parameter]:
    """Return the flags of SIMULATE_SETTINGS. They ignore environment variables, which are meant for a server."""
    group = Group("Settings to try")
    return [make_flag_parameter(SETTINGS_BY_NAME[name], group, read_variables=False) for name in SIMULATE_SETTINGS]


def version_command() -> None:
    """Print the version of weft."""
    print(version("weft"))


def make_serve_flags(*, shows_all: bool) -> list[inspect.Parameter]:
    """Return the flags of a server. Unless `shows_all`, its help page has the common ones only."""
    if shows_all:
        groups = {title: Group(title, sort_key=position) for position, title in enumerate(SETTING_GROUPS)}
        parameters = [make_flag_parameter(setting, groups[title])
                      for title, settings in SETTING_GROUPS.items() for setting in settings]
        return [*parameters, make_config_parameter(groups[next(iter(SETTING_GROUPS))])]
    group = Group("Common settings", sort_key=0)
    others = [name for name in SETTINGS_BY_NAME if name not in COMMON_SETTINGS]
    parameters = [make_flag_parameter(SETTINGS_BY_NAME[name], group, is_shown=name in COMMON_SETTINGS, is_short=True)
                  for name in (*COMMON_SETTINGS, *others)]
    return [*parameters, make_config_parameter(group)]


def make_deploy_ray_flags(serve_flags: Sequence[inspect.Parameter]) -> list[inspect.Parameter]:
    """Return the flags of `weft deploy ray`: its own, and those of a server."""
    group = Group("Ray", sort_key=-1)
    own = [make_flag_parameter(option, group, read_variables=False) for option in iterate_settings(RayOptions)]
    texts = {"address": "Address of the cluster. auto: that of RAY_ADDRESS, or the one on this machine.",
             "app_name": "Name of the application in Ray Serve."}
    named = [parameter.replace(annotation=Annotated[str, Parameter(help=texts[name], group=group)])
             for name, parameter in inspect.signature(deploy_ray_command).parameters.items() if name in texts]
    return [*(flag for flag in serve_flags if flag.kind is flag.POSITIONAL_OR_KEYWORD), *own, *named,
            *(flag for flag in serve_flags if flag.kind is not flag.POSITIONAL_OR_KEYWORD)]


def make_config_parameter(group: Group) -> inspect.Parameter:
    description = "YAML file of settings, by the names of their flags. A flag or a variable wins over it."
    return inspect.Parameter("config", inspect.Parameter.KEYWORD_ONLY, default="", annotation=Annotated[
        str, Parameter(name=CONFIG_FLAG, help=description, group=group)])


def make_app(*, shows_all: bool = False, config_path: str | None = None) -> App:
    """Return the command line. `shows_all`: whether help pages show every setting; `config_path`: of a file of
    settings."""
    settings = {} if config_path is None else load_config_file(config_path, SERVE_FLAG_NAMES)
    run_settings = {name: value for name, value in settings.items() if name.replace("-", "_") not in FIXED_SETTINGS}
    deploy_settings = {name: value for name, value in settings.items() if name != "json-output"}
    app = App(name="weft", help="Serve large language models.", version=lambda: version("weft"),
              result_action="return_value",
              config=(*([ConfigDict({SERVE_COMMAND: settings, DOCTOR_COMMAND: settings, RUN_COMMAND: run_settings,
                                     DEPLOY_COMMAND: {RAY_ENGINE: deploy_settings}}, source=config_path)]
                        if settings else []), record_setting_sources))
    parameters = make_serve_flags(shows_all=shows_all)
    serve_command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run_command.__signature__ = inspect.Signature([  # type: ignore[attr-defined]
        parameter for parameter in parameters if parameter.name not in FIXED_SETTINGS])
    deploy_ray_command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        make_deploy_ray_flags([parameter for parameter in parameters if parameter.name != "json_output"]))
    epilogue = (f"`weft serve {HELP_ALL_FLAG}` shows all {len(SETTINGS_BY_NAME)} settings. Each also has an "
                "environment variable: docs/reference/settings.md.")
    app.command(serve_command, name=SERVE_COMMAND, help_epilogue="" if shows_all else epilogue)
    app.command(run_command, name=RUN_COMMAND, help_epilogue="" if shows_all else epilogue)
    app.command(chat_command, name="chat")
    app.command(explain_command, name="explain")
    app.command(top_command, name="top")
    app.command(make_models_app())
    app.command(download_command, name="download")
    app.command(replay_command, name="replay")
    known = inspect.signature(simulate_command).parameters
    simulate_command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [*(known[name] for name in ("trace", "like", "seed", "replicas", "route", "adapter_load_ms")),
         *make_simulate_flags()])
    app.command(simulate_command, name="simulate")
    app.command(tune_command, name="tune")
    doctor_command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [*parameters, inspect.signature(doctor_command).parameters["json"]])
    app.command(doctor_command, name=DOCTOR_COMMAND, help_epilogue="" if shows_all else epilogue)
    deploy_app = App(name=DEPLOY_COMMAND, help="Serve a model on a cluster.")
    deploy_app.command(deploy_ray_command, name=RAY_ENGINE, help_epilogue="" if shows_all else epilogue)
    app.command(deploy_app)
    app.command(migrate_command, name="migrate")
    app.command(make_adapters_app())
    app.command(version_command, name="version")
    app.command(completion_command, name="completion")
    for command, name in ((bench_command, "bench"), (study_command, "study")):  # these print their own help
        app.command(command, name=name, help_flags=[], version_flags=[])
    return app


def exit_with_error(output: ConsoleOutput, message: str, exit_code: int) -> NoReturn:
    output.log(" ".join(name_flags_as_given(message, sys.argv[1:]).split()), logging.ERROR)
    raise SystemExit(exit_code)


@contextmanager
def report_errors_in_one_line(output: ConsoleOutput = PLAIN_OUTPUT) -> Iterator[None]:
    """Report any error in one line and exit with its code."""
    try:
        yield
    except (CycloptsError, ValueError) as error:
        exit_with_error(output, describe_error(error), 2)
    except LaunchError as error:
        exit_with_error(output, str(error), error.exit_code)
    except BrokenPipeError as error:
        if not is_stdout_closed():
            exit_with_error(output, str(error), 1)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is still to be flushed
        raise SystemExit(1) from None
    except OSError as error:  # such as no space left for the folder of the sockets
        exit_with_error(output, str(error), 1)
    except KeyboardInterrupt:  # outside a command; children are stopped in order by signal handlers
        raise SystemExit(130) from None


def is_stdout_closed() -> bool:
    """Whether who reads the output, such as head, has left."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        return True
    return False


def run_command_line(arguments: Sequence[str]) -> None:
    takes_settings = bool(arguments) and arguments[0] in COMMANDS_WITH_SETTINGS
    shows_all = HELP_ALL_FLAG in arguments and takes_settings
    words = ["--help" if shows_all and word == HELP_ALL_FLAG else word for word in arguments]
    with report_errors_in_one_line():
        config_path = find_config_path(arguments) if takes_settings else None
        make_app(shows_all=shows_all, config_path=config_path)(words, exit_on_error=False, print_error=False)


def main() -> None:
    run_command_line(sys.argv[1:])


if __name__ == "__main__":
    main()
