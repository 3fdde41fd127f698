"""Tests of the list of settings, and of the configs made from it."""

import pytest

from launcher.settings import FOREIGN_VARIABLES, GROUPS, POSITIONAL, TGI_FLAGS, LaunchConfig, make_configs
from router.config import RouterConfig
from shard.config import ShardConfig, SimulatedConfig
from shard.telemetry.logs import Logs
from shard.telemetry.traces import Traces

SETTINGS = {setting.name: setting for group in GROUPS.values() for setting in group}


def test_no_two_settings_share_a_name() -> None:
    assert len(SETTINGS) == sum(map(len, GROUPS.values()))


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_every_setting_has_help_and_a_default_that_is_allowed(setting: object) -> None:
    assert setting.field.metadata["help"].endswith(".")
    assert make_configs({setting.name: setting.field.default}) == make_configs({})


def test_nothing_given_is_all_defaults() -> None:
    assert make_configs({}) == (LaunchConfig(), RouterConfig(), ShardConfig())


def test_a_setting_reaches_the_config_that_it_belongs_to() -> None:
    launch, router, shard = make_configs(
        {"num_shard": 2, "look_ahead": 1, "gap_timeout": 3.0, "simulated_num_blocks": 7})
    assert (launch.num_shard, router.look_ahead) == (2, 1)
    assert shard == ShardConfig(gap_timeout=3.0, simulated=SimulatedConfig(num_blocks=7))


def test_what_the_launcher_decides_is_no_setting() -> None:
    given = {"socket", "rank", "world_size", "ready_fd", "parent_fd", "simulated"}
    assert not (given | {"model", "meeting_point", "memory"}) & set(SETTINGS)


def test_two_settings_say_where_traces_go() -> None:
    assert LaunchConfig().traces == Traces() == Traces("", "weft")
    given = {"otlp_endpoint": "http://a:4317", "otlp_service_name": "loom"}
    assert make_configs(given)[0].traces == Traces("http://a:4317", "loom")
    with pytest.raises(ValueError, match=r"--otlp-endpoint must be .*, got ftp://a"):
        make_configs({"otlp_endpoint": "ftp://a"})


def test_two_settings_say_how_all_processes_log() -> None:
    assert LaunchConfig().logs == Logs()
    assert make_configs({"json_output": True, "log_level": "error"})[0].logs == Logs("error", as_json=True)


def test_values_out_of_bounds_are_refused() -> None:
    with pytest.raises(ValueError, match="--num-shard must be at least 1, got 0"):
        make_configs({"num_shard": 0})


def test_tgi_names_are_settings_of_ours() -> None:
    assert set(SETTINGS) >= TGI_FLAGS


def test_variables_are_ours_and_then_those_of_tgi() -> None:
    assert SETTINGS["model_id"].variables == ("WEFT_MODEL_ID", "MODEL_ID")
    assert SETTINGS["max_best_of"].variables == ("WEFT_MAX_BEST_OF", "MAX_BEST_OF")
    assert SETTINGS["look_ahead"].variables == ("WEFT_LOOK_AHEAD",)


def test_variables_that_others_set_for_their_own_purposes_are_not_read() -> None:
    assert SETTINGS["hostname"].variables == ("WEFT_HOSTNAME",)
    assert SETTINGS["port"].variables == ("PORT",)
    assert not FOREIGN_VARIABLES & {name for setting in SETTINGS.values() for name in setting.variables}


def test_settings_that_may_stand_without_their_flag_come_first() -> None:
    """Otherwise they cannot be distinguished from the values of other flags."""
    assert tuple(SETTINGS)[:len(POSITIONAL)] == POSITIONAL
