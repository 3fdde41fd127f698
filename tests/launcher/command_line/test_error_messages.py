"""Tests of messages for mistakes on the command line."""

import re

import pytest
from cyclopts import CycloptsError

from launcher.cli import make_app
from launcher.command_line.error_messages import HINTS_BY_FLAG, describe_error, name_flags_as_given
from launcher.settings import SETTINGS_BY_NAME
from shard.lora.routing import MAX_PADDED_RANK


def get_error_message(*arguments: str) -> str:
    with pytest.raises(CycloptsError) as caught:
        make_app()(arguments, exit_on_error=False, print_error=False)
    return describe_error(caught.value)


@pytest.mark.parametrize(("command", "needed"), [
    (("simulate",), "weft simulate needs TRACE: recording, or a plain trace"),
    (("tune", "--goal", "ttft=1s"), "weft tune needs TRACE: recording, or a plain trace"),
    (("download",), "weft download needs MODEL_ID: name of a model at the Hub"),
    (("adapters", "load"), "weft adapters load needs ADAPTER: name of the adapter in its source"),
])
def test_a_missing_argument_is_named_with_its_meaning(command: tuple[str, ...], needed: str) -> None:
    message = get_error_message(*command)
    assert message.startswith(needed)
    assert message.endswith(f"`weft {' '.join(word for word in command if '=' not in word and word != '--goal')} "
                            "--help` says more.")


def test_a_missing_flag_keeps_the_message_of_the_parser() -> None:
    assert get_error_message("tune", "trace.jsonl") == 'Command "tune" parameter --goal requires an argument.'


@pytest.mark.parametrize("format_name", ["awq", "GPTQ", "fp8", "compressed-tensors"])
def test_formats_of_checkpoints_need_no_flag(format_name: str) -> None:
    assert "needs no flag: its config.json names the format" in get_error_message("serve", "--quantize", format_name)


def test_other_values_get_no_hint() -> None:
    assert "config.json" not in get_error_message("serve", "--quantize", "eetq")
    assert "config.json" not in get_error_message("serve", "--dtype", "fp8")


@pytest.mark.parametrize("format_name", ["bitsandbytes-nf4", "gptq-int4"])
def test_formats_made_while_loading_are_answered_by_those_of_weft(format_name: str) -> None:
    message = get_error_message("serve", "--quantize", format_name)
    assert 'Choose from: "int8", "int4".' in message
    assert "quantized already (AWQ, GPTQ, fp8, compressed-tensors) need no flag." in message


@pytest.mark.parametrize(("arguments", "hint"), [
    (("serve", "--kv-cache-dtype", "fp8"), "Unknown option: --kv-cache-dtype. Leave it out: "),
    (("serve", "org/name", "--gpu-memory-utilization=0.9"), "Unknown option: --gpu-memory-utilization. --memory-fr"),
    (("run", "--max_lora_rank", "8"), "Unknown option: --max_lora_rank. Leave it out: adapters of ranks up to 1,024"),
    (("doctor", "-ngl", "99"), "Unknown option: -ngl. Leave it out: with --device cuda"),
    (("serve", "-m", "org/name"), "Unknown option: -m. Give the model without a flag"),
    (("run", "--port", "80"), "Unknown option: --port. `weft run` takes a free port"),
    (("pull", "llama3.2"), 'Unknown command "pull". `weft download org/name` downloads a model.'),
    (("serv",), 'Unknown command "serv". Did you mean "serve"?'),
    (("serve", "--unknown-flag"), "Unknown option: --unknown-flag."),
    (("chat", "--tokenizer", "a"), "Unknown option: --tokenizer. Did you mean --max-tokens?"),
])
def test_flags_of_other_servers_are_answered_with_what_to_do(arguments: tuple[str, ...], hint: str) -> None:
    assert get_error_message(*arguments).startswith(hint)


@pytest.mark.parametrize(("arguments", "hint"), [
    (("serve", "org/name", "--lora-modules", "a=1", "b=2"), ". A flag takes one value, and is repeated for several."),
    (("serve", "org/name", "--adapters", "/tmp"), ". A folder that contains adapters is named by --adapter-root."),
    (("models", "rm", "a", "b"), "")])
def test_unexpected_arguments_are_answered_with_where_they_belong(arguments: tuple[str, ...], hint: str) -> None:
    command = " ".join(arguments[:2 if arguments[0] == "models" else 1])
    assert get_error_message(*arguments) == (
        f"unexpected argument: {arguments[-1]}; `weft {command} --help` shows what can be given{hint}")


def test_hints_name_flags_that_there_are() -> None:
    known = {flag for setting in SETTINGS_BY_NAME.values() for flag in setting.flags}
    known |= {"--replicas", "--no-cuda-graphs", "--no-request-log"}
    for flag, hint in HINTS_BY_FLAG.items():
        assert flag not in known
        assert set(re.findall(r"--[a-z][a-z-]+", hint)) <= known


def test_highest_rank_of_the_hint_is_that_of_the_shard() -> None:
    assert f"up to {MAX_PADDED_RANK:,}" in HINTS_BY_FLAG["--max-lora-rank"]


@pytest.mark.parametrize(("arguments", "message"), [
    (("serve", "--max-model-len", "9"), "--max-model-len is 9, --max-total-tokens-per-user is 3"),
    (("serve", "--max-model-len=9"), "--max-model-len is 9, --max-total-tokens-per-user is 3"),
    (("serve", "--max-total-tokens", "9", "--max-model-len", "8"),
     "--max-total-tokens is 9, --max-total-tokens-per-user is 3"),
    ((), "--max-total-tokens is 9, --max-total-tokens-per-user is 3")])
def test_messages_name_flags_as_they_were_given(arguments: tuple[str, ...], message: str) -> None:
    assert name_flags_as_given("--max-total-tokens is 9, --max-total-tokens-per-user is 3", arguments) == message


def test_other_errors_are_described_by_their_text() -> None:
    assert describe_error(ValueError("too many")) == "too many"
