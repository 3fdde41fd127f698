"""Tests of `weft serve` as a user runs it: real processes, sockets and signals, and a simulated model."""

import os
import select
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from time import sleep

import pytest
from support.weft_process import SIMULATED, WEFT, serving, tokens

from launcher.supervisor.runtime_dir import clear_left

pytestmark = pytest.mark.slow


def test_a_prompt_is_answered_and_a_signal_ends_all_cleanly(tmp_path: Path) -> None:
    with serving(tmp_path, SIMULATED, "--num-shard", "2") as weft:
        assert weft.generate(5) == "terry"
        weft.signal(signal.SIGTERM)
        assert weft.end() == (0, "")


def test_folders_of_the_user_that_are_called_like_ours_do_not_matter(tmp_path: Path) -> None:
    for name in ("router", "launcher", "shard", "torch"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the file of the user')")
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('the folder of the user')")
    with serving(tmp_path, SIMULATED) as weft:
        assert weft.generate(5) == "terry"


def test_keys_are_asked_for_and_seen_by_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "keys.json").write_text('{"sk-secret-two": {"tenant": "a"}}')
    monkeypatch.setenv("API_KEY", "sk-secret-one")
    with serving(tmp_path, SIMULATED, "--api-keys", "keys.json") as weft:
        for key, status in (("sk-secret-one", 404), ("sk-secret-two", 404), ("sk-secret-three", 401)):
            assert weft.status("/v1/requests/x/explain", key) == status
        assert weft.status("/health") == 200
        for module in ("router", "shard.rpc.server"):
            [pid] = weft.pids(module)
            assert "sk-secret" not in Path(f"/proc/{pid}/cmdline").read_text()
        os.kill(weft.pids("router")[0], signal.SIGKILL)
        assert weft.status("/v1/requests/x/explain", "sk-secret-one") == 404


def test_keys_that_cannot_be_used_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "keys.json").write_text('{"sk-secret-two": {"tenant": "a", "wieght": 3}}')
    ended = subprocess.run([WEFT, "serve", SIMULATED, "--port", "0", "--api-keys", "keys.json"], cwd=tmp_path,
                           capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert ended.stderr.startswith("weft: router: keys.json: key sk-s…: `wieght` is no setting; ")
    assert ended.stderr.count("\n") == 1


def test_a_shard_that_is_killed_costs_no_token(tmp_path: Path) -> None:
    with serving(tmp_path, SIMULATED, "--num-shard", "2") as weft:
        expected = weft.generate(40)
        events = tokens(weft.post("/generate_stream", 40))
        text = next(events)["token"]["text"]
        os.kill(weft.pids("shard.rpc.server")[1], signal.SIGKILL)
        assert text + "".join(event["token"]["text"] for event in events) == expected


def test_a_shard_that_hangs_is_replaced(tmp_path: Path) -> None:
    with serving(tmp_path, SIMULATED, "--step-timeout", "1.5") as weft:
        os.kill(weft.pids("shard.rpc.server")[0], signal.SIGSTOP)
        assert weft.generate(5) == "terry"


def test_a_router_that_is_killed_is_replaced_and_no_client_is_refused(tmp_path: Path) -> None:
    with serving(tmp_path, SIMULATED) as weft:
        shards = weft.pids("shard.rpc.server")
        os.kill(weft.pids("router")[0], signal.SIGKILL)
        assert weft.generate(5) == "terry"
        assert weft.pids("shard.rpc.server") == shards


def test_requests_under_way_are_finished_before_the_end(tmp_path: Path) -> None:
    with serving(tmp_path, SIMULATED) as weft:
        events = tokens(weft.post("/generate_stream", 40))
        next(events)
        weft.signal(signal.SIGTERM)
        assert len(list(events)) == 39
        assert weft.end()[0] == 0


def test_what_is_not_finished_in_time_is_told_so(tmp_path: Path) -> None:
    with serving(tmp_path, SIMULATED, "--shutdown-timeout", "0.1") as weft:
        events = tokens(weft.post("/generate_stream", 1000))
        next(events)
        weft.signal(signal.SIGTERM)
        assert "shutting down" in list(events)[-1]["error"]
        assert weft.end()[0] == 0


def test_a_second_signal_ends_everything_at_once(tmp_path: Path) -> None:
    with serving(tmp_path, SIMULATED, "--shutdown-timeout", "3600") as weft:
        events = tokens(weft.post("/generate_stream", 10000))
        next(events)
        weft.signal(signal.SIGINT)
        weft.signal(signal.SIGTERM)  # two of the same kind at once would be delivered as one
        weft.end()
        events.close()


@pytest.mark.long
def test_shards_that_die_again_and_again_end_the_server_and_clients_are_told(tmp_path: Path) -> None:
    with serving(tmp_path, SIMULATED) as weft:
        events = tokens(weft.post("/generate_stream", 10000))
        next(events)
        while weft.process.poll() is None:
            with suppress(ProcessLookupError, FileNotFoundError):
                for pid in weft.pids("shard.rpc.server"):
                    os.kill(pid, signal.SIGKILL)
            sleep(0.1)
        assert "shutting down" in list(events)[-1]["error"]
        code, errors = weft.end()
    assert code == 70
    assert errors.splitlines()[-1].endswith("that was death number 5 within 5 minutes, giving up")


def test_no_child_survives_a_launcher_that_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # the folder of the sockets stays behind, without sockets
    with serving(tmp_path, SIMULATED, "--num-shard", "2") as weft:
        children = [os.pidfd_open(pid) for pid in weft.pids("router") + weft.pids("shard.rpc.server")]
        weft.signal(signal.SIGKILL)
        weft.end()
    for child in children:
        select.select([child], [], [])
        os.close(child)
    assert len(children) == 3
    assert list(tmp_path.glob("weft-*"))
    assert not list(tmp_path.glob("weft-*/*"))
    clear_left(tmp_path)  # as the next start does
    assert not list(tmp_path.glob("weft-*"))
