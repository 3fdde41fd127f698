"""Tests that the counters of /metrics are exact after known loads, over real HTTP and gRPC with simulated shards."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from support.in_process_server import body, play
from support.metrics_page import check, failures, read

from router.config import SOURCES

NUM_SHORT, SHORT, NUM_LONG, LONG = 5, 7, 4, 12
POISON = "~"
DOCS = Path(__file__).parents[2] / "docs/metrics.md"


async def metrics(weft: Any) -> dict[str, float]:
    async with weft.http.get("/metrics") as answer:
        return read(await answer.text())


async def known_load(weft: Any) -> None:
    """Send nine requests that generate eleven texts: two requests generate two texts each (`best_of`)."""
    plain = [weft.generate(f"{number}", SHORT) for number in range(NUM_SHORT)]
    streams = [weft.stream(f"{number} " * 20, LONG) for number in range(NUM_LONG - 2)]
    several = [weft.generate("several", LONG, best_of=2, do_sample=True) for _ in range(2)]
    for answer in await asyncio.gather(*plain, *streams, *several):
        if not isinstance(answer, list):
            assert answer.status == 200
            await answer.read()


def methods(samples: dict[str, float], name: str) -> float:
    return sum(samples[f'{name}{{method="{method}"}}'] for method in ("prefill", "decode", "embed"))


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["mixed", "pause"])
@pytest.mark.parametrize("look_ahead", [1, 2])
def test_requests_tokens_and_steps_are_counted_exactly(tmp_path: Any, policy: str, look_ahead: int) -> None:
    async def story(weft: Any) -> None:
        await known_load(weft)
        await weft.settle()
        check(weft.engine.metrics())
        samples = await metrics(weft)
        texts, lengths = NUM_SHORT + NUM_LONG - 2 + 4, [SHORT] * NUM_SHORT + [LONG] * (NUM_LONG + 2)
        assert (samples["tgi_request_count"], samples["tgi_request_success"], failures(samples)) == (9, 9, {})
        for name in ("duration", "validation_duration", "queue_duration", "inference_duration", "input_length",
                     "mean_time_per_token_duration", "time_to_first_token_duration"):
            assert samples[f"tgi_request_{name}_count"] == texts, name
        assert samples["tgi_request_generated_tokens_sum"] == samples["tgi_batch_generated_tokens"] == sum(lengths)
        assert samples["tgi_request_max_new_tokens_sum"] == sum(lengths)
        assert samples["tgi_request_inter_token_duration_count"] == sum(lengths) - texts
        assert samples["tgi_batch_next_size_sum"] == texts
        prompts = NUM_SHORT + sum(len(f"{number} " * 20) for number in range(NUM_LONG - 2)) + 4 * len("several")
        assert samples["tgi_request_input_length_sum"] == samples["tgi_prefix_query_tokens"] == prompts
        steps = methods(samples, "tgi_batch_inference_count")
        assert steps == methods(samples, "tgi_batch_inference_success") == weft.shards.num_steps
        assert steps == methods(samples, "tgi_batch_forward_duration_count")
        assert steps == methods(samples, "tgi_batch_inference_duration_count")
        assert samples["tgi_queue_size"] == samples["tgi_batch_current_size"] == 0
        assert (samples["tgi_ready"], samples["tgi_shard_ready"]) == (1, 1)
    play(story, tmp_path, http=True, prefill_policy=policy, look_ahead=look_ahead, max_batch_size=4)


@pytest.mark.slow
def test_counters_only_grow_while_requests_come_and_go(tmp_path: Any) -> None:
    async def story(weft: Any) -> None:
        load, before = asyncio.create_task(known_load(weft)), await metrics(weft)
        while not load.done():
            after = await metrics(weft)
            grows = [name for name in after if name.split("{")[0].endswith(("_count", "_sum", "_bucket", "_success"))]
            assert all(after[name] >= before[name] for name in grows)
            before = after
        await load
    play(story, tmp_path, http=True, max_batch_size=3)


async def refuse(weft: Any) -> None:
    for given in ({"inputs": ""}, {"inputs": 1}, body("x", 5, temperature=-1.0)):
        await (await weft.http.post("/generate", json=given)).read()
    [event] = await weft.stream("x", 5, top_k=0)
    assert event["error_type"] == "validation"


async def overload(weft: Any) -> None:
    """Exceed the limit of two requests: two submitted without HTTP are unfinished until the gate opens."""
    for _ in range(2):
        weft.submit("in the house", 5)
    for _ in range(3):
        assert (await weft.generate("one more", 5)).status == 429
    [event] = await weft.stream("one more", 5)
    assert event["error_type"] == "overloaded"
    weft.gate.open()


async def leave(weft: Any) -> None:
    """Disconnect one client of each route before its first step ends."""
    left = weft.watch("cancel")
    for path in ("/generate", "/generate_stream"):
        asking = asyncio.create_task(weft.http.post(path, json=body("x", 50)))
        await weft.gate.arrival()
        if path == "/generate":
            asking.cancel()
        else:
            (await asking).close()
        await left.get()
        weft.gate.let(2)
    weft.gate.open()


Story = Callable[[Any], Awaitable[None]]


@pytest.mark.parametrize(("load", "counted", "failed", "settings"), [
    (refuse, 4, {"validation": 4}, {}),
    (overload, 4, {"overloaded": 4}, {"gated": True, "max_concurrent_requests": 2}),
    (leave, 2, {"dropped": 2}, {"gated": True}),
])
def test_failures_are_counted_by_why(tmp_path: Any, load: Story, counted: int, failed: dict[str, int],
                                     settings: dict[str, Any]) -> None:
    async def story(weft: Any) -> None:
        await load(weft)
        await weft.check_idle()
        samples = await metrics(weft)
        assert failures(samples) == failed
        assert samples["tgi_request_count"] == counted
        assert samples["tgi_request_success"] == counted - sum(failed.values())
    play(story, tmp_path, http=True, **settings)


def test_a_request_that_fails_on_the_shards_is_counted_and_so_are_the_steps_that_it_cost(tmp_path: Any) -> None:
    async def story(weft: Any) -> None:
        asked = [weft.stream(f"{POISON} {number}", 5) for number in range(2)]
        asked += [weft.generate(f"{POISON} alone", 5), *(weft.stream(f"{number}", 20) for number in range(4))]
        await asyncio.gather(*asked)
        samples = await metrics(weft)
        assert (samples["tgi_request_count"], samples["tgi_request_success"], failures(samples)
                ) == (7, 4, {"generation": 3})
        sent, answered, lost = (methods(samples, f"tgi_batch_inference_{name}") for name in (
            "count", "success", "failure"))
        assert sent == answered + lost
        assert 3 <= samples['tgi_shard_lost{loss="step_error"}'] <= lost
        assert samples["tgi_shard_ready"] == 1
    play(story, tmp_path, http=True, faults=f"poison@{POISON.encode()[0]}")


def test_shards_that_die_are_counted_and_their_requests_succeed(tmp_path: Any) -> None:
    async def story(weft: Any) -> None:
        await weft.stream("a loom", 20)
        samples = await metrics(weft)
        assert samples['tgi_shard_lost{loss="death"}'] == 1
        assert (samples["tgi_request_success"], samples["tgi_request_inter_token_duration_count"]) == (1, 19)
    play(story, tmp_path, http=True, faults="die@decode:3")


def test_what_is_found_in_the_cache_is_counted(tmp_path: Any) -> None:
    async def story(weft: Any) -> None:
        for _ in range(2):
            await (await weft.generate("x" * 50, 2)).read()
        samples = await metrics(weft)
        assert (samples["tgi_prefix_query_tokens"], samples["tgi_prefix_hit_tokens"]) == (100, 48)
        blocks = [samples[f'tgi_cache_blocks{{state="{state}"}}'] for state in ("held", "kept", "free")]
        assert (blocks[0], blocks[1] > 0, sum(blocks)) == (0, True, 256)
    play(story, tmp_path, http=True)


def test_yields_are_counted(tmp_path: Any) -> None:
    async def story(weft: Any) -> None:
        await asyncio.gather(*(weft.stream(f"{number}" * 30, 60) for number in range(4)))
        await weft.settle()
        samples = await metrics(weft)
        assert samples["tgi_request_yields"] == weft.shards.num_sent_again > 0
        assert samples["tgi_request_inter_token_duration_count"] == 4 * 59
    play(story, tmp_path, http=True, num_blocks=14)


def test_gauges_say_how_it_stands(tmp_path: Any) -> None:
    async def story(weft: Any) -> None:
        streams = [weft.submit("x" * 20, 30) for _ in range(3)]
        await weft.gate.arrival()
        samples = await metrics(weft)
        assert (samples["tgi_batch_current_size"], samples["tgi_queue_size"]) == (2, 1)
        assert (samples["vllm:num_requests_running"], samples["vllm:num_requests_waiting"]) == (2, 1)
        assert samples["tgi_batch_current_max_tokens"] == 64
        assert samples["vllm:kv_cache_usage_perc"] == 4 / 256
        assert samples['vllm:cache_config_info{block_size="16",num_gpu_blocks="256"}'] == 1
        assert [samples[f'weft_adapters{{state="{state}"}}'] for state in ("coming", "here", "leaving")] == [0, 0, 0]
        adapters = [name for name in samples if name.startswith("vllm:lora_requests_info")]
        assert adapters == [
            'vllm:lora_requests_info{max_lora="1024",running_lora_adapters="",waiting_lora_adapters=""}']
        for stream in streams:
            stream.close()
        weft.gate.open()
    play(story, tmp_path, http=True, gated=True, max_batch_size=2, cache_scope="off")


# ---------------------------------------------------------------------------------------------------------------------
# All counters at once, after requests of every kind

LENGTH, NUM_IN_HOUSE, IN_HOUSE = 7, 32, "in the house"
WORD = {"role": "user", "content": "warp"}
PROMPT = "user: warp\nassistant: "
CHATTED: dict[str, Any] = {"messages": [WORD], "max_tokens": LENGTH}
CHAT, TEXTS = "/v1/chat/completions", "/v1/completions"
# Path, body, and the prompts for which text is generated.
ANSWERED: list[tuple[str, dict[str, Any], list[str]]] = [
    *[("/generate", body(prompt, LENGTH), [prompt]) for prompt in ("a", "loom", "weaves")],
    ("/generate", body("the best", LENGTH, best_of=2, do_sample=True), ["the best"] * 2),
    ("/generate_stream", body("thread", LENGTH), ["thread"]),
    ("/", body("old", LENGTH), ["old"]),
    ("/", body("older", LENGTH) | {"stream": True}, ["older"]),
    (CHAT, CHATTED, [PROMPT]),
    (CHAT, CHATTED | {"stream": True}, [PROMPT]),
    (TEXTS, {"prompt": ["x", "yy", "zzz"], "max_tokens": LENGTH}, ["x", "yy", "zzz"]),
    (TEXTS, {"prompt": ["x", "yy"], "max_tokens": LENGTH, "stream": True}, ["x", "yy"]),
    ("/vertex", {"instances": [body("vertex", LENGTH), CHATTED]}, ["vertex", PROMPT]),
    ("/invocations", {"prompt": "a text", "max_tokens": LENGTH}, ["a text"]),
    ("/invocations", CHATTED, [PROMPT]),
]
INVALID: list[tuple[str, dict[str, Any]]] = [
    ("/generate", {}), ("/generate", body("")), ("/generate_stream", body("x", temperature=-1)),
    ("/", body("x", best_of=9)), (CHAT, {"messages": []}), (CHAT, CHATTED | {"n": 2, "stream": True}),
    (CHAT, CHATTED | {"tools": [], "response_format": {"type": "json_object"}}),
    (TEXTS, {"prompt": "x", "suffix": "y"}),
    ("/vertex", {"instances": [body("x"), body("")]}), ("/invocations", {}),
]
NO_REQUESTS = [("POST", "/tokenize", body("x")), ("POST", "/chat_tokenize", CHATTED), ("POST", "/tokenize", {}),
               ("GET", "/info", None), ("GET", "/health", None), ("GET", "/nowhere", None), ("PUT", "/generate", None)]
LATE = {"x-request-timeout-ms": "0.001"}
PROMPTS = [*[prompt for _, _, prompts in ANSWERED for prompt in prompts], *[IN_HOUSE] * NUM_IN_HOUSE]
NUM_TOKENS = LENGTH * len(PROMPTS)
ACCEPTED = [*PROMPTS, "x", "x"]  # including those whose clients disconnect
REASONS = {"overloaded": 2, "validation": len(INVALID), "template": 0, "generation": 0, "incomplete": 0, "dropped": 2,
           "timeout": 2, "download_adapter": 0, "embedding_failure": 0, "classification_failure": 0}
COUNTED: dict[str, float] = {
    "tgi_request_count": len(ANSWERED) + sum(REASONS.values()),
    "tgi_request_success": len(ANSWERED),
    **{f'tgi_request_failure{{err="{err}"}}': times for err, times in REASONS.items()},
    "tgi_request_yields": 0,
    "tgi_prefix_query_tokens": sum(map(len, ACCEPTED)),
    "tgi_prefix_hit_tokens": 0,
    "tgi_batch_prompt_tokens": sum(map(len, ACCEPTED)),
    "tgi_batch_generated_tokens": NUM_TOKENS,
    **{f'tgi_batch_inference_failure{{method="{method}"}}': 0 for method in ("prefill", "decode", "embed")},
    **{f'tgi_batch_concat{{reason="{reason}"}}': 0 for reason in ("backpressure", "wait_exceeded")},
    **{f'tgi_shard_lost{{loss="{loss}"}}': 0 for loss in ("step_error", "memory", "death", "defect")},
    **{f"tgi_request_{name}_count": len(PROMPTS) for name in (
        "duration", "validation_duration", "queue_duration", "inference_duration", "mean_time_per_token_duration",
        "time_to_first_token_duration", "generated_tokens")},
    **{f"tgi_request_{name}_count": len(ACCEPTED) for name in ("input_length", "max_new_tokens")},
    "tgi_request_input_length_sum": sum(map(len, ACCEPTED)),
    "tgi_request_max_new_tokens_sum": NUM_TOKENS + 50 * 2,
    "tgi_request_generated_tokens_sum": NUM_TOKENS,
    "tgi_request_inter_token_duration_count": NUM_TOKENS - len(PROMPTS),
    "tgi_batch_next_size_sum": len(ACCEPTED),
    "tgi_request_skipped_tokens_sum": 0,
    "weft_adapter_unloads": 0,
    **{f'weft_adapter_loads{{outcome="{outcome}"}}': 0 for outcome in ("ok", "failed")},
    **{f'weft_adapter_fetches{{source="{source}",outcome="{outcome}"}}': 0
       for source in (*SOURCES, "other") for outcome in ("ok", "missing", "failed")},
    **{f'weft_adapter_{name}{{adapter="other"}}': 0 for name in ("requests", "generated_tokens")},
}
STEPS = {f'tgi_batch_inference_{name}{{method="{method}"}}' for name in ("count", "success")
         for method in ("prefill", "decode", "embed")}
JOINED = 'tgi_batch_concat{reason="chunking"}'  # depends on the order of arrival
EXCEEDED = "tgi_batch_stall_exceeded"  # depends on the load of the machine


async def ask_for_everything(weft: Any) -> None:
    async def ask(path: str, given: dict[str, Any], status: int | None = 200, **more: Any) -> None:
        async with weft.http.post(path, json=given, **more) as answer:
            text = await answer.text()
            assert status is None or (answer.status == status and "error" not in text), text

    left = weft.watch("cancel")
    for path in ("/generate", "/generate_stream"):
        asking = asyncio.create_task(ask(path, body("x", 50), status=None))
        await weft.gate.arrival()
        asking.cancel()
        await left.get()
        weft.gate.let(1)
        await weft.settle()
    for _ in range(NUM_IN_HOUSE):
        weft.submit(IN_HOUSE, LENGTH)
    await ask("/generate", body("x"), status=None)
    await ask(CHAT, CHATTED, status=None)
    weft.gate.open()
    await weft.engine.drained()
    await asyncio.gather(*(ask(path, given) for path, given, _ in ANSWERED))
    await asyncio.gather(*(ask(path, given, status=None) for path, given in INVALID))
    for path in ("/generate", "/generate_stream"):
        await ask(path, body("x"), status=None, headers=LATE)
    for method, path, given in NO_REQUESTS:
        await (await weft.http.request(method, path, json=given)).read()


def test_after_requests_of_every_kind_every_counter_says_what_the_load_says(tmp_path: Any) -> None:
    async def story(weft: Any) -> None:
        await ask_for_everything(weft)
        await weft.settle()
        async with weft.http.get("/metrics") as answer:
            page = await answer.text()
        check(page)
        samples = read(page)
        assert {name: samples[name] for name in COUNTED} == COUNTED
        assert counters_of(page) == {name for name in COUNTED if name in counters_of(page)} | STEPS | {JOINED, EXCEEDED}
        steps = methods(samples, "tgi_batch_inference_count")
        assert steps == methods(samples, "tgi_batch_inference_success") == weft.shards.num_steps
        assert samples[JOINED] < samples["tgi_batch_next_size_count"]
    play(story, tmp_path, http=True, gated=True, max_concurrent_requests=NUM_IN_HOUSE, cache_scope="off",
         look_ahead=1)


def counters_of(page: str) -> set[str]:
    kinds = dict(re.findall(r"^# TYPE (\S+) (\w+)$", page, re.MULTILINE))
    return {name for name in read(page) if kinds.get(name.partition("{")[0]) == "counter"}


def test_the_page_of_a_server_has_the_metrics_that_are_documented_and_no_others(tmp_path: Any) -> None:
    """Compare name, type and labels with docs/metrics.md."""
    listed = re.findall(r"^\| `([\w:]+)` \| (\w+) \| (.*?) \| \w? \| .+ \|$", DOCS.read_text(), re.MULTILINE)
    documented = {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels in listed}

    async def story(weft: Any) -> None:
        async with weft.http.get("/metrics") as answer:
            page = await answer.text()
        found = {}
        for name, kind in re.findall(r"^# TYPE (\S+) (\w+)$", page, re.MULTILINE):
            lines = re.findall(rf"^{name}(?:_bucket|_sum|_count)?(?:{{(.*)}})? \S+$", page, re.MULTILINE)
            found[name] = kind, {label for line in lines for label in re.findall(r'(\w+)="', line)} - {"le"}
        assert found == documented
    play(story, tmp_path, http=True)
