"""Pooling of hidden states as configured in the model folder, or rejected by name."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from shard.runner.pooling import Pooling, load_pooling

HIDDEN_STATES = torch.tensor([[1.0, 2.0, 2.0], [3.0, 0.0, 4.0], [5.0, 4.0, 0.0]])
POOLING_MODES = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")


def write_pooling_files(folder: Path, *, modes: tuple[str, ...] = (), stages: tuple[str, ...] = (),
                        pooling_folder: str = "1_Pooling") -> None:
    if modes:
        (folder / pooling_folder).mkdir()
        mode_flags = {f"pooling_mode_{mode}": mode in modes for mode in POOLING_MODES}
        (folder / pooling_folder / "config.json").write_text(json.dumps({"word_embedding_dimension": 3} | mode_flags))
    if stages:
        module_entries = [{"idx": place, "name": str(place), "path": "" if not place else f"{place}_{stage}",
                           "type": f"sentence_transformers.models.{stage}"} for place, stage in enumerate(stages)]
        (folder / "modules.json").write_text(json.dumps(module_entries))


def write_and_read_pooling(folder: Path, dim: int = 0, **file_options: Any) -> Pooling:
    write_pooling_files(folder, **file_options)
    return load_pooling(folder, "mean", 3, dim)


@pytest.mark.parametrize(("kind", "expected"), [("first", [1, 2, 2]), ("mean", [3, 2, 2]), ("last", [5, 4, 0])])
def test_every_reduction(kind: str, expected: list[float]) -> None:
    assert Pooling(kind, 3).pool_text(HIDDEN_STATES).tolist() == expected


def test_embedding_is_truncated_before_it_is_normalized() -> None:
    assert Pooling("last", 2).pool_text(HIDDEN_STATES).tolist() == [5, 4]
    assert (Pooling("first", 3, normalizes=True).pool_text(HIDDEN_STATES).tolist()
            == pytest.approx([1 / 3, 2 / 3, 2 / 3]))
    assert Pooling("last", 1, normalizes=True).pool_text(HIDDEN_STATES).tolist() == [1]


def test_nan_in_a_text_does_not_affect_other_embeddings() -> None:
    hidden = torch.cat([HIDDEN_STATES, HIDDEN_STATES])
    hidden[2, 0] = torch.nan
    assert Pooling("mean", 3).compute_embeddings(hidden, [3, 2, 1]) == [None, [2, 1, 3], [5, 4, 0]]


def test_default_reduction_is_used_without_pooling_files(tmp_path: Path) -> None:
    assert write_and_read_pooling(tmp_path) == Pooling("mean", 3)


@pytest.mark.parametrize(("mode", "kind"), [("cls_token", "first"), ("mean_tokens", "mean"), ("lasttoken", "last")])
def test_reduction_is_read_from_the_folder(tmp_path: Path, mode: str, kind: str) -> None:
    assert write_and_read_pooling(tmp_path, modes=(mode,)) == Pooling(kind, 3)


def test_normalization_and_pooling_folder_are_read_from_modules(tmp_path: Path) -> None:
    stages = ("Transformer", "Pooling", "Normalize")
    pooling = write_and_read_pooling(tmp_path, dim=2, modes=("cls_token",), stages=stages)
    assert pooling == Pooling("first", 2, normalizes=True)


def test_module_names_of_newer_versions_are_accepted(tmp_path: Path) -> None:
    kind = "sentence_transformers.sentence_transformer.modules.normalize.Normalize"
    (tmp_path / "modules.json").write_text(json.dumps([{"idx": 0, "name": "0", "path": "", "type": kind}]))
    assert write_and_read_pooling(tmp_path).normalizes


@pytest.mark.parametrize(("written", "complaint"), [
    ({"modes": ("max_tokens",)}, "pooling_mode max_tokens is not supported; supported: cls_token, mean_tokens"),
    ({"modes": ("cls_token", "mean_tokens")}, "one way of pooling must be chosen, got cls_token, mean_tokens"),
    ({"stages": ("Transformer", "Pooling", "Dense")}, "module Dense is not supported; supported: Transformer"),
    ({"dim": 4}, "--embedding-dim must be at most 3, which is what the model has, got 4")], ids=str)
def test_unsupported_pooling_is_rejected(tmp_path: Path, written: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        write_and_read_pooling(tmp_path, **written)


@pytest.mark.parametrize(("text", "complaint"), [
    ("{", "is not JSON"), ("[" * 100_000, "is not JSON"), ("{}", "must hold a JSON list"),
    ("[1]", "a module must be an object, got 1")])
def test_invalid_modules_file_is_rejected_by_name(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "modules.json").write_text(text)
    with pytest.raises(ValueError, match=f"modules.json:? {complaint}"):
        write_and_read_pooling(tmp_path)
