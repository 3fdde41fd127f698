"""Metrics of requests and steps; the tests make the engine's calls themselves."""

import pytest
from support.metrics_page import check_metrics_page, parse_metrics
from support.servers.expected_streams import make_finished_timeline

from router.model_info import ModelInfo, StepMeasurement
from router.request import LoadableResource, Request
from router.scheduler.fault_isolation import ShardLossReason
from router.scheduler.scheduler import Scheduler
from router.scheduler.sequence import RequestPhase, RequestTimeline
from router.scheduler.settings import SchedulerSettings
from router.scheduler.shard_messages import (
    Concat,
    Decode,
    Filter,
    NewSequence,
    PrefillChunk,
    StepPlan,
    StepResult,
    StepResultRow,
)
from router.scheduler.shard_messages import Prefill as PrefillMessage
from router.telemetry.server_metrics import RequestRecord, ServerMetrics
from router.text.prompt_encoder import TokenLimits

# A step takes 10 ms, a prompt token 1 ms.
STEP_MEASUREMENTS = tuple(StepMeasurement(rows, tokens, context, 0.010 + 0.001 * tokens)
                          for rows in (1, 8) for tokens in (0, 10, 100) for context in (100, 1000))
MODEL_INFO = ModelInfo("simulated", "cpu", "float32", 512, 4096, 16, 64, measurements=STEP_MEASUREMENTS)
DECODE_LABEL = '{method="decode"}'
PREFILL_LABEL = '{method="prefill"}'


class MetricsHarness:
    """Metrics with the core that their gauges read, and the samples of their page."""

    def __init__(self, tokens_per_step=1, *, adapters=False, lorax=False, **settings):
        self.core = Scheduler(SchedulerSettings(**settings), MODEL_INFO)
        self.core.on_shards_ready(MODEL_INFO, 1, 0.0)
        self.server_metrics = ServerMetrics(self.core, TokenLimits(1000, 4000), tokens_per_step, with_adapters=adapters,
                                            with_lorax_names=lorax)
        self.requests, self.steps = self.server_metrics.requests, self.server_metrics.steps

    def read_page(self):
        page = self.server_metrics.render(is_ready=True, has_shards=True)
        check_metrics_page(page)
        return parse_metrics(page)

    def __getitem__(self, name):
        return self.read_page()[name]

    def run_sequences(self, count):
        """Start `count` sequences in the core."""
        for index in range(count):
            self.core.submit(Request(str(index), (1, 2), 9), 0.0)
        plan = self.core.plan(0.0)
        answer = StepResult(1, 0.01, {n: StepResultRow((7,), (0.0,)) for n in plan.output_ids}, {})
        self.core.complete_step(plan.last_message_number, answer, {}, 0.0)


def make_new_sequences(*numbers):
    return tuple(NewSequence(number, Request(str(number), (1,) * 3, 5), (), (0,)) for number in numbers)


def make_prefill_plan(*numbers, alongside=False, lengths=(3,), seconds=0.0):
    chunks = tuple(PrefillChunk(number, 0, length) for number, length in zip(numbers, lengths, strict=False))
    message = PrefillMessage(1, make_new_sequences(*numbers), chunks, alongside)
    return StepPlan(1, 1, (message,), numbers, numbers, seconds)


def make_plan(*messages, members=(1,)):
    return StepPlan(1, 1, messages, members, members, 0.01)


def make_result(*numbers, seconds=0.02, tokens=(7,)):
    return StepResult(1, seconds, {number: StepResultRow(tokens, (0.0,) * len(tokens)) for number in numbers}, {})


# -- requests


def test_lengths_are_observed_when_a_request_is_accepted():
    harness = MetricsHarness()
    harness.requests.count_accepted(Request("0", (1,) * 75, 81))
    samples = harness.read_page()
    assert (samples["tgi_request_input_length_sum"], samples["tgi_request_max_new_tokens_sum"]) == (75, 81)
    assert (samples['tgi_request_input_length_bucket{le="50"}'], samples['tgi_request_input_length_bucket{le="100"}']
            ) == (0, 1)


def test_times_and_tokens_are_observed_at_the_end():
    harness = MetricsHarness()
    record = RequestRecord("0", "", 15, -0.5, make_finished_timeline(queue_seconds=0.25, prefill_seconds=0.125,
                                                                     decode_seconds=0.375), num_generated=4)
    harness.requests.observe_finished(record)
    samples = harness.read_page()
    sums = {name: samples[f"tgi_request_{name}_duration_sum"]
            for name in ("validation", "queue", "inference", "mean_time_per_token")}
    assert sums == {"validation": 0.5, "queue": 0.25, "inference": 0.5, "mean_time_per_token": 0.125}
    assert (samples["tgi_request_duration_sum"], samples["tgi_request_generated_tokens_sum"]) == (1.25, 4)
    assert samples["tgi_request_duration_count"] == 1


def test_inter_token_latency_is_observed_for_every_further_token():
    harness = MetricsHarness()
    for moment in (1.0, 1.25, 2.0):
        harness.requests.inter_token_latency.record_delivery({1: 1, 2: 1}.keys(), {1, 2}, moment)
    samples = harness.read_page()
    assert samples["tgi_request_inter_token_duration_count"] == 4
    assert samples["tgi_request_inter_token_duration_sum"] == 2.0


def test_prefix_cache_hits_are_counted_for_started_requests():
    harness = MetricsHarness()
    started, waiting = make_finished_timeline(), RequestTimeline(0.0)
    started.num_prefix_hit_tokens = 48
    waiting.end(1.0)
    harness.requests.count_closed(1, RequestRecord("0", "", 50, 0.0, started))
    harness.requests.count_closed(2, RequestRecord("1", "", 70, 0.0, waiting))
    assert (harness["tgi_prefix_query_tokens"], harness["tgi_prefix_hit_tokens"]) == (50, 48)


def test_preemptions_are_counted_whatever_the_outcome():
    harness, timeline = MetricsHarness(), RequestTimeline(0.0)
    for cause in (RequestPhase.PREFILL, RequestPhase.PREEMPTED, RequestPhase.NO_FREE_BLOCKS, RequestPhase.PREFILL,
                  RequestPhase.DECODE, RequestPhase.PREEMPTED):
        timeline.enter_phase(cause, 1.0)
    harness.requests.count_closed(1, RequestRecord("0", "", 50, 0.0, timeline))
    assert harness["tgi_request_yields"] == 2


# -- steps


def test_steps_are_counted_by_method_when_sent_and_when_answered():
    harness = MetricsHarness()
    for sent in (make_prefill_plan(1), make_plan(Decode(1)), make_plan(Filter(2, ()), Decode(1)),
                 make_plan(Filter(1, ()))):
        harness.steps.count_sent(sent)
    harness.steps.observe_result(make_plan(Decode(1)), make_result(1), 0.03, 0.001)
    samples = harness.read_page()
    assert [samples[f"tgi_batch_inference_count{method}"] for method in (PREFILL_LABEL, DECODE_LABEL)] == [1, 2]
    assert [samples[f"tgi_batch_inference_success{method}"] for method in (PREFILL_LABEL, DECODE_LABEL)] == [0, 1]


def test_step_duration_includes_transfer_and_detokenizing():
    harness = MetricsHarness()
    harness.steps.observe_result(make_plan(Decode(1)), make_result(1, seconds=0.02), 0.03, 0.25)
    samples = harness.read_page()
    assert samples[f"tgi_batch_inference_duration_sum{DECODE_LABEL}"] == 0.28
    assert samples[f"tgi_batch_forward_duration_sum{DECODE_LABEL}"] == 0.02
    assert samples[f"tgi_batch_decode_duration_sum{DECODE_LABEL}"] == 0.25
    assert samples[f"tgi_batch_inference_duration_count{PREFILL_LABEL}"] == 0


@pytest.mark.parametrize(("message", "name"), [(Filter(1, ()), "filter"), (Concat((1, 2)), "concat")])
def test_message_without_a_step_has_its_own_duration_and_counts_as_no_step(message, name):
    harness = MetricsHarness()
    harness.steps.count_sent(make_plan(message))
    harness.steps.observe_result(make_plan(message), StepResult(1, 0.0, {}, {}), 0.5, 0.0)
    samples = harness.read_page()
    assert samples[f"tgi_batch_{name}_duration_sum{DECODE_LABEL}"] == 0.5
    assert (samples[f"tgi_batch_inference_count{DECODE_LABEL}"] == samples[f"tgi_batch_inference_success{DECODE_LABEL}"]
            == 0)


def test_steps_in_flight_count_as_failed_at_a_shard_loss():
    harness = MetricsHarness()
    harness.steps.count_shard_loss(ShardLossReason.DEATH, [make_prefill_plan(1), make_plan(Decode(1)),
                                                           make_plan(Decode(1)), make_plan(Filter(1, ()))])
    samples = harness.read_page()
    assert [samples[f"tgi_batch_inference_failure{method}"] for method in (PREFILL_LABEL, DECODE_LABEL)] == [1, 2]
    assert [samples[f'tgi_shard_lost{{loss="{loss}"}}'] for loss in ("death", "step_error", "memory", "defect")
            ] == [1, 0, 0, 0]


def test_new_sequences_and_their_prompt_tokens_are_counted_when_sent():
    harness = MetricsHarness()
    harness.steps.count_sent(make_prefill_plan(1, 2, lengths=(30, 12)))
    harness.steps.count_sent(make_plan(PrefillMessage(1, (), (PrefillChunk(1, 30, 8),), False)))
    samples = harness.read_page()
    assert (samples["tgi_batch_next_size_count"], samples["tgi_batch_next_size_sum"]) == (1, 2)
    assert samples["tgi_batch_prompt_tokens"] == 50


def read_join_reasons(counted):
    samples = counted.read_page()
    return {reason: samples[f'tgi_batch_concat{{reason="{reason}"}}']
            for reason in ("backpressure", "wait_exceeded", "chunking")}


def test_sequence_that_starts_alone_joins_no_batch():
    harness = MetricsHarness()
    harness.run_sequences(1)
    harness.steps.count_sent(make_prefill_plan(1))
    assert not any(read_join_reasons(harness).values())


def test_new_sequences_of_mixed_steps_join_in_chunks():
    harness = MetricsHarness()
    harness.run_sequences(2)
    harness.steps.count_sent(make_prefill_plan(1, alongside=True))
    assert read_join_reasons(harness) == {"backpressure": 0, "wait_exceeded": 0, "chunking": 1}


def test_pause_policy_joins_by_number_of_waiting_or_by_waiting_time():
    harness = MetricsHarness(mixed=False, max_waiting_tokens=3)
    harness.run_sequences(2)
    for num_decodes in (2, 3, 0):
        for _ in range(num_decodes):
            harness.steps.count_sent(make_plan(Decode(1)))
            harness.steps.count_sent(make_plan(Filter(1, ())))
        harness.steps.count_sent(make_prefill_plan(1))
    assert read_join_reasons(harness) == {"backpressure": 2, "wait_exceeded": 1, "chunking": 0}


def test_delivered_tokens_are_counted():
    harness, speculating = MetricsHarness(), MetricsHarness(tokens_per_step=3)
    harness.steps.count_generated_tokens({1: 1, 2: 1})
    speculating.steps.count_generated_tokens({1: 1, 2: 3})
    assert (harness["tgi_batch_generated_tokens"], speculating["tgi_batch_generated_tokens"]) == (2, 4)


def test_tokens_beyond_the_first_of_a_step_are_counted():
    harness, speculating = MetricsHarness(), MetricsHarness(tokens_per_step=3)
    harness.steps.observe_result(make_plan(Decode(1)), make_result(1, 2), 0.0, 0.0)
    speculating.steps.observe_result(make_plan(Decode(1)), make_result(1, 2, tokens=(7, 7, 7)), 0.0, 0.0)
    assert (harness["tgi_request_skipped_tokens_count"], harness["tgi_request_skipped_tokens_sum"]) == (2, 0)
    assert (speculating["tgi_request_skipped_tokens_count"], speculating["tgi_request_skipped_tokens_sum"]) == (2, 4)
    assert speculating['tgi_request_skipped_tokens_bucket{le="1"}'] == 0


def test_stall_is_the_time_that_prompts_add_to_a_mixed_step():
    harness = MetricsHarness()
    harness.steps.observe_result(make_prefill_plan(1, alongside=True, lengths=(50,), seconds=0.060),
                                 make_result(1, seconds=0.080), 0.1, 0.0)
    samples = harness.read_page()
    assert samples["tgi_batch_stall_duration_count"] == 1
    assert samples["tgi_batch_stall_duration_sum"] == pytest.approx(0.070, rel=0.05)


@pytest.mark.parametrize(("took", "exceeded"), [(0.280, 0), (0.330, 1)])  # 10 ms without prompts, 150 are promised
def test_stall_of_twice_the_limit_is_counted_as_exceeded(took, exceeded):
    harness = MetricsHarness()
    harness.steps.observe_result(make_prefill_plan(1, alongside=True, lengths=(50,), seconds=0.060),
                                 make_result(1, seconds=took), 0.1, 0.0)
    assert harness["tgi_batch_stall_exceeded"] == exceeded


def test_planned_long_stall_is_not_counted_as_exceeded():
    harness = MetricsHarness()
    harness.steps.observe_result(make_prefill_plan(1, alongside=True, lengths=(500,), seconds=0.510),
                                 make_result(1, seconds=0.6), 0.1, 0.0)
    assert harness["tgi_batch_stall_exceeded"] == 0


def test_prompts_cause_no_stall_without_decodes():
    for counted in (MetricsHarness(), MetricsHarness(mixed=False)):
        counted.run_sequences(1)
        counted.steps.observe_result(make_prefill_plan(1), make_result(1), 0.1, 0.0)
        assert counted["tgi_batch_stall_duration_count"] == 0


def test_paused_sequences_stall_for_the_whole_step():
    harness = MetricsHarness(mixed=False)
    harness.run_sequences(3)
    harness.steps.observe_result(make_prefill_plan(1), make_result(1, seconds=0.5), 0.6, 0.0)
    assert harness["tgi_batch_stall_duration_sum"] == 0.5


# -- adapters


def make_adapter_request(name):
    return Request("0", (1,) * 15, 81, adapter=LoadableResource("adapter", 1), adapter_name=name)


def test_requests_and_tokens_are_counted_by_adapter_and_unnamed_ones_as_other():
    harness = MetricsHarness(adapters=True)
    for name in ("org/a", "org/a", "", None):
        harness.requests.count_accepted(Request("0", (1,), 1) if name is None else make_adapter_request(name))
        harness.requests.count_closed(1, RequestRecord("0", "", 15, 0.0, make_finished_timeline(), num_generated=4,
                                                       adapter_name=name))
    samples = harness.read_page()
    assert {name: value for name, value in samples.items() if name.startswith("weft_adapter_requests")} == {
        'weft_adapter_requests{adapter="org/a"}': 2, 'weft_adapter_requests{adapter="other"}': 1}
    assert samples['weft_adapter_generated_tokens{adapter="org/a"}'] == 8


def test_adapter_metrics_are_absent_without_adapters():
    harness = MetricsHarness()
    harness.requests.count_accepted(make_adapter_request("org/a"))
    assert not any(name.startswith("weft_adapter") for name in harness.read_page())


def test_lorax_metric_names_are_aliases_of_ours():
    plain, both = MetricsHarness(), MetricsHarness(lorax=True)
    for counted in (plain, both):
        counted.requests.count_accepted(Request("0", (1,) * 15, 81))
        counted.requests.num_received.add()
    samples = both.read_page()
    assert (samples["lorax_request_count"], samples["lorax_request_input_length_sum"]) == (1, 15)
    assert samples["lorax_queue_length"] == samples["tgi_queue_size"]
    assert {name for name in samples if not name.startswith("lorax_")} == set(plain.read_page())
