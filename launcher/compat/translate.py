"""Translation of another server's command line and variables into arguments and variables of `weft`, by its table."""

from argparse import ArgumentParser
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from ipaddress import ip_address
from typing import Any, NoReturn

from launcher.compat.flag_descriptions import describe_flag
from launcher.compat.flag_values import (
    ParsedArguments,
    ResolvedFlag,
    list_refusals,
    reject_conflicting_flags,
    reject_refused_or_conflicting_flags,
)
from launcher.compat.foreign_flag_table import FlagAction, ForeignFlagTable, negate_flag
from launcher.compat.lora_adapters_flag import parse_lora_adapters
from launcher.compat.num_shards import choose_num_shards
from launcher.settings import SETTINGS_BY_NAME

ALL_INTERFACES = "0.0.0.0"  # noqa: S104 - the address of those servers if a variable holds the machine's name


@dataclass(slots=True)
class TranslatedSettings:
    """Settings and variables for weft, and notes for the user."""

    settings: dict[str, Sequence[str]] = field(default_factory=dict)
    environment_variables: dict[str, str] = field(default_factory=dict)
    # arguments that are not in the table: flags of weft, or mistakes
    remaining_arguments: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)  # messages about refused flags
    notes: list[str] = field(default_factory=list)  # differences from what was asked for
    unneeded_notes: list[str] = field(default_factory=list)  # flags that are left out without any difference
    default_settings: dict[str, str] = field(default_factory=dict)  # settings that apply unless weft's own are given
    # required settings, each with the flag that requires it
    required_settings: dict[str, str] = field(default_factory=dict)
    shows_environment: bool = False
    is_download_only: bool = False

    @property
    def weft_arguments(self) -> list[str]:
        """Arguments of `weft`."""
        if not self.is_download_only:
            return ["serve", *self.serve_arguments]
        return ["download", *self.settings["model_id"], *(word for value in self.settings.get("revision", ())
                                                          for word in format_setting_arguments("revision", value))]

    @property
    def serve_arguments(self) -> list[str]:
        """Arguments of `weft serve`."""
        arguments = [word for name, values in self.settings.items() for value in values
                     for word in format_setting_arguments(name, value)]
        return [*arguments, *self.remaining_arguments]

    def set_setting(self, name: str, values: Sequence[str]) -> None:
        """Set a setting; a secret becomes a variable, since other users can read the arguments of a process."""
        if SETTINGS_BY_NAME[name].field.repr:
            self.settings[name] = values
        else:
            self.environment_variables[SETTINGS_BY_NAME[name].environment_variables[0]] = values[-1]

    def translate_flag(self, resolved_flag: ResolvedFlag) -> None:
        effect = resolved_flag.effect
        values = [effect.value_template.format(resolved_flag.value)] if effect.value_template else resolved_flag.values
        match effect.action:
            case FlagAction.SETTING:
                self.set_setting(effect.target_name, values)
            case FlagAction.MODEL_AND_REVISION:
                self._set_model(resolved_flag)
            case FlagAction.PRELOADED_ADAPTERS:
                self._set_preloaded_adapters(resolved_flag)
            case FlagAction.ADDRESS:
                self.set_setting(effect.target_name, [self._choose_listen_address(resolved_flag)])
            case FlagAction.VARIABLE:
                self.environment_variables[effect.target_name] = values[-1]
            case FlagAction.IGNORED:
                self.notes.append(f"{resolved_flag.name_as_given} has no effect: {effect.reason}")
            case FlagAction.UNNEEDED:
                self.unneeded_notes.append(f"{resolved_flag.name_as_given} is not needed: {effect.reason}")
            case FlagAction.SHOW_ENVIRONMENT:
                self.shows_environment = True
            case FlagAction.DOWNLOAD_ONLY:
                self.is_download_only = True

    def _set_model(self, resolved_flag: ResolvedFlag) -> None:
        model, revision = resolved_flag.model_and_revision
        self.set_setting(resolved_flag.effect.target_name, [model])
        if revision:
            self.set_setting("revision", [revision])

    def _set_preloaded_adapters(self, resolved_flag: ResolvedFlag) -> None:
        try:
            source, adapters = parse_lora_adapters(resolved_flag.value)
        except ValueError as error:
            raise ValueError(f"{resolved_flag.name_as_given}: {error}") from error
        self.default_settings["adapters"] = "true"
        self.set_setting(resolved_flag.effect.target_name, adapters)
        if source == "local":
            self.set_setting("preloaded_adapter_source", [source])
            self.required_settings["adapter_root"] = resolved_flag.name_as_given

    def _choose_listen_address(self, resolved_flag: ResolvedFlag) -> str:
        if resolved_flag.source == "flag" or is_address(resolved_flag.value):
            return resolved_flag.value
        self.notes.append(f"{resolved_flag.name_as_given} is no address ({resolved_flag.value}), so weft listens on "
                          f"{ALL_INTERFACES}; --hostname " "names another")
        return ALL_INTERFACES


def format_setting_arguments(name: str, value: str) -> list[str]:
    flag = SETTINGS_BY_NAME[name].flags[0]
    if SETTINGS_BY_NAME[name].type is not bool:
        return [flag, value]
    return [negate_flag(flag) if value == "false" else flag]


def is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def translate(table: ForeignFlagTable, arguments: Sequence[str], environment: Mapping[str, str],
              count_devices: Callable[[], int], *, skips_refused: bool = False) -> TranslatedSettings:
    """Translate a command line. `count_devices` counts the visible GPUs.

    Raises ValueError for refused flags, all in one message; with `skips_refused` they are left out, and listed.
    """
    parsed, remaining_arguments = make_argument_parser(table).parse_known_args(arguments)
    parsed_arguments = ParsedArguments(vars(parsed), remaining_arguments, environment)
    resolved_flags = parsed_arguments.resolve_flags(table)
    if skips_refused:
        reject_conflicting_flags(resolved_flags)
    else:
        reject_refused_or_conflicting_flags(resolved_flags)
    result = TranslatedSettings(remaining_arguments=remaining_arguments, refusals=list_refusals(resolved_flags),
                             default_settings=parsed_arguments.get_implicit_defaults(table),
                             required_settings={item.effect.required_setting: f"{item.name_as_given} {item.value}"
                                                for item in resolved_flags if item.effect.required_setting})
    for item in resolved_flags:
        result.translate_flag(item)
    add_num_shards(result, {item.flag.name: item.value for item in resolved_flags
                            if item.effect.action is FlagAction.NUM_SHARDS}, parsed_arguments, count_devices)
    finish_translation(result, parsed_arguments)
    return result


def add_num_shards(translation: TranslatedSettings, shard_flags: Mapping[str, str], parsed_arguments: ParsedArguments,
                   count_devices: Callable[[], int]) -> None:
    if not shard_flags and parsed_arguments.is_setting_given("num_shard"):
        return
    count = choose_num_shards(shard_flags.get("sharded", "").lower(), shard_flags.get("num-shard", ""), count_devices)
    if shard_flags or count > 1:
        translation.set_setting("num_shard", [str(count)])
    if "num-shard" not in shard_flags and count > 1:
        translation.notes.append(f"{count} shards, one for each GPU that can be seen; --num-shard says otherwise")


def finish_translation(translation: TranslatedSettings, parsed_arguments: ParsedArguments) -> None:
    """Add implied settings, and check that a model is named and that required settings are given."""
    translation.settings |= {name: [value] for name, value in translation.default_settings.items()
                             if not parsed_arguments.is_setting_given(name)}
    if "model_id" not in translation.settings and not parsed_arguments.environment.get("WEFT_MODEL_ID"):
        raise ValueError("a model must be named: --model-id org/name, or MODEL_ID")
    for name, requiring_flag in translation.required_settings.items():
        if not parsed_arguments.is_setting_given(name):
            help_text = SETTINGS_BY_NAME[name].field.metadata["help"].rstrip(".")
            translation.notes.append(
                f"{requiring_flag} needs {SETTINGS_BY_NAME[name].flags[0]}, the {help_text[0].lower()}{help_text[1:]}")
    for name in ("model_id", "revision") if translation.is_download_only else ():
        if value := parsed_arguments.environment.get(SETTINGS_BY_NAME[name].environment_variables[0]):
            translation.settings.setdefault(name, [value])


class RaisingArgumentParser(ArgumentParser):
    """ArgumentParser that raises ValueError where argparse would exit."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def make_argument_parser(table: ForeignFlagTable) -> RaisingArgumentParser:
    argument_parser = RaisingArgumentParser(prog=table.program, allow_abbrev=False,
                                            description="Serves as `weft serve` does, whose flags may be "
                                            "given, too. What becomes of each flag:")
    argument_parser.add_argument("--version", "-V", action="version", version=f"weft {version('weft')}")
    for item in table.flags:
        nargs_options: dict[str, Any] = {"nargs": "?", "const": "true"} if item.kind == "switch" else {}
        if item.spellings:
            argument_parser.add_argument(*item.spellings, dest=item.name, action="append", default=[], metavar="VALUE",
                                         help=describe_flag(item).replace("%", "%%"), **nargs_options)
    return argument_parser
