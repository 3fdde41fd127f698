"""A shard that gets no more memory for a while: its streams continue with the same tokens."""

import asyncio
import json
import re
import resource
import signal
from contextlib import suppress
from pathlib import Path

import pytest
from support.checkpoints.small_checkpoints import make_tiny_checkpoint
from support.servers.concurrent_streams import HealthProbe, run_disturbed_streams
from support.servers.weft_process import run_weft_process

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

LONG_PROMPT = "many words " * 500
SERVER_ARGUMENTS = ("--max-batch-total-tokens", "65536", "--threads", "1")


def read_data_bytes(pid: int) -> int:
    [kilobytes] = re.findall(r"^VmData:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return int(kilobytes) * 1024


def test_shard_without_memory_changes_no_tokens(tmp_path: Path) -> None:
    model = str(make_tiny_checkpoint(tmp_path, "llama"))
    with run_weft_process(tmp_path, model, *SERVER_ARGUMENTS) as weft:
        undisturbed_streams = run_disturbed_streams(weft)
        [shard] = weft.find_child_pids("shard.rpc.server")
        long_answers = []

        async def take_memory(_: HealthProbe) -> None:
            unlimited = resource.prlimit(shard, resource.RLIMIT_DATA)
            resource.prlimit(shard, resource.RLIMIT_DATA, (read_data_bytes(shard) - 2**26, unlimited[1]))
            answer = asyncio.create_task(asyncio.to_thread(weft.generate, 10, LONG_PROMPT))
            await asyncio.sleep(0.5)
            with suppress(ProcessLookupError):  # it has ended, and another took its place
                resource.prlimit(shard, resource.RLIMIT_DATA, unlimited)
            long_answers.append(await answer)

        assert run_disturbed_streams(weft, take_memory) == undisturbed_streams
        # A salt of its own: what was cached while memory was short is not used.
        with weft.post_prompt("/generate", 10, LONG_PROMPT, cache_salt="computed anew") as response:
            assert long_answers == [json.load(response)["generated_text"]]
        weft.send_signal(signal.SIGTERM)
        code, _ = weft.wait_for_exit()
    assert code == 0
