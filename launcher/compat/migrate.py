"""`weft migrate`: translation of another server's command line into one of `weft`, with notes about what is left out.

TABLES_BY_PROGRAM has the programs whose command lines are supported.
"""

import os.path
import re
import shlex
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from itertools import takewhile

from launcher.compat.foreign_flag_table import ForeignFlagTable
from launcher.compat.lorax import LORAX_FLAG_TABLE
from launcher.compat.num_shards import count_gpus, count_visible_devices
from launcher.compat.tgi import TGI_FLAG_TABLE
from launcher.compat.translate import translate
from launcher.settings import SETTINGS_BY_NAME

TABLES_BY_PROGRAM: Mapping[str, ForeignFlagTable] = {
    table.program: table for table in (TGI_FLAG_TABLE, LORAX_FLAG_TABLE)}
CONTAINER_PROGRAMS = {"docker", "podman", "nerdctl"}
# Images of the programs, such as ghcr.io/huggingface/text-generation-inference:3.3.
IMAGE_PATTERNS: Mapping[str, re.Pattern[str]] = {
    TGI_FLAG_TABLE.program: re.compile(r"([^-].*/)?text-generation-inference([:@].*)?"),
    LORAX_FLAG_TABLE.program: re.compile(r"([^-].*/)?lorax([:@].*)?")}
ENVIRONMENT_FLAGS, PUBLISH_FLAGS = ("-e", "--env"), ("-p", "--publish")
ENVIRONMENT_FLAG_PATTERN = re.compile(r"--env[= ]|-e ?")  # at the beginning of `-e A=b`, `-eA=b`, `--env=A=b`
PUBLISH_FLAG_PATTERN = re.compile(r"(?:--publish[= ]|-p ?)(?:(?P<address>[\d.]+|\[[\da-fA-F:]+\]):)?(?P<port>\d+):"
                                  r"(?P<container_port>\d+)(?:/tcp)?")
DEFAULT_CONTAINER_PORT = "80"  # in the images of the programs
ALL_ADDRESSES = ("0.0.0.0", "::")  # noqa: S104 - of a server that any machine may reach
SUDO_FLAGS = {"-E", "--preserve-env"}  # of sudo, that have no value
ASSIGNMENT_PATTERN = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)


class RefusedFlagsError(ValueError):
    """Flags were refused. `translated_line` is the translation of the others."""

    def __init__(self, refusals: Sequence[str], translated_line: str) -> None:
        super().__init__("; and ".join(refusals))
        self.translated_line = translated_line


def translate_command_line(command_line: Sequence[str], environment: Mapping[str, str]) -> str:
    """Return the command line of weft, with notes as comments above it.

    `command_line` may begin with assignments of variables, as in a shell, and be one word in quotes. `environment`
    only determines the visible GPUs. Raises RefusedFlagsError for refused flags.
    """
    words = shlex.split(command_line[0]) if len(command_line) == 1 else command_line
    leading_assignments, command = split_leading_assignments(words)
    program_words, container_assignments, container_options = unwrap_container(command)
    assignments = {name: value for name, _, value in (
        word.partition("=") for word in (*leading_assignments, *container_assignments))}
    table, arguments = find_flag_table(program_words)
    devices = partial(count_visible_devices, {**environment, **assignments}, count_gpus)
    translation = translate(table, arguments, assignments, devices, skips_refused=True)
    check_flags_are_known(translation.weft_arguments, table)
    foreign_variables = {flag.environment_variable for flag in table.flags}
    variables = {name: value for name, value in assignments.items()
                 if name not in foreign_variables} | translation.environment_variables
    weft_arguments, notes = list(translation.weft_arguments), [*translation.notes, *translation.unneeded_notes]
    if container_options and not translation.is_download_only:
        container_options = use_published_address(weft_arguments, container_options)
        if container_options:
            notes.append(f"options of the container are left out: {shlex.join(container_options)}. A path in "
                         "the container, such as /data, is another one here")
        if get_argument(weft_arguments, "--hostname") in ALL_ADDRESSES:
            notes.append("--hostname 127.0.0.1 would keep the server on this machine")
    weft_command = [*(f"{name}={shlex.quote(value)}" for name, value in variables.items()), "weft",
                    *map(shlex.quote, weft_arguments)]
    line = "\n".join([*(f"# {note}" for note in (*translation.refusals, *notes)), " ".join(weft_command)])
    if translation.refusals:
        raise RefusedFlagsError(translation.refusals, line)
    return line


def check_flags_are_known(weft_arguments: Sequence[str], table: ForeignFlagTable) -> None:
    """Raise ValueError for a flag that neither the program nor `weft serve` has."""
    flags = {flag for setting in SETTINGS_BY_NAME.values() for flag in setting.flags}
    flags |= {f"--no-{flag.removeprefix('--')}" for flag in flags}
    for word in weft_arguments:
        name = word.partition("=")[0]
        if name.startswith("--") and name not in flags:
            similar = get_close_matches(name, sorted(flags | {f"--{flag.name}" for flag in table.flags}), n=1)
            raise ValueError(f"{table.program} has no flag {name}"
                             + (f"; did you mean {similar[0]}?" if similar else ""))


def split_leading_assignments(words: Sequence[str]) -> tuple[list[str], Sequence[str]]:
    """Return the assignments that a line begins with, before and after `sudo`, and its other words."""
    assignments = list(takewhile(ASSIGNMENT_PATTERN.fullmatch, words))
    command = words[len(assignments):]
    if not command or os.path.basename(command[0]) != "sudo":
        return assignments, command
    sudo_words = list(takewhile(SUDO_FLAGS.__contains__, command[1:]))
    others, command = split_leading_assignments(command[1 + len(sudo_words):])
    return [*assignments, *others], command


def unwrap_container(words: Sequence[str]) -> tuple[Sequence[str], list[str], list[str]]:
    """Return the command line that a container runs, the variables that it gets, and its other options, if `words` run
    one of an image of the programs; else `words`."""
    if not words or os.path.basename(words[0]) not in CONTAINER_PROGRAMS:
        return words, [], []
    for index, word in enumerate(words):
        for program, pattern in IMAGE_PATTERNS.items():
            if pattern.fullmatch(word):
                first = words.index("run", 0, index) + 1 if "run" in words[:index] else 1
                assignments, options = split_container_options(words[first:index])
                return [program, *words[index + 1:]], assignments, options
    return words, [], []


def split_container_options(options: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the assignments of variables, and the other options, among them variables without a value."""
    assignments, others, remaining = list[str](), list[str](), iter(options)
    for option in remaining:
        words = [option, next(remaining, "")] if option in ENVIRONMENT_FLAGS else [option]
        flag = ENVIRONMENT_FLAG_PATTERN.match(text := " ".join(words))
        if flag and ASSIGNMENT_PATTERN.fullmatch(text, flag.end()):
            assignments.append(text[flag.end():])
        else:
            others += words
    return assignments, others


def use_published_address(weft_arguments: list[str], container_options: Sequence[str]) -> list[str]:
    """Let weft listen where the container published its port, and return the other options of the container."""
    served_port = get_argument(weft_arguments, "--port") or DEFAULT_CONTAINER_PORT
    others, remaining = list[str](), iter(container_options)
    for option in remaining:
        words = [option, next(remaining, "")] if option in PUBLISH_FLAGS else [option]
        published = PUBLISH_FLAG_PATTERN.fullmatch(" ".join(words))
        if published is None or published["container_port"] != served_port:
            others += words
            continue
        set_argument(weft_arguments, "--port", published["port"])
        set_argument(weft_arguments, "--hostname", (published["address"] or ALL_ADDRESSES[0]).strip("[]"))
    return others


def get_argument(arguments: Sequence[str], flag: str) -> str:
    """Return the value of a flag, or an empty string without it."""
    return arguments[arguments.index(flag) + 1] if flag in arguments[:-1] else ""


def set_argument(arguments: list[str], flag: str, value: str) -> None:
    if flag in arguments[:-1]:
        arguments[arguments.index(flag) + 1] = value
    else:
        arguments += flag, value


def find_flag_table(command_line: Sequence[str]) -> tuple[ForeignFlagTable, Sequence[str]]:
    """Return the program's table and its arguments. Raises ValueError for an unknown program."""
    name = os.path.basename(command_line[0]) if command_line else ""
    if name not in TABLES_BY_PROGRAM:
        if name in CONTAINER_PROGRAMS:
            raise ValueError(f"no image of text-generation-inference or lorax is named in {shlex.join(command_line)}; "
                             "give the command line that the container runs")
        example = f"weft migrate -- {next(iter(TABLES_BY_PROGRAM))} --model-id org/name"
        raise ValueError(f"a command line of {' or '.join(TABLES_BY_PROGRAM)} is needed, as in `{example}`, got "
                         f"{shlex.join(command_line) or 'nothing'}")
    return TABLES_BY_PROGRAM[name], command_line[1:]
