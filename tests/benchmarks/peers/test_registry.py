"""Tests of the command lines of compared servers."""

import sys
from pathlib import Path

import pytest

from benchmarks.peers.registry import OUR_SERVERS, PEERS, SERVERS, WEIGHT_CLASSES, ServerPlace

PLACE = ServerPlace(Path("/environment"), Path("/model"), 3000, 32, 320)


def make_words(name: str) -> list[str]:
    return list(map(str, SERVERS[name].make_command(PLACE)))


def test_each_weight_class_has_one_of_ours_and_peers() -> None:
    assert tuple(OUR_SERVERS) == WEIGHT_CLASSES
    assert {SERVERS[name].weight_class for name in PEERS} == set(WEIGHT_CLASSES)


def test_weft_is_started_by_its_command() -> None:
    assert make_words("weft") == [sys.executable, "-P", "-m", "launcher.cli", "serve", "/model", "--port", "3000"]
    assert make_words("weft-int4")[-2:] == ["--quantize", "int4"]


def test_llama_cpp_has_a_slot_for_each_stream() -> None:
    words = make_words("llama.cpp-q8_0")
    assert words[0] == "/environment/build/bin/llama-server"
    assert words[words.index("--parallel") + 1] == "32"
    assert words[words.index("--ctx-size") + 1] == str(32 * 320)


@pytest.mark.parametrize("name", PEERS)
def test_peers_run_in_their_environment_on_the_port(name: str) -> None:
    words = make_words(name)
    assert words[0].startswith("/environment/")
    assert "/model" in words
    assert "3000" in words


def test_only_weft_finds_our_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/checkout")
    ours, peer = (SERVERS[name].make_server_command(PLACE, Path("/cache")) for name in ("weft", "transformers"))
    assert ours.variables["PYTHONPATH"] == "/checkout"
    assert "PYTHONPATH" not in peer.variables


def test_requests_have_the_fields_that_a_server_accepts() -> None:
    options = {name: SERVERS[name].make_server_command(PLACE, Path("/cache")).options for name in SERVERS}
    assert (options["weft"].model, options["weft"].ignore_eos) == ("", True)
    assert (options["vllm"].model, options["vllm"].ignore_eos) == ("/model", True)
    assert not options["transformers"].ignore_eos
