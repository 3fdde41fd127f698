"""The client at the end of docs/dev/protocol.md works as documented."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shard.simulator.simulated_outputs import WORDS

PROTOCOL_PAGE = Path(__file__).parents[2] / "docs" / "dev" / "protocol.md"


@pytest.fixture
def documented_client() -> str:
    (code,) = re.findall(r"```python\n(.*?)```", PROTOCOL_PAGE.read_text(), re.DOTALL)
    return code


@pytest.fixture
def shard_address(tmp_path: Path) -> Iterator[str]:
    """Address of a simulated shard whose steps take no time."""
    ready, announce = os.pipe()
    address = f"unix:{tmp_path}/shard"
    config = {"socket": address, "ready_fd": announce, "simulated": {"time_scale": 0.0}}
    command = [sys.executable, "-P", "-m", "shard.rpc.server", json.dumps(config)]
    with subprocess.Popen(command, pass_fds=[announce]) as child, os.fdopen(ready) as lines:
        os.close(announce)
        lines.readline()
        yield address
        child.terminate()


def test_documented_client_is_short(documented_client: str) -> None:
    assert len(documented_client.splitlines()) < 40


@pytest.mark.slow
def test_documented_client_gives_the_same_output_again(documented_client: str, shard_address: str) -> None:
    command = [sys.executable, "-P", "-c", documented_client, shard_address]
    outputs = [subprocess.run(command, check=True, capture_output=True).stdout for _ in range(2)]
    assert outputs[0] == outputs[1]
    assert [len(line) for line in outputs[0].splitlines()] == [17, 29]
    assert set(outputs[0].split()[:2]) <= set(WORDS)
