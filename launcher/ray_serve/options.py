"""Options of a deployment on Ray, and the arguments of `launcher.ray_app:app` as options and settings of a server."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from importlib.util import find_spec
from typing import Any

from launcher.command_line.run_command import make_flags
from launcher.hub.resolve import SIMULATED_MODEL
from launcher.settings import SETTINGS_BY_NAME, LaunchConfig
from router.config import API_KEY_ENV, RouterConfig, check_settings, setting
from shard.config import ShardConfig

AFFINITY, POWER_OF_TWO = "affinity", "power-of-two"
# What the server of a replica gets: a free port that only its replica knows, and a banner with its number.
FIXED_SETTINGS: Mapping[str, Any] = {"hostname": "127.0.0.1", "port": 0, "json_output": False}
# A server on a loopback address refuses domain names, since websites could lead theirs to it. Proxies that listen
# elsewhere may have any.
ANY_HOST = ("*",)
# Requests beyond --max-concurrent-requests that reach a server, which refuses them itself; probes are among them.
EXTRA_ONGOING_REQUESTS = 64
LOOK_BACK_SECONDS = 15.0  # over which Ray averages the requests; it hears of them every ten seconds
PROCESS_END_SECONDS = 15.0  # beyond --shutdown-timeout, for the server's processes to end


@dataclass(frozen=True, slots=True)
class RayOptions:
    """Options of a deployment. Durations are in seconds."""

    replicas: int = setting(1, "Replicas, each a server of its own. With --max-replicas, the least number.", low=1)
    max_replicas: int = setting(0, "Let Ray Serve add replicas up to this number. 0: it does not.", low=0)
    target_ongoing_requests: float = setting(
        0.0, "With --max-replicas: requests, running and waiting, that a replica should have. 0: --max-batch-size, but "
        "at most half of --max-concurrent-requests.", low=0)
    upscale_delay: float = setting(30.0, "Seconds of load before replicas are added.", low=0)
    downscale_delay: float = setting(600.0, "Seconds without load before replicas are removed.", low=0)
    routing: str = setting(
        AFFINITY, "How a request finds its replica: by its adapter and the beginning of its prompt, unless that one "
        "has far more to do than others (affinity), or by load alone (Ray's power-of-two).",
        choices=(AFFINITY, POWER_OF_TWO))
    gpus: float = setting(
        -1.0, "GPUs of a replica. -1: one for each shard if there are GPUs and --device is not cpu.", low=-1)
    cpus: float = setting(1.0, "CPUs that Ray reserves for a replica.", low=0)
    ingress_replicas: int = setting(
        1, "Processes that read requests and choose replicas. Two let requests go on when one dies.", low=1)

    def __post_init__(self) -> None:
        check_settings(self)
        if 0 < self.max_replicas < self.replicas:
            raise ValueError(f"--max-replicas must be at least --replicas {self.replicas}, got {self.max_replicas}")


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """The server of each replica: its command line, and what Ray Serve has to know of its settings."""

    arguments: tuple[str, ...]  # of Python
    variables: tuple[tuple[str, str], ...]
    model_id: str
    model_names: tuple[str, ...]  # for clients
    num_shard: int
    device: str
    max_batch_size: int
    max_concurrent_requests: int
    payload_limit: int
    shutdown_timeout: float


def make_server_settings(settings: Mapping[str, Any], serve_arguments: Sequence[str]) -> ServerSettings:
    """Return the settings of the servers from settings of `weft serve`, by name.

    `serve_arguments`: arguments of Python that run `weft serve`. The key is a variable: others can read command lines.
    """
    launch, router, shard = (
        {item.name: settings.get(item.name, item.default) for item in fields(config)}
        for config in (LaunchConfig, RouterConfig, ShardConfig))
    key = settings.get("api_key", "")
    names = router["served_model_name"] or launch["model_id"]
    hosts = {} if is_loopback(router["hostname"]) else {"allowed_hosts": ANY_HOST}
    return ServerSettings(
        (*serve_arguments, *make_flags({**hosts, **settings, **FIXED_SETTINGS, "api_key": None})),
        ((API_KEY_ENV, key),) if key else (), launch["model_id"],
        (names,) if isinstance(names, str) else tuple(names), launch["num_shard"], shard["device"],
        router["max_batch_size"], router["max_concurrent_requests"], router["payload_limit"],
        router["shutdown_timeout"])


def is_loopback(hostname: str) -> bool:
    return hostname in {"localhost", "::1"} or hostname.startswith("127.")


def read_app_arguments(arguments: Mapping[str, Any]) -> tuple[RayOptions, dict[str, Any]]:
    """Return the options, and the settings of the servers by name, from the arguments of an application.

    `serve run` passes texts, a file for `serve deploy` also numbers. Hyphens count as underscores. Raises ValueError
    for unknown names and values that are no numbers; the servers themselves check their settings.
    """
    option_types = {item.name: item.type for item in fields(RayOptions)}
    known = {*option_types, *SETTINGS_BY_NAME} - set(FIXED_SETTINGS)
    options, settings = dict[str, Any](), dict[str, Any]()
    for written_name, value in arguments.items():
        name = str(written_name).replace("-", "_")
        if name not in known:
            similar = get_close_matches(name, known, n=1)
            reason = "it is the same for all replicas" if name in FIXED_SETTINGS else "there is no such setting"
            raise ValueError(f"{written_name}: {reason}" + (f"; did you mean {similar[0]}?" if similar else ""))
        kind = option_types[name] if name in option_types else SETTINGS_BY_NAME[name].type
        (options if name in option_types else settings)[name] = convert_value(str(written_name), value, kind)
    return RayOptions(**options), settings


def convert_value(name: str, value: Any, kind: Any) -> Any:
    """Return an argument's value as the type of its setting; other types than numbers and truth values stay."""
    if kind is bool and isinstance(value, str):
        words = {"true": True, "false": False}
        if value.lower() not in words:
            raise ValueError(f"{name} must be true or false, got {value!r}")
        return words[value.lower()]
    if kind in {int, float}:
        try:
            return kind(value)
        except (TypeError, ValueError):
            raise ValueError(f"{name} must be a number, got {value!r}") from None
    return value


def choose_num_gpus(options: RayOptions, server: ServerSettings, *, are_there_gpus: bool) -> float:
    """Return the GPUs that Ray reserves for a replica. Without a reservation, Ray hides all GPUs from it."""
    if options.gpus >= 0:
        return options.gpus
    is_on_cpu = server.device == "cpu" or server.model_id == SIMULATED_MODEL or not are_there_gpus
    return 0.0 if is_on_cpu else float(server.num_shard)


def make_scaling(options: RayOptions, server: ServerSettings) -> dict[str, Any]:
    """Return the number of replicas, or the rule by which Ray Serve changes it, as arguments of a deployment.

    Ray counts the requests that are under way with a replica, and these are the running and waiting ones of its server.
    """
    if not options.max_replicas:
        return {"num_replicas": options.replicas}
    target = options.target_ongoing_requests or min(server.max_batch_size, max(1, server.max_concurrent_requests // 2))
    return {"autoscaling_config": {
        "min_replicas": options.replicas, "max_replicas": options.max_replicas,
        "target_ongoing_requests": float(target),
        "upscale_delay_s": options.upscale_delay, "downscale_delay_s": options.downscale_delay,
        "look_back_period_s": LOOK_BACK_SECONDS}}


def check_ray_installed() -> None:
    if not find_spec("ray") or not find_spec("starlette"):  # the latter comes with ray[serve]
        raise ValueError("weft deploy ray needs Ray Serve, which is not installed: pip install 'weft[ray]'")
