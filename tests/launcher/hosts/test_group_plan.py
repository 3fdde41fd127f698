import socket
from pathlib import Path
from typing import Any

import pytest
from support.host_credentials import make_self_signed

from launcher.hosts import group_plan
from launcher.hosts.group_plan import make_group_plan
from launcher.settings import LaunchConfig
from launcher.supervisor.supervisor import ConfigurationError, LaunchError

# the last of four processes of torchrun, two on each machine
TORCHRUN = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29400"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_self_signed(tmp_path_factory.mktemp("credentials"))


def make_launch(folder: str, node_rank: int = 0, num_shard: int = 4, address: str = "127.0.0.1") -> LaunchConfig:
    return LaunchConfig(num_shard=num_shard, nnodes=2, node_rank=node_rank, dist_init_addr=address,
                        shard_credentials=folder)


def test_one_host_has_no_group() -> None:
    assert make_group_plan(LaunchConfig(num_shard=2), {}) is None


def test_first_node_meets_the_others_at_its_address(folder: str) -> None:
    plan = make_group_plan(make_launch(folder), {})
    assert plan is not None
    placement = plan.placement
    assert (placement.ranks, placement.host_address, placement.credentials) == (range(2), "127.0.0.1", folder)
    assert placement.meeting_prefix == f"127.0.0.1:29500/{plan.run_name}-"
    assert placement.get_multi_host_settings(1) == {"local_rank": 1, "local_world_size": 2, "credentials": folder,
                                                 "host_address": "127.0.0.1"}
    assert plan.list_address_files("/run", 1) == [Path("/run/address-2"), Path("/run/address-3")]


def test_other_nodes_have_the_next_ranks(folder: str) -> None:
    plan = make_group_plan(make_launch(folder, 1), {})
    assert plan is not None
    assert plan.placement.ranks == range(2, 4)
    assert plan.placement.get_multi_host_settings(3)["local_rank"] == 1
    assert plan.describe() == "node 1 of 2 (--nnodes) has shards 2 to 3 of 4"


def test_nodes_of_torchrun_share_the_gpus_of_their_machine(folder: str) -> None:
    plan = make_group_plan(LaunchConfig(num_shard=8, shard_credentials=folder), TORCHRUN)
    assert plan is not None
    assert plan.placement.ranks == range(6, 8)
    settings = plan.placement.get_multi_host_settings(7)
    assert (settings["local_rank"], settings["local_world_size"]) == (3, 4)


def test_by_default_each_node_has_one_shard(folder: str) -> None:
    plan = make_group_plan(make_launch(folder, num_shard=1), {})
    assert plan is not None
    assert plan.num_shard == 2
    assert plan.describe() == "node 0 of 2 (--nnodes) has shard 0 of 2"


def test_several_nodes_need_credentials() -> None:
    with pytest.raises(ConfigurationError, match=r"2 nodes \(--nnodes\) need --shard-credentials") as error:
        make_group_plan(make_launch(""), {})
    assert error.value.exit_code == 2


def test_address_of_the_first_node_is_looked_up_for_some_seconds(
        folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    look_up, failures = socket.getaddrinfo, iter(range(3))

    def fail_thrice(*arguments: Any, **settings: Any) -> Any:
        if next(failures, None) is not None:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return look_up(*arguments, **settings)

    monkeypatch.setattr(group_plan, "RESOLVE_PAUSE_SECONDS", 0)
    monkeypatch.setattr(socket, "getaddrinfo", fail_thrice)
    plan = make_group_plan(make_launch(folder), {})
    assert plan is not None
    assert plan.master_host == "127.0.0.1"


def test_unknown_address_of_the_first_node_may_be_known_later(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_plan, "RESOLVE_PAUSE_SECONDS", 0)
    with pytest.raises(LaunchError, match=r"there is no address no-such-host.invalid \(--dist-init-addr\)") as error:
        make_group_plan(make_launch(folder, address="no-such-host.invalid"), {})
    assert error.value.exit_code == 1
