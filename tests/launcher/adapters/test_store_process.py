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
from support.checkpoints.adapter_files import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    list_incomplete_downloads,
    list_stored_versions,
    make_adapter_files,
    write_files,
)
from support.servers.fake_hub import FakeHub

from launcher.adapters.adapter_files import compute_digest
from launcher.adapters.sources import boto3_storage
from launcher.adapters.sources.boto3_storage import BOTO3_MISSING_ERROR
from launcher.adapters.store import AdapterVersionStore
from launcher.adapters.store_process import AdapterStoreSettings, StoreRequestDispatcher, make_store_components

LARGE_BUDGET_BYTES = 10**9


class StoreProcess:
    """Store process with a fake Hub. The process exits at the end of its input."""

    def __init__(self, folder: Path, fake_hub: FakeHub, token: str = "", **settings: Any) -> None:
        self.store_folder, self.root_folder = folder / "store", folder / "root"
        self.root_folder.mkdir(exist_ok=True)
        arguments = {"store_folder": str(self.store_folder), "local_root": str(self.root_folder),
                     "max_bytes": LARGE_BUDGET_BYTES, "endpoint": fake_hub.url, "user_agent": "weft/1",
                     "offline_variable": "", "hub_cache": str(folder / "cache")} | settings
        self.process = subprocess.Popen([sys.executable, "-P", "-m", "launcher.adapters.store_process",
                                         json.dumps(arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True, env=os.environ | {"NO_PROXY": "*"})
        self.write_line(token)

    def write_line(self, line: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def send_request(self, request_id: int, op: str, **fields: Any) -> None:
        self.write_line(json.dumps({"id": request_id, "op": op} | fields))

    def read_answer(self) -> Any:
        assert self.process.stdout
        return json.loads(self.process.stdout.readline())

    def request(self, op: str, **fields: Any) -> Any:
        self.send_request(7, op, **fields)
        answer = self.read_answer()
        assert answer.pop("id") == 7
        return answer

    def fetch(self, name: str = "org/name", source: str = "hub", **fields: Any) -> Any:
        return self.request("fetch", source=source, name=name, token="", own_token=False, fresh=False, **fields)

    def close(self) -> tuple[str, str]:
        """Return the rest of stdout, and stderr."""
        return self.process.communicate(timeout=60)


@pytest.fixture
def fake_hub() -> Iterator[FakeHub]:
    with FakeHub(make_adapter_files(1)) as fake:
        yield fake


@pytest.fixture
def store_process(fake_hub: FakeHub, tmp_path: Path) -> Iterator[StoreProcess]:
    with closing(StoreProcess(tmp_path, fake_hub, "hf_servers")) as running:
        yield running


# -- lines, without a process


class DispatcherWithAnswers(NamedTuple):
    """Dispatcher and the queue of its answers."""

    dispatcher: StoreRequestDispatcher
    answers: Queue[Any]

    def request(self, line: bytes) -> Any:
        self.dispatcher.handle_request_line(line)
        return self.answers.get(timeout=60)


@pytest.fixture
def dispatcher(tmp_path: Path) -> Iterator[DispatcherWithAnswers]:
    answers: Queue[Any] = Queue()
    settings = AdapterStoreSettings(str(tmp_path), "", LARGE_BUDGET_BYTES, "http://127.0.0.1:9", "weft/1",
                                    "HF_HUB_OFFLINE", str(tmp_path))
    with closing(StoreRequestDispatcher(make_store_components(settings, "", {}), answers.put)) as request_dispatcher:
        yield DispatcherWithAnswers(request_dispatcher, answers)


def test_ping_is_answered_at_once(dispatcher: DispatcherWithAnswers) -> None:
    assert dispatcher.request(b'{"id": 6, "op": "ping"}') == {"id": 6}


def test_names_are_listed_without_a_root(dispatcher: DispatcherWithAnswers) -> None:
    assert dispatcher.request(b'{"id": 1, "op": "names"}') == {"id": 1, "names": []}


@pytest.mark.parametrize(("allowed_adapters", "names"), [
    ((), ["loom"]), (("hub", "local"), ["loom"]), (("hub://org",), [])])
def test_names_that_no_request_may_use_are_not_listed(tmp_path: Path, allowed_adapters: tuple[str, ...],
                                                      names: list[str]) -> None:
    (tmp_path / "adapters" / "loom").mkdir(parents=True)
    (tmp_path / "adapters" / "loom" / "adapter_config.json").write_text("{}")
    answers: Queue[Any] = Queue()
    settings = AdapterStoreSettings(str(tmp_path / "store"), str(tmp_path / "adapters"), LARGE_BUDGET_BYTES,
                                    "http://127.0.0.1:9", "weft/1", "HF_HUB_OFFLINE", str(tmp_path), allowed_adapters)
    with closing(StoreRequestDispatcher(make_store_components(settings, "", {}), answers.put)) as request_dispatcher:
        assert DispatcherWithAnswers(request_dispatcher, answers).request(b'{"id": 1, "op": "names"}') == {
            "id": 1, "names": names}


@pytest.mark.parametrize("line", [b"\n", b"{\n", b"[]\n", b"null", b'{"id": true}', b"\xff\n", b"[" * 100_000])
def test_invalid_line_is_answered_without_an_id(dispatcher: DispatcherWithAnswers, line: bytes) -> None:
    answer = dispatcher.request(line)
    assert (answer["id"], answer["kind"]) == (None, "invalid")


@pytest.mark.parametrize(("line", "kind"), [
    ({"op": "sing"}, "invalid"), ({"op": "fetch", "source": "pbase", "name": "a/1"}, "invalid"),
    ({"op": "fetch", "source": "s3", "name": "loras"}, "invalid"),
    ({"op": "merge", "digests": []}, "invalid"), ({"op": "fetch", "source": "local", "name": "a"}, "forbidden"),
    ({"op": "fetch", "source": "hub", "name": "org/name"}, "missing"),
    ({"op": "allowed", "source": "hub", "name": "org/name"}, "missing")])
def test_rejection_has_the_id_of_its_request(
        dispatcher: DispatcherWithAnswers, line: dict[str, Any], kind: str) -> None:
    answer = dispatcher.request(json.dumps({"id": 5} | line).encode())
    assert (answer["id"], answer["kind"], set(answer)) == (5, kind, {"id", "kind", "error"})


def test_bucket_that_the_operator_did_not_name_is_not_opened(
        dispatcher: DispatcherWithAnswers, monkeypatch: pytest.MonkeyPatch) -> None:
    def import_nothing(name: str) -> None:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(boto3_storage, "import_module", import_nothing)
    line = {"id": 5, "op": "fetch", "source": "s3", "name": "s3://payroll/one"}
    answer = dispatcher.request(json.dumps(line).encode())
    assert (answer["kind"], answer["error"]) == ("forbidden", "requests may only name adapters of hub, local "
                                                 "(--allowed-adapters), got 's3://payroll/one'")
    assert dispatcher.request(json.dumps(line | {"own_token": True}).encode())["error"] == BOTO3_MISSING_ERROR


def test_access_check_passes_for_sources_without_tokens(dispatcher: DispatcherWithAnswers) -> None:
    answer = dispatcher.request(b'{"id": 5, "op": "allowed", "source": "local", "name": "a", "token": "t"}')
    assert answer == {"id": 5, "allowed": True}


def test_internal_errors_are_answered(dispatcher: DispatcherWithAnswers, monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_error(*_: object) -> None:
        raise RuntimeError("broken")

    line = b'{"id": 5, "op": "pin", "digests": []}'
    monkeypatch.setattr(AdapterVersionStore, "replace_pins", raise_error)
    assert dispatcher.request(line)["kind"] == "unreachable"
    monkeypatch.setattr(StoreRequestDispatcher, "_start_request", raise_error)
    assert dispatcher.request(line)["kind"] == "unreachable"


# -- the process


@pytest.mark.slow
def test_hub_adapter_is_fetched_and_described(store_process: StoreProcess) -> None:
    answer = store_process.fetch()
    files = make_adapter_files(1)
    folder = Path(answer["folder"])
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == files
    assert answer == {"digest": compute_digest(folder),
                      "folder": str(store_process.store_folder / "versions" / answer["digest"]),
                      "bytes": sum(map(len, files.values())), "takes": 4 * 8 * 16 * 4, "base": "org/base",
                      "private": False}
    assert store_process.close() == ("", "")


@pytest.mark.slow
def test_store_process_has_a_lower_priority(store_process: StoreProcess) -> None:
    assert "error" not in store_process.fetch()
    own_priority, store_priority = (os.getpriority(os.PRIO_PROCESS, process)
                                    for process in (0, store_process.process.pid))
    assert store_priority == min(own_priority + 10, 19)


def test_answers_come_when_ready_rather_than_in_order(store_process: StoreProcess, fake_hub: FakeHub) -> None:
    """A stalled Hub does not delay other requests."""
    write_files(store_process.root_folder / "one", make_adapter_files(2))
    fake_hub.stall_after_bytes[WEIGHTS_FILE] = 700
    store_process.send_request(1, "fetch", source="hub", name="org/name")
    assert fake_hub.stall_started.wait(60)
    store_process.send_request(2, "fetch", source="local", name="one")
    assert store_process.read_answer()["id"] == 2
    store_process.send_request(3, "pin", digests=[])
    assert store_process.read_answer() == {"id": 3}
    fake_hub.is_stopping.set()
    assert store_process.read_answer()["id"] == 1


@pytest.mark.slow
def test_private_adapter_is_available_only_with_its_token(store_process: StoreProcess, fake_hub: FakeHub) -> None:
    fake_hub.private_token = "hf_mine"
    adapter = {"source": "hub", "name": "org/name"}
    answer = store_process.request("fetch", token="hf_mine", **adapter)
    assert answer["private"]
    assert store_process.request("fetch", token="hf_other",
                                 **adapter)["kind"] == store_process.fetch()["kind"] == "missing"
    assert store_process.request("allowed", token="hf_mine", **adapter) == {"allowed": True}
    assert store_process.request("allowed", token="hf_other", **adapter)["kind"] == "missing"


@pytest.mark.slow
def test_server_token_is_for_operator_adapters_and_never_shown(store_process: StoreProcess, fake_hub: FakeHub) -> None:
    fake_hub.private_token = "hf_servers"
    assert store_process.fetch()["kind"] == "missing"
    assert store_process.request("fetch", source="hub", name="org/name", own_token=True)["private"]
    proc = Path(f"/proc/{store_process.process.pid}")
    assert b"hf_servers" not in (proc / "cmdline").read_bytes() + (proc / "environ").read_bytes()
    assert "hf_servers" not in "".join(store_process.close())


@pytest.mark.slow
def test_rewritten_folder_is_another_version(store_process: StoreProcess) -> None:
    write_files(store_process.root_folder / "one", make_adapter_files(1))
    first = store_process.fetch("one", "local")
    assert store_process.fetch("one", "local") == first
    write_files(store_process.root_folder / "one", make_adapter_files(2))
    second = store_process.fetch("one", "local")
    assert list_stored_versions(store_process.store_folder) == {first["digest"], second["digest"]}


@pytest.mark.slow
def test_pins_protect_versions_within_the_budget(fake_hub: FakeHub, tmp_path: Path) -> None:
    size = sum(map(len, make_adapter_files().values()))
    with closing(StoreProcess(tmp_path, fake_hub, max_bytes=2 * size)) as running:
        for seed in range(3):
            write_files(running.root_folder / str(seed), make_adapter_files(seed))
        first, second = (running.fetch(name, "local")["digest"] for name in "01")
        assert running.request("pin", digests=[first]) == {}
        running.fetch("2", "local")
        assert first in list_stored_versions(running.store_folder)
        assert running.request("pin", digests=[first, second]) == {"missing": [second]}


@pytest.mark.slow
def test_s3_source_without_boto3_reports_an_error(store_process: StoreProcess) -> None:
    """The error has another kind if the extra is installed."""
    answer = store_process.fetch("s3://loras/one", "s3")
    assert answer["kind"] in {"invalid", "forbidden", "unreachable"}


@pytest.mark.slow
def test_end_of_input_ends_the_process_during_a_fetch(store_process: StoreProcess, fake_hub: FakeHub) -> None:
    fake_hub.stall_after_bytes[WEIGHTS_FILE] = 700
    store_process.send_request(1, "fetch", source="hub", name="org/name")
    assert fake_hub.stall_started.wait(60)
    assert store_process.close() == ("", "")
    assert store_process.process.returncode == 0


@pytest.mark.slow
def test_next_process_cleans_up_after_a_kill(fake_hub: FakeHub, tmp_path: Path) -> None:
    fake_hub.stall_after_bytes[WEIGHTS_FILE] = 700
    with closing(StoreProcess(tmp_path, fake_hub)) as killed:
        killed.send_request(1, "fetch", source="hub", name="org/name")
        assert fake_hub.stall_started.wait(60)
        killed.process.send_signal(signal.SIGKILL)
    assert list_stored_versions(killed.store_folder) == set()
    assert len(list_incomplete_downloads(killed.store_folder)) == 1
    with closing(StoreProcess(tmp_path, fake_hub)) as running:
        assert compute_digest(Path(running.fetch()["folder"])) in list_stored_versions(running.store_folder)
        assert list_incomplete_downloads(running.store_folder) == []


@pytest.mark.slow
def test_two_processes_share_a_folder_and_a_download(fake_hub: FakeHub, tmp_path: Path) -> None:
    with closing(StoreProcess(tmp_path, fake_hub)) as one, closing(StoreProcess(tmp_path, fake_hub)) as other:
        one.send_request(1, "fetch", source="hub", name="org/name")
        other.send_request(1, "fetch", source="hub", name="org/name")
        assert one.read_answer() == other.read_answer()
        assert fake_hub.count_requests("GET", "/store") == 1


@pytest.mark.slow
def test_failing_merge_is_reported(store_process: StoreProcess) -> None:
    """The answer is the same whether or not a merge program is installed."""
    write_files(store_process.root_folder / "one", make_adapter_files(1) | {CONFIG_FILE: b'{"peft_type": "LORA"}'})
    digest = store_process.fetch("one", "local")["digest"]
    answer = store_process.request("merge", digests=[digest], weights=[1.0], strategy="none", density=0.5, sign="total")
    assert answer["kind"] == "invalid"


@pytest.mark.slow
def test_unwritable_store_folder_is_a_one_line_error(fake_hub: FakeHub, tmp_path: Path) -> None:
    (tmp_path / "store").write_text("a file")
    running = StoreProcess(tmp_path, fake_hub)
    assert running.close()[1] == f"weft: cannot keep adapters in {tmp_path}/store: Not a directory\n"
    assert running.process.returncode == 1
