"""Messages for mistakes on the command line, where that of the parser does not help."""

import os
import re
from collections.abc import Mapping, Sequence

from cyclopts import (
    CoercionError,
    CycloptsError,
    MissingArgumentError,
    UnknownCommandError,
    UnknownOptionError,
    UnusedCliTokensError,
)

from launcher.settings import SETTINGS_BY_NAME

SERVE_COMMAND, RUN_COMMAND, DEPLOY_COMMAND, DOCTOR_COMMAND = "serve", "run", "deploy", "doctor"
COMMANDS_WITH_SETTINGS = {SERVE_COMMAND, RUN_COMMAND, DEPLOY_COMMAND, DOCTOR_COMMAND}  # with those of a server
QUANTIZE_FLAG = "--quantize"
COMMANDS_INSTEAD_OF_OLLAMAS: Mapping[str, str] = {
    "pull": "`weft download org/name` downloads a model.", "list": "`weft models` lists the models that are there.",
    "ls": "`weft models` lists the models that are there.", "rm": "`weft models rm org/name` removes a model.",
    "ps": "`weft top` shows what a server does.", "show": "`weft doctor MODEL` tells about a model.",
    "stop": "Ctrl-C, or SIGTERM, stops a server.", "create": "`weft serve FOLDER` serves a folder as it is."}
PORT_FLAGS = ("--port", "-p")
# Values of --quantize that vLLM and text-generation-inference have for formats that weft finds in the checkpoint.
CHECKPOINT_FORMATS = {"awq", "awq_marlin", "compressed-tensors", "fp8", "gptq", "gptq_marlin"}
# Values of theirs for weights that are quantized as they are loaded, by their beginnings.
LOAD_TIME_FORMATS = ("bitsandbytes", "gptq-int", "awq-int")
# What to do instead of giving flags of vLLM, text-generation-inference and llama.cpp that have no counterpart, or one
# that is not known by a similar name.
HINTS_BY_FLAG: Mapping[str, str] = {
    "--quantization": "Leave it out: the config.json of a quantized checkpoint names its format. --quantize int8 or "
                      "int4 quantizes the weights of others.",
    "--load-format": "Leave it out: weft reads *.safetensors, and weights of any other format not at all.",
    "--kv-cache-dtype": "Leave it out: the KV cache keeps the number type that the model computes with (--dtype).",
    "--gpu-memory-utilization": "--memory-fraction is weft's.",
    "--cuda-memory-fraction": "--memory-fraction is weft's.",
    "--enforce-eager": "--no-cuda-graphs is weft's.",
    "--max-lora-rank": "Leave it out: adapters of ranks up to 1,024 are loaded.",
    "--max-loras": "--max-active-adapters is weft's.",
    "--max-cpu-loras": "Leave it out: adapters that are not loaded stay on disk (--adapter-disk-gb).",
    "--lora": "--adapter-root FOLDER serves all adapters in a folder, by their names.",
    "--lora-adapters": "--preloaded-adapter-ids NAME=ID is weft's, once for each adapter.",
    "--enable-prefix-caching": "Leave it out: prefixes are cached, see --cache-scope.",
    "--no-enable-prefix-caching": "--cache-scope off is weft's.",
    "--enable-chunked-prefill": "Leave it out: prompts are computed in chunks, see --prefill-policy.",
    "--trust-remote-code": "Leave it out: weft runs no code from a model's folder.",
    "--tokenizer": "Leave it out: the tokenizer is read from the model's folder.",
    "--enable-auto-tool-choice": "Leave it out: tools need no flag.",
    "--tool-call-parser": "Leave it out: tools need no flag.",
    "--reasoning-parser": "Leave it out: reasoning needs no flag.",
    "--speculative-config": "--speculate N lets weft guess up to N tokens ahead.",
    "--disable-log-requests": "--no-request-log is weft's.",
    "--enable-log-requests": "Leave it out: each finished request has a line in the log.",
    "--pipeline-parallel-size": "--num-shard divides a model among GPUs or processes.",
    "--data-parallel-size": "Start several servers, or `weft deploy ray --replicas N`.",
    "--max-tokens": "Requests say how long their answers may be (max_tokens); --max-total-tokens limits them.",
    "--n-gpu-layers": "Leave it out: with --device cuda the whole model is on the GPU.",
    "--sharded": "--num-shard N is weft's.",
    "-m": "Give the model without a flag: weft serve MODEL.",
    "-c": "--max-total-tokens, or --ctx-size, is weft's.",
    "--parallel": "--max-batch-size is weft's.",
    "--swap-space": "Leave it out: a cache that is full recomputes prompts instead of copying them.",
    "-ngl": "Leave it out: with --device cuda the whole model is on the GPU.",
    "-tp": "--num-shard N is weft's.",
    "-np": "--max-batch-size is weft's.",
}


def describe_error(error: Exception) -> str:
    """Return the message of an error, with what to do about it if that is known."""
    if isinstance(error, MissingArgumentError):
        return describe_missing_argument(error)
    if isinstance(error, UnusedCliTokensError):
        words, command = " ".join(error.unused_tokens or ()), " ".join(["weft", *(error.command_chain or ())])
        return f"unexpected argument: {words}; `{command} --help` shows what can be given{format_argument_hint(error)}"
    if isinstance(error, CoercionError):
        return describe_invalid_value(error)
    if isinstance(error, UnknownOptionError):
        return describe_unknown_flag(error)
    if isinstance(error, UnknownCommandError):
        return describe_unknown_command(error)
    return str(error)


def name_flags_as_given(message: str, arguments: Sequence[str]) -> str:
    """Return a message with flags under the aliases by which a command line gives them."""
    if not arguments or arguments[0] not in COMMANDS_WITH_SETTINGS:
        return message
    given_flags = {word.partition("=")[0] for word in arguments if word.startswith("--")}
    for setting in SETTINGS_BY_NAME.values():
        flag, *aliases = setting.flags
        given_alias = next((alias for alias in aliases if alias in given_flags), None)
        if given_alias is not None and flag not in given_flags:
            message = re.sub(rf"{flag}(?![\w-])", given_alias, message)
    return message


def describe_missing_argument(error: MissingArgumentError) -> str:
    argument = error.argument
    if argument is None or not argument.field_info.is_positional or not error.command_chain:
        return str(error)
    command, name = " ".join(error.command_chain), argument.name.removeprefix("--").upper().replace("-", "_")
    meaning = argument.parameter.help or ""
    return f"weft {command} needs {name}: {meaning[:1].lower()}{meaning[1:]} `weft {command} --help` says more."


def format_argument_hint(error: UnusedCliTokensError) -> str:
    """Return a hint about arguments that a server's flags would take elsewhere."""
    if not takes_settings(error):
        return ""
    if os.path.isdir((error.unused_tokens or ("",))[0]):
        return ". A folder that contains adapters is named by --adapter-root."
    return ". A flag takes one value, and is repeated for several."


def describe_unknown_command(error: UnknownCommandError) -> str:
    command = (error.unused_tokens or ("",))[0]
    hint = COMMANDS_INSTEAD_OF_OLLAMAS.get(command)
    return f'Unknown command "{command}". {hint}' if hint else str(error)


def takes_settings(error: CycloptsError) -> bool:
    """Whether the command takes the settings of a server."""
    return (error.command_chain or ("",))[0] in COMMANDS_WITH_SETTINGS


def describe_unknown_flag(error: UnknownOptionError) -> str:
    flag = (error.token.keyword or error.token.value).partition("=")[0]
    if (error.command_chain or ("",))[0] == RUN_COMMAND and flag in PORT_FLAGS:
        return f"Unknown option: {flag}. `weft run` takes a free port; `weft serve` takes a given one."
    hint = HINTS_BY_FLAG.get(flag.replace("_", "-")) if takes_settings(error) else None
    return f"Unknown option: {flag}. {hint}" if hint else str(error)


def describe_invalid_value(error: CoercionError) -> str:
    token = error.token
    hint = "" if token is None or token.keyword != QUANTIZE_FLAG else format_quantize_hint(token.value.lower())
    return str(error).replace('Choose from: "", ', "Choose from: ") + hint  # "" is a default, which nobody types


def format_quantize_hint(value: str) -> str:
    if value in CHECKPOINT_FORMATS:
        return " A checkpoint in AWQ, GPTQ, fp8 or compressed-tensors needs no flag: its config.json names the format."
    if value.startswith(LOAD_TIME_FORMATS):
        return " Checkpoints that are quantized already (AWQ, GPTQ, fp8, compressed-tensors) need no flag."
    return ""

