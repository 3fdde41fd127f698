"""Two hosts on this machine: network namespaces with a link between them, and one to the tests.

    with create_host_pair() as hosts:
        hosts.run_command(1, "weft", ...)

Needs root and `ip`.
"""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path

from support.servers.weft_process import WeftProcess

# of the network for measurements of devices, which no machine routes
TEST_ADDRESS, CLIENT_ADDRESS = "198.18.77.1", "198.18.77.2"  # of the tests, and of host 0 for the tests
HOST_ADDRESSES = ("198.18.78.1", "198.18.78.2")  # of the hosts for each other


def find_missing_privilege() -> str:
    """Return why there cannot be namespaces here, or ""."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "network namespaces need ip (iproute2)"
    name = f"weft-{os.getpid()}"
    if subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode:
        return "network namespaces are not allowed here"
    run_ip("netns", "del", name)
    return ""


def run_ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout


class HostPair:
    """Two namespaces."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def make_command(self, host: int, *command: str | Path) -> list[str | Path]:
        return ["ip", "netns", "exec", self._names[host], *command]

    def run_command(self, host: int, *command: str | Path) -> str:
        return subprocess.run(self.make_command(host, *command), check=True, capture_output=True, text=True).stdout

    def kill_processes(self, host: int) -> None:
        """Kill everything on a host at once, as its loss does."""
        for pid in run_ip("netns", "pids", self._names[host]).split():
            os.kill(int(pid), signal.SIGKILL)

    def set_link(self, state: str) -> None:
        """Set the link between the hosts `up` or `down`."""
        run_ip("-n", self._names[0], "link", "set", "link-1", state)

    def list_listening_addresses(self, host: int) -> set[str]:
        """Return the addresses of IPv4 and IPv6 at which processes of a host listen on TCP, without their ports."""
        lines = [line.split() for family in ("tcp", "tcp6")
                 for line in self.run_command(host, "cat", f"/proc/net/{family}").splitlines()[1:]]
        return {decode_address(fields[1].partition(":")[0]) for fields in lines if fields[3] == "0A"}


def decode_address(text: str) -> str:
    """Return an address of /proc/net/tcp, whose words of four bytes are in the machine's order; one of IPv4 as such."""
    words = [bytes.fromhex(text[start:start + 8])[::-1] for start in range(0, len(text), 8)]
    address = ip_address(b"".join(words))
    return str(getattr(address, "ipv4_mapped", None) or address)


@contextmanager
def create_host_pair() -> Iterator[HostPair]:
    names = [f"weft-{os.getpid()}-{number}" for number in range(2)]
    outside = f"weft-{os.getpid()}"[:15]
    try:
        for name in names:
            run_ip("netns", "add", name)
            run_ip("-n", name, "link", "set", "lo", "up")
        run_ip("-n", names[0], "link", "add", "link-1", "type", "veth", "peer", "name", "link-0", "netns", names[1])
        run_ip("link", "add", outside, "type", "veth", "peer", "name", "outside", "netns", names[0])
        for name, link, address in ((names[0], "link-1", HOST_ADDRESSES[0]), (names[1], "link-0", HOST_ADDRESSES[1]),
                                    (names[0], "outside", CLIENT_ADDRESS)):
            run_ip("-n", name, "addr", "add", f"{address}/30", "dev", link)
            run_ip("-n", name, "link", "set", link, "up")
        run_ip("addr", "add", f"{TEST_ADDRESS}/30", "dev", outside)
        run_ip("link", "set", outside, "up")
        yield HostPair(names)
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


class FirstHost(WeftProcess):
    """The server on host 0, which the tests reach over a link of its own."""

    @property
    def url(self) -> str:
        return f"http://{CLIENT_ADDRESS}:{self.port}"
