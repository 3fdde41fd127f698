"""Tests of an adapter's digest and memory size, and of rejecting folders that hold no adapter."""

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.adapter_files import CONFIG, WEIGHTS, Q, V, adapter_files, write
from support.core_with_workers import Loom
from support.peft_adapters import tiny_adapter
from support.small_checkpoints import tiny_checkpoint

from launcher.adapters.contents import bytes_when_loaded, check_names, digest_of, read_contents
from launcher.adapters.errors import Refused
from shard.adapters.slots import size_for
from shard.pb import shard_pb2 as pb


def test_the_name_of_an_adapter_is_that_of_its_bytes(tmp_path: Path) -> None:
    files = adapter_files()
    digest = hashlib.sha256(b"weft adapter\0")
    for content in (files[CONFIG], files[WEIGHTS]):
        digest.update(len(content).to_bytes(8, "big") + content)
    assert digest_of(write(tmp_path / "a", files)) == digest.hexdigest()
    assert digest_of(write(tmp_path / "b", files | {"README.md": b"read"})) == digest.hexdigest()


def test_a_byte_that_wanders_from_one_file_to_the_other_makes_another_adapter(tmp_path: Path) -> None:
    folders = [write(tmp_path / str(cut), {CONFIG: b"abcd"[:cut], WEIGHTS: b"abcd"[cut:]}) for cut in (1, 2)]
    assert digest_of(folders[0]) != digest_of(folders[1])


def test_contents_tell_size_memory_and_base(tmp_path: Path) -> None:
    files = adapter_files(rank=4, width=16)
    contents = read_contents(write(tmp_path, files))
    assert contents == (sum(map(len, files.values())), 4 * (8 * 16) * 4, "org/base")


@pytest.mark.parametrize("base", [None, ""])
def test_an_adapter_need_not_name_its_base(tmp_path: Path, base: str | None) -> None:
    assert read_contents(write(tmp_path, adapter_files(base_model_name_or_path=base))).base == ""


@pytest.mark.parametrize("rank", [1, 4, 8, 9, 16, 17, 64, 1024])
def test_matrices_take_the_room_that_a_shard_gives_them(rank: int) -> None:
    assert bytes_when_loaded({f"{Q}.lora_A.weight": (rank, 10)}) == size_for(rank) * 10 * 4


def test_all_matrices_have_the_room_of_the_highest_rank() -> None:
    shapes = {f"{Q}.lora_A.weight": (4, 10), f"{Q}.lora_B.weight": (20, 4), f"{V}.lora_embedding_A": (30, 10),
              f"{V}.lora_embedding_B": (10, 30), "base_model.model.lm_head.weight": (100, 10)}
    assert bytes_when_loaded(shapes) == 4 * (32 * 10 + 20 * 32 + 32 * 10 + 10 * 32 + 100 * 10)


def test_tensors_without_numbers_take_nothing() -> None:
    assert bytes_when_loaded({f"{Q}.lora_A.weight": (0, 2**62)}) == 0


@pytest.mark.parametrize(("changes", "why"), [
    ({CONFIG: b"{"}, "adapter_config.json is not JSON"),
    ({CONFIG: b"[]"}, "adapter_config.json must be a JSON object"),
    ({CONFIG: b"[" * 100_000}, "adapter_config.json is not JSON"),
    ({CONFIG: b"\xff"}, "adapter_config.json is not JSON"),
    ({CONFIG: b"{}"}, "peft_type must be LORA, got None"),
    ({CONFIG: b'{"peft_type": "IA3"}'}, "peft_type must be LORA, got 'IA3'"),
    ({CONFIG: b'{"peft_type": "LORA", "base_model_name_or_path": 5}'}, "must be a string, got 5"),
    ({CONFIG: b" " * 2**20 + b"{}"}, "adapter_config.json must have at most 1.0 MB"),
    ({WEIGHTS: b"pickle"}, "adapter_model.safetensors: its header must have"),
])
def test_what_is_no_adapter_is_told(tmp_path: Path, changes: dict[str, bytes], why: str) -> None:
    with pytest.raises(ValueError, match=re.escape(why)):
        read_contents(write(tmp_path, adapter_files() | changes))


def test_weights_have_a_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path, adapter_files())
    with (folder / WEIGHTS).open("r+b") as file:
        file.truncate(16 * 2**30 + 1)  # a sparse file
    with pytest.raises(ValueError, match=r"safetensors must have at most 17\.2 GB, it has 17\.2 GB"):
        read_contents(folder)


@pytest.mark.parametrize(("names", "why"), [
    ([], "org/name has no adapter_config.json"),
    ([CONFIG], "org/name has no adapter_model.safetensors"),
    ([CONFIG, "adapter_model.bin"], "adapter_model.bin, which is pickled and may run any program"),
])
def test_a_folder_without_the_files_is_told(names: list[str], why: str) -> None:
    with pytest.raises(Refused, match=why) as refused:
        check_names(names, "org/name")
    assert refused.value.kind == "invalid"


def test_a_folder_with_both_files_is_fine() -> None:
    check_names([CONFIG, WEIGHTS, "adapter_model.bin"], "org/name")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.getbasetemp(), "llama")


@pytest.fixture(scope="module")
def loom(base: Path) -> Iterator[Loom]:
    with Loom(base, adaptable=True) as loom:
        yield loom


@pytest.mark.slow
@pytest.mark.parametrize("config", [
    {"r": 4}, {"r": 9}, {"r": 9, "rank_pattern": {"v_proj": 17}}, {"r": 4, "modules_to_save": ["lm_head"]},
    {"r": 2, "target_modules": ["q_proj", "embed_tokens"]}], ids=repr)
def test_what_peft_writes_takes_no_more_in_a_shard(base: Path, loom: Loom, config: dict[str, Any]) -> None:
    folder = tiny_adapter(base, **config)
    contents = read_contents(folder)
    [answer] = loom.everywhere("load", pb.LoadRequest(kind=pb.KIND_ADAPTER, id=1, source=str(folder)))
    loom.unload_adapter(1)
    assert contents.bytes == sum((folder / name).stat().st_size for name in (CONFIG, WEIGHTS))
    fair = 0.4 if "embed_tokens" in config.get("target_modules", ()) else 0.95  # an embedding's rank is not padded
    assert contents.takes * fair <= answer.bytes <= contents.takes
