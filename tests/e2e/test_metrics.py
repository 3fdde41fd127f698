"""Tests that the counters of /metrics are exact after known loads, over real HTTP and gRPC with simulated shards."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from support.metrics_page import check_metrics_page, get_failure_counts, parse_metrics
from support.servers.in_process_server import make_generate_body, play_scenario

from router.config import ADAPTER_SOURCES

NUM_SHORT_REQUESTS, SHORT_LENGTH, NUM_LONG_REQUESTS, LONG_LENGTH = 5, 7, 4, 12
POISON_CHARACTER = "~"
METRICS_DOC_PATH = Path(__file__).parents[2] / "docs/reference/metrics.md"


async def get_metrics(weft: Any) -> dict[str, float]:
    async with weft.http_session.get("/metrics") as answer:
        return parse_metrics(await answer.text())


async def send_known_load(weft: Any) -> None:
    """Send nine requests that generate eleven texts: two requests generate two texts each (`best_of`)."""
    plain = [weft.generate(f"{number}", SHORT_LENGTH) for number in range(NUM_SHORT_REQUESTS)]
    streams = [weft.generate_stream(f"{number} " * 20, LONG_LENGTH) for number in range(NUM_LONG_REQUESTS - 2)]
    several = [weft.generate("several", LONG_LENGTH, best_of=2, do_sample=True) for _ in range(2)]
    for answer in await asyncio.gather(*plain, *streams, *several):
        if not isinstance(answer, list):
            assert answer.status == 200
            await answer.read()


def sum_over_methods(samples: dict[str, float], metric: str) -> float:
    return sum(samples[f'{metric}{{method="{method}"}}'] for method in ("prefill", "decode", "embed"))


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["mixed", "pause"])
@pytest.mark.parametrize("look_ahead", [1, 2])
def test_requests_tokens_and_steps_are_counted_exactly(tmp_path: Any, policy: str, look_ahead: int) -> None:
    async def scenario(weft: Any) -> None:
        await send_known_load(weft)
        await weft.wait_for_steps_in_flight()
        check_metrics_page(weft.engine.render_metrics_page())
        samples = await get_metrics(weft)
        texts, lengths = (NUM_SHORT_REQUESTS + NUM_LONG_REQUESTS - 2 + 4,
                          [SHORT_LENGTH] * NUM_SHORT_REQUESTS + [LONG_LENGTH] * (NUM_LONG_REQUESTS + 2))
        assert (samples["tgi_request_count"], samples["tgi_request_success"], get_failure_counts(samples)) == (9, 9, {})
        for name in ("duration", "validation_duration", "queue_duration", "inference_duration", "input_length",
                     "mean_time_per_token_duration", "time_to_first_token_duration"):
            assert samples[f"tgi_request_{name}_count"] == texts, name
        assert samples["tgi_request_generated_tokens_sum"] == samples["tgi_batch_generated_tokens"] == sum(lengths)
        assert samples["tgi_request_max_new_tokens_sum"] == sum(lengths)
        assert samples["tgi_request_inter_token_duration_count"] == sum(lengths) - texts
        assert samples["tgi_batch_next_size_sum"] == texts
        prompts = NUM_SHORT_REQUESTS + sum(len(f"{number} " * 20)
                                           for number in range(NUM_LONG_REQUESTS - 2)) + 4 * len("several")
        assert samples["tgi_request_input_length_sum"] == samples["tgi_prefix_query_tokens"] == prompts
        steps = sum_over_methods(samples, "tgi_batch_inference_count")
        assert steps == sum_over_methods(samples, "tgi_batch_inference_success") == weft.shards.num_steps
        assert steps == sum_over_methods(samples, "tgi_batch_forward_duration_count")
        assert steps == sum_over_methods(samples, "tgi_batch_inference_duration_count")
        assert samples["tgi_queue_size"] == samples["tgi_batch_current_size"] == 0
        assert (samples["tgi_ready"], samples["tgi_shard_ready"]) == (1, 1)
    play_scenario(scenario, tmp_path, http=True, prefill_policy=policy, look_ahead=look_ahead, max_batch_size=4)


@pytest.mark.slow
def test_counters_only_grow_while_requests_come_and_go(tmp_path: Any) -> None:
    async def scenario(weft: Any) -> None:
        load, before = asyncio.create_task(send_known_load(weft)), await get_metrics(weft)
        while not load.done():
            after = await get_metrics(weft)
            grows = [name for name in after if name.split("{")[0].endswith(("_count", "_sum", "_bucket", "_success"))]
            assert all(after[name] >= before[name] for name in grows)
            before = after
        await load
    play_scenario(scenario, tmp_path, http=True, max_batch_size=3)


async def send_invalid_requests(weft: Any) -> None:
    for body in ({"inputs": ""}, {"inputs": 1}, make_generate_body("x", 5, temperature=-1.0)):
        await (await weft.http_session.post("/generate", json=body)).read()
    [event] = await weft.generate_stream("x", 5, top_k=0)
    assert event["error_type"] == "validation"


async def send_too_many_requests(weft: Any) -> None:
    """Exceed the limit of two requests: two submitted without HTTP are unfinished until the gate opens."""
    for _ in range(2):
        weft.submit("in the house", 5)
    for _ in range(3):
        assert (await weft.generate("one more", 5)).status == 429
    [event] = await weft.generate_stream("one more", 5)
    assert event["error_type"] == "overloaded"
    weft.gate.release_all()


async def disconnect_clients(weft: Any) -> None:
    """Disconnect one client of each route before its first step ends."""
    cancelled = weft.watch_scheduler_calls("cancel")
    for path in ("/generate", "/generate_stream"):
        posting = asyncio.create_task(weft.http_session.post(path, json=make_generate_body("x", 50)))
        await weft.gate.wait_for_step()
        if path == "/generate":
            posting.cancel()
        else:
            (await posting).close()
        await cancelled.get()
        weft.gate.release_steps(2)
    weft.gate.release_all()


Scenario = Callable[[Any], Awaitable[None]]


@pytest.mark.parametrize(("load", "counted", "failed", "settings"), [
    (send_invalid_requests, 4, {"validation": 4}, {}),
    (send_too_many_requests, 4, {"overloaded": 4}, {"gated": True, "max_concurrent_requests": 2}),
    (disconnect_clients, 2, {"dropped": 2}, {"gated": True}),
])
def test_failures_are_counted_by_reason(tmp_path: Any, load: Scenario, counted: int, failed: dict[str, int],
                                        settings: dict[str, Any]) -> None:
    async def scenario(weft: Any) -> None:
        await load(weft)
        await weft.check_idle()
        samples = await get_metrics(weft)
        assert get_failure_counts(samples) == failed
        assert samples["tgi_request_count"] == counted
        assert samples["tgi_request_success"] == counted - sum(failed.values())
    play_scenario(scenario, tmp_path, http=True, **settings)


def test_failed_requests_and_their_steps_are_counted(tmp_path: Any) -> None:
    async def scenario(weft: Any) -> None:
        requests = [weft.generate_stream(f"{POISON_CHARACTER} {number}", 5) for number in range(2)]
        requests += [weft.generate(f"{POISON_CHARACTER} alone", 5),
                     *(weft.generate_stream(f"{number}", 20) for number in range(4))]
        await asyncio.gather(*requests)
        samples = await get_metrics(weft)
        assert (samples["tgi_request_count"], samples["tgi_request_success"], get_failure_counts(samples)
                ) == (7, 4, {"generation": 3})
        sent, answered, lost = (sum_over_methods(samples, f"tgi_batch_inference_{name}")
                                for name in ("count", "success", "failure"))
        assert sent == answered + lost
        assert 3 <= samples['tgi_shard_lost{loss="step_error"}'] <= lost
        assert samples["tgi_shard_ready"] == 1
    play_scenario(scenario, tmp_path, http=True, faults=f"poison@{POISON_CHARACTER.encode()[0]}")


def test_shard_deaths_are_counted_and_their_requests_succeed(tmp_path: Any) -> None:
    async def scenario(weft: Any) -> None:
        await weft.generate_stream("a loom", 20)
        samples = await get_metrics(weft)
        assert samples['tgi_shard_lost{loss="death"}'] == 1
        assert (samples["tgi_request_success"], samples["tgi_request_inter_token_duration_count"]) == (1, 19)
    play_scenario(scenario, tmp_path, http=True, faults="die@decode:3")


def test_prefix_cache_hits_are_counted(tmp_path: Any) -> None:
    async def scenario(weft: Any) -> None:
        for _ in range(2):
            await (await weft.generate("x" * 50, 2)).read()
        samples = await get_metrics(weft)
        assert (samples["tgi_prefix_query_tokens"], samples["tgi_prefix_hit_tokens"]) == (100, 48)
        blocks = [samples[f'tgi_cache_blocks{{state="{state}"}}'] for state in ("held", "kept", "free")]
        assert (blocks[0], blocks[1] > 0, sum(blocks)) == (0, True, 256)
    play_scenario(scenario, tmp_path, http=True)


def test_preemptions_are_counted(tmp_path: Any) -> None:
    async def scenario(weft: Any) -> None:
        await asyncio.gather(*(weft.generate_stream(f"{number}" * 30, 60) for number in range(4)))
        await weft.wait_for_steps_in_flight()
        samples = await get_metrics(weft)
        assert samples["tgi_request_yields"] == weft.shards.num_reentered > 0
        assert samples["tgi_request_inter_token_duration_count"] == 4 * 59
    play_scenario(scenario, tmp_path, http=True, num_blocks=14)


def test_gauges_show_the_current_state(tmp_path: Any) -> None:
    async def scenario(weft: Any) -> None:
        streams = [weft.submit("x" * 20, 30) for _ in range(3)]
        await weft.gate.wait_for_step()
        samples = await get_metrics(weft)
        assert (samples["tgi_batch_current_size"], samples["tgi_queue_size"]) == (2, 1)
        assert (samples["vllm:num_requests_running"], samples["vllm:num_requests_waiting"]) == (2, 1)
        assert samples["tgi_batch_current_max_tokens"] == 64
        assert samples["vllm:kv_cache_usage_perc"] == 4 / 256
        assert samples['vllm:cache_config_info{block_size="16",num_gpu_blocks="256"}'] == 1
        states = "loading", "loaded", "unloading"
        assert [samples[f'weft_adapters{{state="{state}"}}'] for state in states] == [0, 0, 0]
        adapters = [name for name in samples if name.startswith("vllm:lora_requests_info")]
        assert adapters == [
            'vllm:lora_requests_info{max_lora="1024",running_lora_adapters="",waiting_lora_adapters=""}']
        for stream in streams:
            stream.close()
        weft.gate.release_all()
    play_scenario(scenario, tmp_path, http=True, gated=True, max_batch_size=2, cache_scope="off")


# ---------------------------------------------------------------------------------------------------------------------
# All counters at once, after requests of every kind

MAX_NEW_TOKENS, NUM_DIRECT_REQUESTS, DIRECT_PROMPT = 7, 32, "in the house"
CHAT_MESSAGE = {"role": "user", "content": "warp"}
CHAT_PROMPT = "user: warp\nassistant: "
CHAT_BODY: dict[str, Any] = {"messages": [CHAT_MESSAGE], "max_tokens": MAX_NEW_TOKENS}
CHAT_PATH, COMPLETIONS_PATH = "/v1/chat/completions", "/v1/completions"
# Path, body, and the prompts for which text is generated.
VALID_REQUESTS: list[tuple[str, dict[str, Any], list[str]]] = [
    *[("/generate", make_generate_body(prompt, MAX_NEW_TOKENS), [prompt]) for prompt in ("a", "loom", "weaves")],
    ("/generate", make_generate_body("the best", MAX_NEW_TOKENS, best_of=2, do_sample=True), ["the best"] * 2),
    ("/generate_stream", make_generate_body("thread", MAX_NEW_TOKENS), ["thread"]),
    ("/", make_generate_body("old", MAX_NEW_TOKENS), ["old"]),
    ("/", make_generate_body("older", MAX_NEW_TOKENS) | {"stream": True}, ["older"]),
    (CHAT_PATH, CHAT_BODY, [CHAT_PROMPT]),
    (CHAT_PATH, CHAT_BODY | {"stream": True}, [CHAT_PROMPT]),
    (COMPLETIONS_PATH, {"prompt": ["x", "yy", "zzz"], "max_tokens": MAX_NEW_TOKENS}, ["x", "yy", "zzz"]),
    (COMPLETIONS_PATH, {"prompt": ["x", "yy"], "max_tokens": MAX_NEW_TOKENS, "stream": True}, ["x", "yy"]),
    ("/vertex", {"instances": [make_generate_body("vertex", MAX_NEW_TOKENS), CHAT_BODY]}, ["vertex", CHAT_PROMPT]),
    ("/invocations", {"prompt": "a text", "max_tokens": MAX_NEW_TOKENS}, ["a text"]),
    ("/invocations", CHAT_BODY, [CHAT_PROMPT]),
]
INVALID_REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("/generate", {}), ("/generate", make_generate_body("")),
    ("/generate_stream", make_generate_body("x", temperature=-1)),
    ("/", make_generate_body("x", best_of=9)), (CHAT_PATH, {"messages": []}),
    (CHAT_PATH, CHAT_BODY | {"n": 0, "stream": True}),
    (CHAT_PATH, CHAT_BODY | {"tool_choice": "required", "tools": []}),
    (COMPLETIONS_PATH, {"prompt": "x", "suffix": "y"}),
    ("/vertex", {"instances": [make_generate_body("x"), make_generate_body("")]}), ("/invocations", {}),
]
UNCOUNTED_REQUESTS = [("POST", "/tokenize", make_generate_body("x")), ("POST", "/chat_tokenize", CHAT_BODY),
                      ("POST", "/tokenize", {}), ("GET", "/info", None), ("GET", "/health", None),
                      ("GET", "/nowhere", None), ("PUT", "/generate", None)]
EXPIRED_TIMEOUT_HEADERS = {"x-request-timeout-ms": "0.001"}
ANSWERED_PROMPTS = [*[prompt for _, _, prompts in VALID_REQUESTS for prompt in prompts],
                    *[DIRECT_PROMPT] * NUM_DIRECT_REQUESTS]
NUM_GENERATED_TOKENS = MAX_NEW_TOKENS * len(ANSWERED_PROMPTS)
ACCEPTED_PROMPTS = [*ANSWERED_PROMPTS, "x", "x"]  # including those whose clients disconnect
NUM_FAILURES_BY_REASON = {"overloaded": 2, "validation": len(INVALID_REQUESTS), "template": 0, "generation": 0,
                          "incomplete": 0, "dropped": 2, "timeout": 2, "download_adapter": 0, "embedding_failure": 0,
                          "classification_failure": 0, "shutting_down": 0}
EXPECTED_COUNTERS: dict[str, float] = {
    "tgi_request_count": len(VALID_REQUESTS) + sum(NUM_FAILURES_BY_REASON.values()),
    "tgi_request_success": len(VALID_REQUESTS),
    **{f'tgi_request_failure{{err="{err}"}}': times for err, times in NUM_FAILURES_BY_REASON.items()},
    "tgi_request_yields": 0,
    "tgi_prefix_query_tokens": sum(map(len, ACCEPTED_PROMPTS)),
    "tgi_prefix_hit_tokens": 0,
    "tgi_batch_prompt_tokens": sum(map(len, ACCEPTED_PROMPTS)),
    "tgi_batch_generated_tokens": NUM_GENERATED_TOKENS,
    **{f'tgi_batch_inference_failure{{method="{method}"}}': 0 for method in ("prefill", "decode", "embed")},
    **{f'tgi_batch_concat{{reason="{reason}"}}': 0 for reason in ("backpressure", "wait_exceeded")},
    **{f'tgi_shard_lost{{loss="{loss}"}}': 0 for loss in ("step_error", "memory", "death", "defect")},
    **{f"tgi_request_{name}_count": len(ANSWERED_PROMPTS) for name in (
        "duration", "validation_duration", "queue_duration", "inference_duration", "mean_time_per_token_duration",
        "time_to_first_token_duration", "generated_tokens")},
    **{f"tgi_request_{name}_count": len(ACCEPTED_PROMPTS) for name in ("input_length", "max_new_tokens")},
    "tgi_request_input_length_sum": sum(map(len, ACCEPTED_PROMPTS)),
    "tgi_request_max_new_tokens_sum": NUM_GENERATED_TOKENS + 50 * 2,
    "tgi_request_generated_tokens_sum": NUM_GENERATED_TOKENS,
    "tgi_request_inter_token_duration_count": NUM_GENERATED_TOKENS - len(ANSWERED_PROMPTS),
    "tgi_batch_next_size_sum": len(ACCEPTED_PROMPTS),
    "tgi_request_skipped_tokens_sum": 0,
    "weft_adapter_unloads": 0,
    **{f'weft_adapter_loads{{outcome="{outcome}"}}': 0 for outcome in ("ok", "failed")},
    **{f'weft_adapter_fetches{{source="{source}",outcome="{outcome}"}}': 0
       for source in (*ADAPTER_SOURCES, "other") for outcome in ("ok", "missing", "failed")},
    **{f'weft_adapter_{name}{{adapter="other"}}': 0 for name in ("requests", "generated_tokens")},
}
STEP_COUNTERS = {f'tgi_batch_inference_{name}{{method="{method}"}}' for name in ("count", "success")
                 for method in ("prefill", "decode", "embed")}
CONCAT_COUNTER = 'tgi_batch_concat{reason="chunking"}'  # depends on the order of arrival
STALL_COUNTER = "tgi_batch_stall_exceeded"  # depends on the load of the machine


async def send_requests_of_every_kind(weft: Any) -> None:
    async def post_request(path: str, body: dict[str, Any], status: int | None = 200, **more: Any) -> None:
        async with weft.http_session.post(path, json=body, **more) as answer:
            text = await answer.text()
            assert status is None or (answer.status == status and "error" not in text), text

    cancelled = weft.watch_scheduler_calls("cancel")
    for path in ("/generate", "/generate_stream"):
        posting = asyncio.create_task(post_request(path, make_generate_body("x", 50), status=None))
        await weft.gate.wait_for_step()
        posting.cancel()
        await cancelled.get()
        weft.gate.release_steps(1)
        await weft.wait_for_steps_in_flight()
    for _ in range(NUM_DIRECT_REQUESTS):
        weft.submit(DIRECT_PROMPT, MAX_NEW_TOKENS)
    await post_request("/generate", make_generate_body("x"), status=None)
    await post_request(CHAT_PATH, CHAT_BODY, status=None)
    weft.gate.release_all()
    await weft.engine.wait_until_drained()
    await asyncio.gather(*(post_request(path, body) for path, body, _ in VALID_REQUESTS))
    await asyncio.gather(*(post_request(path, body, status=None) for path, body in INVALID_REQUESTS))
    for path in ("/generate", "/generate_stream"):
        await post_request(path, make_generate_body("x"), status=None, headers=EXPIRED_TIMEOUT_HEADERS)
    for method, path, body in UNCOUNTED_REQUESTS:
        await (await weft.http_session.request(method, path, json=body)).read()


def test_all_counters_match_a_load_of_every_request_kind(tmp_path: Any) -> None:
    async def scenario(weft: Any) -> None:
        await send_requests_of_every_kind(weft)
        await weft.wait_for_steps_in_flight()
        async with weft.http_session.get("/metrics") as answer:
            page = await answer.text()
        check_metrics_page(page)
        samples = parse_metrics(page)
        assert {name: samples[name] for name in EXPECTED_COUNTERS} == EXPECTED_COUNTERS
        assert (find_counter_names(page) == {name for name in EXPECTED_COUNTERS if name in find_counter_names(page)}
                | STEP_COUNTERS | {CONCAT_COUNTER, STALL_COUNTER})
        steps = sum_over_methods(samples, "tgi_batch_inference_count")
        assert steps == sum_over_methods(samples, "tgi_batch_inference_success") == weft.shards.num_steps
        assert samples[CONCAT_COUNTER] < samples["tgi_batch_next_size_count"]
    play_scenario(scenario, tmp_path, http=True, gated=True, max_concurrent_requests=NUM_DIRECT_REQUESTS,
                  cache_scope="off", look_ahead=1)


def find_counter_names(page: str) -> set[str]:
    kinds = dict(re.findall(r"^# TYPE (\S+) (\w+)$", page, re.MULTILINE))
    return {name for name in parse_metrics(page) if kinds.get(name.partition("{")[0]) == "counter"}


def test_metrics_page_has_exactly_the_documented_metrics(tmp_path: Any) -> None:
    """Compare name, type and labels with docs/reference/metrics.md."""
    listed = re.findall(r"^\| `([\w:]+)` \| (\w+) \| (.*?) \| \w? \| .+ \|$", METRICS_DOC_PATH.read_text(),
                        re.MULTILINE)
    documented = {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels in listed}

    async def scenario(weft: Any) -> None:
        async with weft.http_session.get("/metrics") as answer:
            page = await answer.text()
        metrics = {}
        for name, kind in re.findall(r"^# TYPE (\S+) (\w+)$", page, re.MULTILINE):
            lines = re.findall(rf"^{name}(?:_bucket|_sum|_count)?(?:{{(.*)}})? \S+$", page, re.MULTILINE)
            metrics[name] = kind, {label for line in lines for label in re.findall(r'(\w+)="', line)} - {"le"}
        assert metrics == documented
    play_scenario(scenario, tmp_path, http=True)
