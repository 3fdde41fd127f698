"""Tests of the figures of the comparison with other servers."""

from random import Random

import pytest

from benchmarks.experiments.flag_comparison import RoundMetrics
from benchmarks.experiments.peer_comparison import (
    PeerComparison,
    PeerComparisonSettings,
    ServerResult,
    ServerVisit,
    compare_with_best_peer,
    format_table,
)
from benchmarks.harness.processes import ProcessStartError
from benchmarks.peers.registry import SERVERS


def make_visit(tokens_per_second: float, first_token: float, start_seconds: float = 4.0) -> ServerVisit:
    metrics = RoundMetrics(tokens_per_second, first_token, 2 * first_token, 0.1)
    return ServerVisit(start_seconds, 2.0, {4: metrics})


def make_results() -> list[ServerResult]:
    weft = ServerResult(SERVERS["weft-int8"], [make_visit(90.0, 1.0), make_visit(60.0, 1.2), make_visit(96.0, 0.9)])
    llama_cpp = ServerResult(SERVERS["llama.cpp-q8_0"], [make_visit(50.0, 2.0, 2.0), make_visit(40.0, 2.0, 2.0),
                                                         make_visit(48.0, 2.0, 2.0)])
    openvino = ServerResult(SERVERS["openvino-int8"], [make_visit(100.0, 0.5), make_visit(80.0, 0.6),
                                                       make_visit(120.0, 0.5)])
    return [weft, llama_cpp, openvino, ServerResult(SERVERS["vllm"], reason="it did not start: no wheel")]


def test_ratios_are_of_rounds_side_by_side_and_name_the_best_peer_by_each_figure() -> None:
    ratios = compare_with_best_peer(make_results())
    assert list(ratios) == ["int8"]
    assert ratios["int8"]["start_seconds"] == {"peer": "llama.cpp-q8_0", "ratio": 2.0}
    at_four = ratios["int8"]["streams"][4]
    assert at_four["tokens_per_second"] == {"peer": "openvino-int8", "ratio": 0.8}
    assert at_four["first_token_p50"] == {"peer": "openvino-int8", "ratio": 2.0}
    assert at_four["gap_p99"]["ratio"] == 1.0


def test_class_without_a_measured_peer_has_no_ratio() -> None:
    weft, *_, vllm = make_results()
    assert compare_with_best_peer([weft, vllm]) == {}


def test_table_has_a_row_for_each_server_and_the_reasons_of_others() -> None:
    header, *rows, reason = format_table(make_results(), [4]).splitlines()
    assert header.split()[:3] == ["weights", "streams", "server"]
    assert [row.split()[2:] for row in rows] == [
        ["weft-int8", "90.0", "1.00", "2.00", "0.100", "4.0", "2.00", "1.00"],
        ["llama.cpp-q8_0", "48.0", "2.00", "4.00", "0.100", "2.0", "2.00", "1.80"],
        ["openvino-int8", "100.0", "0.50", "1.00", "0.100", "4.0", "2.00", "0.80"]]
    assert reason == "vllm (16 bits): it did not start: no wheel"


def test_json_has_medians_and_reasons() -> None:
    weft, *_, vllm = make_results()
    assert weft.to_json()["streams"][4]["tokens_per_second"] == 90.0
    assert weft.to_json()["rounds"][1]["windows"][4]["tokens_per_second"] == 60.0
    assert vllm.to_json()["reason"] == "it did not start: no wheel"


def test_server_that_fails_is_left_out_of_later_rounds(capsys: pytest.CaptureFixture[str]) -> None:
    settings = PeerComparisonSettings(folder="unused", peers=("vllm", "transformers", "llama.cpp-q8_0"))
    comparison = PeerComparison(settings, Random(1))
    assert list(comparison.results) == ["weft", "weft-int8", "vllm", "transformers", "llama.cpp-q8_0"]
    with comparison.results["vllm"].record_failure():
        raise ProcessStartError("no wheel")
    assert capsys.readouterr().out == "vllm: no wheel\n"
    names = [result.server.name for result in comparison.shuffle_round()]
    assert {*names} == {"weft", "weft-int8", "transformers", "llama.cpp-q8_0"}
    assert abs(names.index("weft") - names.index("transformers")) == 1  # of one weight class
