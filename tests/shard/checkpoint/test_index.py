import json
from pathlib import Path

import pytest

from shard.checkpoint import index
from shard.checkpoint.index import list_checkpoint_files

FILE_BY_TENSOR = {"tall": "model-1.safetensors", "flat": "model-2.safetensors"}


def write_index(folder: Path, content: object) -> Path:
    written = content if isinstance(content, str) else json.dumps(content)
    (folder / "model.safetensors.index.json").write_text(written)
    for name in FILE_BY_TENSOR.values():
        (folder / name).touch()
    return folder


def test_without_an_index_there_is_one_file(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    assert list_checkpoint_files(tmp_path) == (tmp_path, ["model.safetensors"], {})


def test_an_index_names_the_file_of_every_tensor(tmp_path: Path) -> None:
    listing = list_checkpoint_files(write_index(tmp_path,
                                                {"metadata": {"total_size": 100}, "weight_map": FILE_BY_TENSOR}))
    assert listing == (tmp_path, ["model-1.safetensors", "model-2.safetensors"], FILE_BY_TENSOR)


def test_files_missing_from_the_index_are_listed(tmp_path: Path) -> None:
    (tmp_path / "consolidated.safetensors").touch()
    assert list_checkpoint_files(write_index(tmp_path, {"weight_map": FILE_BY_TENSOR})).list_unread_files() == [
        "consolidated.safetensors"]


@pytest.mark.parametrize(("text", "complaint"), [
    ("", "index.json is damaged: Expecting value"), ('{"weight_map": {', "is damaged"),
    ("[" * 101, "must have at most 100 objects and lists, it has 101"),
    ([], "must have a weight_map that names the file of each tensor, got None"), ({}, "must have a weight_map"),
    ({"weight_map": None}, "must have a weight_map"), ({"weight_map": ["tall"]}, r"a weight_map .*\['tall'\]"),
    ({"weight_map": {}}, "must have a weight_map .*got {}"), ({"weight_map": 5}, "must have a weight_map .*got 5"),
    ('{"weight_map": {"tall": "a.safetensors", "tall": "b.safetensors"}}', "damaged: it names 'tall' twice"),
    ('{"weight_map": {"a": "a.safetensors"}, "weight_map": {}}', "damaged: it names 'weight_map' twice")])
def test_invalid_index_is_rejected(tmp_path: Path, text: object, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        list_checkpoint_files(write_index(tmp_path, text))


@pytest.mark.parametrize("file", [
    "/etc/passwd", "/model.safetensors", "../model.safetensors", "a/../model.safetensors", "sub/model.safetensors",
    "..", ".", "", "a\0.safetensors", "a\n.safetensors", "\ud800.safetensors", "model.bin", "model.safetensors/", None,
    5, ["a"], {"a": "b"}])
def test_index_may_only_name_safetensors_files_of_its_folder(tmp_path: Path, file: object) -> None:
    with pytest.raises(ValueError, match=r"index.json: tall must be in a \*.safetensors file of the same folder, got "):
        list_checkpoint_files(write_index(tmp_path, {"weight_map": FILE_BY_TENSOR | {"tall": file}}))


@pytest.mark.parametrize("name", ["", "a\nb", "\ud800"])
def test_unprintable_tensor_name_is_rejected(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="a tensor's name is made of printable characters"):
        list_checkpoint_files(write_index(tmp_path, {"weight_map": {name: "model-1.safetensors"}}))


def test_an_index_that_is_too_long_is_not_read(tmp_path: Path) -> None:
    folder = write_index(tmp_path, "")
    with (folder / "model.safetensors.index.json").open("wb") as file:
        file.truncate(10**12)
    with pytest.raises(ValueError, match="must have at most 100000000 bytes, it has 1000000000000"):
        list_checkpoint_files(folder)


def test_index_of_too_many_tensors_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "MAX_TENSORS", 10)
    with pytest.raises(ValueError, match="must have at most 10 tensors, it has 11"):
        list_checkpoint_files(write_index(tmp_path, "{" + "," * 11))


def test_the_first_few_missing_files_are_named(tmp_path: Path) -> None:
    many = {f"tensor{number}": f"more-{number}.safetensors" for number in range(1000)}
    with pytest.raises(ValueError, match=r"lacks more-0\S+, more-1\S+, more-10.safetensors and others; is the"):
        list_checkpoint_files(write_index(tmp_path, {"weight_map": FILE_BY_TENSOR | many}))


def test_tensor_missing_from_its_indexed_file_is_named(tmp_path: Path) -> None:
    listing = list_checkpoint_files(write_index(tmp_path, {"weight_map": FILE_BY_TENSOR}))
    listing.check_index(FILE_BY_TENSOR | {"more": "model-1.safetensors"})
    with pytest.raises(ValueError, match=r"model-2.safetensors lacks flat, which model.safetensors.index.json prom"):
        listing.check_index({"tall": "model-1.safetensors"})
    with pytest.raises(ValueError, match=r"model-2.safetensors holds tall, which .* promises in model-1.safetensors"):
        listing.check_index({"tall": "model-2.safetensors", "flat": "model-2.safetensors"})
