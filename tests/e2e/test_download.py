"""Test of `weft serve org/name` with an empty cache: a download from the Hub, then an answer."""

from pathlib import Path

import pytest
from support.checkpoints.small_checkpoints import make_tiny_checkpoint
from support.servers.fake_hub import FakeHub
from support.servers.weft_process import DEFAULT_PROMPT, run_weft_process

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]  # two servers; the parts have tests of their own

SERVER_ARGUMENTS = ("--max-batch-total-tokens", "4096", "--threads", "1")


def test_model_is_downloaded_once_and_then_served_offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = make_tiny_checkpoint(tmp_path, "llama", indexed=True)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NO_PROXY", "*")
    with FakeHub({path.name: path.read_bytes() for path in folder.iterdir()}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        with run_weft_process(tmp_path, "org/name", *SERVER_ARGUMENTS) as weft:
            assert weft.banner[0].startswith("weft serves org/name on 1 shard")
            first = weft.generate(10, DEFAULT_PROMPT)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with run_weft_process(tmp_path, "org/name", *SERVER_ARGUMENTS) as weft:
        assert weft.generate(10, DEFAULT_PROMPT) == first
