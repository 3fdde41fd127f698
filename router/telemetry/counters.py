"""Metrics of the engine: requests as they arrive and end, steps as they are sent and answered.

There is no work per token: metrics change once per step, and when a request begins or ends.
"""

import time
from collections import Counter
from collections.abc import Container, Iterable, KeysView, Mapping, Sequence
from math import fsum

from router.request import Request
from router.scheduler.cost_model import Load
from router.scheduler.fault_isolation import Loss
from router.scheduler.plan import Answer, Concat, Decode, Embed, Filter, Newcomer, Plan, Prefill
from router.scheduler.prefill_budget import load_of_chunk
from router.scheduler.scheduler import Scheduler
from router.scheduler.timeline import RUNNING, Cause
from router.telemetry import gauges
from router.telemetry.adapters import AdapterTally
from router.telemetry.families import LORAX, families
from router.telemetry.instruments import Histogram, Meters
from router.telemetry.inter_token import Gaps
from router.telemetry.request_log import Account
from router.text.prompts import Limits

TOLERANCE = 2.0  # a stall counts as exceeded if it is this many times as long as allowed


class Tally:
    """All metrics of a router, and their page."""

    def __init__(self, core: Scheduler, limits: Limits, tokens_per_step: int, *,
                 adapters: bool = False, lorax: bool = False) -> None:
        """`limits` and `tokens_per_step` determine buckets. `adapters`: whether adapters are served.

        `lorax`: whether the page repeats metrics under LoRAX's names.
        """
        self._core = core
        self._meters = Meters(families(limits, tokens_per_step, adapters=adapters))
        self._twins = LORAX if lorax else {}
        self._since = time.time()
        self.adapters = AdapterTally(self._meters) if adapters else None
        self.requests = RequestTally(self._meters, self.adapters)
        self.steps = StepTally(self._meters, core, one_token=tokens_per_step == 1)

    def page(self, *, is_ready: bool, has_shards: bool) -> str:
        of_adapters = (gauges.of_adapters(self._since) if self.adapters is None
                       else gauges.of_residents(self._core, time.time()))
        told = gauges.of_core(self._core) | of_adapters | gauges.of_health(is_ready=is_ready, has_shards=has_shards)
        return self._meters.page(told, self._twins)


class RequestTally:
    def __init__(self, meters: Meters, adapters: AdapterTally | None = None) -> None:
        self._adapters = adapters
        histogram, counter = meters.histogram, meters.counter
        # Updated by the HTTP layer.
        self.came, self.succeeded = counter("tgi_request_count"), counter("tgi_request_success")
        self.failed = meters.counters("tgi_request_failure")
        self._prompt_length = histogram("tgi_request_input_length")
        self._most_tokens = histogram("tgi_request_max_new_tokens")
        self._num_tokens = histogram("tgi_request_generated_tokens")
        self._seconds = {name: histogram(f"tgi_request_{name}_duration") for name in (
            "validation", "queue", "inference", "mean_time_per_token", "time_to_first_token")}
        self._total = histogram("tgi_request_duration")
        self._gaps = Gaps(histogram("tgi_request_inter_token_duration"))
        self._yields = counter("tgi_request_yields")
        self._asked, self._found = counter("tgi_prefix_query_tokens"), counter("tgi_prefix_hit_tokens")

    def entered(self, request: Request) -> None:
        """Count an accepted request."""
        self._prompt_length.observe(len(request.prompt))
        self._most_tokens.observe(request.max_new_tokens)
        if self._adapters is not None and request.adapter is not None:
            self._adapters.entered(request.adapter_name)

    def delivered(self, numbers: KeysView[int], known: Container[int], now: float) -> Sequence[int]:
        """Observe a delivery of tokens to these sequences; return the sequences that got their first tokens."""
        return self._gaps.delivered(numbers, known, now)

    def began(self, account: Account, now: float) -> None:
        """Observe the time to the first token."""
        self._seconds["time_to_first_token"].observe(now - account.came)

    def finished(self, account: Account) -> None:
        """Observe a closed request that was answered to its end."""
        story = account.story
        assert story.ended is not None, "it goes on"
        spent = story.seconds(story.ended)
        inference = spent.get(Cause.PREFILL, 0.0) + spent.get(Cause.DECODE, 0.0)
        self._total.observe(story.ended - account.came)
        self._seconds["validation"].observe(story.began - account.came)
        self._seconds["queue"].observe(fsum(seconds for cause, seconds in spent.items() if cause not in RUNNING))
        self._seconds["inference"].observe(inference)
        self._seconds["mean_time_per_token"].observe(inference / max(account.num_generated, 1))
        self._num_tokens.observe(account.num_generated)

    def closed(self, number: int, account: Account) -> None:
        """Count a request that ended, for whatever reason."""
        self._gaps.forget(number)
        self._yields.add(account.story.num_yields)
        if self._adapters is not None and account.adapter is not None:
            self._adapters.generated(account.adapter, account.num_generated)
        if account.story.has_started:
            self._asked.add(account.num_prompt_tokens)
            self._found.add(account.story.cached_tokens)


class MethodTally:
    """Metrics of one kind of step: prefill, decode, or embed."""

    def __init__(self, meters: Meters, method: str) -> None:
        self.sent = meters.counter("tgi_batch_inference_count", method)
        self.answered = meters.counter("tgi_batch_inference_success", method)
        self.lost = meters.counter("tgi_batch_inference_failure", method)
        self.duration = meters.histogram("tgi_batch_inference_duration", method)
        self.forward = meters.histogram("tgi_batch_forward_duration", method)
        self.reading = meters.histogram("tgi_batch_decode_duration", method)


class StepTally:
    """Metrics of steps."""

    def __init__(self, meters: Meters, core: Scheduler, *, one_token: bool) -> None:
        self._core = core
        self._one_token = one_token  # a step generates at most one token per sequence
        self._methods: dict[type, MethodTally] = {
            Prefill: MethodTally(meters, "prefill"), Decode: MethodTally(meters, "decode"),
            Embed: MethodTally(meters, "embed")}
        self._alone: dict[type, Histogram] = {
            Filter: meters.histogram("tgi_batch_filter_duration", "decode"),
            Concat: meters.histogram("tgi_batch_concat_duration", "decode")}
        self._newcomers, self._joined = meters.histogram("tgi_batch_next_size"), meters.counters("tgi_batch_concat")
        self._stall = meters.histogram("tgi_batch_stall_duration")
        self._exceeded = meters.counter("tgi_batch_stall_exceeded")
        self._skipped = meters.histogram("tgi_request_skipped_tokens")
        self._prompt_tokens = meters.counter("tgi_batch_prompt_tokens")
        self._generated_tokens = meters.counter("tgi_batch_generated_tokens")
        self._losses = meters.counters("tgi_shard_lost")
        self._num_decodes = 0  # decode steps since sequences last started

    def sent(self, plan: Plan) -> None:
        step = plan.messages[-1]
        if (method := self._methods.get(type(step))) is not None:
            method.sent.add()
        if isinstance(step, Prefill):
            self._prompt_tokens.add(sum(chunk.length for chunk in step.chunks))
            if step.newcomers:
                self._entered(step.newcomers)
        elif isinstance(step, Embed):
            self._prompt_tokens.add(sum(len(newcomer.request.prompt) for newcomer in step.newcomers))
        elif isinstance(step, Decode):
            self._num_decodes += 1

    def _entered(self, newcomers: Sequence[Newcomer]) -> None:
        self._newcomers.observe(len(newcomers))
        if len(self._core.running) > len(newcomers):
            self._joined[self._why_now()].add()
        self._num_decodes = 0

    def _why_now(self) -> str:
        policy = self._core.policy
        if policy.mixed:
            return "chunking"
        return "wait_exceeded" if self._num_decodes >= policy.max_waiting_tokens else "backpressure"

    def answered(self, plan: Plan, answer: Answer, took: float, reading: float) -> None:
        """Count an answered plan: `took` is the seconds of its round trip, `reading` those of detokenising."""
        step = plan.messages[-1]
        if (alone := self._alone.get(type(step))) is not None:
            alone.observe(took)
            return
        method = self._methods[type(step)]
        method.answered.add()
        method.duration.observe(took + reading)
        method.forward.observe(answer.seconds)
        method.reading.observe(reading)
        self._count_skipped(answer)
        if isinstance(step, Prefill):
            self._observe_stall(plan, step, answer.seconds)

    def delivered(self, counts: Mapping[int, int]) -> None:
        """Count delivered tokens, given by sequence."""
        self._generated_tokens.add(len(counts) if self._one_token else sum(counts.values()))

    def lost(self, loss: Loss, plans: Iterable[Plan]) -> None:
        """Count a loss of the shards, and the steps that were in flight."""
        self._losses[loss.name.lower()].add()
        for plan in plans:
            if (method := self._methods.get(type(plan.messages[-1]))) is not None:
                method.lost.add()

    def _count_skipped(self, answer: Answer) -> None:
        if self._one_token:
            self._skipped.observe(0.0, len(answer.rows))
            return
        for count, times in Counter(len(row.tokens) for row in answer.rows.values()).items():
            self._skipped.observe(count - 1, times)

    def _observe_stall(self, plan: Plan, step: Prefill, seconds: float) -> None:
        """Observe by how much prompts delayed the sequences that decode.

        In a mixed step that is its duration beyond the prediction for the decodes alone; if decodes pause, it is the
        whole step.
        """
        if step.alongside:
            costs, empty = self._core.costs, Load()
            added = fsum(costs.predict(load_of_chunk(chunk.start, chunk.length)) - costs.predict(empty)
                         for chunk in step.chunks)
            stall = seconds - (plan.seconds - added)
            self._stall.observe(max(0.0, stall))
            # Allowed is the configured stall, or what was planned if that is more: see PromptShare.
            if stall > TOLERANCE * max(self._core.policy.stall_seconds, added):
                self._exceeded.add()
        elif not self._core.policy.mixed and len(self._core.running) > len(plan.members):
            self._stall.observe(seconds)
