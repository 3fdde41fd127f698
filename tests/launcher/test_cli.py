"""Tests of the command line: settings from flags and variables, and errors in one line."""

import asyncio
import json
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from support.host_credentials import make_self_signed

from launcher import cli
from launcher.client.adapters import AdaptersCommand
from launcher.client.chat_client import ChatSettings
from launcher.command_line import delegated_subcommands
from launcher.ray_serve.options import RayOptions
from launcher.supervisor.supervisor import ConfigurationError, LaunchError, TooManyDeathsError
from router.model_info import ModelInfo
from router.scheduler.settings import SchedulerSettings, describe_unused_settings
from router.simulation.routing import ROUTING_POLICIES


@pytest.fixture
def run_weft(monkeypatch: pytest.MonkeyPatch,
             capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Return a function that runs the command line: exit code, stdout, stderr."""
    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["weft", *arguments])
        with pytest.raises(SystemExit) as ended:
            raise SystemExit(cli.main() or 0)
        return (ended.value.code, *capsys.readouterr())
    return run


@pytest.fixture
def get_serve_settings(monkeypatch: pytest.MonkeyPatch, run_weft: Callable[..., Any]) -> Callable[..., dict[str, Any]]:
    """Return a function that returns the settings of a command line instead of serving with them."""
    def run(*arguments: str) -> dict[str, Any]:
        served_settings: dict[str, Any] = {}

        def record_settings(*words: str, **settings: Any) -> None:
            served_settings.update(settings | ({"words": words} if words else {}))

        monkeypatch.setattr(cli, "serve_command", record_settings)
        assert run_weft("serve", *arguments)[0] == 0
        return served_settings
    return run


@pytest.mark.parametrize(("arguments", "settings"), [
    ((), {}),
    (("--look-ahead", "1"), {"look_ahead": 1}),
    (("-p", "80"), {"port": 80}),
    (("--num-shards", "2"), {"num_shard": 2}),
    (("--host", "0.0.0.0", "--tensor-parallel-size", "2", "--max-model-len", "99"),
     {"hostname": "0.0.0.0", "num_shard": 2, "max_total_tokens": 99}),
    (("--max-num-seqs", "7", "--max-num-batched-tokens", "600"),
     {"max_batch_size": 7, "max_batch_prefill_tokens": 600}),
    (("--model", "org/name"), {"words": ("org/name",)}),
    (("--max-total-tokens", "99", "--prefill-policy", "pause"), {"max_total_tokens": 99, "prefill_policy": "pause"}),
    (("--no-simulated-mixed-steps",), {"simulated_mixed_steps": False}),
    (("--cors-allow-origin", "*", "--cors-allow-origin", "null"), {"cors_allow_origin": ("*", "null")}),
    (("org/name",), {"words": ("org/name",)}),
    (("--port", "80", "org/name"), {"port": 80, "words": ("org/name",)}),
    (("--model-id", "org/name"), {"words": ("org/name",)}),
    (("--dtype", "bfloat16", "--revision", "v2"), {"dtype": "bfloat16", "revision": "v2"}),
])
def test_flags_become_settings(get_serve_settings: Callable[..., Any], arguments: tuple[str, ...],
                               settings: dict[str, Any]) -> None:
    assert get_serve_settings(*arguments) == settings


@pytest.mark.parametrize(("settings", "tokens"), [
    ({}, 32_768), ({"model_id": "weft/demo"}, 32_768), ({"max_batch_total_tokens": 64}, 64),
    ({"model_id": "weft/simulated"}, None), ({"model_id": "org/name"}, None)])
def test_built_in_model_has_default_settings_unless_given(settings: dict[str, Any], tokens: int | None) -> None:
    assert cli.add_default_settings(settings).get("max_batch_total_tokens") == tokens


@pytest.mark.parametrize(("settings", "expected"), [
    ({"dialect": "batching"}, {"port": 8500}), ({"dialect": "batching", "port": 1}, {"port": 1}),
    ({"compat": "batching", "max_handlers": 4}, {
        "dialect": "batching", "port": 8500, "max_handlers": 4, "recompute": True}),
    ({"compat": "batching", "batching": "static"}, {"max_handlers": 8, "static_equal_lengths": True}),
    ({"adapter_root": "/a"}, {"adapter_source": "local"}),
    ({"adapter_root": "/a", "adapter_source": "hub"}, {"adapter_source": "hub"})])
def test_settings_may_imply_others_unless_given(settings: dict[str, Any], expected: dict[str, Any]) -> None:
    all_settings = cli.add_default_settings({"model_id": "weft/simulated", **settings})
    assert {name: all_settings[name] for name in expected} == expected


@pytest.mark.parametrize("batching", ["none", "nobatch", "static", "dynamic", "continuous"])
def test_batching_compat_mode_sets_nothing_without_effect(batching: str) -> None:
    """This mode used to warn about a flag that was not given."""
    settings = cli.add_default_settings({"compat": "batching", "batching": batching})
    _, config, _ = cli.make_configs(settings)
    assert describe_unused_settings(
        config, SchedulerSettings.from_config(config, ModelInfo("m", "cpu", "float32", 512, 4096, 16, 64))) == []


@pytest.mark.parametrize("command", ["bench", "study"])
def test_bench_and_study_get_all_arguments(command: str, monkeypatch: Any) -> None:
    called: list[list[str]] = []
    monkeypatch.setattr(delegated_subcommands.os, "execv", lambda _, words: called.append(words))
    cli.run_command_line([command, "batching", "--help", "--rate", "-1"])
    assert called[0][-5:] == [f"benchmarks.{command}", "batching", "--help", "--rate", "-1"]


@pytest.mark.parametrize(("variables", "settings"), [
    ({"WEFT_LOOK_AHEAD": "1"}, {"look_ahead": 1}),
    ({"MAX_BEST_OF": "3"}, {"max_best_of": 3}),
    ({"WEFT_MAX_BEST_OF": "4", "MAX_BEST_OF": "3"}, {"max_best_of": 4}),
    ({"MODEL_ID": "org/name"}, {"words": ("org/name",)}),
    ({"API_KEY": "sk-one", "WEFT_API_KEYS": "keys.json"}, {"api_key": "sk-one", "api_keys": "keys.json"}),
    ({"WEFT_SIMULATED_ADAPTERS": "false"}, {"simulated_adapters": False}),
    ({"JSON_OUTPUT": "true"}, {"json_output": True}),
    ({"OTLP_ENDPOINT": "http://a:4317"}, {"otlp_endpoint": "http://a:4317"}),
    ({"CORS_ALLOW_ORIGIN": "https://a https://b"}, {"cors_allow_origin": ("https://a", "https://b")}),
    ({"LOG_LEVEL": "nonsense", "WEFT_LOG_LEVEL": "debug"}, {"log_level": "debug"}),
    ({"HOSTNAME": "a1b2c3", "WEFT_PORT": "tcp://10.0.0.1:3000"}, {}),
])
def test_variables_become_settings(
        get_serve_settings: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, variables: dict[str, str],
        settings: dict[str, Any]) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert get_serve_settings() == settings


def test_flag_precedes_its_variable(get_serve_settings: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_LOOK_AHEAD", "2")
    assert get_serve_settings("--look-ahead", "1") == {"look_ahead": 1}


@pytest.mark.parametrize(("arguments", "line"), [
    (("serve", "--prot", "80"), "weft: Unknown option: --prot. Did you mean --port?"),
    (("serv",), 'weft: Unknown command "serv". Did you mean "serve"? Available commands: serve, run, chat, '
     'explain, top, models, download, replay, ...'),
    (("serve", "--port", "no"), 'weft: Invalid value for --port: unable to convert "no" into int.'),
    (("serve", "--port", "70000"), 'weft: Invalid value "70000" for --port. Must be <= 65535.'),
    (("serve", "/no/model"), "weft: there is no folder /no/model"),
    (("serve", "--model-id", "/no/model"), "weft: there is no folder /no/model"),
    (("serve", "one", "two"), "weft: unexpected argument: two; `weft serve --help` shows what can be given. A flag "
     "takes one value, and is repeated for several."),
    (("download", "/no/model"), "weft: a model at the Hub has a name such as org/name, got /no/model"),
    (("download", "org/name", "--revision", ".."),
     "weft: --revision must be a branch, a tag or a commit of at most 200 characters, got '..'"),
    (("serve", "--block-size", "17"), "weft: --block-size must be a multiple of 16, got 17"),
    (("serve", "--simulated-num-blocks", "0"), 'weft: Invalid value "0" for --simulated-num-blocks. Must be >= 1.'),
])
def test_invalid_arguments_are_a_one_line_error(run_weft: Callable[..., Any], arguments: tuple[str, ...],
                                                line: str) -> None:
    assert run_weft(*arguments) == (2, "", line + "\n")


def test_temporary_folder_too_long_for_sockets_is_a_one_line_error(
        run_weft: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    (folder := tmp_path / ("x" * 90)).mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    code, _, errors = run_weft("serve", "--port", "0")
    assert code == 2
    assert errors.endswith("is too long for sockets; set TMPDIR to a shorter one\n")


def test_full_disk_is_a_one_line_error(run_weft: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_disk_full() -> Any:
        raise OSError(28, "No space left on device", "/tmp/weft-1")

    monkeypatch.setattr(cli, "create_runtime_folder", raise_disk_full)
    assert run_weft("serve", "--port", "0") == (1, "", "weft: [Errno 28] No space left on device: '/tmp/weft-1'\n")


def test_missing_keys_file_is_reported_before_the_start(run_weft: Callable[..., Any]) -> None:
    code, _, errors = run_weft("serve", "--port", "0", "--api-keys", "/no/keys.json")
    assert (code, errors) == (2, "weft: cannot read /no/keys.json (--api-keys): No such file or directory\n")


def test_missing_chat_template_is_reported_before_the_start(run_weft: Callable[..., Any]) -> None:
    assert run_weft("serve", "--port", "0", "--tokenizer-config-path", "/no/file")[2] == (
        "weft: cannot read /no/file (--tokenizer-config-path): No such file or directory\n")


def test_missing_otel_packages_are_reported_with_the_remedy(
        run_weft: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    assert run_weft("serve", "--port", "0", "--otlp-endpoint", "http://127.0.0.1:4317") == (
        2, "", "weft: --otlp-endpoint needs packages that are not installed: pip install 'weft[otel]'\n")


@pytest.mark.parametrize(("failed", "code"), [
    (LaunchError("no room"), 1), (ConfigurationError("no room"), 2), (TooManyDeathsError("no room"), 70)])
def test_exit_code_depends_on_whether_a_restart_can_help(
        run_weft: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, failed: LaunchError, code: int) -> None:
    async def raise_failure(*_: Any, **__: Any) -> None:
        raise failed

    monkeypatch.setattr(cli, "serve", raise_failure)
    assert run_weft("serve", "--port", "0") == (code, "", "weft: no room\n")


@pytest.fixture
def get_module_call(monkeypatch: pytest.MonkeyPatch,
                    run_weft: Callable[..., Any]) -> Callable[..., tuple[str, dict[str, Any]]]:
    """Return a function that returns the module of a command line and its arguments instead of running it."""
    def run(*arguments: str) -> tuple[str, dict[str, Any]]:
        calls: list[tuple[str, dict[str, Any]]] = []
        monkeypatch.setattr(delegated_subcommands, "run_module_and_exit",
                            lambda name, /, **module_arguments: calls.append((name, module_arguments)))
        assert run_weft(*arguments)[0] == 0
        return calls[0]
    return run


def test_subcommands_run_modules_of_router_and_benchmarks(get_module_call: Callable[..., Any]) -> None:
    assert get_module_call("replay", "/file") == ("router.recording.replay", {"file": "/file"})
    assert get_module_call("simulate", "a", "--like", "b", "--max-batch-size", "8", "--seed", "3") == (
        "router.simulation.simulate", {"trace": "a", "like": "b", "seed": 3, "settings": {"max_batch_size": 8}})
    assert get_module_call("simulate", "a", "--replicas", "3", "--route", "prefix", "--adapter-load-ms", "5") == (
        "router.simulation.replicas", {"trace": "a", "like": "", "seed": 0, "settings": {}, "replicas": 3,
                                       "route": "prefix", "adapter_load_ms": 5.0})
    assert get_module_call("tune", "a", "--goal", "ttft=5ms") == (
        "benchmarks.settings_search", {"trace": "a", "goal": "ttft=5ms", "like": "", "seed": 0})


def test_chat_gets_its_settings_and_the_key(run_weft: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    monkeypatch.setattr("launcher.client.terminal_chat.run_chat",
                        lambda settings, api_key: calls.append((settings, api_key)) or 3)
    assert run_weft("chat", "--url", "http://loom", "--max-tokens", "5", "--api-key", "sk-loom")[0] == 3
    assert calls == [(ChatSettings("http://loom", max_tokens=5), "sk-loom")]


@pytest.mark.parametrize(("words", "source_token", "fields"), [
    (("ls", "--json"), "", {"do": "ls", "as_json": True}),
    (("load", "org/a", "--source", "hub", "--alias", "a", "--token", "hf-loom"), "hf-loom",
     {"do": "load", "adapter": "org/a", "source": "hub", "alias": "a", "as_json": False}),
    (("load", "org/a"), "", {"do": "load", "adapter": "org/a", "source": "", "alias": "", "as_json": False}),
    (("unload", "org/a"), "", {"do": "unload", "adapter": "org/a", "as_json": False})])
def test_adapters_client_gets_its_command_and_secrets(
        run_weft: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], source_token: str,
        fields: dict[str, Any]) -> None:
    calls: list[Any] = []
    monkeypatch.setenv("WEFT_API_KEY", "sk-loom")
    monkeypatch.setattr("launcher.client.adapters.run_adapters_command", lambda *values: calls.append(values) or 0)
    assert run_weft("adapters", *words)[0] == 0
    assert calls == [(AdaptersCommand(url="http://127.0.0.1:3000", **fields), "sk-loom", source_token)]


def test_migrate_translates_a_foreign_command_line(run_weft: Callable[..., Any]) -> None:
    code, out, errors = run_weft("migrate", "--", "text-generation-launcher", "--model-id", "org/name", "-e")
    assert (code, errors) == (0, "")
    assert out.startswith("weft serve --model-id org/name ")
    assert run_weft("migrate")[2].startswith(
        "weft: a command line of text-generation-launcher or lorax-launcher is needed, as in ")


def test_errors_are_json_objects_with_json_output(run_weft: Callable[..., Any]) -> None:
    code, out, errors = run_weft("serve", "/no/model", "--json-output")
    log_record = json.loads(errors)
    assert (code, out, log_record["level"], log_record["process"]) == (2, "", "ERROR", "launcher")
    assert log_record["message"] == "there is no folder /no/model"


@pytest.mark.parametrize("flags", [("--route", "least"), ("--adapter-load-ms", "5"), ("--max-active-adapters", "8")])
def test_settings_of_replicas_need_replicas(run_weft: Callable[..., Any], flags: tuple[str, str]) -> None:
    code, _, errors = run_weft("simulate", "a", *flags)
    assert (code, errors.startswith(f"weft: {flags[0]} is given, but without --replicas")) == (2, True)


def test_routing_policies_of_the_command_line_are_those_of_the_simulation() -> None:
    assert get_args(delegated_subcommands.RoutingPolicyName) == tuple(ROUTING_POLICIES)


def test_server_variables_do_not_apply_to_simulations(
        get_module_call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_MAX_BATCH_SIZE", "3")
    assert get_module_call("simulate", "a")[1]["settings"] == {}


def test_only_scheduler_settings_can_be_simulated(run_weft: Callable[..., Any]) -> None:
    assert run_weft("simulate", "a", "--port", "80")[0] == 2
    assert set(cli.SIMULATE_SETTINGS) < set(cli.SETTINGS_BY_NAME)


def test_doctor_examines_the_server_described_by_flags_and_variables(
        run_weft: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(cli.doctor, "run_doctor", lambda settings, _, *,
                        as_json: calls.append((settings, as_json)) or 1)
    monkeypatch.setenv("PORT", "80")
    assert run_weft("doctor", "org/name", "--num-shard", "2", "--json") == (1, "", "")
    configs = cli.make_configs({"model_id": "org/name", "num_shard": 2, "port": 80})
    assert calls == [(cli.doctor.DoctorSettings(*configs), True)]


@pytest.mark.slow
def test_child_error_and_exit_code_are_passed_on(
        monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["weft", "replay", "/no/file"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert (ended.value.code, *capfd.readouterr()) == (2, "", "weft: cannot read /no/file: No such file or directory\n")


def test_version_can_be_asked_as_a_command(run_weft):
    assert run_weft("version") == run_weft("--version") == (0, f"{version('weft')}\n", "")


def test_help_of_serve_fits_on_a_screen_and_leads_to_the_rest(run_weft):
    code, short_help, _ = run_weft("serve", "--help")
    assert code == 0
    assert len(short_help.splitlines()) < 60
    assert "--port" in short_help
    assert "--look-ahead" not in short_help
    assert f"weft serve --help-all shows all {len(cli.SETTINGS_BY_NAME)} settings" in " ".join(short_help.split())


def test_all_settings_can_be_shown(run_weft):
    code, full_help, _ = run_weft("serve", "org/name", "--help-all")
    assert code == 0
    assert "--look-ahead" in full_help
    assert "--simulated-faults" in full_help
    assert all(title in full_help for title in cli.SETTING_GROUPS)


def test_flags_that_the_short_help_leaves_out_are_understood(get_serve_settings):
    assert get_serve_settings("--look-ahead", "1", "--simulated-seed", "3") == {"look_ahead": 1, "simulated_seed": 3}


def test_file_of_settings_yields_to_variables_and_flags(
        get_serve_settings: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (path := tmp_path / "weft.yaml").write_text("port: 81\nnum_shard: 3\nmax-batch-size: 5\nadapters: true\n"
                                                "cors-allow-origin: ['*', 'null']\nmodel-id: org/name\n")
    monkeypatch.setenv("WEFT_NUM_SHARD", "2")
    settings = get_serve_settings("--port", "80", "--config", str(path))
    assert {**settings, "config": ""} == {
        "port": 80, "num_shard": 2, "max_batch_size": 5, "adapters": True, "cors_allow_origin": ("*", "null"),
        "words": ("org/name",), "config": ""}


def test_fault_in_a_file_of_settings_is_a_one_line_error(run_weft: Callable[..., Any], tmp_path: Path) -> None:
    (path := tmp_path / "weft.yaml").write_text("port: high\n")
    code, _, error = run_weft("serve", "--config", str(path))
    assert (code, error.count("\n")) == (2, 1)
    assert "port" in error
    assert "high" in error


def test_run_passes_its_settings_on(run_weft: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    runs = list[Any]()
    monkeypatch.setattr(cli, "run_model", lambda settings, command: runs.append(settings) or 3)
    assert run_weft("run", "org/name", "--num-shard", "2")[0] == 3
    assert runs == [{"model_id": "org/name", "num_shard": 2}]


def test_completion_scripts_know_commands_and_flags(run_weft: Callable[..., Any]) -> None:
    for shell in ("bash", "zsh", "fish"):
        code, script, _ = run_weft("completion", shell)
        assert code == 0
        assert "serve" in script
        assert "max-batch-size" in script


def test_models_of_the_cache_are_listed_and_removed(
        run_weft: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    (tmp_path / "models--org--name" / "blobs").mkdir(parents=True)
    for arguments in (("models",), ("models", "ls")):
        assert "org/name" in run_weft(*arguments)[1]
    assert run_weft("models", "rm", "org/name") == (0, "removed org/name, 0 B\n", "")
    assert run_weft("models")[1] == f"no models in {tmp_path}\n"
    code, _, error = run_weft("models", "rm", "org/name")
    assert (code, error.startswith("weft: there is no model org/name in")) == (2, True)


@pytest.mark.parametrize(("name", "line"), [
    ("weft/dmeo", "weft: weft/dmeo does not come with weft; did you mean weft/demo?"),
    ("weft/demo", "weft: weft/demo comes with weft, so there is nothing to download")])
def test_built_in_names_are_not_downloaded(run_weft: Callable[..., Any], name: str, line: str) -> None:
    assert run_weft("download", name) == (2, "", f"{line}\n")


def test_run_chooses_port_and_output_itself(run_weft: Callable[..., Any], tmp_path: Path,
                                            monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable is one of text-generation-inference's, and without a banner nobody would learn the address."""
    runs = list[Any]()
    monkeypatch.setattr(cli, "run_model", lambda settings, command: runs.append(settings) or 0)
    monkeypatch.setenv("JSON_OUTPUT", "true")
    monkeypatch.setenv("PORT", "80")
    (path := tmp_path / "weft.yaml").write_text("port: 81\nnum-shard: 2\n")
    assert run_weft("run", "--config", str(path))[0] == 0
    assert runs == [{"num_shard": 2}]
    assert "Unknown option: --port" in run_weft("run", "--port", "80")[2]


def test_explain_takes_a_url_alone_for_the_list_of_requests(run_weft: Callable[..., Any]) -> None:
    code, _, error = run_weft("explain", "http://127.0.0.1:9")
    assert (code, error.startswith("weft: cannot reach http://127.0.0.1:9:")) == (1, True)


@pytest.fixture
def deploy_ray(monkeypatch: pytest.MonkeyPatch, run_weft: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that runs `weft deploy ray` and returns target, options and server, without a cluster."""
    def run(*arguments: str) -> Any:
        calls = list[Any]()
        fake = SimpleNamespace(RayTarget=lambda *fields: fields, DeploymentFailed=LaunchError,
                               deploy=lambda *call: calls.append(call))
        monkeypatch.setattr(cli, "check_ray_installed", lambda: None)
        monkeypatch.setattr(cli, "import_module", lambda name: {"launcher.ray_serve.deploy": fake}[name])
        assert run_weft("deploy", "ray", *arguments) == (0, "", "")
        return calls[0]
    return run


def test_deploy_ray_sends_options_to_ray_and_settings_to_servers(deploy_ray: Callable[..., Any]) -> None:
    target, options, server = deploy_ray("org/name", "--replicas", "2", "--gpus", "0.5", "--port", "80", "--app-name",
                                         "a", "--max-batch-size", "8")
    assert target == ("auto", "a", "127.0.0.1", 80)
    assert options == RayOptions(replicas=2, gpus=0.5)
    assert server.arguments == ("-P", "-m", "launcher.cli", "serve", "--model-id=org/name", "--port=0",
                                "--max-batch-size=8", "--hostname=127.0.0.1", "--no-json-output")


def test_deploy_ray_reads_a_file_of_settings(deploy_ray: Callable[..., Any], tmp_path: Path) -> None:
    (path := tmp_path / "weft.yaml").write_text("model-id: org/name\nport: 81\njson-output: true\n")
    target, _, server = deploy_ray("--config", str(path))
    assert (target[3], server.model_id) == (81, "org/name")


def test_deploy_ray_without_ray_is_a_one_line_error(run_weft: Callable[..., Any],
                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launcher.ray_serve.options.find_spec", lambda _: None)
    assert run_weft("deploy", "ray") == (
        2, "", "weft: weft deploy ray needs Ray Serve, which is not installed: pip install 'weft[ray]'\n")


@pytest.mark.parametrize(("arguments", "line"), [
    (("--replicas", "0"), 'weft: Invalid value "0" for --replicas. Must be >= 1.'),
    (("--replicas", "3", "--max-replicas", "2"), "weft: --max-replicas must be at least --replicas 3, got 2"),
    (("--port", "0"), "weft: --port must be at least 1 on Ray, whose proxies have the same one everywhere, got 0"),
    (("--block-size", "17"), "weft: --block-size must be a multiple of 16, got 17")])
def test_invalid_options_of_deploy_ray_are_a_one_line_error(
        run_weft: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], line: str) -> None:
    monkeypatch.setattr(cli, "check_ray_installed", lambda: None)
    assert run_weft("deploy", "ray", *arguments) == (2, "", f"{line}\n")


def test_host_of_a_group_stops_after_the_first_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
                                                   run_weft: Callable[..., tuple[int, str, str]]) -> None:
    seconds: list[float] = []

    async def record_seconds(*_: Any, seconds_to_finish: float, **__: Any) -> None:
        seconds.append(seconds_to_finish)

    monkeypatch.setattr(cli, "serve_member", record_seconds)
    command = ("serve", "weft/simulated", "--nnodes", "2", "--node-rank", "1", "--dist-init-addr", "127.0.0.1",
               "--shard-credentials", make_self_signed(tmp_path), "--shutdown-delay", "7", "--shutdown-timeout", "20")
    code, _, errors = run_weft(*command)
    assert (code, seconds) == (0, [7 + 20 + 5])
    assert "may read" not in errors
    (tmp_path / "secret").chmod(0o604)
    assert f"all users of this host may read secret in {tmp_path} (--shard-credentials)" in run_weft(*command)[2]


def test_server_warns_of_variables_that_it_ignores(monkeypatch: pytest.MonkeyPatch,
                                                   run_weft: Callable[..., tuple[int, str, str]]) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "host0", "MASTER_PORT": "29400"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(cli, "serve", lambda *_, **__: asyncio.sleep(0))
    code, _, errors = run_weft("serve", "weft/simulated", "--port", "0")
    assert code == 0
    assert "WORLD_SIZE=4 is ignored: without --shard-credentials this host serves alone" in errors
