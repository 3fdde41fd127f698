"""Metrics of requests and steps; the tests make the engine's calls themselves."""

import pytest
from support.expected_streams import lived
from support.metrics_page import check, read

from router.request import Request, Resource
from router.scheduler.fault_isolation import Loss
from router.scheduler.plan import (
    Answer,
    AnswerRow,
    Chunk,
    Concat,
    Decode,
    Filter,
    Measurement,
    ModelFacts,
    Newcomer,
    Plan,
)
from router.scheduler.plan import Prefill as PrefillMessage
from router.scheduler.scheduler import Scheduler
from router.scheduler.settings import Policy
from router.scheduler.timeline import Cause, Story
from router.telemetry.counters import Tally
from router.telemetry.request_log import Account
from router.text.prompts import Limits

# A step takes 10 ms, a prompt token 1 ms.
MEASURED = tuple(Measurement(rows, tokens, context, 0.010 + 0.001 * tokens)
                 for rows in (1, 8) for tokens in (0, 10, 100) for context in (100, 1000))
FACTS = ModelFacts("simulated", "cpu", "float32", 512, 4096, 16, 64, measurements=MEASURED)
D = '{method="decode"}'
P = '{method="prefill"}'


class Counted:
    """Tally with the core that its gauges read, and the samples of its page."""

    def __init__(self, tokens_per_step=1, *, adapters=False, lorax=False, **policy):
        self.core = Scheduler(Policy(**policy), FACTS)
        self.core.shards_ready(FACTS, 1, 0.0)
        self.tally = Tally(self.core, Limits(1000, 4000), tokens_per_step, adapters=adapters, lorax=lorax)
        self.requests, self.steps = self.tally.requests, self.tally.steps

    def page(self):
        page = self.tally.page(is_ready=True, has_shards=True)
        check(page)
        return read(page)

    def __getitem__(self, name):
        return self.page()[name]

    def running(self, count):
        """Start `count` sequences in the core."""
        for index in range(count):
            self.core.submit(Request(str(index), (1, 2), 9), 0.0)
        plan = self.core.plan(0.0)
        answer = Answer(1, 0.01, {n: AnswerRow((7,), (0.0,)) for n in plan.expects}, {})
        self.core.complete(plan.order, answer, {}, 0.0)


def newcomers(*numbers):
    return tuple(Newcomer(number, Request(str(number), (1,) * 3, 5), (), (0,)) for number in numbers)


def prefill(*numbers, alongside=False, lengths=(3,), seconds=0.0):
    chunks = tuple(Chunk(number, 0, length) for number, length in zip(numbers, lengths, strict=False))
    message = PrefillMessage(1, newcomers(*numbers), chunks, alongside)
    return Plan(1, 1, (message,), numbers, numbers, seconds)


def plan(*messages, members=(1,)):
    return Plan(1, 1, messages, members, members, 0.01)


def answer(*numbers, seconds=0.02, tokens=(7,)):
    return Answer(1, seconds, {number: AnswerRow(tokens, (0.0,) * len(tokens)) for number in numbers}, {})


# -- requests


def test_lengths_are_counted_when_a_request_enters():
    counted = Counted()
    counted.requests.entered(Request("0", (1,) * 15, 81))
    samples = counted.page()
    assert (samples["tgi_request_input_length_sum"], samples["tgi_request_max_new_tokens_sum"]) == (15, 81)
    assert (samples['tgi_request_input_length_bucket{le="10"}'], samples['tgi_request_input_length_bucket{le="20"}']
            ) == (0, 1)


def test_times_and_tokens_are_counted_at_the_end():
    counted = Counted()
    account = Account("0", "", 15, -0.5, lived(queue=0.25, prefill=0.125, decode=0.375), num_generated=4)
    counted.requests.finished(account)
    samples = counted.page()
    sums = {name: samples[f"tgi_request_{name}_duration_sum"]
            for name in ("validation", "queue", "inference", "mean_time_per_token")}
    assert sums == {"validation": 0.5, "queue": 0.25, "inference": 0.5, "mean_time_per_token": 0.125}
    assert (samples["tgi_request_duration_sum"], samples["tgi_request_generated_tokens_sum"]) == (1.25, 4)
    assert samples["tgi_request_duration_count"] == 1


def test_time_until_the_first_token_counts_from_when_the_client_asked():
    counted = Counted()
    counted.requests.began(Account("0", "", 15, 1.5, Story(2.0)), 4.0)
    assert counted["tgi_request_time_to_first_token_duration_sum"] == 2.5


def test_gaps_between_tokens_are_counted_until_a_request_is_over():
    counted = Counted()
    for moment in (1.0, 1.25, 2.0):
        counted.requests.delivered({1: 1, 2: 1}.keys(), {1, 2}, moment)
    samples = counted.page()
    assert samples["tgi_request_inter_token_duration_count"] == 4
    assert samples["tgi_request_inter_token_duration_sum"] == 2.0


def test_what_was_found_in_the_cache_is_counted_of_those_who_started():
    counted = Counted()
    started, waiting = lived(), Story(0.0)
    started.cached_tokens = 48
    waiting.end(1.0)
    counted.requests.closed(1, Account("0", "", 50, 0.0, started))
    counted.requests.closed(2, Account("1", "", 70, 0.0, waiting))
    assert (counted["tgi_prefix_query_tokens"], counted["tgi_prefix_hit_tokens"]) == (50, 48)


def test_yields_are_counted_whatever_the_end_is():
    counted, story = Counted(), Story(0.0)
    for cause in (Cause.PREFILL, Cause.YIELDED, Cause.BLOCKS, Cause.PREFILL, Cause.DECODE, Cause.YIELDED):
        story.turn(cause, 1.0)
    counted.requests.closed(1, Account("0", "", 50, 0.0, story))
    assert counted["tgi_request_yields"] == 2


# -- steps


def test_steps_are_counted_by_method_when_sent_and_when_answered():
    counted = Counted()
    for sent in (prefill(1), plan(Decode(1)), plan(Filter(2, ()), Decode(1)), plan(Filter(1, ()))):
        counted.steps.sent(sent)
    counted.steps.answered(plan(Decode(1)), answer(1), 0.03, 0.001)
    samples = counted.page()
    assert [samples[f"tgi_batch_inference_count{method}"] for method in (P, D)] == [1, 2]
    assert [samples[f"tgi_batch_inference_success{method}"] for method in (P, D)] == [0, 1]


def test_a_step_takes_its_way_there_and_back_and_the_reading():
    counted = Counted()
    counted.steps.answered(plan(Decode(1)), answer(1, seconds=0.02), 0.03, 0.25)
    samples = counted.page()
    assert samples[f"tgi_batch_inference_duration_sum{D}"] == 0.28
    assert samples[f"tgi_batch_forward_duration_sum{D}"] == 0.02
    assert samples[f"tgi_batch_decode_duration_sum{D}"] == 0.25
    assert samples[f"tgi_batch_inference_duration_count{P}"] == 0


@pytest.mark.parametrize(("message", "name"), [(Filter(1, ()), "filter"), (Concat((1, 2)), "concat")])
def test_what_is_sent_alone_has_a_time_of_its_own_and_is_no_step(message, name):
    counted = Counted()
    counted.steps.sent(plan(message))
    counted.steps.answered(plan(message), Answer(1, 0.0, {}, {}), 0.5, 0.0)
    samples = counted.page()
    assert samples[f"tgi_batch_{name}_duration_sum{D}"] == 0.5
    assert samples[f"tgi_batch_inference_count{D}"] == samples[f"tgi_batch_inference_success{D}"] == 0


def test_steps_under_way_are_lost_with_the_shards():
    counted = Counted()
    counted.steps.lost(Loss.DEATH, [prefill(1), plan(Decode(1)), plan(Decode(1)), plan(Filter(1, ()))])
    samples = counted.page()
    assert [samples[f"tgi_batch_inference_failure{method}"] for method in (P, D)] == [1, 2]
    assert [samples[f'tgi_shard_lost{{loss="{loss}"}}'] for loss in ("death", "step_error", "memory", "defect")
            ] == [1, 0, 0, 0]


def test_newcomers_and_their_prompt_tokens_are_counted_when_they_are_sent():
    counted = Counted()
    counted.steps.sent(prefill(1, 2, lengths=(30, 12)))
    counted.steps.sent(plan(PrefillMessage(1, (), (Chunk(1, 30, 8),), False)))
    samples = counted.page()
    assert (samples["tgi_batch_next_size_count"], samples["tgi_batch_next_size_sum"]) == (1, 2)
    assert samples["tgi_batch_prompt_tokens"] == 50


def reasons(counted):
    samples = counted.page()
    return {reason: samples[f'tgi_batch_concat{{reason="{reason}"}}']
            for reason in ("backpressure", "wait_exceeded", "chunking")}


def test_who_starts_alone_joins_nobody():
    counted = Counted()
    counted.running(1)
    counted.steps.sent(prefill(1))
    assert not any(reasons(counted).values())


def test_with_mixed_steps_newcomers_join_in_chunks():
    counted = Counted()
    counted.running(2)
    counted.steps.sent(prefill(1, alongside=True))
    assert reasons(counted) == {"backpressure": 0, "wait_exceeded": 0, "chunking": 1}


def test_with_pauses_newcomers_join_since_they_are_many_or_since_they_waited_for_long():
    counted = Counted(mixed=False, max_waiting_tokens=3)
    counted.running(2)
    for num_decodes in (2, 3, 0):
        for _ in range(num_decodes):
            counted.steps.sent(plan(Decode(1)))
            counted.steps.sent(plan(Filter(1, ())))
        counted.steps.sent(prefill(1))
    assert reasons(counted) == {"backpressure": 2, "wait_exceeded": 1, "chunking": 0}


def test_delivered_tokens_are_counted():
    counted, speculating = Counted(), Counted(tokens_per_step=3)
    counted.steps.delivered({1: 1, 2: 1})
    speculating.steps.delivered({1: 1, 2: 3})
    assert (counted["tgi_batch_generated_tokens"], speculating["tgi_batch_generated_tokens"]) == (2, 4)


def test_tokens_beyond_the_first_of_a_step_are_counted():
    counted, speculating = Counted(), Counted(tokens_per_step=3)
    counted.steps.answered(plan(Decode(1)), answer(1, 2), 0.0, 0.0)
    speculating.steps.answered(plan(Decode(1)), answer(1, 2, tokens=(7, 7, 7)), 0.0, 0.0)
    assert (counted["tgi_request_skipped_tokens_count"], counted["tgi_request_skipped_tokens_sum"]) == (2, 0)
    assert (speculating["tgi_request_skipped_tokens_count"], speculating["tgi_request_skipped_tokens_sum"]) == (2, 4)
    assert speculating['tgi_request_skipped_tokens_bucket{le="1"}'] == 0


def test_a_stall_is_what_a_mixed_step_took_longer_than_it_would_have_without_prompts():
    counted = Counted()
    counted.steps.answered(prefill(1, alongside=True, lengths=(50,), seconds=0.060), answer(1, seconds=0.080), 0.1, 0.0)
    samples = counted.page()
    assert samples["tgi_batch_stall_duration_count"] == 1
    assert samples["tgi_batch_stall_duration_sum"] == pytest.approx(0.070, rel=0.05)


@pytest.mark.parametrize(("took", "exceeded"), [(0.280, 0), (0.330, 1)])  # 10 ms without prompts, 150 are promised
def test_a_stall_of_twice_what_is_promised_is_counted(took, exceeded):
    counted = Counted()
    counted.steps.answered(prefill(1, alongside=True, lengths=(50,), seconds=0.060), answer(1, seconds=took), 0.1, 0.0)
    assert counted["tgi_batch_stall_exceeded"] == exceeded


def test_a_stall_of_twice_what_is_promised_is_none_where_that_was_planned():
    counted = Counted()
    counted.steps.answered(prefill(1, alongside=True, lengths=(500,), seconds=0.510), answer(1, seconds=0.6), 0.1, 0.0)
    assert counted["tgi_batch_stall_exceeded"] == 0


def test_where_nobody_generates_prompts_stall_nobody():
    for counted in (Counted(), Counted(mixed=False)):
        counted.running(1)
        counted.steps.answered(prefill(1), answer(1), 0.1, 0.0)
        assert counted["tgi_batch_stall_duration_count"] == 0


def test_who_pauses_is_stalled_for_the_whole_step():
    counted = Counted(mixed=False)
    counted.running(3)
    counted.steps.answered(prefill(1), answer(1, seconds=0.5), 0.6, 0.0)
    assert counted["tgi_batch_stall_duration_sum"] == 0.5


# -- adapters


def going_by(name):
    return Request("0", (1,) * 15, 81, adapter=Resource("adapter", 1), adapter_name=name)


def test_requests_and_tokens_are_counted_by_adapter_and_those_without_a_name_together():
    counted = Counted(adapters=True)
    for name in ("org/a", "org/a", "", None):
        counted.requests.entered(Request("0", (1,), 1) if name is None else going_by(name))
        counted.requests.closed(1, Account("0", "", 15, 0.0, lived(), num_generated=4, adapter=name))
    samples = counted.page()
    assert {name: value for name, value in samples.items() if name.startswith("weft_adapter_requests")} == {
        'weft_adapter_requests{adapter="org/a"}': 2, 'weft_adapter_requests{adapter="other"}': 1}
    assert samples['weft_adapter_generated_tokens{adapter="org/a"}'] == 8


def test_where_no_adapters_are_served_nothing_is_told_of_them():
    counted = Counted()
    counted.requests.entered(going_by("org/a"))
    assert not any(name.startswith("weft_adapter") for name in counted.page())


def test_for_dashboards_of_lorax_the_same_is_told_under_its_names_too():
    plain, both = Counted(), Counted(lorax=True)
    for counted in (plain, both):
        counted.requests.entered(Request("0", (1,) * 15, 81))
        counted.requests.came.add()
    samples = both.page()
    assert (samples["lorax_request_count"], samples["lorax_request_input_length_sum"]) == (1, 15)
    assert samples["lorax_queue_length"] == samples["tgi_queue_size"]
    assert {name for name in samples if not name.startswith("lorax_")} == set(plain.page())
