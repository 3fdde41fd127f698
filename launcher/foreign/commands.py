"""The commands of text-generation-inference, as weft answers to them: `text-generation-launcher` and
`text-generation-server`. Another server's launcher is its table and a function of two lines here.

Knows no flag; what a command line becomes, `weft` does.
"""

import logging
import os
import sys
from argparse import BooleanOptionalAction, Namespace
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from launcher import checks
from launcher.cli import in_one_line, run
from launcher.environment import hub_cache
from launcher.foreign.flags import Table
from launcher.foreign.shards import count_gpus, visible_devices
from launcher.foreign.tgi import TGI
from launcher.foreign.translation import Parser, translate
from launcher.model import find_model
from launcher.voice import PLAIN, Voice

REFUSED = {
    "quantize": "weft writes no quantised checkpoints. Those that GPTQ, AWQ or llm-compressor wrote are served as they "
                "are, and `weft serve MODEL --quantize int8` makes the weights of others a byte each as it loads them",
    "serve": "shards are not started one by one: `weft serve MODEL --num-shard N` starts all that a server has, and "
             "text-generation-launcher does so under the flags that it had",
}


def text_generation_launcher() -> None:
    launch(TGI, sys.argv[1:])


def launch(table: Table, words: Sequence[str]) -> None:
    with in_one_line():
        found = translate(table, words, os.environ, partial(visible_devices, os.environ, count_gpus))
    os.environ.update(found.variables)  # before anybody has read them
    voice = Voice(as_json="json_output" in found.settings)
    for note in found.notes:
        voice.warn(note)
    if found.shows_environment:
        show_environment(voice)
    run(["serve", *found.words])


def show_environment(voice: Voice) -> None:
    for finding in (checks.python(), *checks.packages()):
        voice.say(str(finding), logging.INFO if finding.state == "ok" else logging.WARNING)
    voice.say(f"NVIDIA's driver {checks.driver() or 'is not there'}, {count_gpus()} GPUs")


def text_generation_server() -> None:
    with in_one_line():
        given = download_wanted(sys.argv[1:])
        if Path(given.model_id).is_dir():
            find_model(given.model_id, "", hub_cache(os.environ))
            PLAIN.say(f"{given.model_id} is a folder of this machine, so there is nothing to download")
        else:
            run(["download", given.model_id, "--revision", given.revision])


def download_wanted(words: Sequence[str]) -> Namespace:
    """Flags of theirs that say how to convert files, or how to log, are let pass: nothing is converted here."""
    if words and words[0] in REFUSED:
        raise ValueError(REFUSED[words[0]])
    parser = Parser(prog="text-generation-server", allow_abbrev=False)
    download = parser.add_subparsers(required=True, metavar="download-weights").add_parser(
        "download-weights", allow_abbrev=False, help="download a model, as `weft download` does")
    download.add_argument("model_id")
    download.add_argument("--revision", default="main")
    for name in ("--extension", "--logger-level"):
        download.add_argument(name, help="no effect")
    for name in ("--auto-convert", "--json-output", "--trust-remote-code", "--merge-lora"):
        download.add_argument(name, action=BooleanOptionalAction, help="no effect")
    return parser.parse_args(words)
