"""Messages for mistakes on the command line, where that of the parser does not help."""

from cyclopts import CoercionError, MissingArgumentError, UnusedCliTokensError

# Values of --quantize that vLLM and text-generation-inference have for formats that weft finds in the checkpoint.
CHECKPOINT_FORMATS = {"awq", "awq_marlin", "compressed-tensors", "fp8", "gptq", "gptq_marlin"}


def describe_error(error: Exception) -> str:
    """Return the message of an error, with what to do about it if that is known."""
    if isinstance(error, MissingArgumentError):
        return describe_missing_argument(error)
    if isinstance(error, UnusedCliTokensError):
        words, command = " ".join(error.unused_tokens or ()), " ".join(["weft", *(error.command_chain or ())])
        return f"unexpected argument: {words}; `{command} --help` shows what can be given"
    if isinstance(error, CoercionError):
        return f"{error}{format_quantize_hint(error)}"
    return str(error)


def describe_missing_argument(error: MissingArgumentError) -> str:
    argument = error.argument
    if argument is None or not argument.field_info.is_positional or not error.command_chain:
        return str(error)
    command, name = " ".join(error.command_chain), argument.name.removeprefix("--").upper().replace("-", "_")
    meaning = argument.parameter.help or ""
    return f"weft {command} needs {name}: {meaning[:1].lower()}{meaning[1:]} `weft {command} --help` says more."


def format_quantize_hint(error: CoercionError) -> str:
    token = error.token
    if token is not None and token.keyword == "--quantize" and token.value.lower() in CHECKPOINT_FORMATS:
        return " A checkpoint in AWQ, GPTQ, fp8 or compressed-tensors needs no flag: its config.json names the format."
    return ""

