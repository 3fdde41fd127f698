"""`weft deploy ray`: makes the application of a running cluster, or updates it, and waits until it serves."""

import json
import logging
import os
import socket
import time
from dataclasses import dataclass
from urllib.error import URLError
from urllib.request import urlopen

import ray
from ray import serve
from ray.serve.exceptions import RayServeException

from launcher.ray_serve.deployments import build_app
from launcher.ray_serve.options import RayOptions, ServerSettings
from launcher.ray_serve.server_process import SERVER_ENDED

CONNECT_TIMEOUT_SECONDS = 5.0
ROUTE_TIMEOUT_SECONDS = 30.0  # for Ray's proxy to learn of the application
POLL_SECONDS = 0.1


class DeploymentFailed(Exception):
    """The application does not run. The text says why, for the user."""


@dataclass(frozen=True, slots=True)
class RayTarget:
    """Target of the application: cluster, name, and address of the cluster's HTTP proxies."""

    address: str
    app_name: str
    hostname: str
    port: int

    @property
    def url(self) -> str:
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self.hostname, self.hostname)  # noqa: S104 - all addresses
        return f"http://{host}:{self.port}"


def deploy(target: RayTarget, options: RayOptions, settings: ServerSettings) -> None:
    """Deploy on the cluster and print the address. Raises DeploymentFailed."""
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    try:
        check_address_reachable(os.environ.get("RAY_ADDRESS", "") if target.address == "auto" else target.address)
        ray.init(address=target.address, namespace="serve", logging_level=logging.WARNING, log_to_driver=False)
    except OSError as error:
        raise DeploymentFailed(f"there is no Ray cluster at {target.address} (--address); start one with "
                               f"ray start --head") from error
    try:
        serve.start(proxy_location="EveryNode", http_options={"host": target.hostname, "port": target.port})
        try:
            serve.run(build_app(options, settings), name=target.app_name)
        except (RuntimeError, RayServeException) as error:
            raise DeploymentFailed(describe_failure(target.app_name, error)) from error
        wait_for_route(target)
        print(f"weft serves {settings.model_id} on {describe_replicas(options)} of Ray Serve at {target.url}\n"
              f"  state   serve status\n  update  the same command with other settings\n"
              f"  stop    serve shutdown", flush=True)
    finally:
        ray.shutdown()


def check_address_reachable(address: str) -> None:
    """Raise OSError if nothing listens at HOST:PORT, which Ray would try for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit() and "://" not in address:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_TIMEOUT_SECONDS).close()


def describe_failure(app_name: str, error: Exception) -> str:
    """Return why an application does not run: what its server said last, or what Ray Serve knows of it."""
    application = serve.status().applications.get(app_name)
    reasons = [item.message for item in application.deployments.values() if item.message] if application else []
    text = " ".join([str(getattr(error, "cause", error)), *reasons])
    return text[text.rfind(SERVER_ENDED):] if SERVER_ENDED in text else text


def describe_replicas(options: RayOptions) -> str:
    if options.max_replicas > options.replicas:
        return f"{options.replicas} to {options.max_replicas} replicas"
    return "1 replica" if options.replicas == 1 else f"{options.replicas} replicas"


def wait_for_route(target: RayTarget) -> None:
    """Raise DeploymentFailed if the application is not at its address, such as when Ray Serve already had another."""
    end = time.monotonic() + ROUTE_TIMEOUT_SECONDS
    while True:
        try:
            with urlopen(f"{target.url}/-/routes", timeout=1.0) as answer:  # noqa: S310 - made above
                if target.app_name in json.load(answer).values():
                    return
        except (URLError, OSError, ValueError):
            pass
        if time.monotonic() > end:
            raise DeploymentFailed(
                f"{target.app_name} runs, but not at {target.url}: Ray Serve keeps the address of its first start; "
                "give that one with --hostname and --port, or stop it first with serve shutdown")
        time.sleep(POLL_SECONDS)
