"""Tests of the list of settings, and of the configs made from it."""

import pytest

from launcher.settings import (
    COMMON_SETTINGS,
    POSITIONAL_SETTINGS,
    RESERVED_VARIABLES,
    SETTING_GROUPS,
    SETTINGS_BY_NAME,
    TGI_COMPATIBLE_SETTINGS,
    LaunchConfig,
    make_configs,
)
from router.config import RouterConfig
from shard.config import ShardConfig, SimulatedConfig
from shard.telemetry.logs import LogSettings
from shard.telemetry.span_export_interface import TraceSettings


def test_every_setting_is_in_one_group() -> None:
    assert sorted(setting.name for group in SETTING_GROUPS.values() for setting in group) == sorted(SETTINGS_BY_NAME)
    assert all(SETTING_GROUPS.values())
    assert {*COMMON_SETTINGS} < {*SETTINGS_BY_NAME}


@pytest.mark.parametrize("setting", SETTINGS_BY_NAME.values(), ids=SETTINGS_BY_NAME)
def test_every_setting_has_help_and_a_valid_default(setting: object) -> None:
    assert setting.field.metadata["help"].endswith(".")
    assert make_configs({setting.name: setting.field.default}) == make_configs({})


def test_no_given_settings_mean_all_defaults() -> None:
    assert make_configs({}) == (LaunchConfig(), RouterConfig(), ShardConfig())


def test_setting_reaches_its_config() -> None:
    launch, router, shard = make_configs(
        {"num_shard": 2, "look_ahead": 1, "gap_timeout": 3.0, "simulated_num_blocks": 7})
    assert (launch.num_shard, router.look_ahead) == (2, 1)
    assert shard == ShardConfig(gap_timeout=3.0, simulated=SimulatedConfig(num_blocks=7))


def test_values_decided_by_the_launcher_are_no_settings() -> None:
    names = {"socket", "rank", "world_size", "ready_fd", "parent_fd", "simulated"}
    assert not (names | {"model", "meeting_point", "memory"}) & set(SETTINGS_BY_NAME)


def test_otlp_settings_make_trace_settings() -> None:
    assert LaunchConfig().trace_settings == TraceSettings() == TraceSettings("", "weft")
    settings = {"otlp_endpoint": "http://a:4317", "otlp_service_name": "loom"}
    assert make_configs(settings)[0].trace_settings == TraceSettings("http://a:4317", "loom")
    with pytest.raises(ValueError, match=r"--otlp-endpoint must be .*, got ftp://a"):
        make_configs({"otlp_endpoint": "ftp://a"})


def test_log_settings_apply_to_all_processes() -> None:
    assert LaunchConfig().logging_settings == LogSettings()
    assert make_configs({"json_output": True,
                         "log_level": "error"})[0].logging_settings == LogSettings("error", as_json=True)


def test_out_of_range_values_are_rejected() -> None:
    with pytest.raises(ValueError, match="--num-shard must be at least 1, got 0"):
        make_configs({"num_shard": 0})


def test_tgi_flag_names_are_settings() -> None:
    assert set(SETTINGS_BY_NAME) >= TGI_COMPATIBLE_SETTINGS


def test_weft_variables_precede_tgi_variables() -> None:
    assert SETTINGS_BY_NAME["model_id"].environment_variables == ("WEFT_MODEL_ID", "MODEL_ID")
    assert SETTINGS_BY_NAME["max_best_of"].environment_variables == ("WEFT_MAX_BEST_OF", "MAX_BEST_OF")
    assert SETTINGS_BY_NAME["look_ahead"].environment_variables == ("WEFT_LOOK_AHEAD",)


def test_variables_with_other_purposes_are_not_read() -> None:
    assert SETTINGS_BY_NAME["hostname"].environment_variables == ("WEFT_HOSTNAME",)
    assert SETTINGS_BY_NAME["port"].environment_variables == ("PORT",)
    assert not RESERVED_VARIABLES & {name for setting in SETTINGS_BY_NAME.values()
                                     for name in setting.environment_variables}


def test_positional_settings_come_first() -> None:
    """Otherwise they cannot be distinguished from the values of other flags."""
    assert tuple(SETTINGS_BY_NAME)[:len(POSITIONAL_SETTINGS)] == POSITIONAL_SETTINGS


def test_address_of_node_0_has_no_spelling_that_goes_with_a_flag_for_its_port() -> None:
    assert SETTINGS_BY_NAME["dist_init_addr"].flags == ("--dist-init-addr",)
