"""Tests of `weft serve` as a user runs it: real processes, sockets and signals, and a simulated model."""

import json
import os
import select
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from time import sleep
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest
from support.process_list import list_child_pids, read_command_line
from support.servers.weft_process import (
    SIMULATED_MODEL,
    WEFT_EXECUTABLE,
    WeftProcess,
    iter_stream_events,
    run_weft_process,
)

from launcher.supervisor.runtime_dir import remove_abandoned_folders

pytestmark = pytest.mark.slow


def test_server_answers_and_stops_cleanly_on_a_signal(tmp_path: Path) -> None:
    with run_weft_process(tmp_path, SIMULATED_MODEL, "--num-shard", "2", "--no-request-log") as weft:
        assert weft.generate(5) == "terry"
        weft.send_signal(signal.SIGTERM)
        assert weft.wait_for_exit() == (0, "weft: stopping: running requests may finish within 30 seconds; the same "
                                        "signal again ends them\nweft: stopped\n")


@pytest.fixture(scope="module")
def errors_beside_user_files(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return what a server that answers a request writes to stderr. Its folder has files named like our packages."""
    folder = tmp_path_factory.mktemp("user")
    for name in ("router", "launcher", "shard", "torch"):
        (folder / f"{name}.py").write_text("raise SystemExit('the file of the user')")
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text("raise SystemExit('the folder of the user')")
    with run_weft_process(folder, SIMULATED_MODEL) as weft:
        assert weft.generate(5) == "terry"
        weft.send_signal(signal.SIGTERM)
        code, errors = weft.wait_for_exit()
    assert code == 0
    return errors


def test_each_request_is_a_line_of_the_log(errors_beside_user_files: str) -> None:
    assert [line.partition(" router INFO ")[2].partition(":")[0] for line in errors_beside_user_files.splitlines()
            if "request_id" in line] == ["POST /generate 200"]


def test_user_files_named_like_our_packages_are_not_imported(errors_beside_user_files: str) -> None:
    assert "of the user" not in errors_beside_user_files


def test_api_keys_are_required_and_hidden_from_command_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "keys.json").write_text('{"sk-secret-two": {"tenant": "a"}}')
    monkeypatch.setenv("API_KEY", "sk-secret-one")
    with run_weft_process(tmp_path, SIMULATED_MODEL, "--api-keys", "keys.json") as weft:
        for key, status in (("sk-secret-one", 404), ("sk-secret-two", 404), ("sk-secret-three", 401)):
            assert weft.get_status("/v1/requests/x/explain", key) == status
        assert weft.get_status("/health") == 200
        for module in ("router", "shard.rpc.server"):
            [pid] = weft.find_child_pids(module)
            assert "sk-secret" not in Path(f"/proc/{pid}/cmdline").read_text()
        os.kill(weft.find_child_pids("router")[0], signal.SIGKILL)
        assert weft.get_status("/v1/requests/x/explain", "sk-secret-one") == 404


def test_invalid_keys_file_is_a_one_line_error(tmp_path: Path) -> None:
    (tmp_path / "keys.json").write_text('{"sk-secret-two": {"tenant": "a", "wieght": 3}}')
    ended = subprocess.run([WEFT_EXECUTABLE, "serve", SIMULATED_MODEL, "--port", "0", "--api-keys", "keys.json"],
                           cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert ended.stderr.startswith("weft: keys.json: key sk-s…: `wieght` is no setting; ")
    assert ended.stderr.count("\n") == 1


@pytest.fixture(scope="module")
def weft(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WeftProcess]:
    """A server whose processes tests kill or stop."""
    with run_weft_process(tmp_path_factory.mktemp("weft"), SIMULATED_MODEL, "--num-shard", "2", "--step-timeout",
                          "1.5") as server:
        yield server


def test_killed_router_is_restarted_without_refusing_clients(weft: WeftProcess) -> None:
    shards = weft.find_child_pids("shard.rpc.server")
    os.kill(weft.find_child_pids("router")[0], signal.SIGKILL)
    assert weft.generate(5) == "terry"
    assert weft.find_child_pids("shard.rpc.server") == shards


def test_killed_shard_loses_no_tokens(weft: WeftProcess) -> None:
    expected = weft.generate(40)
    events = iter_stream_events(weft.post_prompt("/generate_stream", 40))
    text = next(events)["token"]["text"]
    os.kill(weft.find_child_pids("shard.rpc.server")[1], signal.SIGKILL)
    assert text + "".join(event["token"]["text"] for event in events) == expected


def test_hanging_shard_is_replaced(weft: WeftProcess) -> None:
    os.kill(weft.find_child_pids("shard.rpc.server")[0], signal.SIGSTOP)
    assert weft.generate(5) == "terry"


def test_server_whose_log_is_on_a_full_disk_replaces_its_processes(tmp_path: Path) -> None:
    command = ("sh", "-c", f'exec "{WEFT_EXECUTABLE}" "$@" 2>/dev/full', "weft")
    with run_weft_process(tmp_path, SIMULATED_MODEL, command=command) as weft:
        os.kill(weft.find_child_pids("shard.rpc.server")[0], signal.SIGKILL)
        assert weft.generate(5) == "terry"
        os.kill(weft.find_child_pids("router")[0], signal.SIGKILL)
        assert weft.generate(5) == "terry"
        weft.send_signal(signal.SIGTERM)
        weft.wait_for_exit()


def test_requests_in_flight_finish_before_shutdown(tmp_path: Path) -> None:
    with run_weft_process(tmp_path, SIMULATED_MODEL) as weft:
        events = iter_stream_events(weft.post_prompt("/generate_stream", 40))
        next(events)
        weft.send_signal(signal.SIGTERM)
        assert len(list(events)) == 39
        code, errors = weft.wait_for_exit()
        assert code == 0
        assert errors.endswith("weft: stopped\n")
        assert errors.count("weft: stopping: running requests may finish within 30 seconds; ") == 1


def test_chat_that_is_being_validated_finishes_before_shutdown(tmp_path: Path) -> None:
    """The processes that render chats are stopped until the server has been told to stop."""
    body = json.dumps({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}).encode()
    with (run_weft_process(tmp_path, SIMULATED_MODEL) as weft,
          socket.create_connection(("127.0.0.1", urlsplit(weft.url).port or 0)) as connection):
        [router] = weft.find_child_pids("router")
        renderers = [pid for pid in list_child_pids(router)
                     if "router.text.chat_template_process" in read_command_line(pid)]
        for pid in renderers:
            os.kill(pid, signal.SIGSTOP)
        connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                           b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        while b"\ntgi_request_count 1" not in urlopen(f"{weft.url}/metrics").read():
            sleep(0.01)
        weft.send_signal(signal.SIGTERM)
        while weft.get_status("/ready") == 200:
            sleep(0.01)
        assert renderers
        for pid in renderers:
            os.kill(pid, signal.SIGCONT)
        assert connection.recv(2**16).startswith(b"HTTP/1.1 200 OK\r\n")
        assert weft.wait_for_exit()[0] == 0


def test_requests_unfinished_at_the_shutdown_timeout_get_an_error(tmp_path: Path) -> None:
    with run_weft_process(tmp_path, SIMULATED_MODEL, "--shutdown-timeout", "0.1") as weft:
        events = iter_stream_events(weft.post_prompt("/generate_stream", 1000))
        next(events)
        weft.send_signal(signal.SIGTERM)
        last_event = list(events)[-1]
        assert "shutting down" in last_event["error"]
        assert last_event["error_type"] == "shutting_down"
        assert weft.wait_for_exit()[0] == 0


def test_stopping_server_takes_requests_during_the_shutdown_delay(tmp_path: Path) -> None:
    """A load balancer sees that the server is not ready before a request is refused; a second signal ends the delay."""
    with run_weft_process(tmp_path, SIMULATED_MODEL, "--shutdown-delay", "3600") as weft:
        assert weft.generate(3)
        weft.send_signal(signal.SIGTERM)
        while weft.get_status("/ready") != 503:
            pass
        assert weft.generate(3)
        assert weft.get_status("/live") == 200
        weft.send_signal(signal.SIGINT)
        assert weft.wait_for_exit()[0] == 0


def test_requests_are_refused_after_the_shutdown_delay(tmp_path: Path) -> None:
    with run_weft_process(tmp_path, SIMULATED_MODEL, "--shutdown-delay", "0.2") as weft:
        events = iter_stream_events(weft.post_prompt("/generate_stream", 100))
        next(events)
        weft.send_signal(signal.SIGTERM)
        while weft.get_status("/generate_stream") != 503:  # 405 until then
            pass
        assert len(list(events)) == 99
        assert weft.wait_for_exit()[0] == 0


def test_second_signal_ends_requests_with_an_error_and_a_line_in_the_log(tmp_path: Path) -> None:
    with run_weft_process(tmp_path, SIMULATED_MODEL, "--shutdown-timeout", "3600") as weft:
        events = iter_stream_events(weft.post_prompt("/generate_stream", 10000))
        next(events)
        weft.send_signal(signal.SIGTERM)
        for _ in range(3):
            next(events)  # the request goes on
        weft.send_signal(signal.SIGINT)
        assert "shutting down" in list(events)[-1]["error"]
        code, errors = weft.wait_for_exit()
        assert code == 0
        assert errors.count("weft: the second signal ends requests that still run, ") == 1
        assert "POST /generate_stream 200 shutting_down: " in errors


@pytest.mark.parametrize("second", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_two_signals_within_milliseconds_end_requests_and_the_server_cleanly(
        tmp_path: Path, second: signal.Signals) -> None:
    """The second one reaches the launcher before it has asked the router to stop."""
    with run_weft_process(tmp_path, SIMULATED_MODEL, "--shutdown-timeout", "5") as weft:
        events = iter_stream_events(weft.post_prompt("/generate_stream", 10000))
        next(events)
        weft.send_signal(signal.SIGTERM)
        if second is signal.SIGTERM:
            sleep(0.005)
        weft.send_signal(second)
        assert "shutting down" in list(events)[-1]["error"]
        code, errors = weft.wait_for_exit()
        assert code == 0
        assert "Traceback" not in errors
        assert errors.endswith("weft: stopped\n")
        # Two of the same kind count as one for the system if the process had no time in between.
        assert errors.count("weft: the second signal ends requests that still run, ") == 1 or second is signal.SIGTERM


def test_further_signals_stop_the_server_at_once(tmp_path: Path) -> None:
    with run_weft_process(tmp_path, SIMULATED_MODEL, "--shutdown-timeout", "3600") as weft:
        events = iter_stream_events(weft.post_prompt("/generate_stream", 10000))
        next(events)
        weft.send_signal(signal.SIGINT)
        weft.send_signal(signal.SIGTERM)  # two of the same kind at once would be delivered as one
        while weft.process.poll() is None:  # further ones, also after all has stopped, do not change the exit code
            for number in (signal.SIGTERM, signal.SIGUSR1):
                weft.process.send_signal(number)
            sleep(0.002)
        code, errors = weft.wait_for_exit()
        assert code == 0
        assert errors.count("weft: the second signal ends requests that still run, ") == 1
        events.close()


@pytest.mark.long
def test_server_gives_up_after_repeated_shard_deaths_and_clients_get_an_error(tmp_path: Path) -> None:
    with run_weft_process(tmp_path, SIMULATED_MODEL) as weft:
        events = iter_stream_events(weft.post_prompt("/generate_stream", 10000))
        next(events)
        while weft.process.poll() is None:
            with suppress(ProcessLookupError, FileNotFoundError):
                for pid in weft.find_child_pids("shard.rpc.server"):
                    os.kill(pid, signal.SIGKILL)
            sleep(0.1)
        assert "shutting down" in list(events)[-1]["error"]
        code, errors = weft.wait_for_exit()
    assert code == 70
    assert errors.splitlines()[-1].endswith("that was death number 5 within 5 minutes, giving up")


def test_no_child_process_survives_a_killed_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # the folder of the sockets stays behind, without sockets
    with run_weft_process(tmp_path, SIMULATED_MODEL, "--num-shard", "2") as weft:
        children = [os.pidfd_open(pid) for pid in weft.find_child_pids("router")
                    + weft.find_child_pids("shard.rpc.server")]
        weft.send_signal(signal.SIGKILL)
        weft.wait_for_exit()
    for child in children:
        select.select([child], [], [])
        os.close(child)
    assert len(children) == 3
    assert list(tmp_path.glob("weft-*"))
    assert not list(tmp_path.glob("weft-*/*"))
    remove_abandoned_folders(tmp_path)  # as the next start does
    assert not list(tmp_path.glob("weft-*"))
