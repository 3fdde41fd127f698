"""Tests that a server that cannot start ends at once with one line naming cause and flag, and leaves nothing behind.

The exit code is 2 where a restart fails until a flag, the model or the machine is changed, and 1 where memory, a port
or a network may be available the next time.
"""

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.checkpoints.small_checkpoints import make_tiny_checkpoint
from support.servers.weft_process import SIMULATED_MODEL, WEFT_EXECUTABLE, run_weft_process

from launcher.supervisor.startup_display import STARTUP_PHASES

pytestmark = pytest.mark.slow

# No block of the cache fits into a hundredth of the memory.
OVERSIZED_BLOCK_ARGUMENTS = ("--memory-fraction", "0.01", "--block-size", "8000000", "--max-batch-prefill-tokens",
                             "16000000")


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.getbasetemp(), "llama")


def run_failing_serve(*arguments: str | Path, cwd: Path, **environment: str) -> tuple[int, list[str]]:
    """Return the exit code, and the lines on stderr without the children's logs and the startup progress."""
    port = () if "--port" in arguments else ("--port", "0")
    ended = subprocess.run([WEFT_EXECUTABLE, "serve", *port, *arguments], cwd=cwd, env=os.environ | environment,
                           capture_output=True, text=True, check=False, timeout=60)
    assert ended.stdout == ""
    assert "Traceback" not in ended.stderr
    ignored_line = re.compile(rf".* INFO |weft: ({'|'.join(STARTUP_PHASES)})\b")
    return ended.returncode, [line for line in ended.stderr.splitlines() if not ignored_line.match(line)]


@pytest.mark.parametrize(("arguments", "code", "line"), [
    (("--prot", "80"), 2, "weft: Unknown option: --prot. Did you mean --port?"),
    pytest.param(("--dtype", "bfloat61"), 2, 'weft: Invalid value "bfloat61" for --dtype. Choose from: "auto", '
                 '"float32", "bfloat16", "float16". Did you mean "bfloat16"?', marks=pytest.mark.long),
    pytest.param(("--num-shard", "0"), 2, 'weft: Invalid value "0" for --num-shard. Must be >= 1.',
                 marks=pytest.mark.long),
    (("--max-batch-prefill-tokens", "40", "--block-size", "32"), 2,
     "weft: --max-batch-prefill-tokens must be at least two blocks (64), got 40"),
    pytest.param(("./no-model",), 2, "weft: there is no folder ./no-model", marks=pytest.mark.long),
    (("--adapter-root", "./none"), 2, "weft: there is no folder ./none (--adapter-root)"),
    (("--adapters", "--allowed-adapters", "gcs://bucket"), 2,
     "weft: --allowed-adapters takes hub, local, s3, or the beginning of a name such as hub://org or "
     "s3://bucket/folder, got 'gcs://bucket'"),
    (("--hostname", "192.0.2.1"), 1, "weft: cannot listen on 192.0.2.1:0 (Cannot assign requested address); choose "
     "another port with --port or another address with --hostname"),
    (("--api-keys", "none.json"), 2, "weft: cannot read none.json (--api-keys): No such file or directory"),
    ((SIMULATED_MODEL, "--api-keys", "."), 2, "weft: cannot read . (--api-keys): Is a directory"),
    pytest.param(
        (SIMULATED_MODEL, "--max-total-tokens", "99999"), 2,
        "weft: router: --max-total-tokens must be at most 16384, which is what the model holds, got 99999",
        marks=pytest.mark.long),
    ((SIMULATED_MODEL, "--simulated-num-blocks", "10", "--max-total-tokens", "999"), 1,
     "weft: router: --max-total-tokens is 999, but model and cache can hold 160 tokens; lower it"),
    pytest.param(
        (SIMULATED_MODEL, "--no-simulated-adapters", "--adapter-id", "org/a"), 2,
        "weft: router: this model takes no adapters; leave out --adapter-id and --preloaded-adapter-ids",
        marks=pytest.mark.long),
    ((SIMULATED_MODEL, "--adapter-root", ".", "--adapter-source", "local", "--adapter-id", "a"), 2,
     "weft: router: the adapter a cannot be served: the adapter a: there is no adapter 'a' below the folder of "
     "--adapter-root"),
])
def test_invalid_arguments_are_a_one_line_error_with_cause_and_flag(
        tmp_path: Path, arguments: tuple[str, ...], code: int, line: str) -> None:
    assert run_failing_serve(*arguments, cwd=tmp_path) == (code, [line])


def test_port_in_use_is_a_one_line_error(tmp_path: Path) -> None:
    with run_weft_process(tmp_path, SIMULATED_MODEL) as weft:
        code, lines = run_failing_serve("--port", str(weft.port), cwd=tmp_path)
        assert weft.generate(5) == "terry"
    assert (code, len(lines)) == (1, 1)
    assert lines[0].startswith(f"weft: cannot listen on 127.0.0.1:{weft.port} (Address already in use); choose another "
                               "port with --port")


def truncate_file(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 100)


def make_json_change(**values: Any) -> Callable[[Path], None]:
    """Return a function that writes these values into a JSON file."""
    def change_file(path: Path) -> None:
        path.write_text(json.dumps(json.loads(path.read_text()) | values))
    return change_file


@pytest.mark.parametrize(("name", "damage", "words"), [
    ("config.json", lambda path: path.write_text("{"), "config.json is not JSON"),
    ("config.json", make_json_change(architectures=["LoomForCausalLM"], model_type="loom"),
     "architecture LoomForCausalLM"),
    pytest.param("config.json", make_json_change(quantization_config={"quant_method": "loom"}),
                 "quantized as loom are not supported", marks=pytest.mark.long),
    ("config.json", make_json_change(rope_parameters="linear"),
     "config.json: rope_parameters must be an object, got 'linear'"),
    pytest.param("config.json", Path.unlink, "has no config.json", marks=pytest.mark.long),
    ("model.safetensors", truncate_file, "is the download complete?"),
    ("model.safetensors", lambda path: path.rename(path.with_name("pytorch_model.bin")), "*.safetensors"),
    ("tokenizer.json", lambda path: path.write_text("{"), "tokenizer.json holds no tokenizer that can be read"),
    pytest.param("tokenizer.json", Path.unlink, "has no tokenizer.json", marks=pytest.mark.long),
])
def test_damaged_model_is_a_one_line_error_naming_the_file(
        model_folder: Path, tmp_path: Path, name: str, damage: Callable[[Path], None], words: str) -> None:
    for path in model_folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    damage(tmp_path / name)
    code, lines = run_failing_serve(tmp_path, cwd=tmp_path)
    assert (code, len(lines)) == (2, 1)
    assert words in lines[0]


@pytest.mark.parametrize(("arguments", "words"), [
    (("--num-shard", "3"), "3 shards cannot share 4 attention heads with 2 key/value heads; choose a --num-shard"),
    (("--device", "cuda"), "--device cuda needs a GPU that torch can use, there is none; use --device cpu"),
])
def test_settings_unfit_for_model_or_machine_are_a_one_line_error(
        model_folder: Path, tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    """With systemd's Restart=on-failure, such a server used to restart forever with the same line."""
    code, lines = run_failing_serve(model_folder, *arguments, cwd=tmp_path, CUDA_VISIBLE_DEVICES="")
    assert (code, len(lines)) == (2, 1)
    assert words in lines[0]


@pytest.mark.parametrize(("offline", "expected", "words"), [
    ("", 1, "cannot reach the Hub"),
    pytest.param("1", 2, "HF_HUB_OFFLINE is set, so the Hub is not asked", marks=pytest.mark.long)])
def test_adapter_unavailable_at_the_hub_is_retryable_unless_offline(
        tmp_path: Path, offline: str, expected: int, words: str) -> None:
    arguments = ("--adapter-id", "org/a", "--adapter-source", "hub")
    code, lines = run_failing_serve(SIMULATED_MODEL, *arguments, cwd=tmp_path, HF_ENDPOINT="http://127.0.0.1:9",
                                    HF_HUB_OFFLINE=offline, HF_HOME=str(tmp_path))
    assert code == expected
    assert words in lines[-1]


def test_cache_that_does_not_fit_is_a_one_line_error_naming_the_flag(model_folder: Path, tmp_path: Path) -> None:
    code, lines = run_failing_serve(model_folder, *OVERSIZED_BLOCK_ARGUMENTS, cwd=tmp_path)
    assert (code, len(lines)) == (1, 1)
    assert lines[0].startswith("weft: router: there is no room for a cache: 3 blocks of ")
    assert "raise --memory-fraction" in lines[0]


@pytest.mark.long
def test_unwritable_cache_folder_is_only_a_warning(model_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()  # a file instead of a folder: root could write to any folder
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
        with run_weft_process(tmp_path, str(model_folder), "--max-batch-total-tokens", "1024") as weft:
            weft.generate(2)
            weft.process.terminate()
            code, errors = weft.wait_for_exit()
    assert code == 0
    assert "WARNING cannot remember what was found out about this machine: [Errno 20] Not a directory" in errors
