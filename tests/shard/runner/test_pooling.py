"""Pooling of hidden states as configured in the model folder, or rejected by name."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from shard.runner.pooling import Pooling, read_pooling

HIDDEN = torch.tensor([[1.0, 2.0, 2.0], [3.0, 0.0, 4.0], [5.0, 4.0, 0.0]])
MODES = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")


def write(folder: Path, *, modes: tuple[str, ...] = (), stages: tuple[str, ...] = (), where: str = "1_Pooling") -> None:
    if modes:
        (folder / where).mkdir()
        told = {f"pooling_mode_{mode}": mode in modes for mode in MODES}
        (folder / where / "config.json").write_text(json.dumps({"word_embedding_dimension": 3} | told))
    if stages:
        told_stages = [{"idx": place, "name": str(place), "path": "" if not place else f"{place}_{stage}",
                        "type": f"sentence_transformers.models.{stage}"} for place, stage in enumerate(stages)]
        (folder / "modules.json").write_text(json.dumps(told_stages))


def read(folder: Path, dim: int = 0, **written: Any) -> Pooling:
    write(folder, **written)
    return read_pooling(folder, "mean", 3, dim)


@pytest.mark.parametrize(("kind", "expected"), [("first", [1, 2, 2]), ("mean", [3, 2, 2]), ("last", [5, 4, 0])])
def test_every_kind(kind: str, expected: list[float]) -> None:
    assert Pooling(kind, 3).pooled(HIDDEN).tolist() == expected


def test_it_is_cut_before_it_is_made_as_long_as_one() -> None:
    assert Pooling("last", 2).pooled(HIDDEN).tolist() == [5, 4]
    assert Pooling("first", 3, normalized=True).pooled(HIDDEN).tolist() == pytest.approx([1 / 3, 2 / 3, 2 / 3])
    assert Pooling("last", 1, normalized=True).pooled(HIDDEN).tolist() == [1]


def test_what_is_no_number_is_told_of_nobody_else() -> None:
    hidden = torch.cat([HIDDEN, HIDDEN])
    hidden[2, 0] = torch.nan
    assert Pooling("mean", 3).embeddings(hidden, [3, 2, 1]) == [None, [2, 1, 3], [5, 4, 0]]


def test_a_folder_that_says_nothing_gets_the_usual_kind(tmp_path: Path) -> None:
    assert read(tmp_path) == Pooling("mean", 3)


@pytest.mark.parametrize(("mode", "kind"), [("cls_token", "first"), ("mean_tokens", "mean"), ("lasttoken", "last")])
def test_the_folder_says_how(tmp_path: Path, mode: str, kind: str) -> None:
    assert read(tmp_path, modes=(mode,)) == Pooling(kind, 3)


def test_modules_say_whether_it_is_normalised_and_where_pooling_is_told(tmp_path: Path) -> None:
    stages = ("Transformer", "Pooling", "Normalize")
    found = read(tmp_path, dim=2, modes=("cls_token",), stages=stages)
    assert found == Pooling("first", 2, normalized=True)


def test_modules_of_newer_versions_are_understood(tmp_path: Path) -> None:
    kind = "sentence_transformers.sentence_transformer.modules.normalize.Normalize"
    (tmp_path / "modules.json").write_text(json.dumps([{"idx": 0, "name": "0", "path": "", "type": kind}]))
    assert read(tmp_path).normalized


@pytest.mark.parametrize(("written", "complaint"), [
    ({"modes": ("max_tokens",)}, "pooling_mode max_tokens is not supported; supported: cls_token, mean_tokens"),
    ({"modes": ("cls_token", "mean_tokens")}, "one way of pooling must be chosen, got cls_token, mean_tokens"),
    ({"stages": ("Transformer", "Pooling", "Dense")}, "module Dense is not supported; supported: Transformer"),
    ({"dim": 4}, "--embedding-dim must be at most 3, which is what the model has, got 4")], ids=str)
def test_what_is_not_done_here_is_refused(tmp_path: Path, written: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        read(tmp_path, **written)


@pytest.mark.parametrize(("text", "complaint"), [
    ("{", "is not JSON"), ("[" * 100_000, "is not JSON"), ("{}", "must hold a JSON list"),
    ("[1]", "a module must be an object, got 1")])
def test_a_broken_file_is_named(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "modules.json").write_text(text)
    with pytest.raises(ValueError, match=f"modules.json:? {complaint}"):
        read(tmp_path)
