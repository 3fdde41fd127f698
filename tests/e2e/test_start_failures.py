"""A server that cannot start ends at once with one line that names the cause and the flag. Nothing is left behind."""

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from checkpoints import tiny_checkpoint
from launched import SIMULATED, WEFT, serving

from launcher.progress import PHASES

pytestmark = pytest.mark.slow

# No block of the cache fits into a hundredth of the memory.
VAST_BLOCKS = ("--memory-fraction", "0.01", "--block-size", "8000000", "--max-batch-prefill-tokens", "16000000")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.getbasetemp(), "llama")


def started(*arguments: str | Path, cwd: Path, **variables: str) -> tuple[int, list[str]]:
    """The exit code, and the lines on stderr that are no log of a child, nor tell how far a slow start is."""
    port = () if "--port" in arguments else ("--port", "0")
    ended = subprocess.run([WEFT, "serve", *port, *arguments], cwd=cwd, env=os.environ | variables,
                           capture_output=True, text=True, check=False, timeout=60)
    assert ended.stdout == ""
    assert "Traceback" not in ended.stderr
    other = re.compile(rf".* INFO |weft: ({'|'.join(PHASES)})\b")
    return ended.returncode, [line for line in ended.stderr.splitlines() if not other.match(line)]


@pytest.mark.parametrize(("arguments", "code", "line"), [
    (("--prot", "80"), 2, "weft: Unknown option: --prot. Did you mean --port?"),
    (("--dtype", "bfloat61"), 2, 'weft: Invalid value "bfloat61" for --dtype. Choose from: "auto", "float32", '
                                 '"bfloat16", "float16". Did you mean "bfloat16"?'),
    (("--num-shard", "0"), 2, 'weft: Invalid value "0" for --num-shard. Must be >= 1.'),
    (("--max-batch-prefill-tokens", "40", "--block-size", "32"), 2,
     "weft: --max-batch-prefill-tokens must be at least two blocks (64), got 40"),
    (("./no-model",), 2, "weft: there is no folder ./no-model"),
    (("--hostname", "192.0.2.1"), 1, "weft: cannot listen on 192.0.2.1:0 (Cannot assign requested address); choose "
                                     "another port with --port or another address with --hostname"),
    (("--api-keys", "none.json"), 1, "weft: cannot read none.json (--api-keys): No such file or directory"),
    ((SIMULATED, "--api-keys", "."), 1, "weft: router: cannot read . (--api-keys): Is a directory"),
    ((SIMULATED, "--max-total-tokens", "99999"), 1,
     "weft: router: --max-total-tokens must be at most 16384, which is what the model holds, got 99999"),
])
def test_a_mistake_is_one_line_with_cause_and_flag(
        tmp_path: Path, arguments: tuple[str, ...], code: int, line: str) -> None:
    assert started(*arguments, cwd=tmp_path) == (code, [line])


def test_a_second_server_on_the_same_port_is_one_line(tmp_path: Path) -> None:
    with serving(tmp_path, SIMULATED) as weft:
        code, lines = started("--port", str(weft.port), cwd=tmp_path)
        assert weft.generate(5) == "terry"
    assert (code, len(lines)) == (1, 1)
    assert lines[0].startswith(f"weft: cannot listen on 127.0.0.1:{weft.port} (Address already in use); choose another "
                               "port with --port")


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 100)


@pytest.mark.parametrize(("name", "damage", "words"), [
    ("config.json", lambda path: path.write_text("{"), "config.json is not JSON"),
    ("model.safetensors", cut, "is the download complete?"),
    ("tokenizer.json", lambda path: path.write_text("{"), "tokenizer.json holds no tokenizer that can be read"),
])
def test_a_model_that_is_damaged_is_one_line_that_names_the_file(
        model: Path, tmp_path: Path, name: str, damage: Callable[[Path], None], words: str) -> None:
    for path in model.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    damage(tmp_path / name)
    code, lines = started(tmp_path, cwd=tmp_path)
    assert (code, len(lines)) == (1, 1)
    assert name in lines[0]
    assert words in lines[0]


def test_a_cache_that_does_not_fit_is_one_line_that_names_the_flag(model: Path, tmp_path: Path) -> None:
    code, lines = started(model, *VAST_BLOCKS, cwd=tmp_path)
    assert (code, len(lines)) == (1, 1)
    assert lines[0].startswith("weft: router: there is no room for a cache: 3 blocks of ")
    assert "raise --memory-fraction" in lines[0]


def test_a_folder_for_caches_that_cannot_be_written_is_told_and_no_failure(model: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()  # where a folder should be; root could write to any folder
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
        with serving(tmp_path, str(model), "--max-batch-total-tokens", "1024") as weft:
            weft.generate(2)
            weft.process.terminate()
            code, errors = weft.end()
    assert code == 0
    assert "WARNING cannot remember what was found out about this machine: [Errno 20] Not a directory" in errors
