"""The line about the load, every ten seconds while there is work."""

import asyncio

import pytest

from router.model_info import ModelInfo
from router.request import Request
from router.scheduler.scheduler import Scheduler
from router.scheduler.settings import SchedulerSettings
from router.scheduler.shard_messages import StepResult, StepResultRow
from router.telemetry import stat_logger
from router.telemetry.server_metrics import ServerMetrics
from router.telemetry.stat_logger import StatLogger
from router.text.prompt_encoder import TokenLimits

MODEL_INFO = ModelInfo("simulated", "cpu", "float32", 512, 4096, block_size=16, num_blocks=64)


class LoadHarness:
    """Scheduler, metrics and log; two requests may run at once."""

    def __init__(self) -> None:
        self.scheduler = Scheduler(SchedulerSettings(max_batch_size=2, look_ahead=1), MODEL_INFO)
        self.scheduler.on_shards_ready(MODEL_INFO, 1, 0.0)
        self.metrics = ServerMetrics(self.scheduler, TokenLimits(63, 64), 1)
        self.log = StatLogger(self.scheduler, self.metrics)

    def submit_requests(self, number: int) -> None:
        for index in range(number):
            self.scheduler.submit(Request(str(index), (1,) * 20, 8), 0.0)

    def run_step(self) -> None:
        plan = self.scheduler.plan(0.0)
        assert plan is not None
        self.metrics.steps.count_sent(plan)
        rows = {sequence_id: StepResultRow((7,), (0.0,)) for sequence_id in plan.output_ids}
        self.scheduler.complete_step(plan.last_message_number, StepResult(plan.epoch, 0.01, rows, {}), {}, 0.0)
        self.metrics.steps.count_generated_tokens(dict.fromkeys(plan.output_ids, 1))


def test_nothing_is_said_while_nothing_is_done() -> None:
    assert LoadHarness().log.next_line(10.0) is None


def test_line_has_requests_rates_and_cache_use_since_the_line_before() -> None:
    harness = LoadHarness()
    harness.submit_requests(3)
    harness.run_step()
    assert harness.log.next_line(10.0) == (
        "2 running, 1 waiting, 4.0 prompt tokens/s, 0.2 generated tokens/s, cache 6% used")
    harness.run_step()
    assert harness.log.next_line(2.0) == (
        "2 running, 1 waiting, 0.0 prompt tokens/s, 1.0 generated tokens/s, cache 6% used")


def test_share_of_prompt_tokens_found_in_the_cache_is_said_once_requests_end() -> None:
    harness = LoadHarness()
    harness.metrics.requests.prefix_query_tokens.add(200)
    harness.metrics.requests.prefix_hit_tokens.add(50)
    harness.submit_requests(1)
    line = harness.log.next_line(10.0)
    assert line is not None
    assert line.endswith(", 25% of prompt tokens found in it")


def test_line_is_logged_at_each_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> list[str]:
        lines = asyncio.Queue[str]()
        monkeypatch.setattr(stat_logger, "INTERVAL_SECONDS", 0.001)
        monkeypatch.setattr(stat_logger.logger, "info", lambda _, line: lines.put_nowait(line))
        harness = LoadHarness()
        harness.submit_requests(1)
        task = asyncio.create_task(harness.log.run())
        received = [await lines.get(), await lines.get()]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return received
    assert [line.partition(", ")[0] for line in asyncio.run(main())] == ["0 running", "0 running"]
