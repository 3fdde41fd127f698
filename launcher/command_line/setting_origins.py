"""Sources of a running server's settings: flags, variables, a file, and defaults."""

from collections.abc import Collection, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import asdict
from typing import Any

from launcher.hub.resolve import SIMULATED_MODEL
from launcher.settings import SETTING_GROUPS, SIMULATED_GROUP, LaunchConfig
from router.config import RouterConfig
from shard.config import ShardConfig

DEFAULT, DERIVED = "default", "model or other settings"  # sources of settings that nobody has set
SECRET_SETTINGS = frozenset({"api_key"})

# Sources by the names of the settings that were given. A command takes its settings alone, so they cannot be passed on.
GIVEN_SOURCES: ContextVar[Mapping[str, str]] = ContextVar("given_sources", default={})  # noqa: B039 - never changed


def record_setting_sources(_: object, __: object, arguments: Iterable[Any]) -> None:
    """Note the sources of settings. This is the last of the command line's `config` functions, which cyclopts calls
    with all arguments; those that the command line, the environment or a file has given have tokens."""
    first_tokens = {argument.field_info.name: argument.tokens[0] for argument in arguments if argument.tokens}
    GIVEN_SOURCES.set({
        name: "flag" if token.source == "cli"
        else f"variable {token.keyword}" if token.source == "env" else f"file {token.source}"
        for name, token in first_tokens.items()})


def describe_settings(launch: LaunchConfig, router: RouterConfig, shard: ShardConfig,
                      derived_names: Collection[str] = ()) -> list[dict[str, Any]]:
    """Return the settings of a server, each with its group and source, in the order of the help page.

    `derived_names` are the settings whose defaults follow from the model or from other settings. The values of secrets
    are left out, and the simulated model's settings where another runs.
    """
    sources = GIVEN_SOURCES.get()
    values = asdict(launch) | asdict(router) | asdict(shard) | {
        f"simulated_{name}": value for name, value in asdict(shard.simulated).items()}
    groups = {group: settings for group, settings in SETTING_GROUPS.items()
              if group != SIMULATED_GROUP or launch.model_id == SIMULATED_MODEL}
    return [{"group": group, "name": setting.flags[0],
             "value": "(secret)" if values[setting.name] and setting.name in SECRET_SETTINGS else values[setting.name],
             "source": sources.get(setting.name, DERIVED if setting.name in derived_names else DEFAULT)}
            for group, settings in groups.items() for setting in settings]
