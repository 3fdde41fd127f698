"""Load balancers before several replicas: the proxies of deploy/proxies with the files that lie there, and vLLM's
router.

Each is one entry of LOAD_BALANCERS. Programs are found on the path, or where a variable says: ENVOY=/path/to/envoy.
"""

import os
import re
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.processes import HOST, ProcessStartError, find_free_port, terminate_process

PROXY_FOLDER = Path(__file__).parents[2] / "deploy" / "proxies"
START_TIMEOUT_SECONDS = 30.0
# The address of a replica in the files of deploy/proxies: the first and the second.
FIRST_REPLICA, SECOND_REPLICA = (re.compile(rf"\bweft-{number}(:|, port_value: )3000\b") for number in (1, 2))


@dataclass(frozen=True, slots=True)
class LoadBalancer:
    """A program that passes requests on to replicas, and how to start it."""

    program: str
    # Returns the arguments for the port, the replicas' ports, and the rendered file of deploy/proxies.
    make_arguments: Callable[[int, Sequence[int], Path], list[str]]
    config_name: str = ""  # in deploy/proxies, if it has one

    def find_program(self) -> str | None:
        return os.environ.get(self.program.upper().replace("-", "_")) or shutil.which(self.program)


def make_vllm_router_arguments(port: int, replica_ports: Sequence[int], policy: str) -> list[str]:
    return ["--host", HOST, "--port", str(port), "--policy", policy,
            "--worker-urls", *(f"http://{HOST}:{replica_port}" for replica_port in replica_ports),
            "--health-check-endpoint", "/ready", "--health-check-interval-secs", "1",
            "--health-failure-threshold", "1", "--health-success-threshold", "1",
            "--prometheus-host", HOST, "--prometheus-port", str(find_free_port()), "--log-level", "error"]


def make_proxy(program: str, config_name: str, *arguments: str) -> LoadBalancer:
    """Return a make_proxy that is started with these arguments, of which CONFIG stands for its file."""
    return LoadBalancer(program, lambda _, __, config: [str(config) if word == "CONFIG" else word
                                                        for word in arguments], config_name)


LOAD_BALANCERS = {
    "nginx": make_proxy("nginx", "nginx.conf", "-c", "CONFIG", "-g", "daemon off;"),
    "haproxy": make_proxy("haproxy", "haproxy.cfg", "-q", "-db", "-f", "CONFIG"),
    "caddy": make_proxy("caddy", "Caddyfile", "run", "--adapter", "caddyfile", "--config", "CONFIG"),
    "envoy": make_proxy("envoy", "envoy.yaml", "-c", "CONFIG", "--log-level", "error", "--use-dynamic-base-id"),
    "vllm-router": LoadBalancer("vllm-router",
                            lambda port, replicas, _: make_vllm_router_arguments(port, replicas, "cache_aware")),
    "vllm-router, round robin": LoadBalancer(
        "vllm-router", lambda port, replicas, _: make_vllm_router_arguments(port, replicas, "round_robin")),
}


def render_config(text: str, port: int, replica_ports: Sequence[int], folder: Path) -> str:
    """Return a file of deploy/proxies for this port and any number of replicas on this machine. A line that names the
    first replica is repeated for each; one that names both names all."""
    lines = []
    for line in text.replace("/tmp/", f"{folder}/").splitlines():  # noqa: S108 - not a file of ours
        if FIRST_REPLICA.search(line) and SECOND_REPLICA.search(line):
            addresses = " ".join(f"{HOST}:{replica_port}" for replica_port in replica_ports)
            lines.append(re.sub(r"weft-1:3000 weft-2:3000", addresses, line))
        elif FIRST_REPLICA.search(line):
            lines += [FIRST_REPLICA.sub(rf"{HOST}\g<1>{replica_port}", line).replace("weft-1", f"weft-{number}")
                      for number, replica_port in enumerate(replica_ports, 1)]
        elif not SECOND_REPLICA.search(line):
            lines.append(line.replace("8080", str(port)))
    return "\n".join(lines) + "\n"


@contextmanager
def run_load_balancer(name: str, replica_ports: Sequence[int]) -> Iterator[str]:
    """Run a front end as long as the block runs, and yield its URL. Raises ProcessStartError."""
    load_balancer, port = LOAD_BALANCERS[name], find_free_port()
    program = load_balancer.find_program()
    if program is None:
        raise ProcessStartError(f"{load_balancer.program} is not installed")
    with tempfile.TemporaryDirectory(prefix="weft-front-end-") as folder:
        config = Path(folder, load_balancer.config_name or "config")
        if load_balancer.config_name:
            text = (PROXY_FOLDER / load_balancer.config_name).read_text()
            config.write_text(render_config(text, port, replica_ports, Path(folder)))
        with open(log_path := Path(folder, "log"), "wb") as log:
            process = subprocess.Popen(
                [program, *load_balancer.make_arguments(port, replica_ports, config)], stdin=subprocess.DEVNULL,
                stdout=log, stderr=log,
                env={**os.environ, "HOME": folder, "XDG_CONFIG_HOME": folder, "XDG_DATA_HOME": folder})
        try:
            if not wait_until_healthy(f"http://{HOST}:{port}", process):
                raise ProcessStartError(f"{name} did not start: {log_path.read_text(errors='replace')[-1000:]}")
            yield f"http://{HOST}:{port}"
        finally:
            terminate_process(process)


def wait_until_healthy(url: str, process: "subprocess.Popen[bytes]") -> bool:
    """Wait until a replica answers through the front end; return whether one did."""
    end = time.monotonic() + START_TIMEOUT_SECONDS
    while time.monotonic() < end and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/v1/models", timeout=2.0):
                return True
        except OSError:
            time.sleep(0.05)
    return False
