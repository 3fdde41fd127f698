"""Tests of messages for mistakes on the command line."""

import pytest
from cyclopts import CycloptsError

from launcher.cli import make_app
from launcher.command_line.error_messages import describe_error


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


def test_other_errors_are_described_by_their_text() -> None:
    assert describe_error(ValueError("too many")) == "too many"
