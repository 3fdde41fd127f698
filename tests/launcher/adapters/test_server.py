"""Tests of the adapter store as a process that reads request lines and writes answer lines."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from queue import Queue
from typing import Any, NamedTuple

import pytest
from support.adapter_files import CONFIG, WEIGHTS, adapter_files, kept, left_over, write
from support.fake_hub import FakeHub

from launcher.adapters.contents import digest_of
from launcher.adapters.server import Desk, Settings, make_parts
from launcher.adapters.store import Store

PLENTY = 10**9


class Running:
    """Store process with a fake Hub. The process exits at the end of its input."""

    def __init__(self, folder: Path, fake: FakeHub, token: str = "", **settings: Any) -> None:
        self.store, self.root = folder / "store", folder / "root"
        self.root.mkdir(exist_ok=True)
        told = {"store": str(self.store), "root": str(self.root), "most_bytes": PLENTY, "endpoint": fake.url,
                "client": "weft/1", "offline": "", "hub_cache": str(folder / "cache")} | settings
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "launcher.adapters.server", json.dumps(told)], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | {"NO_PROXY": "*"})
        self.write(token)

    def write(self, line: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def send(self, number: int, op: str, **told: Any) -> None:
        self.write(json.dumps({"id": number, "op": op} | told))

    def hear(self) -> Any:
        assert self.process.stdout
        return json.loads(self.process.stdout.readline())

    def ask(self, op: str, **told: Any) -> Any:
        self.send(7, op, **told)
        answer = self.hear()
        assert answer.pop("id") == 7
        return answer

    def fetch(self, name: str = "org/name", source: str = "hub", **told: Any) -> Any:
        return self.ask("fetch", source=source, name=name, token="", own_token=False, fresh=False, **told)

    def close(self) -> tuple[str, str]:
        """Return the rest of stdout, and stderr."""
        return self.process.communicate(timeout=60)


@pytest.fixture
def fake() -> Iterator[FakeHub]:
    with FakeHub(adapter_files(1)) as fake:
        yield fake


@pytest.fixture
def running(fake: FakeHub, tmp_path: Path) -> Iterator[Running]:
    with closing(Running(tmp_path, fake, "hf_servers")) as running:
        yield running


# -- lines, without a process


class Heard(NamedTuple):
    """Desk and the queue of its answers."""

    desk: Desk
    said: Queue[Any]

    def ask(self, line: bytes) -> Any:
        self.desk.hear(line)
        return self.said.get(timeout=60)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Heard]:
    said: Queue[Any] = Queue()
    settings = Settings(str(tmp_path), "", PLENTY, "http://127.0.0.1:9", "weft/1", "HF_HUB_OFFLINE", str(tmp_path))
    with closing(Desk(make_parts(settings, "", {}), said.put)) as desk:
        yield Heard(desk, said)


@pytest.mark.parametrize("line", [b"\n", b"{\n", b"[]\n", b"null", b'{"id": true}', b"\xff\n", b"[" * 100_000])
def test_a_line_that_is_none_is_answered_without_an_id(desk: Heard, line: bytes) -> None:
    answer = desk.ask(line)
    assert (answer["id"], answer["kind"]) == (None, "invalid")


@pytest.mark.parametrize(("line", "kind"), [
    ({"op": "sing"}, "invalid"), ({"op": "fetch", "source": "pbase", "name": "a/1"}, "invalid"),
    ({"op": "fetch", "source": "s3", "name": "loras"}, "invalid"),
    ({"op": "merge", "digests": []}, "invalid"), ({"op": "fetch", "source": "local", "name": "a"}, "forbidden"),
    ({"op": "fetch", "source": "hub", "name": "org/name"}, "missing"),
    ({"op": "allowed", "source": "hub", "name": "org/name"}, "missing")])
def test_what_is_refused_has_the_id_of_its_request(
        desk: Heard, line: dict[str, Any], kind: str) -> None:
    answer = desk.ask(json.dumps({"id": 5} | line).encode())
    assert (answer["id"], answer["kind"], set(answer)) == (5, kind, {"id", "kind", "error"})


def test_only_the_hub_knows_tokens(desk: Heard) -> None:
    answer = desk.ask(b'{"id": 5, "op": "allowed", "source": "local", "name": "a", "token": "t"}')
    assert answer == {"id": 5, "allowed": True}


def test_what_breaks_is_answered_as_well(desk: Heard, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("broken")

    line = b'{"id": 5, "op": "pin", "digests": []}'
    monkeypatch.setattr(Store, "pin", broken)
    assert desk.ask(line)["kind"] == "unreachable"
    monkeypatch.setattr(Desk, "_begin", broken)
    assert desk.ask(line)["kind"] == "unreachable"


# -- the process


@pytest.mark.slow
def test_an_adapter_of_the_hub_is_fetched_and_told(running: Running) -> None:
    answer = running.fetch()
    files = adapter_files(1)
    folder = Path(answer["folder"])
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == files
    assert answer == {"digest": digest_of(folder), "folder": str(running.store / "versions" / answer["digest"]),
                      "bytes": sum(map(len, files.values())), "takes": 4 * 8 * 16 * 4, "base": "org/base",
                      "private": False}
    assert running.close() == ("", "")


@pytest.mark.slow
def test_whoever_computes_a_step_goes_before_it(running: Running) -> None:
    assert "error" not in running.fetch()
    ours, theirs = (os.getpriority(os.PRIO_PROCESS, process) for process in (0, running.process.pid))
    assert theirs == min(ours + 10, 19)


def test_answers_come_as_they_are_ready(running: Running, fake: FakeHub) -> None:
    """A stalled Hub does not delay other requests."""
    write(running.root / "one", adapter_files(2))
    fake.stalls[WEIGHTS] = 700
    running.send(1, "fetch", source="hub", name="org/name")
    assert fake.stalled.wait(60)
    running.send(2, "fetch", source="local", name="one")
    assert running.hear()["id"] == 2
    running.send(3, "pin", digests=[])
    assert running.hear() == {"id": 3}
    fake.over.set()
    assert running.hear()["id"] == 1


@pytest.mark.slow
def test_a_private_adapter_is_for_who_may_read_it(running: Running, fake: FakeHub) -> None:
    fake.private_for = "hf_mine"
    told = {"source": "hub", "name": "org/name"}
    answer = running.ask("fetch", token="hf_mine", **told)
    assert answer["private"]
    assert running.ask("fetch", token="hf_other", **told)["kind"] == running.fetch()["kind"] == "missing"
    assert running.ask("allowed", token="hf_mine", **told) == {"allowed": True}
    assert running.ask("allowed", token="hf_other", **told)["kind"] == "missing"


@pytest.mark.slow
def test_the_servers_token_is_for_what_the_operator_named_and_nobody_sees_it(running: Running, fake: FakeHub) -> None:
    fake.private_for = "hf_servers"
    assert running.fetch()["kind"] == "missing"
    assert running.ask("fetch", source="hub", name="org/name", own_token=True)["private"]
    proc = Path(f"/proc/{running.process.pid}")
    assert b"hf_servers" not in (proc / "cmdline").read_bytes() + (proc / "environ").read_bytes()
    assert "hf_servers" not in "".join(running.close())


@pytest.mark.slow
def test_a_folder_that_is_written_again_is_another_version(running: Running) -> None:
    write(running.root / "one", adapter_files(1))
    first = running.fetch("one", "local")
    assert running.fetch("one", "local") == first
    write(running.root / "one", adapter_files(2))
    second = running.fetch("one", "local")
    assert kept(running.store) == {first["digest"], second["digest"]}


@pytest.mark.slow
def test_pins_keep_what_they_name_within_the_budget(fake: FakeHub, tmp_path: Path) -> None:
    size = sum(map(len, adapter_files().values()))
    with closing(Running(tmp_path, fake, most_bytes=2 * size)) as running:
        for seed in range(3):
            write(running.root / str(seed), adapter_files(seed))
        first, second = (running.fetch(name, "local")["digest"] for name in "01")
        assert running.ask("pin", digests=[first]) == {}
        running.fetch("2", "local")
        assert first in kept(running.store)
        assert running.ask("pin", digests=[first, second]) == {"missing": [second]}


@pytest.mark.slow
def test_without_the_extra_the_source_s3_says_what_it_needs(running: Running) -> None:
    """The error has another kind if the extra is installed."""
    answer = running.fetch("s3://loras/one", "s3")
    assert answer["kind"] in {"invalid", "forbidden", "unreachable"}


@pytest.mark.slow
def test_the_end_of_the_input_is_the_end_whatever_is_under_way(running: Running, fake: FakeHub) -> None:
    fake.stalls[WEIGHTS] = 700
    running.send(1, "fetch", source="hub", name="org/name")
    assert fake.stalled.wait(60)
    assert running.close() == ("", "")
    assert running.process.returncode == 0


@pytest.mark.slow
def test_after_a_kill_the_next_one_goes_on_and_finds_no_half(fake: FakeHub, tmp_path: Path) -> None:
    fake.stalls[WEIGHTS] = 700
    with closing(Running(tmp_path, fake)) as killed:
        killed.send(1, "fetch", source="hub", name="org/name")
        assert fake.stalled.wait(60)
        killed.process.send_signal(signal.SIGKILL)
    assert kept(killed.store) == set()
    assert len(left_over(killed.store)) == 1
    with closing(Running(tmp_path, fake)) as running:
        assert digest_of(Path(running.fetch()["folder"])) in kept(running.store)
        assert left_over(running.store) == []


@pytest.mark.slow
def test_two_processes_share_a_folder(fake: FakeHub, tmp_path: Path) -> None:
    with closing(Running(tmp_path, fake)) as one, closing(Running(tmp_path, fake)) as other:
        one.send(1, "fetch", source="hub", name="org/name")
        other.send(1, "fetch", source="hub", name="org/name")
        assert one.hear() == other.hear()
        assert fake.num_asked("GET", "/store") == 1


@pytest.mark.slow
def test_a_program_that_cannot_merge_is_told(running: Running) -> None:
    """The answer is the same whether or not a merge program is installed."""
    write(running.root / "one", adapter_files(1) | {CONFIG: b'{"peft_type": "LORA"}'})
    digest = running.fetch("one", "local")["digest"]
    answer = running.ask("merge", digests=[digest], weights=[1.0], strategy="none", density=0.5, sign="total")
    assert answer["kind"] == "invalid"


@pytest.mark.slow
def test_a_folder_that_cannot_be_made_is_told(fake: FakeHub, tmp_path: Path) -> None:
    (tmp_path / "store").write_text("a file")
    running = Running(tmp_path, fake)
    assert running.close()[1] == f"weft: cannot keep adapters in {tmp_path}/store: Not a directory\n"
    assert running.process.returncode == 1
