"""Loading a model: reported progress, and configurations that are rejected early."""

from dataclasses import replace

import pytest
import torch
from support.small_checkpoints import tiny_checkpoint

from shard.config import ShardConfig
from shard.host.memory import Available
from shard.parallel.group import Alone
from shard.workers import load_decoder

CPU = torch.device("cpu")


@pytest.fixture
def config(tmp_path_factory: pytest.TempPathFactory) -> ShardConfig:
    folder = tiny_checkpoint(tmp_path_factory.getbasetemp(), "llama")
    return ShardConfig(model=str(folder), device="cpu", threads=1)


def test_who_waits_hears_of_all_bytes_and_then_of_the_check(config: ShardConfig) -> None:
    heard: list[tuple[str, int, int]] = []
    load_decoder.load(config, lambda *told: heard.append(told))
    *read, last = heard
    assert {phase for phase, _, _ in read} == {"load"}
    assert read[-1][1] == read[-1][2]
    assert last == ("check", 0, 0)


def test_weights_that_do_not_fit_are_refused_before_any_is_read(
        config: ShardConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_decoder, "read_host", lambda: Available(1000, "that the system has available"))
    heard: list[tuple[str, int, int]] = []
    with pytest.raises(ValueError, match="there is no room for the weights"):
        load_decoder.load(config, lambda *told: heard.append(told))
    assert heard == []


def test_a_model_that_is_not_exact_is_not_loaded_if_it_must_be(
        config: ShardConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_decoder.load(replace(config, exact=True)).inexact == ""
    monkeypatch.setattr(load_decoder.Gate, "verdict", lambda _: "something differs")
    assert load_decoder.load(config).inexact == "something differs"
    with pytest.raises(ValueError, match="--exact cannot be kept here: something differs"):
        load_decoder.load(replace(config, exact=True))


def test_the_rank_that_has_least_decides_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    class Poorer(Alone):
        def minimum(self, number: int) -> int:
            return number // 2

    monkeypatch.setattr(load_decoder, "read_host", lambda: Available(1000, "that the system has available"))
    load_decoder.check_room(1000, CPU, Alone(), 1)
    with pytest.raises(ValueError, match="there is no room for the weights"):
        load_decoder.check_room(1000, CPU, Poorer(), 1)


def test_on_gpus_a_rank_needs_its_part_only(monkeypatch: pytest.MonkeyPatch) -> None:
    class Two(Alone):
        rank, size = 0, 2

    monkeypatch.setattr(load_decoder, "read_gpu", lambda _: (1000, 2000))
    load_decoder.check_room(2000, torch.device("cuda", 0), Two(), 1)
    with pytest.raises(ValueError, match=r"of 2 shards .* that the GPU has left"):
        load_decoder.check_room(2000, torch.device("cuda", 0), Two(), 2)
