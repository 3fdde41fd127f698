"""Test of recording a real server, from the signal to the table of a simulation."""

import signal
import subprocess
from pathlib import Path

import pytest
from support.servers.weft_process import SIMULATED_MODEL, WEFT_EXECUTABLE, run_weft_process

pytestmark = pytest.mark.slow


def get_weft_output(*arguments: str | Path) -> str:
    return subprocess.run([WEFT_EXECUTABLE, *arguments], check=True, capture_output=True, text=True).stdout


def test_signal_writes_a_recording_that_can_be_replayed_and_simulated(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with run_weft_process(tmp_path, SIMULATED_MODEL, "--num-shard", "2", "--no-request-log") as weft:
        for _ in range(3):
            weft.generate(20)
        weft.send_signal(signal.SIGUSR1)
        assert weft.process.stderr is not None
        line = next(line for line in weft.process.stderr if "asked for by SIGUSR1" in line)
        path = line.rstrip().rpartition(" ")[2]
        assert weft.generate(5) == "terry"
    assert Path(path).parent == tmp_path / "weft" / "recordings"
    assert "every decision is the same, digest " in get_weft_output("replay", path)
    assert "3 requests, simulated in" in get_weft_output("simulate", path, "--max-batch-size", "1")
    assert "3 requests on 2 replicas (prefix), simulated in" in get_weft_output("simulate", path, "--replicas", "2",
                                                                                "--route", "prefix")
    assert "settings tried, the best:" in get_weft_output("tune", path, "--goal", "ttft=1ms")
