"""Tests of an adapter's digest and memory size, and of rejecting folders that hold no adapter."""

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.checkpoints.adapter_files import (
    CONFIG_FILE,
    Q_PROJ_MODULE,
    V_PROJ_MODULE,
    WEIGHTS_FILE,
    make_adapter_files,
    write_files,
)
from support.checkpoints.peft_adapters import make_tiny_adapter
from support.checkpoints.small_checkpoints import make_tiny_checkpoint
from support.shards.scheduler_with_workers import SchedulerWithWorkers

from launcher.adapters.adapter_files import (
    check_adapter_file_names,
    compute_digest,
    compute_max_loaded_bytes,
    read_adapter_metadata,
)
from launcher.adapters.errors import AdapterError
from shard.lora.routing import pad_rank
from shard.pb import shard_pb2 as pb


def test_digest_is_that_of_config_and_weights(tmp_path: Path) -> None:
    files = make_adapter_files()
    digest = hashlib.sha256(b"weft adapter\0")
    for content in (files[CONFIG_FILE], files[WEIGHTS_FILE]):
        digest.update(len(content).to_bytes(8, "big") + content)
    assert compute_digest(write_files(tmp_path / "a", files)) == digest.hexdigest()
    assert compute_digest(write_files(tmp_path / "b", files | {"README.md": b"read"})) == digest.hexdigest()


def test_moving_a_byte_between_files_changes_the_digest(tmp_path: Path) -> None:
    folders = [write_files(tmp_path / str(cut), {CONFIG_FILE: b"abcd"[:cut], WEIGHTS_FILE: b"abcd"[cut:]})
               for cut in (1, 2)]
    assert compute_digest(folders[0]) != compute_digest(folders[1])


def test_contents_have_size_memory_and_base_model(tmp_path: Path) -> None:
    files = make_adapter_files(rank=4, width=16)
    contents = read_adapter_metadata(write_files(tmp_path, files))
    assert contents == (sum(map(len, files.values())), 4 * (8 * 16) * 4, "org/base")


@pytest.mark.parametrize("base", [None, ""])
def test_adapter_may_lack_its_base_model_name(tmp_path: Path, base: str | None) -> None:
    assert read_adapter_metadata(write_files(tmp_path,
                                             make_adapter_files(base_model_name_or_path=base))).base_model == ""


@pytest.mark.parametrize("rank", [1, 4, 8, 9, 16, 17, 64, 1024])
def test_matrix_memory_uses_the_padded_rank(rank: int) -> None:
    assert compute_max_loaded_bytes({f"{Q_PROJ_MODULE}.lora_A.weight": (rank, 10)}) == pad_rank(rank) * 10 * 4


def test_all_matrices_are_sized_for_the_highest_rank() -> None:
    shapes = {f"{Q_PROJ_MODULE}.lora_A.weight": (4, 10), f"{Q_PROJ_MODULE}.lora_B.weight": (20, 4),
              f"{V_PROJ_MODULE}.lora_embedding_A": (30, 10), f"{V_PROJ_MODULE}.lora_embedding_B": (10, 30),
              "base_model.model.lm_head.weight": (100, 10)}
    assert compute_max_loaded_bytes(shapes) == 4 * (32 * 10 + 20 * 32 + 32 * 10 + 10 * 32 + 100 * 10)


def test_empty_tensors_take_no_memory() -> None:
    assert compute_max_loaded_bytes({f"{Q_PROJ_MODULE}.lora_A.weight": (0, 2**62)}) == 0


@pytest.mark.parametrize(("changes", "message"), [
    ({CONFIG_FILE: b"{"}, "adapter_config.json is not JSON"),
    ({CONFIG_FILE: b"[]"}, "adapter_config.json must be a JSON object"),
    ({CONFIG_FILE: b"[" * 100_000}, "adapter_config.json is not JSON"),
    ({CONFIG_FILE: b"\xff"}, "adapter_config.json is not JSON"),
    ({CONFIG_FILE: b"{}"}, "peft_type must be LORA, got None"),
    ({CONFIG_FILE: b'{"peft_type": "IA3"}'}, "peft_type must be LORA, got 'IA3'"),
    ({CONFIG_FILE: b'{"peft_type": "LORA", "base_model_name_or_path": 5}'}, "must be a string, got 5"),
    ({CONFIG_FILE: b" " * 2**20 + b"{}"}, "adapter_config.json must have at most 1.0 MB"),
    ({WEIGHTS_FILE: b"pickle"}, "adapter_model.safetensors: the file has no header, only 6 bytes"),
])
def test_invalid_adapter_files_are_reported(tmp_path: Path, changes: dict[str, bytes], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        read_adapter_metadata(write_files(tmp_path, make_adapter_files() | changes))


def test_too_large_weights_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_files(tmp_path, make_adapter_files())
    with (folder / WEIGHTS_FILE).open("r+b") as file:
        file.truncate(16 * 2**30 + 1)  # a sparse file
    with pytest.raises(ValueError, match=r"safetensors must have at most 17\.2 GB, it has 17\.2 GB"):
        read_adapter_metadata(folder)


@pytest.mark.parametrize(("names", "message"), [
    ([], "org/name has no adapter_config.json"),
    ([CONFIG_FILE], "org/name has no adapter_model.safetensors"),
    ([CONFIG_FILE, "adapter_model.bin"], "adapter_model.bin, which is pickled and may run any program"),
])
def test_missing_files_are_reported(names: list[str], message: str) -> None:
    with pytest.raises(AdapterError, match=message) as refused:
        check_adapter_file_names(names, "org/name")
    assert refused.value.kind == "invalid"


def test_folder_with_both_files_is_accepted() -> None:
    check_adapter_file_names([CONFIG_FILE, WEIGHTS_FILE, "adapter_model.bin"], "org/name")


@pytest.fixture(scope="module")
def base_model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.getbasetemp(), "llama")


@pytest.fixture(scope="module")
def scheduler_with_workers(base_model_folder: Path) -> Iterator[SchedulerWithWorkers]:
    """Workers whose matrices are padded, as on a GPU. The kernels on a CPU need less."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shard.lora.lora_linear.load_library", lambda: None)
        scheduler = SchedulerWithWorkers(base_model_folder, adaptable=True)
    with scheduler:
        yield scheduler


@pytest.mark.slow
@pytest.mark.parametrize("config", [
    {"r": 4}, {"r": 9}, {"r": 9, "rank_pattern": {"v_proj": 17}}, {"r": 4, "modules_to_save": ["lm_head"]},
    {"r": 2, "target_modules": ["q_proj", "embed_tokens"]}], ids=repr)
def test_predicted_memory_is_not_below_that_in_a_shard(base_model_folder: Path,
                                                       scheduler_with_workers: SchedulerWithWorkers,
                                                       config: dict[str, Any]) -> None:
    folder = make_tiny_adapter(base_model_folder, **config)
    contents = read_adapter_metadata(folder)
    [answer] = scheduler_with_workers.call_all_ranks("load_resource",
                                                     pb.LoadRequest(kind=pb.KIND_ADAPTER, id=1, source=str(folder)))
    scheduler_with_workers.unload_adapter(1)
    assert contents.file_bytes == sum((folder / name).stat().st_size for name in (CONFIG_FILE, WEIGHTS_FILE))
    min_ratio = 0.4 if "embed_tokens" in config.get("target_modules", ()) else 0.95  # an embedding's rank is not padded
    assert contents.max_loaded_bytes * min_ratio <= answer.bytes <= contents.max_loaded_bytes
