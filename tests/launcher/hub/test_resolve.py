"""Tests of finding a model, and of the errors for missing models and missing files."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.hub.resolve import Missing, Model, check_files, find_model

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = ("config.json", "tokenizer.json", "model.safetensors")


def write(folder: Path, *names: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text("")
    return folder


@pytest.fixture
def cache(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that makes a cache with one commit of a model and the given refs."""
    def make(name: str = "models--org--name", **refs: str) -> Path:
        write(tmp_path / name / "snapshots" / COMMIT, *FILES)
        for ref, commit in refs.items():
            write(tmp_path / name / "refs")
            (tmp_path / name / "refs" / ref).write_text(commit)
        return tmp_path
    return make


def refusal(name: str | Path, cache: Path = Path("/cache"), revision: str = "main") -> str:
    with pytest.raises(ValueError, match=r".") as refused:
        find_model(str(name), revision, cache)
    return str(refused.value)


# -- built-in models


def test_the_embedded_model_needs_neither_cache_nor_folder() -> None:
    found = find_model("weft/demo", "main", Path("/no/cache"))
    check_files(Path(found.folder))
    assert found.name == "weft/demo"
    assert "facts are often wrong" in found.notice


def test_the_simulated_model_has_no_files() -> None:
    assert find_model("weft/simulated", "main", Path("/no/cache")).folder == ""


def test_a_folder_named_like_what_comes_with_weft_is_meant_by_its_path(
        monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mine = write(tmp_path / "weft" / "demo", *FILES)
    monkeypatch.chdir(tmp_path)
    assert find_model("./weft/demo", "main", tmp_path) == Model("./weft/demo", str(mine))
    assert find_model("weft/demo", "main", tmp_path).folder != str(mine)


def test_no_name_is_no_model() -> None:
    assert refusal("") == "the name of the model is empty (--model-id)"


# -- the Hub's cache


@pytest.mark.parametrize("revision", ["main", "", "v2", COMMIT])
def test_a_name_is_found_in_the_cache_by_branch_tag_or_commit(cache: Callable[..., Path], revision: str) -> None:
    folder = cache(main=COMMIT, v2=f"{COMMIT}\n")
    snapshot = folder / "models--org--name" / "snapshots" / COMMIT
    assert find_model("org/name", revision, folder) == Model("org/name", str(snapshot))


def test_a_name_without_an_organisation_is_one_too(cache: Callable[..., Path]) -> None:
    folder = cache("models--gpt2", main=COMMIT)
    assert find_model("gpt2", "main", folder).folder.endswith(f"models--gpt2/snapshots/{COMMIT}")


@pytest.mark.parametrize("name", ["org/other", "org/name"])
def test_what_is_not_there_is_told_with_all_places_that_were_looked_at(cache: Callable[..., Path], name: str) -> None:
    folder = cache(v2=COMMIT)
    told = refusal(name, folder)
    assert f"no model {name}: looked for the folder {Path.cwd()}/{name}, and for revision main in {folder}/" in told
    assert told.endswith(f"/models--{name.replace('/', '--')}, the Hub's cache")


@pytest.mark.parametrize("name", ["org/name", "org/other"])
def test_what_the_hub_may_have_is_missing_and_not_wrong(cache: Callable[..., Path], name: str) -> None:
    folder = cache(main=COMMIT)
    (folder / "models--org--name" / "snapshots" / COMMIT / "model.safetensors").unlink()
    with pytest.raises(Missing, match=r"there is no model org/other|has no weights"):
        find_model(name, "main", folder)


@pytest.mark.parametrize("name", [
    "/no/where", "./no", "../no/where", "a/b/c", "~/no", "no/", "org/..", "org/.git", "a..b", "org--name",
    "org/na me", "org/n\u0430me", "-x", "x" * 97, "org/name?x", "org%2Fname"])
def test_a_path_is_not_looked_for_in_the_cache(name: str) -> None:
    assert refusal(name) == f"there is no folder {name}"


@pytest.mark.parametrize("revision", [
    "../main", "a/../../b", "/etc/passwd", "a//b", "a/", "a/.b", ".a", "a b", "a\0b", "a?b", "m\u0430in", "x" * 201])
def test_a_revision_that_is_none_leads_nowhere(cache: Callable[..., Path], revision: str) -> None:
    told = refusal("org/name", cache(main=COMMIT), revision)
    assert told == f"--revision must be a branch, a tag or a commit of at most 200 characters, got {revision!r}"


@pytest.mark.parametrize("revision", ["v1.0", "refs/pr/1", "a-b_c+d", "feature/x@2", "x" * 200])
def test_a_revision_may_be_what_git_allows(cache: Callable[..., Path], revision: str) -> None:
    assert f"for revision {revision} in " in refusal("org/name", cache(), revision)


# -- folders


def test_a_folder_goes_before_the_cache(
        monkeypatch: pytest.MonkeyPatch, cache: Callable[..., Path], tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    local = write(tmp_path / "org" / "name", *FILES)
    assert find_model("org/name", "main", cache(main=COMMIT)) == Model("org/name", str(local))


@pytest.mark.parametrize(("files", "line"), [
    ((), "has no config.json, so it is not the folder of a model"),
    (("config.json", "tokenizer.json"), r"has no weights \(\*.safetensors\)$"),
    (("config.json", "tokenizer.json", "model.gguf"), r"has no weights \(\*.safetensors\)$"),
    (("config.json", "pytorch_model-2.bin", "pytorch_model-1.bin"), r"only in pickled form \(pytorch_model-1.bin\)"),
    (("config.json", "model.safetensors", "tokenizer.model"), "has no tokenizer.json, the file of a fast tokenizer"),
])
def test_a_file_that_is_missing_is_named(tmp_path: Path, files: tuple[str, ...], line: str) -> None:
    write(tmp_path, *files)
    assert re.search(f"^{tmp_path} has .*", refusal(tmp_path))
    assert re.search(line, refusal(tmp_path))


def test_several_files_of_weights_are_weights(tmp_path: Path) -> None:
    write(tmp_path, "config.json", "tokenizer.json", "model-00001-of-00002.safetensors", "model.safetensors.index.json")
    assert find_model(str(tmp_path), "main", Path("/cache")).folder == str(tmp_path)


def test_a_link_to_a_file_that_was_cleared_away_is_no_file(tmp_path: Path) -> None:
    write(tmp_path, "config.json", "tokenizer.json")
    (tmp_path / "model.safetensors").symlink_to("/no/where")
    assert "no weights" in refusal(tmp_path)


def test_what_cannot_be_read_is_told() -> None:
    long = "x" * 300
    assert refusal(long) == f"cannot read {long}: File name too long"


def test_a_file_that_the_index_names_and_is_not_there_is_told(cache: Callable[..., Path]) -> None:
    folder = cache(main=COMMIT) / "models--org--name" / "snapshots" / COMMIT
    weight_map = {"a": "model.safetensors", "b": "model-2.safetensors", "c": "model-1.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert refusal(folder).startswith(f"{folder} lacks model-1.safetensors, which model.safetensors.index.json names, "
                                      "and 1 more; is the download complete?")
    with pytest.raises(Missing, match=r"lacks model-1.safetensors"):
        find_model("org/name", "main", cache(main=COMMIT))


@pytest.mark.parametrize("index", [
    "", "[]", "5", "{}", pytest.param("[" * 100_000, id="deep"), '{"weight_map": 5}', '{"weight_map": {"a": 5}}',
    "\x00"])
def test_what_is_wrong_with_an_index_is_left_to_the_shards(tmp_path: Path, index: str) -> None:
    write(tmp_path, *FILES)
    (tmp_path / "model.safetensors.index.json").write_text(index)
    assert find_model(str(tmp_path), "main", Path("/cache")).folder == str(tmp_path)
