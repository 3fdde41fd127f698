"""`weft migrate`: translation of another server's command line into one of `weft`, with notes about what is left out.

TABLES has the programs whose command lines are supported.
"""

import os.path
import re
import shlex
from collections.abc import Mapping, Sequence
from functools import partial

from launcher.compat.flag_table import Table
from launcher.compat.lorax import LORAX
from launcher.compat.shards import count_gpus, visible_devices
from launcher.compat.tgi import TGI
from launcher.compat.translate import translate

TABLES: Mapping[str, Table] = {table.program: table for table in (TGI, LORAX)}
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)


def migrated(line: Sequence[str], environment: Mapping[str, str]) -> str:
    """Return the command line of weft, with notes as comments above it.

    `line` may begin with assignments of variables, as in a shell. `environment` only determines the visible GPUs.
    """
    given = {name: value for name, _, value in (word.partition("=") for word in leading(line))}
    table, words = program(line[len(leading(line)):])
    devices = partial(visible_devices, {**environment, **given}, count_gpus)
    found = translate(table, words, given, devices)
    theirs = {flag.variable for flag in table.flags}
    variables = {name: value for name, value in given.items() if name not in theirs} | found.variables
    command = [*(f"{name}={shlex.quote(value)}" for name, value in variables.items()), "weft",
               *map(shlex.quote, found.command)]
    return "\n".join([*(f"# {note}" for note in (*found.notes, *found.not_needed)), " ".join(command)])


def leading(line: Sequence[str]) -> list[str]:
    """Return the assignments that the line begins with."""
    return list(line[:next((place for place, word in enumerate(line) if not ASSIGNMENT.fullmatch(word)), len(line))])


def program(line: Sequence[str]) -> tuple[Table, Sequence[str]]:
    """Return the program's table and its arguments. Raises ValueError for an unknown program."""
    name = os.path.basename(line[0]) if line else ""
    if name not in TABLES:
        example = f"weft migrate -- {next(iter(TABLES))} --model-id org/name"
        raise ValueError(f"a command line of {' or '.join(TABLES)} is needed, as in `{example}`, got "
                         f"{shlex.join(line) or 'nothing'}")
    return TABLES[name], line[1:]
