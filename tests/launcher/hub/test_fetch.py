"""Tests of `weft download` and of the start of `weft serve`: processes, signals, and no network use when offline."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.fake_hub import COMMIT, FakeHub
from support.process_list import child_pids, command_line

from launcher.hub.fetch import Order, order, what_is_missing
from launcher.hub.resolve import find_model

WEIGHTS = "model.safetensors"
FILES = {"config.json": b"{}", "tokenizer.json": b'{"a": 1}', WEIGHTS: os.urandom(100_000)}
# Reports every connection, address lookup and new process on stderr.
WATCHED = r"""
import sys
def watch(event, arguments):
    if event in {"socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "subprocess.Popen", "os.posix_spawn"}:
        sys.stderr.write(f"{event}\n")
sys.addaudithook(watch)
from launcher.cli import main
main()
"""


class Bench:
    """Runner of `weft` with a fake Hub and an empty home folder."""

    def __init__(self, fake: FakeHub, home: Path) -> None:
        self.fake, self.cache = fake, home / "hub"
        own = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "TRANSFORMERS_"))}
        self.variables = own | {"HF_HOME": str(home), "HF_ENDPOINT": fake.url, "NO_PROXY": "*"}

    def start(self, *arguments: str, program: tuple[str, ...] = ("-m", "launcher.cli"),
              **variables: str) -> "subprocess.Popen[str]":
        return subprocess.Popen([sys.executable, "-P", *program, *arguments], env=self.variables | variables, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def end(self, process: "subprocess.Popen[str]") -> tuple[int, str, str]:
        output, errors = process.communicate()
        return process.returncode, output, errors

    def run(self, *arguments: str, **variables: str) -> tuple[int, str, str]:
        return self.end(self.start(*arguments, **variables))

    def watched(self, *arguments: str, **variables: str) -> tuple[int, str, str]:
        return self.end(self.start(*arguments, program=("-c", WATCHED), **variables))

    def beginning(self) -> Path:
        return self.cache / "models--org--name" / "blobs" / f"{self.fake.etag(WEIGHTS)}.incomplete"


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with FakeHub(FILES) as fake:
        yield Bench(fake, tmp_path)


def home(tmp_path: Path, *, whole: bool = False, **variables: str) -> dict[str, str]:
    """Return an environment whose cache is empty, or holds one model if `whole`."""
    if whole:
        (snapshot := tmp_path / "models--org--name" / "snapshots" / COMMIT).mkdir(parents=True)
        for name, content in FILES.items():
            (snapshot / name).write_bytes(content)
    return {"HF_HOME": str(tmp_path), "HF_HUB_CACHE": str(tmp_path), "HF_ENDPOINT": "http://hub"} | variables


# -- whether a download is needed


def test_what_is_not_here_is_ordered(tmp_path: Path) -> None:
    environment = home(tmp_path, HF_TOKEN="hf_secret", HF_HUB_DISABLE_PROGRESS_BARS="1")
    wanted = Order("org/name", "main", str(tmp_path), "http://hub", "weft/1", quiet=True,
                   no_folder=str(Path("org/name").absolute()))
    assert what_is_missing("org/name", "", environment, "weft/1") == wanted


@pytest.mark.parametrize("variables", [{}, {"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "nonsense"}])
def test_for_what_is_here_the_hub_is_not_asked(tmp_path: Path, variables: dict[str, str]) -> None:
    assert what_is_missing("org/name", COMMIT, home(tmp_path, whole=True, **variables), "weft/1") is None


def test_a_folder_that_lacks_something_is_not_replaced_by_a_model_of_the_hub(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no config.json"):
        what_is_missing(str(tmp_path), "main", home(tmp_path), "weft/1")


def test_offline_it_is_told_what_is_missing_and_why_it_is_not_downloaded(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no model org/name: .*; HF_HUB_OFFLINE is set, so nothing is"):
        what_is_missing("org/name", "main", home(tmp_path, HF_HUB_OFFLINE="1"), "weft/1")


@pytest.mark.parametrize(("name", "revision", "line"), [
    ("/folder", "main", "a model at the Hub has a name such as org/name, got /folder"),
    ("org/name", "../main", "--revision must be a branch, a tag or a commit"),
    ("weft/demo", "main", "weft/demo comes with weft, so there is nothing to download"),
])
def test_what_can_be_no_model_of_the_hub_is_not_asked_for(tmp_path: Path, name: str, revision: str, line: str) -> None:
    with pytest.raises(ValueError, match=line):
        order(name, revision, home(tmp_path), "weft/1")


# -- processes


@pytest.mark.slow
def test_the_folder_is_printed_and_found_without_the_hub_afterwards(bench: Bench) -> None:
    code, output, errors = bench.watched("download", "org/name", HF_TOKEN="hf_secret", HF_HUB_DISABLE_PROGRESS_BARS="1")
    assert (code, output.strip()) == (0, find_model("org/name", "main", bench.cache).folder)
    started, said = errors.splitlines()
    assert "subprocess.Popen" in started  # the audit hook works
    assert said.startswith("weft: org/name is here: commit 01234567, 3 files, 100.0 kB, ")
    assert {asked.token for asked in bench.fake.asked if "/store" not in asked.path} == {"Bearer hf_secret"}


@pytest.mark.slow
def test_offline_nothing_is_connected_looked_up_or_started(bench: Bench) -> None:
    line = "HF_HUB_OFFLINE is set, so nothing is downloaded\n"
    assert bench.watched("download", "org/name", HF_HUB_OFFLINE="1") == (2, "", f"weft: {line}")
    code, _, errors = bench.watched("serve", "org/name", HF_HUB_OFFLINE="1")
    assert (code, errors.partition(": looked")[0], errors.endswith(f"; {line}")) == (
        2, "weft: there is no model org/name", True)
    assert bench.fake.asked == []


@pytest.mark.slow
def test_serving_what_the_hub_does_not_have_is_one_line(bench: Bench) -> None:
    code, output, errors = bench.run("serve", "org/other", "--port", "0")
    assert (code, output, errors.count("\n")) == (2, "", 1)
    assert errors.startswith(f"weft: there is no model org/other at {bench.fake.url}, or it is private")
    assert errors.endswith(f"; nor is there a folder {Path.cwd()}/org/other\n")


@pytest.mark.slow
def test_a_port_that_is_taken_is_told_before_the_download(bench: Bench) -> None:
    code, _, errors = bench.run("serve", "org/name", "--port", bench.fake.url.rpartition(":")[2])
    assert (code, bench.fake.asked) == (1, [])
    assert errors.startswith("weft: cannot listen on 127.0.0.1:")


@pytest.mark.slow
def test_a_file_that_is_damaged_ends_with_code_1(bench: Bench) -> None:
    bench.fake.damaged.add(WEIGHTS)
    code, _, errors = bench.run("download", "org/name")
    assert (code, errors.count("\n")) == (1, 2)
    assert errors.splitlines()[1].startswith("weft: model.safetensors of org/name arrived damaged (sha256 ")


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -15), (signal.SIGKILL, -9)])
def test_a_download_that_is_stopped_ends_at_once_and_can_be_gone_on_with(
        bench: Bench, number: signal.Signals, code: int) -> None:
    bench.fake.stalls[WEIGHTS] = 60_000
    process = bench.start("serve", "org/name", "--port", "0", HF_TOKEN="hf_secret")
    assert bench.fake.stalled.wait(60)
    while bench.beginning().stat().st_size < 60_000:
        pass
    children = child_pids(process.pid)
    assert children
    assert not any("hf_secret" in argument for pid in [process.pid, *children] for argument in command_line(pid))
    process.send_signal(number)
    assert bench.end(process) == (code, "", "weft: downloading org/name: 0 %, 0 B of 100.0 kB\n")
    assert bench.run("download", "org/name")[0] == 0
    assert bench.fake.num_asked("GET", "/store", "bytes=60000-") == 1


@pytest.mark.slow
def test_two_servers_that_start_at_once_download_once(bench: Bench) -> None:
    both = [bench.start("download", "org/name") for _ in range(2)]
    assert [bench.end(process)[0] for process in both] == [0, 0]
    assert bench.fake.num_asked("GET", "/store") == 1
