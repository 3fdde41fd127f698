"""Groups of hosts on loopback, in one process."""

from pathlib import Path

from launcher.hosts.group_plan import GroupPlan
from launcher.hosts.node_rank import NodeRank
from shard.tls_credentials import ShardTlsCredentials

FACTS = {"version of weft": "1", "--dtype": "auto"}


def make_group(credentials: ShardTlsCredentials, port: int, node_rank: int = 0, num_nodes: int = 2) -> GroupPlan:
    """Return the plan of a node with one shard."""
    return GroupPlan(NodeRank(node_rank, num_nodes, "127.0.0.1", port, "--nnodes"), credentials, num_nodes,
                     "127.0.0.1", "run")


def list_address_files(folder: Path, group: GroupPlan) -> list[Path]:
    return [file for node in range(1, group.node.num_nodes) for file in group.list_address_files(str(folder), node)]
