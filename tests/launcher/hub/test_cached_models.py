from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.hub.cached_models import format_models_table, iterate_cached_models, remove_cached_model
from launcher.hub.resolve import ModelNotCachedError

MODEL_FILES = ("config.json", "tokenizer.json", "model.safetensors")


@pytest.fixture
def add_model(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that adds a model with these files, of 1,000 bytes each, to a cache in tmp_path."""
    def add(name: str, *files: str, ref: str = "main") -> Path:
        folder = tmp_path / f"models--{name.replace('/', '--')}"
        for subfolder in ("blobs", "refs", "snapshots/c0"):
            (folder / subfolder).mkdir(parents=True)
        for number, file in enumerate(files):
            (folder / f"blobs/{number}").write_bytes(bytes(1000))
            (folder / "snapshots/c0" / file).symlink_to(folder / f"blobs/{number}")
        (folder / "refs" / ref).write_text("c0")
        return folder
    return add


def test_models_are_listed_with_size_and_revisions(tmp_path: Path, add_model: Callable[..., Path]) -> None:
    add_model("org/b", *MODEL_FILES)
    add_model("a", "config.json", ref="v2")
    (tmp_path / "datasets--x").mkdir()
    (tmp_path / "models--file").touch()
    (tmp_path / "models--e\x1b[31mvil").mkdir()
    (tmp_path / "models--linked").symlink_to(tmp_path / "models--a")
    first, second = iterate_cached_models(tmp_path)
    assert (first.name, first.num_bytes, first.revisions, first.is_servable) == ("a", 1000, ("v2",), False)
    assert (second.name, second.num_bytes, second.revisions, second.is_servable) == ("org/b", 3000, ("main",), True)
    header, *rows = format_models_table([first, second], tmp_path).splitlines()
    assert header.split() == ["model", "size", "downloaded", "revisions"]
    assert rows[0].endswith("v2         not a model that weft can serve")
    assert rows[1].startswith("org/b  3.0 kB  20")
    assert rows[1].endswith("main")


def test_empty_or_missing_cache_is_said_to_be_empty(tmp_path: Path) -> None:
    assert format_models_table(list(iterate_cached_models(tmp_path / "no")), tmp_path / "no").startswith("no models in")


def test_removed_model_is_gone_and_others_stay(tmp_path: Path, add_model: Callable[..., Path]) -> None:
    folder, other = add_model("org/b", *MODEL_FILES), add_model("a", *MODEL_FILES)
    (locks := tmp_path / ".locks" / folder.name).mkdir(parents=True)
    assert remove_cached_model("org/b", tmp_path).num_bytes == 3000
    assert (folder.exists(), locks.exists(), other.exists()) == (False, False, True)


@pytest.mark.parametrize("name", ["org/c", "", "..", "org"])
def test_only_models_of_the_cache_can_be_removed(tmp_path: Path, add_model: Callable[..., Path], name: str) -> None:
    folder = add_model("org/b", *MODEL_FILES)
    with pytest.raises(ModelNotCachedError, match="`weft models` lists"):
        remove_cached_model(name, tmp_path)
    assert folder.exists()
