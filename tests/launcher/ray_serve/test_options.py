from importlib.util import find_spec
from typing import Any

import pytest

from launcher.ray_serve import options
from launcher.ray_serve.options import (
    RayOptions,
    check_ray_installed,
    choose_num_gpus,
    make_scaling,
    make_server_settings,
    read_app_arguments,
)

SERVE = ("-m", "launcher.cli", "serve")


def test_arguments_of_serve_run_are_texts() -> None:
    read, settings = read_app_arguments({"replicas": "2", "model-id": "org/name", "max_batch_size": "8",
                                         "adapters": "true", "upscale-delay": "1.5"})
    assert read == RayOptions(replicas=2, upscale_delay=1.5)
    assert settings == {"model_id": "org/name", "max_batch_size": 8, "adapters": True}


def test_arguments_of_a_file_have_types() -> None:
    read, settings = read_app_arguments({"max_replicas": 3, "adapters": False, "cors_allow_origin": ["*", "null"]})
    assert read == RayOptions(max_replicas=3)
    assert settings == {"adapters": False, "cors_allow_origin": ["*", "null"]}


@pytest.mark.parametrize(("arguments", "message"), [
    ({"replica": 2}, "replica: there is no such setting; did you mean replicas?"),
    ({"port": 1}, "port: it is the same for all replicas"),
    ({"replicas": "two"}, "replicas must be a number, got 'two'"),
    ({"max-batch-size": None}, "max-batch-size must be a number, got None"),
    ({"adapters": "yes"}, "adapters must be true or false, got 'yes'"),
    ({"replicas": 0}, "--replicas must be at least 1, got 0"),
    ({"replicas": 3, "max-replicas": 2}, "--max-replicas must be at least --replicas 3, got 2"),
    ({"routing": "random"}, "--routing must be one of affinity, power-of-two, got random")])
def test_bad_argument_is_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=r".") as raised:
        read_app_arguments(arguments)
    assert str(raised.value).startswith(message)


def test_server_gets_flags_and_its_key_as_a_variable() -> None:
    server = make_server_settings({"model_id": "org/name", "num_shard": 2, "api_key": "secret", "port": 80}, SERVE)
    assert server.arguments == (*SERVE, "--model-id=org/name", "--num-shard=2", "--port=0", "--hostname=127.0.0.1",
                                "--no-json-output")
    assert server.variables == (("WEFT_API_KEY", "secret"),)
    assert (server.num_shard, server.shutdown_timeout) == (2, 30.0)
    assert make_server_settings({}, SERVE).variables == ()


@pytest.mark.parametrize(("settings", "expected"), [
    ({"hostname": "0.0.0.0"}, ["--allowed-hosts=*"]), ({"hostname": "127.0.0.1"}, []), ({}, []),
    ({"hostname": "::", "allowed_hosts": ("a.org",)}, ["--allowed-hosts=a.org"])])
def test_domain_names_are_refused_where_the_proxies_are_local(settings: dict[str, Any], expected: list[str]) -> None:
    flags = make_server_settings(settings, SERVE).arguments
    assert [flag for flag in flags if flag.startswith("--allowed-hosts")] == expected


@pytest.mark.parametrize(("settings", "gpus", "are_there_gpus", "expected"), [
    ({"num_shard": 4}, -1, True, 4.0), ({"num_shard": 4}, -1, False, 0.0), ({"device": "cpu"}, -1, True, 0.0),
    ({"model_id": "weft/simulated"}, -1, True, 0.0), ({}, 0.5, False, 0.5), ({}, 0, True, 0.0)])
def test_replica_has_a_gpu_for_each_shard(settings: dict[str, Any], gpus: float, *, are_there_gpus: bool,
                                          expected: float) -> None:
    server = make_server_settings(settings, SERVE)
    assert choose_num_gpus(RayOptions(gpus=gpus), server, are_there_gpus=are_there_gpus) == expected


def test_fixed_number_of_replicas_is_not_scaled() -> None:
    assert make_scaling(RayOptions(replicas=2), make_server_settings({}, SERVE)) == {"num_replicas": 2}


@pytest.mark.parametrize(("target", "settings", "expected"), [
    (0, {}, 64.0), (0, {"max_batch_size": 8}, 8.0), (0, {"max_concurrent_requests": 1}, 1.0),
    (5, {"max_batch_size": 8}, 5.0)])
def test_replicas_follow_requests_that_run_and_wait(target: float, settings: dict[str, Any], expected: float) -> None:
    scaling = make_scaling(RayOptions(replicas=1, max_replicas=3, target_ongoing_requests=target, upscale_delay=1),
                           make_server_settings(settings, SERVE))["autoscaling_config"]
    assert (scaling["min_replicas"], scaling["max_replicas"]) == (1, 3)
    assert (scaling["target_ongoing_requests"], scaling["look_back_period_s"]) == (expected, 15.0)


def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "find_spec", lambda name: None if name == "ray" else find_spec("sys"))
    with pytest.raises(ValueError, match=r"pip install 'weft\[ray\]'"):
        check_ray_installed()
