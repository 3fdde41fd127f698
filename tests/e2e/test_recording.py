"""Test of recording a real server, from the signal to the table of a simulation."""

import signal
import subprocess
from pathlib import Path

import pytest
from support.weft_process import SIMULATED, WEFT, serving

pytestmark = pytest.mark.slow


def output(*arguments: str | Path) -> str:
    return subprocess.run([WEFT, *arguments], check=True, capture_output=True, text=True).stdout


def test_a_signal_writes_a_recording_that_replays_and_can_be_simulated(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with serving(tmp_path, SIMULATED, "--num-shard", "2") as weft:
        for _ in range(3):
            weft.generate(20)
        weft.signal(signal.SIGUSR1)
        assert weft.process.stderr is not None
        path = weft.process.stderr.readline().rstrip().rpartition(" ")[2]
        assert weft.generate(5) == "terry"
    assert Path(path).parent == tmp_path / "weft" / "recordings"
    assert "every decision is the same, digest " in output("replay", path)
    assert "3 requests, simulated in" in output("simulate", path, "--max-batch-size", "1")
    assert "settings tried, the best:" in output("tune", path, "--goal", "ttft=1ms")
