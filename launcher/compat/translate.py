"""Translation of another server's command line and variables into arguments and variables of `weft`, by its table."""

from argparse import ArgumentParser
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from ipaddress import ip_address
from typing import Any, NoReturn

from launcher.compat.adapters import preloaded
from launcher.compat.arguments import OURS, Heard, Said, check
from launcher.compat.docs_table import meaning
from launcher.compat.flag_table import Fate, Table, negated
from launcher.compat.shards import num_shards

EVERYWHERE = "0.0.0.0"  # noqa: S104 - the address of those servers if a variable holds the machine's name


@dataclass(slots=True)
class Translation:
    """Settings and variables for weft, and notes for the user."""

    settings: dict[str, Sequence[str]] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    rest: list[str] = field(default_factory=list)  # arguments that are not in the table: flags of weft, or mistakes
    notes: list[str] = field(default_factory=list)  # differences from what was asked for
    not_needed: list[str] = field(default_factory=list)  # flags that are left out without any difference
    otherwise: dict[str, str] = field(default_factory=dict)  # settings that apply unless weft's own are given
    needed: dict[str, str] = field(default_factory=dict)  # required settings, each with the flag that requires it
    shows_environment: bool = False
    only_downloads: bool = False

    @property
    def command(self) -> list[str]:
        """Arguments of `weft`."""
        if not self.only_downloads:
            return ["serve", *self.words]
        return ["download", *self.settings["model_id"], *(
            word for value in self.settings.get("revision", ()) for word in spelled("revision", value))]

    @property
    def words(self) -> list[str]:
        """Arguments of `weft serve`."""
        given = [word for name, values in self.settings.items() for value in values for word in spelled(name, value)]
        return [*given, *self.rest]

    def set(self, name: str, values: Sequence[str]) -> None:
        """Set a setting; a secret becomes a variable, since other users can read the arguments of a process."""
        if OURS[name].field.repr:
            self.settings[name] = values
        else:
            self.variables[OURS[name].variables[0]] = values[-1]

    def add(self, said: Said) -> None:
        outcome = said.outcome
        values = [outcome.gives.format(said.value)] if outcome.gives else said.values
        match outcome.fate:
            case Fate.SETTING:
                self.set(outcome.becomes, values)
            case Fate.REVISED:
                self._set_model(said)
            case Fate.ADAPTERS:
                self._preload(said)
            case Fate.ADDRESS:
                self.set(outcome.becomes, [self._address(said)])
            case Fate.VARIABLE:
                self.variables[outcome.becomes] = values[-1]
            case Fate.UNUSED:
                self.notes.append(f"{said.name} has no effect: {outcome.why}")
            case Fate.SILENT:
                self.not_needed.append(f"{said.name} is not needed: {outcome.why}")
            case Fate.SHOWN:
                self.shows_environment = True
            case Fate.DOWNLOADED:
                self.only_downloads = True

    def _set_model(self, said: Said) -> None:
        model, revision = said.revised
        self.set(said.outcome.becomes, [model])
        if revision:
            self.set("revision", [revision])

    def _preload(self, said: Said) -> None:
        try:
            source, adapters = preloaded(said.value)
        except ValueError as error:
            raise ValueError(f"{said.name}: {error}") from error
        self.otherwise["adapters"] = "true"
        self.set(said.outcome.becomes, adapters)
        if source == "local":
            self.set("preloaded_adapter_source", [source])
            self.needed["adapter_root"] = said.name

    def _address(self, said: Said) -> str:
        if said.by == "flag" or is_address(said.value):
            return said.value
        self.notes.append(f"{said.name} is no address ({said.value}), so weft listens on {EVERYWHERE}; --hostname "
                          "names another")
        return EVERYWHERE


def spelled(name: str, value: str) -> list[str]:
    flag = OURS[name].flags[0]
    if OURS[name].type is not bool:
        return [flag, value]
    return [negated(flag) if value == "false" else flag]


def is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def translate(table: Table, words: Sequence[str], environment: Mapping[str, str],
              devices: Callable[[], int]) -> Translation:
    """Translate a command line. `devices` counts the visible GPUs. Raises ValueError for refused flags."""
    given, rest = parser(table).parse_known_args(words)
    heard = Heard(vars(given), rest, environment)
    said = heard.said(table)
    check(said)
    result = Translation(rest=rest, otherwise=heard.always(table), needed={
        item.outcome.needs: f"{item.name} {item.value}" for item in said if item.outcome.needs})
    for item in said:
        result.add(item)
    add_shards(result, {item.flag.name: item.value for item in said if item.outcome.fate is Fate.SHARDS},
               heard, devices)
    complete(result, heard)
    return result


def add_shards(result: Translation, said: Mapping[str, str], heard: Heard, devices: Callable[[], int]) -> None:
    if not said and heard.has("num_shard"):
        return
    count = num_shards(said.get("sharded", "").lower(), said.get("num-shard", ""), devices)
    if said or count > 1:
        result.set("num_shard", [str(count)])
    if "num-shard" not in said and count > 1:
        result.notes.append(f"{count} shards, one for each GPU that can be seen; --num-shard says otherwise")


def complete(result: Translation, heard: Heard) -> None:
    """Add implied settings, and check that a model is named and that required settings are given."""
    result.settings |= {name: [value] for name, value in result.otherwise.items() if not heard.has(name)}
    if "model_id" not in result.settings and not heard.environment.get("WEFT_MODEL_ID"):
        raise ValueError("a model must be named: --model-id org/name, or MODEL_ID")
    for name, who in result.needed.items():
        if not heard.has(name):
            about = OURS[name].field.metadata["help"].rstrip(".")
            result.notes.append(f"{who} needs {OURS[name].flags[0]}, the {about[0].lower()}{about[1:]}")
    for name in ("model_id", "revision") if result.only_downloads else ():
        if value := heard.environment.get(OURS[name].variables[0]):
            result.settings.setdefault(name, [value])


class Parser(ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def parser(table: Table) -> Parser:
    made = Parser(prog=table.program, allow_abbrev=False, description="Serves as `weft serve` does, whose flags may be "
                  "given, too. What becomes of each flag:")
    made.add_argument("--version", "-V", action="version", version=f"weft {version('weft')}")
    for item in table.flags:
        more: dict[str, Any] = {"nargs": "?", "const": "true"} if item.kind == "switch" else {}
        if item.spellings:
            made.add_argument(*item.spellings, dest=item.name, action="append", default=[], metavar="VALUE",
                              help=meaning(item).replace("%", "%%"), **more)
    return made
