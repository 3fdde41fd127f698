"""Tests of how the files of deploy/proxies are rendered for replicas on this machine."""

import re
from pathlib import Path

import pytest

from benchmarks.harness.load_balancers import LOAD_BALANCERS, PROXY_FOLDER, make_vllm_router_arguments, render_config
from benchmarks.harness.processes import find_free_port

CONFIG_NAMES = sorted({load_balancer.config_name for load_balancer in LOAD_BALANCERS.values()} - {""})


def render(name: str, replica_ports: list[int]) -> str:
    return render_config((PROXY_FOLDER / name).read_text(), 7000, replica_ports, Path("/scratch"))


@pytest.mark.parametrize("name", CONFIG_NAMES)
@pytest.mark.parametrize("replica_ports", [[7001], [7001, 7002], [7001, 7002, 7003]])
def test_every_replica_is_named_once(name: str, replica_ports: list[int]) -> None:
    text = render(name, replica_ports)
    assert re.findall(r"127\.0\.0\.1(?::|, port_value: )(\d+)", text) == [str(port) for port in replica_ports]
    assert "3000" not in text
    assert "8080" not in text
    assert "7000" in text
    assert "/tmp/" not in text


def test_shipped_file_is_changed_in_nothing_else() -> None:
    shipped, rendered = (PROXY_FOLDER / "haproxy.cfg").read_text(), render("haproxy.cfg", [7001, 7002])
    assert rendered.replace(":7000", ":8080").replace("127.0.0.1:7001", "weft-1:3000").replace(
        "127.0.0.1:7002", "weft-2:3000") == shipped


def test_router_gets_every_replica() -> None:
    arguments = make_vllm_router_arguments(find_free_port(), [1, 2], "cache_aware")
    assert arguments[arguments.index("--worker-urls") + 1:][:2] == ["http://127.0.0.1:1", "http://127.0.0.1:2"]


def test_program_is_named_by_a_variable_or_found_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_ROUTER", "/opt/router")
    monkeypatch.setenv("PATH", "")
    assert LOAD_BALANCERS["vllm-router"].find_program() == "/opt/router"
    assert LOAD_BALANCERS["haproxy"].find_program() is None
