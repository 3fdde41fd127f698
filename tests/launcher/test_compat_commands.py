"""Tests of the commands of text-generation-inference and LoRAX: settings, messages and exit codes."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher import cli
from launcher import compat_commands as commands

CommandResult = tuple[int, str, str]


@pytest.fixture
def run_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., CommandResult]:
    """Return a function that runs a command in a temporary environment: exit code, stdout, stderr."""
    variables = dict(os.environ)
    monkeypatch.setattr(os, "environ", variables)
    monkeypatch.setattr(commands, "count_gpus", lambda: 0)
    for name in ("HOSTNAME", "PORT", "MODEL_ID"):
        variables.pop(name, None)

    def run(*arguments: str, **environment: str) -> CommandResult:
        monkeypatch.setattr("sys.argv", list(arguments))
        variables.update(environment)
        command = {"text-generation-launcher": commands.text_generation_launcher,
                   "text-generation-server": commands.text_generation_server,
                   "lorax-launcher": commands.lorax_launcher, "lorax-server": commands.lorax_server}[arguments[0]]
        with pytest.raises(SystemExit) as stopped:
            raise SystemExit(command() or 0)
        return (stopped.value.code, *capsys.readouterr())
    return run


@pytest.fixture
def served_settings(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Record the settings of a server instead of starting it."""
    settings: list[dict[str, Any]] = []
    monkeypatch.setattr(cli, "serve_command",
                        lambda *words, **arguments: settings.append(arguments | ({"words": words} if words else {})))
    return settings


def test_text_generation_launcher_serves_with_translated_settings(run_command: Callable[..., CommandResult],
                                                                  served_settings: list[dict[str, Any]]) -> None:
    assert run_command("text-generation-launcher", "--model-id", "org/name", "-p", "80", MAX_BEST_OF="3") == (0, "", "")
    assert served_settings == [{"words": ("org/name",), "hostname": "0.0.0.0", "port": 80, "max_best_of": 3,
                                "cors_allow_origin": ("*",), "shutdown_timeout": 90.0}]


def test_api_key_is_passed_to_the_server_by_variable(run_command: Callable[..., CommandResult],
                                                     served_settings: list[dict[str, Any]]) -> None:
    assert run_command("text-generation-launcher", "--model-id", "org/name", "--api-key", "sk-one")[0] == 0
    assert (served_settings[0]["api_key"], os.environ["WEFT_API_KEY"]) == ("sk-one", "sk-one")


def test_model_must_be_named_and_has_no_default(
        run_command: Callable[..., CommandResult], served_settings: list[dict[str, Any]]) -> None:
    assert run_command("text-generation-launcher") == (
        2, "", "weft: a model must be named: --model-id org/name, or MODEL_ID\n")
    assert served_settings == []


def test_missing_model_is_not_replaced_by_the_demo_model(run_command: Callable[..., CommandResult],
                                                         tmp_path: Path) -> None:
    code, out, errors = run_command("text-generation-launcher", "--model-id", "org/name", "--port", "0",
                                    HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path))
    assert (code, out) == (2, "")
    assert errors.startswith("weft: there is no model org/name: ")


def test_lorax_launcher_serves_with_translated_settings(run_command: Callable[..., CommandResult],
                                                        served_settings: list[dict[str, Any]]) -> None:
    line = ("lorax-launcher", "--model-id", "org/name@v2", "-p", "80", "--preloaded-adapter-ids", "org/one",
            "--preloaded-adapter-ids", "org/two", "--adapter-memory-fraction", "0.2")
    assert run_command(*line, MAX_ACTIVE_ADAPTERS="3", ADAPTER_SOURCE="s3") == (0, "", "")
    assert served_settings == [{
        "words": ("org/name",), "revision": "v2", "hostname": "0.0.0.0", "port": 80, "cors_allow_origin": ("*",),
        "adapters": True, "compat": "lorax", "adapter_source": "s3", "preloaded_adapter_ids": ("org/one", "org/two"),
        "max_active_adapters": 3, "adapter_memory_fraction": 0.2, "max_concurrent_requests": 1024,
        "shutdown_timeout": 90.0}]


def test_lorax_launcher_has_its_own_default_model(
        run_command: Callable[..., CommandResult], tmp_path: Path) -> None:
    code, out, errors = run_command("lorax-launcher", "--port", "0", HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path))
    assert (code, out, errors.count("\n")) == (2, "", 1)
    assert errors.startswith("weft: there is no model mistralai/Mistral-7B-Instruct-v0.1: ")


@pytest.mark.parametrize(("words", "line"), [
    (("--compile", "--eager"), "weft: --eager and --compile contradict each other; give one"),
    (("--model-id", "org/name@v1", "--revision", "v1"), "weft: --model-id names the revision v1 already, so "),
    (("--adapter-source", "pbase"), "weft: --adapter-source is refused: Predibase's registry is not served"),
    (("--adapter-memory-fraction", "2"), 'weft: Invalid value "2.0" for --adapter-memory-fraction'),
    (("org/name",), "weft: unexpected argument: org/name; `weft serve --help` shows"),
])
def test_unsupported_lorax_launcher_flags_are_a_one_line_error(
        run_command: Callable[..., CommandResult], words: tuple[str, ...], line: str) -> None:
    code, out, errors = run_command("lorax-launcher", *words)
    assert (code, out, errors.count("\n")) == (2, "", 1)
    assert errors.startswith(line)


def test_flags_without_effect_are_noted_in_a_line_each(run_command: Callable[..., CommandResult],
                                                       served_settings: list[dict[str, Any]]) -> None:
    _, out, errors = run_command("text-generation-launcher", "--model-id", "a/b", "--prometheus-port", "5",
                                 "--master-port", "5", "--usage-stats", "off")
    assert out == ""
    assert errors == ("weft: --master-port has no effect: shards meet at a file of their own\n"
                      "weft: --prometheus-port has no effect: metrics have no port of their own\n")


def test_notes_are_json_with_json_output(run_command: Callable[..., CommandResult],
                                         served_settings: list[dict[str, Any]]) -> None:
    _, _, errors = run_command("text-generation-launcher", "--model-id", "a/b", "--json-output", HOSTNAME="4f2d9a1c")
    log_record = json.loads(errors)
    assert (log_record["level"], log_record["process"]) == ("WARN", "launcher")
    assert log_record["message"].startswith("HOSTNAME is no address (4f2d9a1c)")


@pytest.mark.parametrize(("words", "line"), [
    (("--trust-remote-code",), "weft: --trust-remote-code is refused: weft runs no code"),
    (("--max-input-length", "5", "--max-input-tokens", "5"), "weft: --max-input-tokens and --max-input-length are"),
    (("--max-input-tokens", "5", "--max-total-tokens", "5"), "weft: --max-input-tokens (5) must be below"),
    (("--max-total-tokens", "99", "--max-batch-total-tokens", "98"), "weft: --max-total-tokens (99) must be at most"),
    (("--validation-workers", "0"), 'weft: Invalid value "0" for --validation-workers'),
    (("--sharded", "true", "--num-shard", "1"), "weft: --sharded true needs at least 2 shards, got 1"),
    (("--quantize", "exl2", "--num-shard", "2"), "weft: --quantize is refused: "),
    (("--ngrok",), "weft: --ngrok is refused: "),
    (("--prot", "80"), "weft: Unknown option: --prot. Did you mean --port?"),
    (("--cors-allow-origin", "a.org"), "weft: --cors-allow-origin must be * or an origin"),
])
def test_unsupported_tgi_launcher_flags_are_a_one_line_error(
        run_command: Callable[..., CommandResult], words: tuple[str, ...], line: str) -> None:
    code, out, errors = run_command("text-generation-launcher", "--model-id", "org/name", *words)
    assert (code, out, errors.count("\n")) == (2, "", 1)
    assert errors.startswith(line)


def test_environment_is_described_on_request(
        run_command: Callable[..., CommandResult], served_settings: list[dict[str, Any]]) -> None:
    _, _, errors = run_command("text-generation-launcher", "--model-id", "a/b", "-e")
    assert errors.startswith("weft: ok       python ")
    assert " torch " in errors
    assert errors.splitlines()[-1].endswith(", 0 GPUs")
    assert len(served_settings) == 1


def test_every_command_has_help(run_command: Callable[..., CommandResult]) -> None:
    assert "--default-adapter-source" in run_command("lorax-launcher", "--help")[1]
    assert "download-weights" in run_command("lorax-server", "--help")[1]
    assert "--max-concurrent-requests" in run_command("text-generation-launcher", "--help")[1]
    assert "download-weights" in run_command("text-generation-server", "--help")[1]


@pytest.fixture
def download_arguments(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    arguments: list[list[str]] = []
    monkeypatch.setattr(commands, "run_command_line", arguments.append)
    return arguments


@pytest.mark.parametrize(("words", "revision"), [
    ((), "main"), (("--revision", "v2"), "v2"),
    (("--extension", ".safetensors", "--auto-convert", "--logger-level", "INFO", "--no-json-output"), "main")])
def test_download_weights_becomes_weft_download(run_command: Callable[..., CommandResult],
                                                download_arguments: list[list[str]], words: tuple[str, ...],
                                                revision: str) -> None:
    assert run_command("text-generation-server", "download-weights", "org/name", *words)[0] == 0
    assert download_arguments == [["download", "org/name", "--revision", revision]]


def test_lorax_launcher_can_only_download(run_command: Callable[..., CommandResult],
                                          download_arguments: list[list[str]]) -> None:
    assert run_command("lorax-launcher", "--model-id", "org/name@v2", "--download-only", "--sharded", "false")[0] == 0
    assert run_command("lorax-launcher", DOWNLOAD_ONLY="true")[0] == 0
    assert download_arguments == [["download", "org/name", "--revision", "v2"],
                                  ["download", "mistralai/Mistral-7B-Instruct-v0.1", "--revision", "main"]]


def test_lorax_server_download_weights_becomes_weft_download(run_command: Callable[..., CommandResult],
                                                             download_arguments: list[list[str]]) -> None:
    line = ("lorax-server", "download-weights", "org/name", "--source", "hub", "--extension", ".safetensors")
    assert run_command(*line, "--api-token", "hf_one") == (0, "", "")
    assert os.environ["HF_TOKEN"] == "hf_one"
    assert run_command(*line, "--adapter-id", "org/adapter", "--adapter-source", "hub") == (
        0, "", "weft: --adapter-id has no effect: org/adapter is fetched when a server starts with it\n")
    assert download_arguments == [["download", "org/name", "--revision", "main"]] * 2


def test_download_of_a_folder_only_checks_that_it_holds_a_model(run_command: Callable[..., CommandResult],
                                                                tmp_path: Path) -> None:
    code, _, errors = run_command("text-generation-server", "download-weights", str(tmp_path))
    assert (code, errors.startswith(f"weft: {tmp_path} has no config.json")) == (2, True)
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (tmp_path / name).write_text("{}")
    assert run_command("text-generation-server", "download-weights", str(tmp_path)) == (
        0, "", f"weft: {tmp_path} is a folder of this machine, so there is nothing to download\n")


@pytest.mark.parametrize("program", ["text-generation", "lorax"])
@pytest.mark.parametrize(("words", "text"), [
    (("quantize", "org/name", "/out"), "weft writes no quantized checkpoints"),
    (("serve", "org/name", "--sharded"), "`weft serve MODEL --num-shard N` starts all that a server has"),
    (("downlaod-weights", "org/name"), "invalid choice: 'downlaod-weights'"),
    (("download-weights",), "the following arguments are required: model_id"),
    ((), "the following arguments are required: download-weights"),
    (("serve", "org/name"), "{program}-launcher does so under the flags that it had"),
    (("download-weights", "org/name", "--source", "s3"), "argument --source: invalid choice: 's3'"),
])
def test_unsupported_server_commands_are_a_one_line_error(
        run_command: Callable[..., CommandResult], program: str, words: tuple[str, ...], text: str) -> None:
    code, out, errors = run_command(f"{program}-server", *words)
    assert (code, out, errors.count("\n")) == (2, "", 1)
    assert text.format(program=program) in errors
