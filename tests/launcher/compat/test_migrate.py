"""Tests of `weft migrate`, which translates another server's command line into weft's."""

import re
import shlex
from pathlib import Path

import pytest

from launcher.compat.migrate import TABLES_BY_PROGRAM, RefusedFlagsError, translate_command_line

GUIDES_FOLDER = Path(__file__).parents[3] / "docs/guides"
GUIDES_BY_PROGRAM = {"text-generation-launcher": "from-tgi.md", "lorax-launcher": "from-lorax.md"}


def migrate_line(line: str, **environment: str) -> str:
    return translate_command_line(shlex.split(line), environment)


def test_migrated_line_includes_differing_defaults() -> None:
    assert migrate_line("text-generation-launcher --model-id org/name") == (
        "weft serve --model-id org/name --hostname 0.0.0.0 --cors-allow-origin '*' --shutdown-timeout 90")


def test_omitted_flags_are_comments_above_the_line() -> None:
    command_line = "text-generation-launcher --model-id org/name --usage-stats off --prometheus-port 5"
    *notes, line = migrate_line(command_line).splitlines()
    assert notes == ["# --prometheus-port has no effect: metrics have no port of their own",
                     "# --usage-stats is not needed: weft tells nobody anything"]
    assert line.startswith("weft serve --model-id org/name ")


def test_variables_before_the_command_are_migrated() -> None:
    line = migrate_line("MODEL_ID=org/name HF_TOKEN='a b' /usr/bin/text-generation-launcher --api-key sk-one")
    assert line.startswith("HF_TOKEN='a b' WEFT_API_KEY=sk-one weft serve --model-id org/name ")


def test_caller_variables_are_ignored_but_for_visible_gpus() -> None:
    line = migrate_line("text-generation-launcher --model-id org/name", MAX_INPUT_TOKENS="5",
                        CUDA_VISIBLE_DEVICES="0,1")
    assert "--max-input-tokens" not in line
    assert line.endswith(" --num-shard 2")


def test_weft_flags_are_kept() -> None:
    assert migrate_line("text-generation-launcher --model-id org/name --max-queue-ms 5").endswith(" --max-queue-ms 5")


def test_lorax_line_is_migrated_and_known_variables_are_kept() -> None:
    line = migrate_line("S3_ENDPOINT_URL=https://s3 HF_TOKEN=a SOURCE=hub lorax-launcher --model-id org/name@v2")
    assert line.startswith("# SOURCE is not needed: ")
    assert line.splitlines()[1].startswith(
        "HF_TOKEN=a S3_ENDPOINT_URL=https://s3 weft serve --model-id org/name --revision v2 --max-concur")
    assert line.endswith(" --adapters --compat lorax --shutdown-timeout 90")


@pytest.mark.parametrize(("line", "expected"), [
    ("docker run --gpus all --shm-size 1g -p 8080:80 -e HF_TOKEN=a -v /d:/data ghcr.io/huggingface/"
     "text-generation-inference:3.3.4 --model-id org/name --max-total-tokens 512",
     r"# options of the container are left out: --gpus all --shm-size 1g -v /d:/data\. A path .*\n# --hostname .*\n"
     r"HF_TOKEN=a weft serve --model-id org/name .*--max-total-tokens 512.*--hostname 0\.0\.0\.0 .*--port 8080"),
    ("docker run -p 127.0.0.1:8080:80 -p 9000:9000 lorax --model-id org/name",
     r"# (.*\n# )*options of the container are left out: -p 9000:9000\. (.*\n)+"
     r"weft serve --model-id org/name .*--hostname 127\.0\.0\.1 .*--port 8080"),
    ("docker run --publish=[::1]:81:8080/tcp lorax --model-id org/name --port 8080",
     r"(# .*\n)*weft serve --model-id org/name .*--hostname ::1 .*--port 81 .*"),
    ("docker container run -e HF_TOKEN -eMODEL_ID=org/name -it lorax",
     r"# (.*\n# )*options of the container are left out: -e HF_TOKEN -it\. (.*\n)+weft serve --model-id org/name .*"),
    ("docker run --gpus device=0 --ulimit memlock=-1 -e HF_TOKEN=a lorax --model-id org/name",
     r"# (.*\n# )*options of the container are left out: --gpus device=0 --ulimit memlock=-1\. (.*\n)+"
     r"HF_TOKEN=a weft serve --model-id org/name .*"),
    ("docker run -p 80:80 lorax --model-id org/name --download-only", "weft download org/name"),
    ("podman run --env=MODEL_ID=org/name ghcr.io/predibase/lorax:main", r"(# .*\n)*weft serve --model-id org/name .*"),
    ("docker run --env MODEL_ID=org/name -d lorax", r"(# .*\n)*weft serve --model-id org/name .*")])
def test_command_line_of_a_container_is_that_of_its_program(line: str, expected: str) -> None:
    assert re.fullmatch(expected, migrate_line(line))


def test_download_only_line_becomes_a_download() -> None:
    assert migrate_line("lorax-launcher --model-id org/name --download-only -p 80") == "weft download org/name"


def test_unsupported_flags_are_rejected() -> None:
    with pytest.raises(ValueError, match="--trust-remote-code is refused"):
        migrate_line("text-generation-launcher --model-id org/name --trust-remote-code")


def test_rest_of_a_line_with_a_refused_flag_is_translated() -> None:
    with pytest.raises(RefusedFlagsError, match="--trust-remote-code is refused: ") as caught:
        migrate_line("lorax-launcher --model-id org/name --trust-remote-code --download-only")
    note, line = caught.value.translated_line.splitlines()
    assert note == f"# {caught.value}"
    assert line == "weft download org/name"


@pytest.mark.parametrize("line", ["sudo docker run -e HF_TOKEN=a lorax --model-id org/name --download-only",
                                  "sudo -E HF_TOKEN=a lorax-launcher --model-id org/name --download-only",
                                  "HF_TOKEN=a /usr/bin/sudo lorax-launcher --model-id org/name --download-only"])
def test_line_may_begin_with_sudo_and_stand_in_quotes(line: str) -> None:
    assert migrate_line(line) == "HF_TOKEN=a weft download org/name"
    assert translate_command_line([line], {}) == migrate_line(line)


def test_container_of_another_image_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"^no image of text-generation-inference or lorax is named in docker run tgi"):
        migrate_line("docker run tgi")


@pytest.mark.parametrize(("line", "got"), [("", "nothing"), ("vllm serve a", "vllm serve a"), ("A=1", "nothing")])
def test_unknown_command_line_is_rejected(line: str, got: str) -> None:
    with pytest.raises(ValueError, match=f"{' or '.join(TABLES_BY_PROGRAM)} is needed, as in .*, got {got}$"):
        migrate_line(line)


@pytest.mark.parametrize("program", TABLES_BY_PROGRAM)
def test_guide_of_each_program_shows_the_actual_output(program: str) -> None:
    guide = (GUIDES_FOLDER / GUIDES_BY_PROGRAM[program]).read_text()
    examples = re.findall(r"^\$ weft migrate -- (.*)\n((?:.+\n)+?)```", guide, re.MULTILINE)
    assert {line.split()[0] for line, _ in examples} == {program}
    assert [(line, migrate_line(line) + "\n") for line, _ in examples] == examples


@pytest.mark.parametrize(("flag", "reason"), [
    ("--api-kye x", "text-generation-launcher has no flag --api-kye; did you mean --api-key?"),
    ("--zzzzzz", "text-generation-launcher has no flag --zzzzzz$")])
def test_unknown_flags_are_refused(flag: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        migrate_line(f"text-generation-launcher --model-id org/name {flag}")


def test_flags_of_weft_are_kept() -> None:
    line = migrate_line("text-generation-launcher --model-id org/name --look-ahead 1 --no-request-log")
    assert "--look-ahead 1" in line
    assert "--no-request-log" in line
