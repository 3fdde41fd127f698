"""Tests of the figures of the benchmark of replicas, with a server of this process in place of replicas."""

import asyncio
from itertools import count
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from benchmarks.experiments.load_balancer_comparison import (
    COLUMNS,
    NUM_ADAPTERS,
    NUM_PREFIXES,
    PREFIX_LENGTH,
    LoadBalancerPoint,
    Outcomes,
    make_adapter_body,
    make_prefix_body,
    run_clients,
    send_request,
    subtract_medians_ms,
)
from benchmarks.harness.experiment import format_columns


async def answer_by_prompt(request: web.Request) -> web.StreamResponse:
    body = await request.json()
    if body["prompt"] == "refused":
        return web.Response(status=503)
    response = web.StreamResponse()
    await response.prepare(request)
    for _ in range(body["max_tokens"]):
        await response.write(b'data: {"choices": [{"text": "x"}]}\n\n')
    if body["prompt"] == "cut":
        assert request.transport is not None
        request.transport.abort()
    else:
        await response.write(b'data: {"choices": [], "usage": {"completion_tokens": %d}}\n\ndata: [DONE]\n\n'
                             % body["max_tokens"])
    return response


def run_with_server(scenario: Any) -> None:
    async def main() -> None:
        app = web.Application()
        app.router.add_post("/v1/completions", answer_by_prompt)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        await scenario(f"http://{host}:{port}")
        await runner.cleanup()
    asyncio.run(main())


@pytest.mark.parametrize(("prompt", "expected"), [("fine", (1, 0, 0)), ("cut", (0, 1, 0)), ("refused", (0, 0, 1))])
def test_each_request_is_complete_cut_or_refused(prompt: str, expected: tuple[int, int, int]) -> None:
    async def scenario(url: str) -> None:
        outcomes = Outcomes()
        async with aiohttp.ClientSession() as http:
            await send_request(http, url, {"prompt": prompt, "max_tokens": 3}, outcomes)
        assert (outcomes.num_complete, outcomes.num_cut, outcomes.num_refused) == expected
        assert outcomes.num_errors == 1 - expected[0]
        assert (len(outcomes.first_token_seconds), len(outcomes.gaps)) == (expected[0], 2 * expected[0])
    run_with_server(scenario)


def test_server_that_cannot_be_reached_refuses() -> None:
    async def main() -> None:
        outcomes = Outcomes()
        async with aiohttp.ClientSession() as http:
            await send_request(http, "http://127.0.0.1:1", {"prompt": "", "max_tokens": 3}, outcomes)
        assert (outcomes.num_cut, outcomes.num_refused) == (0, 1)
    asyncio.run(main())


def test_loads_never_repeat_a_number() -> None:
    async def scenario(url: str) -> None:
        seen, numbers = [], count()

        def make_body(number: int) -> dict[str, Any]:
            seen.append(number)
            return {"prompt": "fine", "max_tokens": 1}
        for _ in range(2):
            await run_clients([url], 3, 0.05, make_body, numbers)
        assert len(seen) == len(set(seen)) > 2
    run_with_server(scenario)


def test_prefixes_and_adapters_are_drawn_from_all() -> None:
    prefixes = {make_prefix_body(number)["prompt"][:PREFIX_LENGTH] for number in range(2000)}
    adapters = {make_adapter_body(number)["model"] for number in range(2000)}
    assert (len(prefixes), len(adapters)) == (NUM_PREFIXES, NUM_ADAPTERS)


def test_differences_are_those_of_medians() -> None:
    assert subtract_medians_ms([0.010, 0.020, 1.0], [0.015]) == pytest.approx(5.0)


def test_table_has_a_row_for_each_point() -> None:
    point = LoadBalancerPoint("nginx", 3, 41.25, 0.514, 0.021, 63.07, 48.3, 8, 0, 0)
    assert format_columns(COLUMNS, [(point,)]).splitlines()[1].split() == [
        "nginx", "3", "41.2", "0.51", "0.02", "63.1", "48.3", "8", "0", "0"]
