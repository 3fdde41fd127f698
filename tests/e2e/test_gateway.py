"""The protocol between model servers and the endpoint picker of Kubernetes' inference gateway, on a running server.

Names, types and labels of the gauges are checked by `ReplicaGauges.from_page`, for every page that is read under load.
"""

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from support.endpoint_picker import ReplicaGauges
from support.metrics_page import check_metrics_page, parse_metrics
from support.promtool import check_page_with_promtool
from support.servers.weft_process import SIMULATED_MODEL, WeftProcess, run_weft_process

pytestmark = pytest.mark.slow

MAX_BATCH_SIZE, NUM_STREAMS, OUTPUT_TOKENS = 4, 12, 30
LONG_OUTPUT_TOKENS, NUM_READ_PAGES = 600, 10


@pytest.fixture(scope="module")
def weft(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WeftProcess]:
    with run_weft_process(tmp_path_factory.mktemp("gateway"), "--max-batch-size", str(MAX_BATCH_SIZE)) as server:
        yield server


async def read_page(http: aiohttp.ClientSession) -> str:
    async with http.get("/metrics") as answer:
        assert answer.status == 200
        return await answer.text()


async def read_gauges(http: aiohttp.ClientSession) -> ReplicaGauges:
    return ReplicaGauges.from_page(await read_page(http))


async def iter_chunks(http: aiohttp.ClientSession, num_tokens: int, model: str = "tgi",
                      prompt: str = "Once") -> AsyncIterator[dict[str, Any]]:
    """Yield the chunks of a streamed completion."""
    body = {"model": model, "prompt": prompt, "max_tokens": num_tokens, "stream": True, "ignore_eos": True,
            "stream_options": {"include_usage": True}}
    async with http.post("/v1/completions", json=body) as answer:
        assert answer.status == 200, await answer.text()
        async for line in answer.content:
            if line.startswith(b"data: {"):
                yield json.loads(line[6:])


def run_with_session(weft: WeftProcess, scenario: Any) -> None:
    async def main() -> None:
        async with asyncio.timeout(100), aiohttp.ClientSession(weft.url) as http:
            await scenario(http)
    asyncio.run(main())


def test_every_page_under_load_conforms_and_adds_up(weft: WeftProcess) -> None:
    async def scenario(http: aiohttp.ClientSession) -> None:
        async def read_all(number: int) -> None:
            async for _ in iter_chunks(http, OUTPUT_TOKENS, prompt=f"{number} once"):
                pass

        load, pages = asyncio.gather(*map(read_all, range(NUM_STREAMS))), []
        while not load.done():
            pages.append(await read_page(http))
        await load
        for page in pages:
            check_metrics_page(page)
        all_gauges = [ReplicaGauges.from_page(page) for page in pages]
        assert max(gauges.num_running for gauges in all_gauges) >= MAX_BATCH_SIZE
        assert max(gauges.num_waiting for gauges in all_gauges) > 0
        assert max(gauges.num_running + gauges.num_waiting for gauges in all_gauges) == NUM_STREAMS
        assert 0 < max(gauges.cache_usage for gauges in all_gauges) <= 1
        [(block_size, num_blocks)] = {(gauges.block_size, gauges.num_blocks) for gauges in all_gauges}
        assert block_size * num_blocks == parse_metrics(pages[0])["tgi_batch_max_total_tokens"]
        idle = await read_gauges(http)
        assert (idle.num_running, idle.num_waiting, idle.cache_usage) == (0, 0, 0)
    run_with_session(weft, scenario)


def test_promtool_accepts_the_page_under_load(weft: WeftProcess) -> None:
    pages = []

    async def scenario(http: aiohttp.ClientSession) -> None:
        async for _ in iter_chunks(http, OUTPUT_TOKENS, "pirate"):
            if not pages:
                pages.append(await read_page(http))
    run_with_session(weft, scenario)
    assert ReplicaGauges.from_page(pages[0]).num_running == 1
    check_page_with_promtool(pages[0])


def test_page_is_as_fresh_as_the_last_token(weft: WeftProcess) -> None:
    """Gauges are computed for each page, so that one read after a token knows of the request, and one read after its
    end does not."""
    async def scenario(http: aiohttp.ClientSession) -> None:
        num_read_pages = 0
        async for chunk in iter_chunks(http, LONG_OUTPUT_TOKENS, "kjv"):
            if chunk["choices"] and num_read_pages < NUM_READ_PAGES:  # long before its end
                num_read_pages += 1
                before = time.time()
                gauges = await read_gauges(http)
                assert gauges.num_running == 1
                assert "kjv" in gauges.running_adapters
                assert before <= gauges.adapters_updated_at <= time.time()
        assert (await read_gauges(http)).num_running == 0
    run_with_session(weft, scenario)


def test_adapter_is_named_while_it_waits_on_the_shards_for_its_next_request(weft: WeftProcess) -> None:
    """By its name and by an alias: the gateway compares the gauge with `model` as the client has written it."""
    async def scenario(http: aiohttp.ClientSession) -> None:
        async with http.post("/v1/load_lora_adapter", json={"lora_name": "ahoy", "lora_path": "pirate"}) as answer:
            assert answer.status == 200
        assert {chunk["model"] async for chunk in iter_chunks(http, 1, "ahoy")} == {"ahoy"}
        gauges = await read_gauges(http)
        assert gauges.num_running == 0
        assert gauges.running_adapters >= {"ahoy", "pirate"}
        assert gauges.waiting_adapters == set()
    run_with_session(weft, scenario)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_last_chunk_of_an_adapter_has_the_usage(weft: WeftProcess, path: str) -> None:
    async def scenario(http: aiohttp.ClientSession) -> None:
        body = {"model": "shout", "prompt": "hi", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5,
                "stream": True, "ignore_eos": True, "stream_options": {"include_usage": True}}
        del body["prompt" if "chat" in path else "messages"]
        async with http.post(path, json=body) as answer:
            lines = [line async for line in answer.content if line.startswith(b"data: ")]
        last = json.loads(lines[-2][6:])
        assert (lines[-1], last["model"], last["choices"]) == (b"data: [DONE]\n", "shout", [])
        assert last["usage"]["completion_tokens"] == 5
        assert last["usage"]["total_tokens"] == last["usage"]["prompt_tokens"] + 5
    run_with_session(weft, scenario)


def test_stopping_server_is_unhealthy_and_finishes_its_streams(tmp_path: Path) -> None:
    async def scenario(http: aiohttp.ClientSession, weft: WeftProcess) -> None:
        usage, finish_reason, states = None, None, set()
        async for chunk in iter_chunks(http, 300):
            if not states:
                weft.send_signal(signal.SIGTERM)
                while (await get_status(http, "/health")) != 503:
                    pass
                gauges = await read_gauges(http)
                states.add((gauges.num_running, gauges.num_waiting))
                assert await get_status(http, "/live") == 200
            finish_reason = chunk["choices"][0]["finish_reason"] if chunk["choices"] else finish_reason
            usage = chunk["usage"] or usage
        assert (states, finish_reason, usage["completion_tokens"]) == ({(1, 0)}, "length", 300)

    with run_weft_process(tmp_path, SIMULATED_MODEL) as weft:
        run_with_session(weft, lambda http: scenario(http, weft))
        assert weft.wait_for_exit()[0] == 0


async def get_status(http: aiohttp.ClientSession, path: str) -> int:
    async with http.get(path, headers={"Connection": "close"}) as answer:
        return answer.status
