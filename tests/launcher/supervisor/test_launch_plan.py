"""Tests of the plan of a server's child processes and of their command lines."""

import json
import sys

from launcher.hub.resolve import BUILTIN_MODELS, SIMULATED_MODEL, ResolvedModel
from launcher.supervisor.launch_plan import HostPlacement, make_plan
from router.config import API_KEY_ENV, RouterConfig
from shard.config import ShardConfig, SimulatedConfig
from shard.telemetry.logs import LogSettings
from shard.telemetry.span_export_interface import TraceSettings

SHARD_CONFIG = ShardConfig(gap_timeout=3.0, simulated=SimulatedConfig(seed=5))


def test_plan_has_a_shard_for_every_rank_and_one_router() -> None:
    plan = make_plan(RouterConfig(), SHARD_CONFIG, 2, "/folder", BUILTIN_MODELS[SIMULATED_MODEL], shard_environment={})
    assert [child.name for child in (*plan.shard_specs, plan.router_spec)] == ["shard 0", "shard 1", "router"]
    assert [(child.settings["rank"], child.settings["world_size"]) for child in plan.shard_specs] == [(0, 2), (1, 2)]


def test_every_shard_has_its_socket_known_to_the_router() -> None:
    plan = make_plan(RouterConfig(), SHARD_CONFIG, 2, "/folder", BUILTIN_MODELS[SIMULATED_MODEL], shard_environment={})
    sockets = [child.settings["socket"] for child in plan.shard_specs]
    assert sockets == ["unix:/folder/shard-0.sock", "unix:/folder/shard-1.sock"]
    assert plan.router_spec.settings["shards"] == sockets


def test_every_shard_has_its_progress_file_known_to_the_router() -> None:
    plan = make_plan(RouterConfig(), SHARD_CONFIG, 2, "/folder", BUILTIN_MODELS[SIMULATED_MODEL], shard_environment={})
    files = [child.settings["progress"] for child in plan.shard_specs]
    assert files == ["/folder/progress-0", "/folder/progress-1"]
    assert plan.router_spec.settings["progress"] == files


def test_children_never_import_from_the_current_folder() -> None:
    plan = make_plan(RouterConfig(), SHARD_CONFIG, 1, "/folder", BUILTIN_MODELS[SIMULATED_MODEL], shard_environment={})
    assert plan.router_spec.make_command_line()[:4] == (sys.executable, "-P", "-m", "router")
    assert plan.shard_specs[0].make_command_line()[:4] == (sys.executable, "-P", "-m", "shard.rpc.server")


def test_shard_gets_its_config_and_inherited_descriptors() -> None:
    plan = make_plan(RouterConfig(), SHARD_CONFIG, 1, "/folder", BUILTIN_MODELS[SIMULATED_MODEL], shard_environment={})
    config = ShardConfig.from_json(plan.shard_specs[0].make_command_line(ready_fd=7, parent_fd=8)[-1])
    assert (config.gap_timeout, config.simulated.seed, config.ready_fd, config.parent_fd) == (3.0, 5, 7, 8)


def test_router_gets_its_config_and_inherited_descriptors() -> None:
    plan = make_plan(RouterConfig(look_ahead=1), SHARD_CONFIG, 1, "/folder", BUILTIN_MODELS[SIMULATED_MODEL],
                     shard_environment={})
    arguments = json.loads(plan.router_spec.make_command_line(listen_fd=9)[-1])
    assert (RouterConfig(**arguments["config"]).look_ahead, arguments["listen_fd"]) == (1, 9)


def test_shards_get_the_model_folder_and_the_router_its_name() -> None:
    plan = make_plan(RouterConfig(), SHARD_CONFIG, 2, "/folder", ResolvedModel("org/name", "/cache/model", "old"),
                     shard_environment={})
    assert [child.settings["model"] for child in plan.shard_specs] == ["/cache/model"] * 2
    assert [plan.router_spec.settings[name]
            for name in ("model", "folder", "notice")] == ["org/name", "/cache/model", "old"]


def test_simulated_model_has_no_folder() -> None:
    plan = make_plan(RouterConfig(), SHARD_CONFIG, 1, "/folder", BUILTIN_MODELS[SIMULATED_MODEL], shard_environment={})
    assert plan.shard_specs[0].settings["model"] == plan.router_spec.settings["folder"] == ""
    assert plan.router_spec.settings["model"] == "weft/simulated"


def test_every_shard_generation_has_its_own_meeting_point() -> None:
    plan = make_plan(RouterConfig(), SHARD_CONFIG, 2, "/folder", BUILTIN_MODELS[SIMULATED_MODEL], shard_environment={})
    points = [[child.settings["meeting_point"] for child in plan.make_shard_specs(number)] for number in (1, 2)]
    assert points == [["/folder/meeting-1"] * 2, ["/folder/meeting-2"] * 2]


def test_new_generation_changes_only_the_meeting_point() -> None:
    plan = make_plan(RouterConfig(), SHARD_CONFIG, 2, "/folder", BUILTIN_MODELS[SIMULATED_MODEL], shard_environment={})
    for child, new_spec in zip(plan.shard_specs, plan.make_shard_specs(7), strict=True):
        assert (new_spec.name, new_spec.program_command) == (child.name, child.program_command)
        assert new_spec.settings == child.settings | {"meeting_point": "/folder/meeting-7"}


def test_shards_get_their_own_environment() -> None:
    plan = make_plan(RouterConfig(), SHARD_CONFIG, 2, "/folder", BUILTIN_MODELS[SIMULATED_MODEL],
                     shard_environment={"A": "b"})
    assert [child.extra_environment for child in plan.make_shard_specs(1)] == [{"A": "b"}, {"A": "b"}]


def test_api_key_is_not_on_command_lines() -> None:
    plan = make_plan(RouterConfig(api_key="sk-loom"), SHARD_CONFIG, 1, "/folder", BUILTIN_MODELS[SIMULATED_MODEL],
                     shard_environment={})
    assert "sk-loom" not in " ".join((*plan.router_spec.make_command_line(), *plan.shard_specs[0].make_command_line()))
    assert plan.router_spec.extra_environment[API_KEY_ENV] == "sk-loom"


def test_unset_api_key_is_not_inherited() -> None:
    plan = make_plan(RouterConfig(), SHARD_CONFIG, 1, "/folder", BUILTIN_MODELS[SIMULATED_MODEL], shard_environment={})
    assert plan.router_spec.extra_environment[API_KEY_ENV] == ""


def test_router_gets_the_recordings_folder() -> None:
    plan = make_plan(RouterConfig(), SHARD_CONFIG, 1, "/folder", BUILTIN_MODELS[SIMULATED_MODEL], shard_environment={},
                     record_folder="/recordings")
    assert plan.router_spec.settings["record_folder"] == "/recordings"


def test_all_children_get_the_same_log_settings() -> None:
    logs, expected = LogSettings("debug", as_json=True), {"level": "debug", "as_json": True}
    plan = make_plan(RouterConfig(), SHARD_CONFIG, 2, "/folder", BUILTIN_MODELS[SIMULATED_MODEL], shard_environment={},
                     logs=logs)
    assert [child.settings["logs"] for child in (*plan.shard_specs, plan.router_spec)] == [expected] * 3
    assert ShardConfig.from_json(plan.shard_specs[0].make_command_line()[-1]).logs == logs


def test_all_children_get_the_same_trace_settings() -> None:
    traces, expected = TraceSettings("http://a:4317", "loom"), {"endpoint": "http://a:4317", "service": "loom"}
    plan = make_plan(RouterConfig(), SHARD_CONFIG, 2, "/folder", BUILTIN_MODELS[SIMULATED_MODEL], shard_environment={},
                     traces=traces)
    assert [child.settings["traces"] for child in (*plan.shard_specs, plan.router_spec)] == [expected] * 3
    assert ShardConfig.from_json(plan.shard_specs[0].make_command_line()[-1]).traces == traces


def test_host_of_a_group_has_its_ranks_and_the_router_files_for_the_others() -> None:
    placement = HostPlacement(range(2), first_local_rank=0, local_world_size=2, credentials="/credentials",
                              meeting_prefix="10.0.0.1:29500/run-", host_address="10.0.0.1")
    plan = make_plan(RouterConfig(), SHARD_CONFIG, 3, "/folder", BUILTIN_MODELS[SIMULATED_MODEL], shard_environment={},
                     placement=placement)
    assert plan.router_spec.settings["shards"] == ["unix:/folder/shard-0.sock", "unix:/folder/shard-1.sock",
                                                   "file:/folder/address-2"]
    assert plan.router_spec.settings["shard_credentials"] == "/credentials"
    names = ("rank", "world_size", "local_rank", "local_world_size", "host_address", "credentials", "meeting_point")
    assert [[child.settings[name] for name in names] for child in plan.make_shard_specs(4)] == [
        [rank, 3, rank, 2, "10.0.0.1", "/credentials", "10.0.0.1:29500/run-4"] for rank in range(2)]
