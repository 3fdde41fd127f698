"""Tests of the plan of a server's child processes and of their command lines."""

import json
import sys

from launcher.hub.resolve import BOX, SIMULATED, Model
from launcher.supervisor.plan import make_plan
from router.config import API_KEY, RouterConfig
from shard.config import ShardConfig, SimulatedConfig
from shard.telemetry.logs import Logs
from shard.telemetry.traces import Traces

SHARD = ShardConfig(gap_timeout=3.0, simulated=SimulatedConfig(seed=5))


def test_there_is_a_shard_for_every_rank_and_one_router() -> None:
    plan = make_plan(RouterConfig(), SHARD, 2, "/folder", BOX[SIMULATED], environment={})
    assert [child.name for child in (*plan.shards, plan.router)] == ["shard 0", "shard 1", "router"]
    assert [(child.settings["rank"], child.settings["world_size"]) for child in plan.shards] == [(0, 2), (1, 2)]


def test_every_shard_has_a_socket_of_its_own_and_the_router_knows_them_by_rank() -> None:
    plan = make_plan(RouterConfig(), SHARD, 2, "/folder", BOX[SIMULATED], environment={})
    sockets = [child.settings["socket"] for child in plan.shards]
    assert sockets == ["unix:/folder/shard-0.sock", "unix:/folder/shard-1.sock"]
    assert plan.router.settings["shards"] == sockets


def test_every_shard_writes_how_far_it_is_where_the_router_reads_it() -> None:
    plan = make_plan(RouterConfig(), SHARD, 2, "/folder", BOX[SIMULATED], environment={})
    files = [child.settings["progress"] for child in plan.shards]
    assert files == ["/folder/progress-0", "/folder/progress-1"]
    assert plan.router.settings["progress"] == files


def test_children_never_import_from_the_current_folder() -> None:
    plan = make_plan(RouterConfig(), SHARD, 1, "/folder", BOX[SIMULATED], environment={})
    assert plan.router.command()[:4] == (sys.executable, "-P", "-m", "router")
    assert plan.shards[0].command()[:4] == (sys.executable, "-P", "-m", "shard.rpc.server")


def test_a_shard_is_given_its_config_and_the_descriptors_it_inherits() -> None:
    plan = make_plan(RouterConfig(), SHARD, 1, "/folder", BOX[SIMULATED], environment={})
    config = ShardConfig.from_json(plan.shards[0].command(ready_fd=7, parent_fd=8)[-1])
    assert (config.gap_timeout, config.simulated.seed, config.ready_fd, config.parent_fd) == (3.0, 5, 7, 8)


def test_the_router_is_given_its_config_and_the_descriptors_it_inherits() -> None:
    plan = make_plan(RouterConfig(look_ahead=1), SHARD, 1, "/folder", BOX[SIMULATED], environment={})
    order = json.loads(plan.router.command(listen_fd=9)[-1])
    assert (RouterConfig(**order["config"]).look_ahead, order["listen_fd"]) == (1, 9)


def test_shards_know_where_the_model_is_and_the_router_what_it_is_called() -> None:
    plan = make_plan(RouterConfig(), SHARD, 2, "/folder", Model("org/name", "/cache/model", "old"), environment={})
    assert [child.settings["model"] for child in plan.shards] == ["/cache/model"] * 2
    assert [plan.router.settings[name] for name in ("model", "folder", "notice")] == ["org/name", "/cache/model", "old"]


def test_the_simulated_model_has_no_folder() -> None:
    plan = make_plan(RouterConfig(), SHARD, 1, "/folder", BOX[SIMULATED], environment={})
    assert plan.shards[0].settings["model"] == plan.router.settings["folder"] == ""
    assert plan.router.settings["model"] == "weft/simulated"


def test_every_start_of_the_shards_has_a_meeting_point_of_its_own() -> None:
    plan = make_plan(RouterConfig(), SHARD, 2, "/folder", BOX[SIMULATED], environment={})
    points = [[child.settings["meeting_point"] for child in plan.generation(number)] for number in (1, 2)]
    assert points == [["/folder/meeting-1"] * 2, ["/folder/meeting-2"] * 2]


def test_starting_anew_changes_nothing_else() -> None:
    plan = make_plan(RouterConfig(), SHARD, 2, "/folder", BOX[SIMULATED], environment={})
    for child, again in zip(plan.shards, plan.generation(7), strict=True):
        assert (again.name, again.program) == (child.name, child.program)
        assert again.settings == child.settings | {"meeting_point": "/folder/meeting-7"}


def test_shards_get_variables_of_their_own() -> None:
    plan = make_plan(RouterConfig(), SHARD, 2, "/folder", BOX[SIMULATED], environment={"A": "b"})
    assert [child.environment for child in plan.generation(1)] == [{"A": "b"}, {"A": "b"}]


def test_the_key_of_clients_is_no_argument_since_others_see_those() -> None:
    plan = make_plan(RouterConfig(api_key="sk-loom"), SHARD, 1, "/folder", BOX[SIMULATED], environment={})
    assert "sk-loom" not in " ".join((*plan.router.command(), *plan.shards[0].command()))
    assert plan.router.environment[API_KEY] == "sk-loom"


def test_a_key_that_is_left_out_is_not_inherited_either() -> None:
    plan = make_plan(RouterConfig(), SHARD, 1, "/folder", BOX[SIMULATED], environment={})
    assert plan.router.environment[API_KEY] == ""


def test_the_router_knows_where_recordings_go() -> None:
    plan = make_plan(RouterConfig(), SHARD, 1, "/folder", BOX[SIMULATED], environment={}, record_folder="/recordings")
    assert plan.router.settings["record_folder"] == "/recordings"


def test_all_children_log_alike() -> None:
    logs, told = Logs("debug", as_json=True), {"level": "debug", "as_json": True}
    plan = make_plan(RouterConfig(), SHARD, 2, "/folder", BOX[SIMULATED], environment={}, logs=logs)
    assert [child.settings["logs"] for child in (*plan.shards, plan.router)] == [told] * 3
    assert ShardConfig.from_json(plan.shards[0].command()[-1]).logs == logs


def test_all_children_send_their_traces_to_the_same_place() -> None:
    traces, told = Traces("http://a:4317", "loom"), {"endpoint": "http://a:4317", "service": "loom"}
    plan = make_plan(RouterConfig(), SHARD, 2, "/folder", BOX[SIMULATED], environment={}, traces=traces)
    assert [child.settings["traces"] for child in (*plan.shards, plan.router)] == [told] * 3
    assert ShardConfig.from_json(plan.shards[0].command()[-1]).traces == traces
