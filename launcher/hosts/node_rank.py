"""Place of this process among the hosts of one model: from flags, or from variables of torchrun or LeaderWorkerSet."""

from collections.abc import Mapping
from dataclasses import dataclass

from launcher.settings import LaunchConfig

DEFAULT_MASTER_PORT = 29500  # torch's
MAX_PORT = 65535
TORCHRUN_SIZE_VARIABLE, LWS_SIZE_VARIABLE = "WORLD_SIZE", "LWS_GROUP_SIZE"
TORCHRUN_VARIABLES = ("RANK", TORCHRUN_SIZE_VARIABLE, "MASTER_ADDR", "MASTER_PORT")
AGENT_STORE_VARIABLE = "TORCHELASTIC_USE_AGENT_STORE"  # True: torchrun itself listens at MASTER_PORT
LWS_VARIABLES = ("LWS_WORKER_INDEX", LWS_SIZE_VARIABLE, "LWS_LEADER_ADDRESS")


@dataclass(frozen=True, slots=True)
class NodeRank:
    """Place of this process among `num_nodes` that serve one model; under torchrun several may share a machine."""

    node_rank: int
    num_nodes: int
    master_address: str  # of the first node, which leads
    master_port: int
    source: str  # where this was read, for messages
    machine_rank: int = 0  # number of this node among those of its machine
    machine_size: int = 1  # nodes on this machine

    def __post_init__(self) -> None:
        if not 0 <= self.node_rank < self.num_nodes:
            raise ValueError(f"the number of this node must be from 0 to {self.num_nodes - 1} ({self.source} says "
                             f"{self.num_nodes} nodes), got {self.node_rank}")
        if not self.master_address:
            raise ValueError(f"{self.num_nodes} nodes need --dist-init-addr, the address of the first one")

    @property
    def is_first(self) -> bool:
        return self.node_rank == 0

    def count_local_shards(self, num_shard: int) -> int:
        """Return how many of `num_shard` shards each node has. Raises ValueError if they cannot be shared evenly."""
        if num_shard % self.num_nodes:
            raise ValueError(f"--num-shard counts the shards of all nodes: {num_shard} cannot be shared evenly by "
                             f"{self.num_nodes} nodes")
        return num_shard // self.num_nodes


def read_node_rank(launch: LaunchConfig, environment: Mapping[str, str]) -> NodeRank | None:
    """Return the place of this process, or None if it serves alone. Flags win over variables, which count only with
    credentials: other programs set them, too. Raises ValueError."""
    host, port = parse_address(launch.dist_init_addr)
    if launch.nnodes > 1:
        return NodeRank(launch.node_rank, launch.nnodes, host, port or DEFAULT_MASTER_PORT, "--nnodes")
    if launch.node_rank:
        raise ValueError(f"--node-rank {launch.node_rank} needs --nnodes, the number of nodes")
    variable = find_group_variable(launch, environment)
    if variable and launch.shard_credentials:
        try:
            return (read_torchrun_node_rank if variable == TORCHRUN_SIZE_VARIABLE else read_lws_node_rank)(
                host, port, environment)
        except ValueError as error:
            raise ValueError(f"{error}; --nnodes 1 serves on this host alone") from None
    if launch.dist_init_addr:
        raise ValueError(f"--dist-init-addr {launch.dist_init_addr} needs --nnodes, the number of nodes")
    return None


def find_group_variable(launch: LaunchConfig, environment: Mapping[str, str]) -> str:
    """Return the variable that gives the number of processes, if all of torchrun or LeaderWorkerSet are there, it is
    not 1, and no flag says how many nodes there are; or ""."""
    if launch.nnodes:
        return ""
    for names, size_variable in ((TORCHRUN_VARIABLES, TORCHRUN_SIZE_VARIABLE), (LWS_VARIABLES, LWS_SIZE_VARIABLE)):
        if all(environment.get(name) for name in names) and environment[size_variable] != "1":
            return size_variable
    return ""


def parse_address(address: str) -> tuple[str, int]:
    """Return host and port of HOST, HOST:PORT or [HOST]:PORT; the port is 0 without one. Raises ValueError."""
    host, separator, port = address.rpartition(":")
    if not separator or (":" in host and not host.endswith("]")):  # no port: a name, or the number of IPv6
        host, port = address, "0"
    if not (port.isascii() and port.isdecimal()) or int(port) > MAX_PORT or (separator and not host):
        raise ValueError(f"--dist-init-addr must be HOST, HOST:PORT or [IPV6]:PORT, got {address}")
    return host.strip("[]"), int(port)


def read_torchrun_node_rank(host: str, port: int, environment: Mapping[str, str]) -> NodeRank:
    """Return the place among torchrun's processes, each of which is a node. The port is behind MASTER_PORT if torchrun
    itself listens there. `host` and `port` win."""
    is_port_taken = environment.get(AGENT_STORE_VARIABLE) == "True"
    port = port or read_number(environment, "MASTER_PORT") + is_port_taken
    return NodeRank(read_number(environment, "RANK"), read_number(environment, TORCHRUN_SIZE_VARIABLE),
                    host or environment["MASTER_ADDR"], port, TORCHRUN_SIZE_VARIABLE,
                    machine_rank=read_number(environment, "LOCAL_RANK", 0),
                    machine_size=read_number(environment, "LOCAL_WORLD_SIZE", 1))


def read_lws_node_rank(host: str, port: int, environment: Mapping[str, str]) -> NodeRank:
    """Return the place among the pods of a LeaderWorkerSet. `host` and `port` win."""
    return NodeRank(read_number(environment, "LWS_WORKER_INDEX"), read_number(environment, LWS_SIZE_VARIABLE),
                    host or environment["LWS_LEADER_ADDRESS"], port or DEFAULT_MASTER_PORT, LWS_SIZE_VARIABLE)


def read_number(environment: Mapping[str, str], name: str, default: int | None = None) -> int:
    """Return the number in a variable. Raises ValueError that names the variable."""
    text = environment.get(name, "")
    if not text and default is not None:
        return default
    if not (text.isascii() and text.isdecimal()):
        raise ValueError(f"the variable {name} must be a whole number, got {text!r}")
    return int(text)
