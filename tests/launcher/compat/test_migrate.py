"""Tests of `weft migrate`, which translates another server's command line into weft's."""

import re
import shlex
from pathlib import Path

import pytest

from launcher.compat.migrate import TABLES, migrated

PAGE = Path(__file__).parents[3] / "docs/migrating.md"


def ours(line: str, **environment: str) -> str:
    return migrated(shlex.split(line), environment)


def test_a_line_is_told_with_what_is_otherwise_by_default() -> None:
    assert ours("text-generation-launcher --model-id org/name") == (
        "weft serve --model-id org/name --hostname 0.0.0.0 --cors-allow-origin '*' --shutdown-timeout 90")


def test_what_is_left_out_stands_above_as_comments() -> None:
    given = "text-generation-launcher --model-id org/name --usage-stats off --prometheus-port 5"
    *notes, line = ours(given).splitlines()
    assert notes == ["# --prometheus-port has no effect: metrics have no port of their own",
                     "# --usage-stats is not needed: weft tells nobody anything"]
    assert line.startswith("weft serve --model-id org/name ")


def test_variables_before_the_line_belong_to_it() -> None:
    line = ours("MODEL_ID=org/name HF_TOKEN='a b' /usr/bin/text-generation-launcher --api-key sk-one")
    assert line.startswith("HF_TOKEN='a b' WEFT_API_KEY=sk-one weft serve --model-id org/name ")


def test_variables_of_whoever_asks_do_not_but_for_the_gpus_of_this_machine() -> None:
    line = ours("text-generation-launcher --model-id org/name", MAX_INPUT_TOKENS="5", CUDA_VISIBLE_DEVICES="0,1")
    assert "--max-input-tokens" not in line
    assert line.endswith(" --num-shard 2")


def test_flags_of_ours_stay() -> None:
    assert ours("text-generation-launcher --model-id org/name --max-queue-ms 5").endswith(" --max-queue-ms 5")


def test_a_line_of_lorax_is_understood_and_a_variable_that_weft_follows_stays() -> None:
    line = ours("S3_ENDPOINT_URL=https://s3 HF_TOKEN=a SOURCE=hub lorax-launcher --model-id org/name@v2")
    assert line.startswith("# SOURCE is not needed: ")
    assert line.splitlines()[1].startswith(
        "HF_TOKEN=a S3_ENDPOINT_URL=https://s3 weft serve --model-id org/name --revision v2 --max-concur")
    assert line.endswith(" --adapters --compat lorax --shutdown-timeout 90")


def test_a_line_that_only_downloads_becomes_a_download() -> None:
    assert ours("lorax-launcher --model-id org/name --download-only -p 80") == "weft download org/name"


def test_what_is_refused_is_refused_here_too() -> None:
    with pytest.raises(ValueError, match="--trust-remote-code is refused"):
        ours("text-generation-launcher --model-id org/name --trust-remote-code")


@pytest.mark.parametrize(("line", "got"), [("", "nothing"), ("docker run tgi", "docker run tgi"), ("A=1", "nothing")])
def test_another_command_line_is_not_understood(line: str, got: str) -> None:
    with pytest.raises(ValueError, match=f"{' or '.join(TABLES)} is needed, as in .*, got {got}$"):
        ours(line)


def test_the_page_shows_what_is_printed() -> None:
    shown = re.findall(r"^\$ weft migrate -- (.*)\n((?:.+\n)+?)```", PAGE.read_text(), re.MULTILINE)
    assert {line.split()[0] for line, _ in shown} == set(TABLES)
    assert [(line, ours(line) + "\n") for line, _ in shown] == shown
