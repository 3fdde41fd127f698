"""A Ray cluster of this machine alone, with ports and a folder of its own, for weft's replicas behind Ray Serve.

    with run_ray_cluster(python) as cluster:
        url = cluster.start_replicas(3, "weft/simulated", "--routing", "power-of-two")

`python` is that of an environment with weft's packages and Ray.
"""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from benchmarks.harness.processes import HOST, ProcessStartError, find_free_ports, list_descendants

CHECKOUT = Path(__file__).parents[2]
START_MARK = "Ray runtime started"
STOP_TIMEOUT_SECONDS, COMMAND_TIMEOUT_SECONDS = 5.0, 300.0
OBJECT_STORE_BYTES = 200_000_000
SERVER_TITLE, INGRESS_TITLE = "WeftServer", "WeftIngress"  # in the command lines of Ray's workers


class RayCluster:
    """A running cluster of one node."""

    def __init__(self, python: Path, ports: Sequence[int], num_cpus: int, folder: Path) -> None:
        self.python = python
        self._earlier_pids = {*list_descendants(os.getpid())}  # of others, such as a server to compare with
        port, dashboard_port, client_port, self.http_port = ports
        dashboard_url = f"http://{HOST}:{dashboard_port}"
        self.environment = {
            **os.environ, "TMPDIR": str(folder), "PYTHONPATH": str(CHECKOUT), "RAY_ADDRESS": f"{HOST}:{port}",
            "RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0",
            "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive",
            "RAY_DASHBOARD_ADDRESS": dashboard_url, "RAY_API_SERVER_ADDRESS": dashboard_url}
        self.process = subprocess.Popen(
            [python, python.parent / "ray", "start", "--head", "--block", "--node-ip-address", HOST,
             "--port", str(port), "--dashboard-port", str(dashboard_port), "--ray-client-server-port", str(client_port),
             "--num-cpus", str(num_cpus), "--temp-dir", folder, "--object-store-memory", str(OBJECT_STORE_BYTES),
             "--disable-usage-stats"],
            env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)
        self._wait_until_started()

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.http_port}"

    def _wait_until_started(self) -> None:
        assert self.process.stdout
        lines = list[str]()
        for line in self.process.stdout:
            lines.append(line)
            if START_MARK in line:
                return
        raise ProcessStartError("".join(lines))

    def run(self, program: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run a program of the environment, such as `serve`, and return what it wrote."""
        words = ("-P",) if program == "python" else (str(self.python.parent / program),)
        return subprocess.run([self.python, *words, *arguments], timeout=COMMAND_TIMEOUT_SECONDS, text=True,
                              env=self.environment, capture_output=True, check=False)

    def deploy(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run `weft deploy ray` with these arguments, at the port of this cluster."""
        return self.run("python", "-m", "launcher.cli", "deploy", "ray", "--port", str(self.http_port), *arguments)

    def start_replicas(self, number: int, *arguments: str) -> str:
        """Deploy so many replicas and return their URL. Raises ProcessStartError."""
        completed = self.deploy("--replicas", str(number), *arguments)
        if completed.returncode:
            raise ProcessStartError(completed.stderr)
        return self.url

    def list_pids(self) -> list[int]:
        """Return all processes of the cluster, also those whose parents have ended if this process adopts orphans."""
        return [pid for pid in list_descendants(os.getpid()) if pid not in self._earlier_pids]

    def find_replica_pids(self, title: str = SERVER_TITLE) -> list[int]:
        """Return the processes of a deployment's replicas."""
        return [pid for pid in self.list_pids() if (words := read_command_line(pid))
                and words[0].startswith("ray::ServeReplica") and title in words[0]]

    def find_server_pids(self, module: str = "launcher.cli") -> list[int]:
        """Return the processes of the replicas' servers that run a module of weft, by default the launchers."""
        return [pid for pid in self.list_pids() if module in read_command_line(pid)[1:4]]

    def stop(self) -> None:
        """End the cluster. The servers end with their replicas."""
        pids = self.list_pids()
        self.process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_TIMEOUT_SECONDS)
        for pid in pids:
            if any("ray" in Path(word).parts or word.startswith("ray::") for word in read_command_line(pid)):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.process.communicate()
        wait_until(lambda: not self.find_server_pids(), "the end of all servers")


@contextmanager
def run_ray_cluster(python: Path, num_cpus: int = 8) -> Iterator[RayCluster]:
    """Run a cluster, and end all its processes. Ray believes that there are `num_cpus`."""
    folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))  # names of Ray's sockets must be short
    try:
        cluster = RayCluster(python, find_free_ports(4), num_cpus, folder)
        try:
            yield cluster
        finally:
            cluster.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def read_command_line(pid: int) -> list[str]:
    """Return the command line of a process, empty if the process has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
    except OSError:
        return []


def wait_until(condition: Callable[[], object], what: str, timeout: float = 120.0) -> None:
    """Poll a condition of other processes until it holds."""
    end = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"after {timeout:g} seconds still not: {what}")
        time.sleep(0.1)
