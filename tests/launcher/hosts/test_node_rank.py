from typing import Any

import pytest

from launcher.hosts.node_rank import NodeRank, find_group_variable, parse_address, read_node_rank
from launcher.settings import LaunchConfig

# as torchrun --nnodes 2 --nproc-per-node 2 sets them for the last process
TORCHRUN = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1",
            "MASTER_ADDR": "host0", "MASTER_PORT": "29400", "TORCHELASTIC_USE_AGENT_STORE": "True"}
LWS = {"LWS_LEADER_ADDRESS": "weft-0.weft.default", "LWS_GROUP_SIZE": "2", "LWS_WORKER_INDEX": "1"}
CREDENTIALS: dict[str, Any] = {"shard_credentials": "group"}
FLAGS: dict[str, Any] = {"nnodes": 2, "node_rank": 1, "dist_init_addr": "10.0.0.1"}


def test_without_flags_and_variables_a_server_is_alone() -> None:
    assert read_node_rank(LaunchConfig(), {}) is None


@pytest.mark.parametrize("environment", [{}, TORCHRUN, LWS], ids=["alone", "torchrun", "LeaderWorkerSet"])
def test_flags_win_over_variables(environment: dict[str, str]) -> None:
    assert read_node_rank(LaunchConfig(**FLAGS), environment) == NodeRank(1, 2, "10.0.0.1", 29500, "--nnodes")


def test_each_process_of_torchrun_is_a_node_that_shares_its_machine() -> None:
    node = read_node_rank(LaunchConfig(**CREDENTIALS), TORCHRUN)
    assert node == NodeRank(3, 4, "host0", 29401, "WORLD_SIZE", 1, 2)


@pytest.mark.parametrize(("flags", "variables", "port"), [
    ({}, {"TORCHELASTIC_USE_AGENT_STORE": "False"}, 29400), ({"dist_init_addr": "host0:7"}, {}, 7)])
def test_port_of_torchrun_is_used_unless_it_listens_there_itself(
        flags: dict[str, Any], variables: dict[str, str], port: int) -> None:
    node = read_node_rank(LaunchConfig(**CREDENTIALS, **flags), TORCHRUN | variables)
    assert node is not None
    assert node.master_port == port


def test_pods_of_a_leader_worker_set_are_nodes() -> None:
    node = read_node_rank(LaunchConfig(**CREDENTIALS), LWS)
    assert node == NodeRank(1, 2, "weft-0.weft.default", 29500, "LWS_GROUP_SIZE")


def test_torchrun_within_a_leader_worker_set_counts() -> None:
    node = read_node_rank(LaunchConfig(**CREDENTIALS), LWS | TORCHRUN)
    assert node is not None
    assert node.num_nodes == 4


@pytest.mark.parametrize("environment", [
    TORCHRUN | {"WORLD_SIZE": "1", "RANK": "0"}, LWS | {"LWS_GROUP_SIZE": "1"},
    {name: value for name, value in TORCHRUN.items() if name != "MASTER_ADDR"}])
def test_group_of_one_and_incomplete_variables_are_none(environment: dict[str, str]) -> None:
    assert read_node_rank(LaunchConfig(**CREDENTIALS), environment) is None


@pytest.mark.parametrize("environment", [TORCHRUN, TORCHRUN | {"WORLD_SIZE": "many", "RANK": "x"}, LWS])
def test_variables_count_neither_without_credentials_nor_with_one_node(environment: dict[str, str]) -> None:
    alone = LaunchConfig(nnodes=1, **CREDENTIALS)
    assert read_node_rank(LaunchConfig(), environment) is read_node_rank(alone, environment) is None
    assert find_group_variable(LaunchConfig(), environment) in {"WORLD_SIZE", "LWS_GROUP_SIZE"}
    assert find_group_variable(alone, environment) == ""


@pytest.mark.parametrize(("flags", "environment", "rule"), [
    ({"node_rank": 1}, {}, "--node-rank 1 needs --nnodes"),
    ({"dist_init_addr": "10.0.0.1"}, {}, "--dist-init-addr 10.0.0.1 needs --nnodes"),
    ({"nnodes": 2}, {}, "2 nodes need --dist-init-addr"),
    ({"nnodes": 2, "node_rank": 2, "dist_init_addr": "a"}, {}, r"from 0 to 1 \(--nnodes says 2 nodes\), got 2"),
    (CREDENTIALS, TORCHRUN | {"RANK": "4"},
     r"from 0 to 3 \(WORLD_SIZE says 4 nodes\), got 4; --nnodes 1 serves on this host alone"),
    (CREDENTIALS, TORCHRUN | {"WORLD_SIZE": "many"}, "the variable WORLD_SIZE must be a whole number, got 'many'"),
    (CREDENTIALS, LWS | {"LWS_WORKER_INDEX": "-1"},
     "the variable LWS_WORKER_INDEX must be a whole number, got '-1'; --nnodes 1 serves on this host alone")])
def test_wrong_layout_is_rejected_with_its_cause(flags: dict[str, Any], environment: dict[str, str], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        read_node_rank(LaunchConfig(**flags), environment)


@pytest.mark.parametrize(("address", "parts"), [
    ("", ("", 0)), ("host0", ("host0", 0)), ("10.0.0.1:7", ("10.0.0.1", 7)), ("fd00::1", ("fd00::1", 0)),
    ("[fd00::1]", ("fd00::1", 0)), ("[fd00::1]:7", ("fd00::1", 7))])
def test_port_may_follow_the_address(address: str, parts: tuple[str, int]) -> None:
    assert parse_address(address) == parts


@pytest.mark.parametrize("address", ["host0:", "host0:http", "host0:65536", ":7"])
def test_malformed_address_is_rejected(address: str) -> None:
    with pytest.raises(ValueError, match=rf"must be HOST, HOST:PORT or \[IPV6\]:PORT, got {address}"):
        parse_address(address)


def test_shards_are_shared_evenly() -> None:
    node = NodeRank(0, 2, "a", 1, "--nnodes")
    assert node.count_local_shards(8) == 4
    with pytest.raises(ValueError, match="3 cannot be shared evenly by 2 nodes"):
        node.count_local_shards(3)
