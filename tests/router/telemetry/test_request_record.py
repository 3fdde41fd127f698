"""What the log says of a request that is over."""

from router.request import FinishReason
from router.scheduler.sequence import RequestPhase, RequestTimeline
from router.telemetry.server_metrics import RequestRecord, sum_choices_for_log


def make_timeline(*phases: tuple[RequestPhase, float], end: float) -> RequestTimeline:
    timeline = RequestTimeline(10.0)
    for phase, start in phases:
        timeline.enter_phase(phase, start)
    timeline.end(end)
    return timeline


def test_log_has_lengths_times_and_the_finish_reason() -> None:
    timeline = make_timeline((RequestPhase.PREFILL, 10.1), (RequestPhase.DECODE, 10.3), end=12.3)
    timeline.num_prefix_hit_tokens = 16
    record = RequestRecord("r1", "", 20, 9.9, timeline, num_generated=5, finish_reason=FinishReason.LENGTH)
    assert record.log_fields(12.4) == {
        "prompt_tokens": 20, "cached_tokens": 16, "generated_tokens": 5, "queue_ms": 100.0, "first_token_ms": 400.0,
        "tokens_per_second": 2.0, "total_ms": 2500.0, "finish_reason": "length"}


def test_log_leaves_out_what_a_request_that_never_started_does_not_have() -> None:
    record = RequestRecord("r1", "a", 20, 9.9, make_timeline(end=10.5), adapter_name="lora")
    assert record.log_fields(10.5) == {"prompt_tokens": 20, "cached_tokens": 0, "generated_tokens": 0,
                                       "queue_ms": 500.0, "total_ms": 600.0, "adapter": "lora", "tenant": "a"}


def make_part(name: str, num_prompt_tokens: int, num_generated: int, num_cached: int = 0) -> RequestRecord:
    timeline = make_timeline(end=10.5)
    timeline.num_prefix_hit_tokens = num_cached
    return RequestRecord(name, "", num_prompt_tokens, 9.9, timeline, num_generated=num_generated)


def test_tokens_of_all_prompts_and_choices_are_counted() -> None:
    prompts = [[make_part("r1", 20, 5, 4), make_part("r1-2", 20, 6, 20)],
               [make_part("r1.1", 7, 1), make_part("r1.1-2", 7, 2, 7)]]
    assert sum_choices_for_log(prompts) == {"prompts": 2, "choices": 2, "prompt_tokens": 27, "cached_tokens": 4,
                                            "generated_tokens": 14}
    assert sum_choices_for_log([[make_part("r1", 20, 5)]]) == {}


def test_tokens_behind_which_an_output_goes_on_are_logged() -> None:
    record = RequestRecord("r1", "", 20, 9.9, make_timeline(end=10.5), num_resumed=7)
    assert record.log_fields(11.0)["resumed_tokens"] == 7
    assert "resumed_tokens" not in RequestRecord("r1", "", 20, 9.9, make_timeline(end=10.5)).log_fields(11.0)
