"""Tests of finding a model, and of the errors for missing models and missing files."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.hub.resolve import ModelNotCachedError, ResolvedModel, check_model_files, find_model

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = ("config.json", "tokenizer.json", "model.safetensors")


def write_empty_files(folder: Path, *names: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text("")
    return folder


@pytest.fixture
def make_cache(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that makes a cache with one commit of a model and the given refs."""
    def make(name: str = "models--org--name", **refs: str) -> Path:
        write_empty_files(tmp_path / name / "snapshots" / COMMIT, *FILES)
        for ref, commit in refs.items():
            write_empty_files(tmp_path / name / "refs")
            (tmp_path / name / "refs" / ref).write_text(commit)
        return tmp_path
    return make


def get_error_text(name: str | Path, cache: Path = Path("/cache"), revision: str = "main") -> str:
    with pytest.raises(ValueError, match=r".") as refused:
        find_model(str(name), revision, cache)
    return str(refused.value)


# -- built-in models


def test_demo_model_needs_neither_cache_nor_folder() -> None:
    model = find_model("weft/demo", "main", Path("/no/cache"))
    check_model_files(Path(model.folder))
    assert model.name == "weft/demo"
    assert "facts are often wrong" in model.notice


def test_simulated_model_has_no_files() -> None:
    assert find_model("weft/simulated", "main", Path("/no/cache")).folder == ""


@pytest.mark.parametrize(("name", "message"), [
    ("weft/dmeo", "weft/dmeo does not come with weft; did you mean weft/demo?"),
    ("weft/simulate", "weft/simulate does not come with weft; did you mean weft/simulated?"),
    ("weft/llama-3.1-8b", "weft/llama-3.1-8b does not come with weft; weft/demo and weft/simulated do"),
])
def test_a_name_like_a_builtin_one_is_not_asked_of_the_hub(name: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is compared
        find_model(name, "main", Path("/no/cache"))
    assert str(caught.value) == message
    assert not isinstance(caught.value, ModelNotCachedError)


def test_folder_named_like_a_built_in_model_is_meant_by_its_path(
        monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    local_folder = write_empty_files(tmp_path / "weft" / "demo", *FILES)
    monkeypatch.chdir(tmp_path)
    assert find_model("./weft/demo", "main", tmp_path) == ResolvedModel("./weft/demo", str(local_folder))
    assert find_model("weft/demo", "main", tmp_path).folder != str(local_folder)


def test_empty_model_name_is_rejected() -> None:
    assert get_error_text("") == "the name of the model is empty (--model-id)"


# -- the Hub's cache


@pytest.mark.parametrize("revision", ["main", "", "v2", COMMIT])
def test_cached_model_is_found_by_branch_tag_or_commit(make_cache: Callable[..., Path], revision: str) -> None:
    folder = make_cache(main=COMMIT, v2=f"{COMMIT}\n")
    snapshot = folder / "models--org--name" / "snapshots" / COMMIT
    assert find_model("org/name", revision, folder) == ResolvedModel("org/name", str(snapshot))


def test_model_name_may_lack_an_organization(make_cache: Callable[..., Path]) -> None:
    folder = make_cache("models--gpt2", main=COMMIT)
    assert find_model("gpt2", "main", folder).folder.endswith(f"models--gpt2/snapshots/{COMMIT}")


@pytest.mark.parametrize("name", ["org/other", "org/name"])
def test_missing_model_error_lists_all_places(make_cache: Callable[..., Path], name: str) -> None:
    folder = make_cache(v2=COMMIT)
    error = get_error_text(name, folder)
    assert f"no model {name}: looked for the folder {Path.cwd()}/{name}, and for revision main in {folder}/" in error
    assert error.endswith(f"/models--{name.replace('/', '--')}, the Hub's cache")


@pytest.mark.parametrize("name", ["org/name", "org/other"])
def test_model_missing_in_the_cache_may_be_at_the_hub(make_cache: Callable[..., Path], name: str) -> None:
    folder = make_cache(main=COMMIT)
    (folder / "models--org--name" / "snapshots" / COMMIT / "model.safetensors").unlink()
    with pytest.raises(ModelNotCachedError, match=r"there is no model org/other|has no weights"):
        find_model(name, "main", folder)


@pytest.mark.parametrize("name", [
    "/no/where", "./no", "../no/where", "a/b/c", "~/no", "no/", "org/..", "org/.git", "a..b", "org--name",
    "org/na me", "org/n\u0430me", "-x", "x" * 97, "org/name?x", "org%2Fname"])
def test_path_is_not_looked_up_in_the_cache(name: str) -> None:
    assert get_error_text(name) == f"there is no folder {name}"


@pytest.mark.parametrize(("name", "hint"), [("model.gguf", "; GGUF files are not supported"), ("weights.bin", "")])
def test_file_is_not_a_model(tmp_path: Path, name: str, hint: str) -> None:
    file = tmp_path / name
    file.write_bytes(b"GGUF")
    assert get_error_text(str(file)) == (
        f"{file} is a file, and a model is a folder with config.json and *.safetensors{hint}")


@pytest.mark.parametrize("revision", [
    "../main", "a/../../b", "/etc/passwd", "a//b", "a/", "a/.b", ".a", "a b", "a\0b", "a?b", "m\u0430in", "x" * 201])
def test_invalid_revision_is_rejected(make_cache: Callable[..., Path], revision: str) -> None:
    error = get_error_text("org/name", make_cache(main=COMMIT), revision)
    assert error == f"--revision must be a branch, a tag or a commit of at most 200 characters, got {revision!r}"


@pytest.mark.parametrize("revision", ["v1.0", "refs/pr/1", "a-b_c+d", "feature/x@2", "x" * 200])
def test_revision_may_be_any_git_ref(make_cache: Callable[..., Path], revision: str) -> None:
    assert f"for revision {revision} in " in get_error_text("org/name", make_cache(), revision)


# -- folders


def test_folder_precedes_the_cache(
        monkeypatch: pytest.MonkeyPatch, make_cache: Callable[..., Path], tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    local = write_empty_files(tmp_path / "org" / "name", *FILES)
    assert find_model("org/name", "main", make_cache(main=COMMIT)) == ResolvedModel("org/name", str(local))


@pytest.mark.parametrize(("files", "line"), [
    ((), "has no config.json; the folder of a model has config.json"),
    (("config.json", "tokenizer.json"), r"has no weights \(\*.safetensors\)$"),
    (("config.json", "tokenizer.json", "model.gguf"), r"has no weights \(\*.safetensors\)$"),
    (("config.json", "pytorch_model-2.bin", "pytorch_model-1.bin"), r"only in pickled form \(pytorch_model-1.bin\)"),
    (("config.json", "model.safetensors", "tokenizer.model"), "has no tokenizer.json, the file of a fast tokenizer"),
])
def test_missing_file_is_named(tmp_path: Path, files: tuple[str, ...], line: str) -> None:
    write_empty_files(tmp_path, *files)
    assert re.search(f"^{tmp_path} has .*", get_error_text(tmp_path))
    assert re.search(line, get_error_text(tmp_path))


def test_sharded_weights_are_accepted(tmp_path: Path) -> None:
    write_empty_files(tmp_path, "config.json", "tokenizer.json", "model-00001-of-00002.safetensors",
                      "model.safetensors.index.json")
    assert find_model(str(tmp_path), "main", Path("/cache")).folder == str(tmp_path)


def test_broken_link_counts_as_missing(tmp_path: Path) -> None:
    write_empty_files(tmp_path, "config.json", "tokenizer.json")
    (tmp_path / "model.safetensors").symlink_to("/no/where")
    assert "no weights" in get_error_text(tmp_path)


def test_unreadable_path_is_reported() -> None:
    long_name = "x" * 300
    assert get_error_text(long_name) == f"cannot read {long_name}: File name too long"


def test_missing_file_of_the_index_is_named(make_cache: Callable[..., Path]) -> None:
    folder = make_cache(main=COMMIT) / "models--org--name" / "snapshots" / COMMIT
    weight_map = {"a": "model.safetensors", "b": "model-2.safetensors", "c": "model-1.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert get_error_text(folder).startswith(
        f"{folder} lacks model-1.safetensors, which model.safetensors.index.json names, "
        "and 1 more; is the download complete?")
    with pytest.raises(ModelNotCachedError, match=r"lacks model-1.safetensors"):
        find_model("org/name", "main", make_cache(main=COMMIT))


@pytest.mark.parametrize("index", [
    "", "[]", "5", "{}", pytest.param("[" * 100_000, id="deep"), '{"weight_map": 5}', '{"weight_map": {"a": 5}}',
    "\x00"])
def test_invalid_index_is_left_to_the_shards(tmp_path: Path, index: str) -> None:
    write_empty_files(tmp_path, *FILES)
    (tmp_path / "model.safetensors.index.json").write_text(index)
    assert find_model(str(tmp_path), "main", Path("/cache")).folder == str(tmp_path)
