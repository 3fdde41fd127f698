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

from launcher.cli import report_errors_in_one_line, run_command_line
from launcher.compat.foreign_flag_table import ForeignFlagTable
from launcher.compat.lorax import LORAX_FLAG_TABLE
from launcher.compat.num_shards import count_gpus, count_visible_devices
from launcher.compat.tgi import TGI_FLAG_TABLE
from launcher.compat.translate import RaisingArgumentParser, translate
from launcher.console_output import PLAIN_OUTPUT, ConsoleOutput
from launcher.doctor import checks
from launcher.environment_variables import hub_cache_folder
from launcher.hub.resolve import find_model

REFUSED_SUBCOMMANDS = {
    "quantize": "weft writes no quantized checkpoints. Those that GPTQ, AWQ or llm-compressor wrote are served as they "
                "are, and `weft serve MODEL --quantize int8` makes the weights of others a byte each as it loads them",
    "serve": "shards are not started one by one: `weft serve MODEL --num-shard N` starts all that a server has, and "
             "{launcher} does so under the flags that it had",
}


def text_generation_launcher() -> None:
    serve_with_foreign_flags(TGI_FLAG_TABLE, sys.argv[1:])


def lorax_launcher() -> None:
    serve_with_foreign_flags(LORAX_FLAG_TABLE, sys.argv[1:])


def serve_with_foreign_flags(table: ForeignFlagTable, arguments: Sequence[str]) -> None:
    with report_errors_in_one_line():
        translation = translate(table, arguments, os.environ, partial(count_visible_devices, os.environ, count_gpus))
    os.environ.update(translation.environment_variables)  # before any code reads them
    output = ConsoleOutput(as_json="json_output" in translation.settings)
    for note in translation.notes:
        output.warn(note)
    if translation.shows_environment:
        show_environment(output)
    if translation.is_download_only:
        download_model(*translation.settings["model_id"], *translation.settings.get("revision", ()))
    else:
        run_command_line(translation.weft_arguments)


def show_environment(output: ConsoleOutput) -> None:
    for finding in (checks.check_python(), *checks.check_packages()):
        output.log(str(finding), logging.INFO if finding.state == "ok" else logging.WARNING)
    output.log(f"NVIDIA's driver {checks.read_nvidia_driver_version() or 'is not there'}, {count_gpus()} GPUs")


def text_generation_server() -> None:
    run_download_weights_command("text-generation-server", TGI_FLAG_TABLE)


def lorax_server() -> None:
    run_download_weights_command("lorax-server", LORAX_FLAG_TABLE)


def run_download_weights_command(program: str, table: ForeignFlagTable) -> None:
    with report_errors_in_one_line():
        parsed = parse_download_weights(program, table, sys.argv[1:])
    if parsed.api_token:
        os.environ["HF_TOKEN"] = parsed.api_token
    if parsed.adapter_id:
        PLAIN_OUTPUT.warn(f"--adapter-id has no effect: {parsed.adapter_id} is fetched when a server starts with it")
    download_model(parsed.model_id, parsed.revision)


def download_model(model_id: str, revision: str = "main") -> None:
    with report_errors_in_one_line():
        if Path(model_id).is_dir():
            find_model(model_id, "", hub_cache_folder(os.environ))
            PLAIN_OUTPUT.log(f"{model_id} is a folder of this machine, so there is nothing to download")
        else:
            run_command_line(["download", model_id, "--revision", revision])


def parse_download_weights(program: str, table: ForeignFlagTable, arguments: Sequence[str]) -> Namespace:
    """Parse `download-weights`. Flags about conversion and logging are accepted and have no effect."""
    if arguments and arguments[0] in REFUSED_SUBCOMMANDS:
        raise ValueError(REFUSED_SUBCOMMANDS[arguments[0]].format(launcher=table.program))
    parser = RaisingArgumentParser(prog=program, allow_abbrev=False)
    subparser = parser.add_subparsers(required=True, metavar="download-weights").add_parser(
        "download-weights", allow_abbrev=False, help="download a model, as `weft download` does")
    subparser.add_argument("model_id")
    subparser.add_argument("--revision", default="main")
    subparser.add_argument("--source", choices=("hub", "local"), default="hub", help="a folder or a name at the Hub")
    subparser.add_argument("--api-token", default="", help="the same as HF_TOKEN")
    subparser.add_argument("--adapter-id", default="", help="no effect, and that is said")
    for name in ("--extension", "--logger-level", "--adapter-source", "--embedding-dim"):
        subparser.add_argument(name, help="no effect")
    for name in ("--auto-convert", "--json-output", "--trust-remote-code", "--merge-lora"):
        subparser.add_argument(name, action=BooleanOptionalAction, help="no effect")
    return parser.parse_args(arguments)
