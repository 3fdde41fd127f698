"""The real scheduler with real workers in one process, without gRPC, for tests that no request's output depends on the
other requests.

    with SchedulerWithWorkers(model, ranks=2) as harness:
        outputs = harness.run_together([ScheduledRequest(request), ScheduledRequest(other, arrival_step=3)],
                                       prefill_policy="pause", look_ahead=1)
        assert outputs[0] == harness.run_alone(request)

Time is counted in steps. The cost model gets its own predictions as measured times, so that a schedule is repeatable.
"""

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from support.model_runs.shared_probe_cache import get_probe_cache_path

from router.config import RouterConfig
from router.model_info import StepMeasurement
from router.request import Request
from router.scheduler.events import RequestAccepted, SequenceFailed, SequenceFinished, TokensGenerated
from router.scheduler.fault_isolation import ShardLossReason
from router.scheduler.scheduler import Scheduler
from router.scheduler.settings import SchedulerSettings
from router.scheduler.shard_messages import Prefill, StepPlan, StepResult
from router.shards.handshake import combine_rank_infos
from router.shards.message_conversion import decode_answer, encode_plan
from shard.config import ShardConfig
from shard.pb import shard_pb2 as pb
from shard.pending_result import PendingResult
from shard.workers.decoder import DecoderWorker

WORKER_METHODS = {pb.PrefillRequest: "prefill", pb.DecodeRequest: "decode", pb.FilterRequest: "filter",
                  pb.ConcatRequest: "concat"}
# Step times for the cost model, so long that some prompts are split into chunks to keep the stall promise.
STEP_TIME_MEASUREMENTS = (StepMeasurement(1, 0, 1, 0.02), StepMeasurement(8, 0, 8, 0.021),
                          StepMeasurement(1, 64, 64, 0.06), StepMeasurement(1, 0, 512, 0.022))
MAX_SCHEDULE_STEPS = 5000


@dataclass(frozen=True)
class ScheduledRequest:
    """A request, the step at which it arrives, and the step at which its client leaves, if any."""

    request: Request
    arrival_step: int = 0
    cancel_step: int | None = None


@dataclass
class ReceivedOutput:
    """Output that a client received, compared to the bit."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top_logprobs: list[list[tuple[int, float]]] = field(default_factory=list)
    prompt_logprobs: dict[int, float] = field(default_factory=dict)  # by index in the prompt
    end_reason: str = ""
    # Costs, which may differ: tokens found in the prefix cache at entry, and tokens computed in chunks.
    num_cached_tokens: int = field(default=0, compare=False)
    num_computed_tokens: int = field(default=0, compare=False)


class SchedulerWithWorkers:
    """Workers of all ranks, each in a thread of its own, since ranks wait for each other."""

    def __init__(self, model: Path, ranks: int = 1, *, max_batch_size: int = 16, max_prefill_tokens: int = 256,
                 max_total_tokens: int = 256, num_places: int = 4096, **settings: Any) -> None:
        """Load and warm up the workers; `settings` are fields of ShardConfig."""
        self._meeting_folder = TemporaryDirectory()
        self._rank_threads = [ThreadPoolExecutor(1) for _ in range(ranks)]
        self._epoch = 0
        self._max_prefill_tokens = max_prefill_tokens
        self._solo_outputs: dict[Request, ReceivedOutput] = {}
        config = ShardConfig(**{"model": str(model), "world_size": ranks, "threads": 1,
                                "meeting_point": f"{self._meeting_folder.name}/point"} | settings)
        configs = [replace(config, rank=rank, memory=get_probe_cache_path(rank)) for rank in range(ranks)]
        worker_futures = [thread.submit(DecoderWorker, config)
                          for thread, config in zip(self._rank_threads, configs, strict=True)]
        self.workers = [worker.result() for worker in worker_futures]
        self.call_all_ranks("warmup", pb.WarmupRequest(
            block_size=16, max_prefill_tokens=max_prefill_tokens, max_batch_size=max_batch_size,
            max_total_tokens=max_total_tokens, max_cache_tokens=num_places))
        self.infos = self.call_all_ranks("info")

    def __enter__(self) -> "SchedulerWithWorkers":
        return self

    def __exit__(self, *_: object) -> None:
        self.call_all_ranks("close")
        self.workers.clear()
        for thread in self._rank_threads:
            thread.shutdown()
        self._meeting_folder.cleanup()

    def call_all_ranks(self, method: str, *arguments: Any) -> list[Any]:
        calls = [thread.submit(getattr(worker, method), *arguments)
                 for thread, worker in zip(self._rank_threads, self.workers, strict=True)]
        return [call.result() for call in calls]

    def send_message(self, message: Any, order: int) -> Any:
        """Send one message of the contract to all ranks; return the answer of rank 0."""
        message.epoch, message.order = self._epoch, order
        return self.wait_for_answer(self.call_all_ranks(WORKER_METHODS[type(message)], message)[0])

    def wait_for_answer(self, answer: Any) -> Any:
        """Return the answer of a step; wait for it if the step is still in flight."""
        return self._rank_threads[0].submit(answer.finish).result() if isinstance(answer, PendingResult) else answer

    def load_adapter(self, number: int, folder: Path) -> None:
        self.call_all_ranks("load_resource",
                            pb.LoadRequest(epoch=self._epoch, kind=pb.KIND_ADAPTER, id=number, source=str(folder)))

    def unload_adapter(self, number: int) -> None:
        self.call_all_ranks("unload_resource", pb.UnloadRequest(epoch=self._epoch, kind=pb.KIND_ADAPTER, id=number))

    def run_alone(self, request: Request) -> ReceivedOutput:
        """Return the output of a request that runs alone and without the prefix cache."""
        request = replace(request, cache_namespace=b"", block_hashes=())
        if request not in self._solo_outputs:
            self._solo_outputs[request] = self.run_together([ScheduledRequest(request)], look_ahead=1)[0]
        return self._solo_outputs[request]

    def run_and_compare(self, scheduled_requests: list[ScheduledRequest], *, loss_steps: tuple[int, ...] = (),
                        **settings: Any) -> list[ReceivedOutput]:
        """Run `run_together` and assert that each request gets its output when alone, or a prefix if its client
        left."""
        outputs = self.run_together(scheduled_requests, loss_steps=loss_steps, **settings)
        for scheduled, output in zip(scheduled_requests, outputs, strict=True):
            solo_output = self.run_alone(scheduled.request)
            if output.end_reason == "left":
                assert output.tokens == solo_output.tokens[:len(output.tokens)]
                assert output.logprobs == solo_output.logprobs[:len(output.logprobs)]
            else:
                assert output == solo_output
        return outputs

    def run_together(self, scheduled_requests: list[ScheduledRequest], *, loss_steps: tuple[int, ...] = (),
                     **settings: Any) -> list[ReceivedOutput]:
        """Run all requests and return their outputs; at the steps in `loss_steps` the shards lose their state."""
        config = RouterConfig(**{"max_batch_prefill_tokens": self._max_prefill_tokens} | settings)
        return ScheduleRun(self, config, scheduled_requests, loss_steps).run_to_end()

    def start_next_epoch(self) -> int:
        self._epoch += 1
        self.call_all_ranks("reset", pb.ResetRequest(epoch=self._epoch))
        return self._epoch


class ScheduleRun:
    """One schedule: runs all requests of a test to their end."""

    def __init__(self, workers: SchedulerWithWorkers, config: RouterConfig, scheduled_requests: list[ScheduledRequest],
                 loss_steps: tuple[int, ...]) -> None:
        self._workers = workers
        self._scheduled_requests = scheduled_requests
        self._loss_steps = loss_steps
        self._model_info = combine_rank_infos(workers.infos)
        self._scheduler = Scheduler(SchedulerSettings.from_config(config, self._model_info), self._model_info)
        self._scheduler.cost_model = type(self._scheduler.cost_model).from_measurements(STEP_TIME_MEASUREMENTS)
        self._scheduler.on_shards_ready(self._model_info, workers.start_next_epoch(), 0.0)
        for resource in {needed for scheduled in scheduled_requests for needed in scheduled.request.needed_resources}:
            self._scheduler.on_resource_loaded(resource, 0.0)
        self._outputs = [ReceivedOutput() for _ in scheduled_requests]
        self._index_by_sequence: dict[int, int] = {}
        self._plans_in_flight: deque[tuple[StepPlan, Any]] = deque()
        self.num_losses = 0

    def run_to_end(self) -> list[ReceivedOutput]:
        last_arrival = max(scheduled.arrival_step for scheduled in self._scheduled_requests)
        for step in range(MAX_SCHEDULE_STEPS):
            self._apply_arrivals_and_cancels(step)
            if step in self._loss_steps:
                self._lose_shards()
            self._send_plans()
            if self._plans_in_flight:
                self._process_answer(*self._plans_in_flight.popleft())
            elif step > last_arrival and not self._scheduler.num_unfinished:
                return self._outputs
        raise AssertionError("the weave has no end")

    def _apply_arrivals_and_cancels(self, step: int) -> None:
        for index, scheduled in enumerate(self._scheduled_requests):
            if scheduled.arrival_step == step:
                self._submit(index, scheduled.request)
            if scheduled.cancel_step == step and not self._outputs[index].end_reason:
                self._outputs[index].end_reason = "left"
                self._scheduler.cancel(next(n for n, at in self._index_by_sequence.items() if at == index), 0.0)

    def _submit(self, index: int, request: Request) -> None:
        events = self._scheduler.submit(request, float(index))
        assert isinstance(events[0], RequestAccepted), events
        self._index_by_sequence[events[0].sequence_id] = index
        assert len(events) == 1, events

    def _send_plans(self) -> None:
        # later than every arrival
        while (plan := self._scheduler.plan(float(len(self._scheduled_requests)))) is not None:
            self._count_tokens(plan)
            for message in encode_plan(plan):
                answer = self._workers.call_all_ranks(WORKER_METHODS[type(message)], message)[0]
            self._plans_in_flight.append((plan, answer))

    def _count_tokens(self, plan: StepPlan) -> None:
        for prefill in (message for message in plan.messages if isinstance(message, Prefill)):
            for newcomer in prefill.new_sequences:
                self._get_output(newcomer.sequence_id).num_cached_tokens += newcomer.num_cached_tokens
            for chunk in prefill.chunks:
                self._get_output(chunk.sequence_id).num_computed_tokens += chunk.length

    def _process_answer(self, plan: StepPlan, pending_answer: Any) -> None:
        message = self._workers.wait_for_answer(pending_answer)
        if not isinstance(message, pb.StepAnswer):
            self._scheduler.complete_step(plan.last_message_number, StepResult(plan.epoch, 0.0, {}, {}), {}, 0.0)
            return
        message.forward_seconds = plan.predicted_seconds
        answer = decode_answer(message, plan, self._model_info)
        for part in answer.prompt_logprobs:
            prompt_logprobs = self._get_output(part.sequence_id).prompt_logprobs
            prompt_logprobs |= dict(enumerate(part.logprobs, part.start))
        for event in self._scheduler.complete_step(plan.last_message_number, answer, {}, 0.0):
            self._apply_event(event, answer)

    def _apply_event(self, event: Any, answer: StepResult) -> None:
        match event:
            case TokensGenerated():
                for number, count in event.token_counts.items():
                    output, row = self._get_output(number), answer.rows[number]
                    output.tokens += row.tokens[:count]
                    output.logprobs += row.logprobs[:count]
                    # empty if not requested
                    output.top_logprobs += [list(top) for top in row.top_logprobs[:count] if top]
            case SequenceFinished():
                self._get_output(event.sequence_id).end_reason = event.reason
            case SequenceFailed():
                self._get_output(event.sequence_id).end_reason = event.reason

    def _lose_shards(self) -> None:
        """Lose the state of the shards; steps in flight get no answer."""
        self._plans_in_flight.clear()
        self._scheduler.on_shards_lost(ShardLossReason.DEFECT, 0.0)
        self._scheduler.on_shards_ready(self._model_info, self._workers.start_next_epoch(), 0.0)

    def _get_output(self, sequence_id: int) -> ReceivedOutput:
        return self._outputs[self._index_by_sequence[sequence_id]]
