"""Tests of the banner of a server that is ready."""

from pathlib import Path
from typing import Any

import pytest

from launcher.banner import describe_adapters, make_banner
from launcher.hub.resolve import BUILTIN_MODELS, ResolvedModel
from launcher.settings import LaunchConfig
from launcher.supervisor.supervisor import bind_listener
from router.config import RouterConfig

MODEL = ResolvedModel("org/name", "/cache/name")
READY_INFO = {"dtype": "bfloat16", "device": "cpu", "tokens": 32768, "bytes": 3 * 2**29, "why": "50% of what there is"}


def get_banner_lines(model: ResolvedModel = MODEL, host: str = "127.0.0.1", num_shard: int = 2,
                     **options: Any) -> list[str]:
    with bind_listener(host, 0) as listener:
        text = make_banner(listener, num_shard, model, READY_INFO, **{"key_example": ""} | options)
        return text.replace(str(listener.getsockname()[1]), "PORT").split("\n")


def test_banner_names_model_shards_and_address() -> None:
    assert get_banner_lines()[0] == "weft serves org/name on 2 shards at http://127.0.0.1:PORT"


@pytest.mark.parametrize("model", BUILTIN_MODELS.values(), ids=list(BUILTIN_MODELS))
def test_notice_of_a_model_is_shown_below_its_name(model: ResolvedModel) -> None:
    lines = get_banner_lines(model, num_shard=1)
    assert lines[:2] == [f"weft serves {model.name} on 1 shard at http://127.0.0.1:PORT", f"  note     {model.notice}"]
    assert [line.split()[0] for line in lines[2:]] == ["runs", "cache", "clients", "try", "stop"]


def test_banner_shows_dtype_device_and_cache_size() -> None:
    assert get_banner_lines()[1:3] == ["  runs     bfloat16 on cpu",
                                       "  cache    32,768 tokens, 1.50 GiB: 50% of what there is"]


def test_rows_start_in_one_column() -> None:
    assert {line[:11].rstrip() for line in get_banner_lines()[1:]} == {"  runs", "  cache", "  clients", "  try",
                                                                       "  stop"}
    assert {line[11] for line in get_banner_lines()[1:]}.isdisjoint(" ")


def test_banner_shows_a_command_to_try() -> None:
    assert get_banner_lines()[4].startswith("  try      curl -N http://127.0.0.1:PORT/generate_stream ")


def test_banner_names_the_page_if_there_is_one() -> None:
    assert get_banner_lines(has_page=True)[4] == "  page     open http://127.0.0.1:PORT in a browser"


def test_command_includes_a_key_if_needed() -> None:
    assert '-H "Authorization: Bearer $WEFT_API_KEY"' in get_banner_lines(key_example="$WEFT_API_KEY")[4]


def test_ipv6_address_is_written_as_in_urls() -> None:
    assert get_banner_lines(host="::1")[0].endswith("http://[::1]:PORT")


@pytest.mark.parametrize(("host", "key_example", "expected"), [
    ("127.0.0.1", "", "on this machine only; --hostname 0.0.0.0 and the variable WEFT_API_KEY let others in"),
    ("::1", "", "on this machine only; --hostname 0.0.0.0 and the variable WEFT_API_KEY let others in"),
    ("0.0.0.0", "", "whoever reaches this machine, without a key; --api-key KEY asks for one"),
    ("0.0.0.0", "KEY", "whoever reaches this machine and has a key"),
    ("127.0.0.1", "KEY", "on this machine only; --hostname 0.0.0.0 lets others in who have a key"),
])
def test_banner_says_who_can_connect(host: str, key_example: str, expected: str) -> None:
    assert get_banner_lines(host=host, key_example=key_example)[3] == f"  clients  {expected}"


@pytest.mark.parametrize(("instead_of_text", "path"), [("vector", "/embed"), ("labels", "/classify")])
def test_encoder_banner_shows_its_route_and_no_cache(instead_of_text: str, path: str) -> None:
    with bind_listener("127.0.0.1", 0) as listener:
        lines = make_banner(listener, 1, MODEL, READY_INFO | {"instead_of_text": instead_of_text},
                            key_example="").split("\n")
    assert [line.split()[0] for line in lines[1:]] == ["runs", "clients", "try", "stop"]
    assert f"{path} " in lines[3]


def test_quantized_weights_are_named() -> None:
    assert get_banner_lines(quantize="int8")[1] == "  runs     bfloat16 on cpu, weights quantized to int8"


def test_adapters_have_a_row() -> None:
    assert "  adapters json and kjv" in get_banner_lines(adapters="json and kjv")


@pytest.mark.parametrize(("launch", "router", "expected"), [
    (LaunchConfig(), RouterConfig(), ""),
    (LaunchConfig(adapters=True), RouterConfig(), "from the source hub, unless a request names another"),
    (LaunchConfig(), RouterConfig(adapter_id="a", preloaded_adapter_ids=("b", "a"), adapter_source="s3"),
     "from the source s3, unless a request names another; at the start: a, b"),
    (LaunchConfig(adapter_root="/a"), RouterConfig(),
     "from the source hub, unless a request names another; --adapter-source local takes those below --adapter-root")])
def test_adapters_of_a_source_are_described(launch: LaunchConfig, router: RouterConfig, expected: str) -> None:
    assert describe_adapters(launch, router) == expected


@pytest.mark.parametrize(("num_adapters", "expected"), [
    (0, "none yet"), (2, "a0, a1"), (9, "a0, a1, a2, a3, a4, a5, a6, a7 and 1 more")])
def test_adapters_of_a_folder_are_named(tmp_path: Path, num_adapters: int, expected: str) -> None:
    (tmp_path / "empty").mkdir()
    for number in range(num_adapters):
        (folder := tmp_path / f"a{number}").mkdir()
        (folder / "adapter_config.json").touch()
    described = describe_adapters(LaunchConfig(adapter_root=str(tmp_path)), RouterConfig(adapter_source="local"))
    assert described == f"{expected}, in {tmp_path}"
