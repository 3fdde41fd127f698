"""Entry points named like the commands of text-generation-inference and LoRAX: `text-generation-launcher` and
`lorax-launcher`, `text-generation-server` and `lorax-server`.

A launcher's command line is translated by its table and then run by `weft`. To support another server's launcher, add a
table and a function of two lines.
"""

import logging
import os
import sys
from argparse import BooleanOptionalAction, Namespace
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from launcher.cli import in_one_line, run
from launcher.compat.flag_table import Table
from launcher.compat.lorax import LORAX
from launcher.compat.shards import count_gpus, visible_devices
from launcher.compat.tgi import TGI
from launcher.compat.translate import Parser, translate
from launcher.doctor import checks
from launcher.environment import hub_cache
from launcher.hub.resolve import find_model
from launcher.output import PLAIN, Voice

REFUSED = {
    "quantize": "weft writes no quantised checkpoints. Those that GPTQ, AWQ or llm-compressor wrote are served as they "
                "are, and `weft serve MODEL --quantize int8` makes the weights of others a byte each as it loads them",
    "serve": "shards are not started one by one: `weft serve MODEL --num-shard N` starts all that a server has, and "
             "{launcher} does so under the flags that it had",
}


def text_generation_launcher() -> None:
    launch(TGI, sys.argv[1:])


def lorax_launcher() -> None:
    launch(LORAX, sys.argv[1:])


def launch(table: Table, words: Sequence[str]) -> None:
    with in_one_line():
        found = translate(table, words, os.environ, partial(visible_devices, os.environ, count_gpus))
    os.environ.update(found.variables)  # before any code reads them
    voice = Voice(as_json="json_output" in found.settings)
    for note in found.notes:
        voice.warn(note)
    if found.shows_environment:
        show_environment(voice)
    if found.only_downloads:
        download(*found.settings["model_id"], *found.settings.get("revision", ()))
    else:
        run(found.command)


def show_environment(voice: Voice) -> None:
    for finding in (checks.python(), *checks.packages()):
        voice.say(str(finding), logging.INFO if finding.state == "ok" else logging.WARNING)
    voice.say(f"NVIDIA's driver {checks.driver() or 'is not there'}, {count_gpus()} GPUs")


def text_generation_server() -> None:
    bring("text-generation-server", TGI)


def lorax_server() -> None:
    bring("lorax-server", LORAX)


def bring(program: str, table: Table) -> None:
    with in_one_line():
        given = download_wanted(program, table, sys.argv[1:])
    if given.api_token:
        os.environ["HF_TOKEN"] = given.api_token
    if given.adapter_id:
        PLAIN.warn(f"--adapter-id has no effect: {given.adapter_id} is fetched when a server starts with it")
    download(given.model_id, given.revision)


def download(model_id: str, revision: str = "main") -> None:
    with in_one_line():
        if Path(model_id).is_dir():
            find_model(model_id, "", hub_cache(os.environ))
            PLAIN.say(f"{model_id} is a folder of this machine, so there is nothing to download")
        else:
            run(["download", model_id, "--revision", revision])


def download_wanted(program: str, table: Table, words: Sequence[str]) -> Namespace:
    """Parse `download-weights`. Flags about conversion and logging are accepted and have no effect."""
    if words and words[0] in REFUSED:
        raise ValueError(REFUSED[words[0]].format(launcher=table.program))
    parser = Parser(prog=program, allow_abbrev=False)
    wanted = parser.add_subparsers(required=True, metavar="download-weights").add_parser(
        "download-weights", allow_abbrev=False, help="download a model, as `weft download` does")
    wanted.add_argument("model_id")
    wanted.add_argument("--revision", default="main")
    wanted.add_argument("--source", choices=("hub", "local"), default="hub", help="a folder or a name at the Hub")
    wanted.add_argument("--api-token", default="", help="the same as HF_TOKEN")
    wanted.add_argument("--adapter-id", default="", help="no effect, and that is said")
    for name in ("--extension", "--logger-level", "--adapter-source", "--embedding-dim"):
        wanted.add_argument(name, help="no effect")
    for name in ("--auto-convert", "--json-output", "--trust-remote-code", "--merge-lora"):
        wanted.add_argument(name, action=BooleanOptionalAction, help="no effect")
    return parser.parse_args(words)
