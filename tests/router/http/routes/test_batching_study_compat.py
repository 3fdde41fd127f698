"""Tests of router/http/routes/batching_study_compat.py."""

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import make_mocked_request
from hypothesis import given, settings
from hypothesis import strategies as st
from support.servers.expected_streams import make_text_events

from router.config import RouterConfig
from router.engine.output_stream import FailedEvent
from router.errors import GenerationFailed, InvalidRequest
from router.http.routes.batching_study_compat import (
    LATENCY_HEADER,
    BatchingStudyCompatRoutes,
    LatencyStats,
    StudyInferenceRequest,
    write_csv_file,
)
from router.http.transport.body import DECOMPRESSED_BODY
from router.http.transport.request_context_and_middleware import RequestContext
from router.request import Tenant

CONTEXT = RequestContext(Tenant("weavers"), "mine", arrived_at=5.0, timeout_ms="2000")


# -- bodies


def parse_num_tokens(num_tokens: object) -> int:
    body = json.dumps({"prompt": "a", "num_tokens": num_tokens})
    made = StudyInferenceRequest.model_validate_json(body).to_generation_input(CONTEXT)
    assert made.max_new_tokens is not None
    return made.max_new_tokens


@given(st.integers(1, 2**70), st.sampled_from([int, str, "  {} ".format, "+{}".format, "0{}".format]))
def test_number_may_be_written_as_a_string(number: int, write: Callable[[int], object]) -> None:
    assert parse_num_tokens(write(number)) == number


@given(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9) | st.just([5]) | st.just({"a": 5}))
def test_value_that_int_does_not_take_is_the_mistake_of_the_client(value: Any) -> None:
    number = 0
    with suppress(TypeError, ValueError, OverflowError):
        number = int(value)
    if number >= 1:
        assert parse_num_tokens(value) == number
    else:
        with pytest.raises(InvalidRequest) as raised:
            parse_num_tokens(value)
        assert raised.value.param == "num_tokens"


@pytest.mark.parametrize("value", ["x" * 5000, ["x"] * 5000], ids=["string", "list"])
def test_error_shows_the_beginning_of_a_long_value(value: object) -> None:
    with pytest.raises(InvalidRequest, match=r"`num_tokens` must be a number, got") as raised:
        parse_num_tokens(value)
    assert len(str(raised.value)) < 200


def test_tokens_are_sampled_beyond_end_tokens() -> None:
    made = StudyInferenceRequest(prompt="a", num_tokens=5).to_generation_input(CONTEXT)
    assert (made.prompt, made.max_new_tokens, made.is_sampling, made.ignore_eos) == ("a", 5, True, True)
    assert (made.tenant, made.request_id, made.deadline) == (Tenant("weavers"), "mine", 7.0)


# -- statistics

REQUESTS = st.lists(st.tuples(st.integers(1, 5), st.floats(0.001, 1000.0)), min_size=1, max_size=20)


def make_stats(requests: list[tuple[int, float]]) -> LatencyStats:
    stats = LatencyStats()
    for num_tokens, seconds in requests:
        stats.add_request(num_tokens, seconds)
    return stats


@settings(max_examples=50)
@given(REQUESTS)
def test_statistics_are_those_of_a_plain_list_of_requests(requests: list[tuple[int, float]]) -> None:
    num_tokens, seconds = (sum(column) for column in zip(*requests, strict=True))
    assert make_stats(requests).to_json() == pytest.approx({
        "latency-per-token": sum(seconds / length for length, seconds in requests) / len(requests),
        "throughput": num_tokens / seconds, "total-tokens-handled": num_tokens, "total-elapsed-time": seconds})


@settings(max_examples=50)
@given(REQUESTS)
def test_csv_has_the_mean_latency_of_each_number_of_tokens(requests: list[tuple[int, float]]) -> None:
    rows = [line.split(",") for line in make_stats(requests).to_csv().splitlines()]
    latencies: dict[int, list[float]] = {}
    for num_tokens, seconds in requests:
        latencies.setdefault(num_tokens, []).append(seconds)
    assert [int(length) for length, _ in rows] == [*latencies]
    assert [float(mean) for _, mean in rows] == pytest.approx([sum(each) / len(each) for each in latencies.values()])


def test_nothing_and_requests_that_took_no_time_have_no_throughput() -> None:
    assert make_stats([]).to_json() == {
        "latency-per-token": None, "throughput": None, "total-tokens-handled": 0, "total-elapsed-time": 0}
    assert make_stats([(4, 0.0)]).to_json() == {
        "latency-per-token": 0.0, "throughput": None, "total-tokens-handled": 4, "total-elapsed-time": 0.0}
    assert make_stats([]).to_csv() == ""


# -- routes


class RoutesSetup:
    """Routes over a scripted engine, with a clock that tests set."""

    def __init__(self, routes: BatchingStudyCompatRoutes, engine: Any) -> None:
        self.routes = routes
        self.engine = engine
        self.seconds = 0.0

    def post(self, **body_fields: Any) -> "asyncio.Task[Any]":
        """Begin to handle `POST /inference`."""
        request = make_mocked_request("POST", "/inference")
        request[DECOMPRESSED_BODY] = json.dumps({"prompt": "hi", "num_tokens": 4, **body_fields}).encode()
        return asyncio.create_task(self.routes.inference(request))

    def finish(self, index: int) -> None:
        """Finish the text of the engine's request at `index`."""
        for event in make_text_events("weft"):
            self.engine.streams[index].put(event)

    async def get_stats(self) -> Any:
        response = await self.routes.get_stats(make_mocked_request("GET", "/stats"))
        return json.loads(response.body)  # type: ignore[arg-type]


@pytest.fixture
def run_scenario(serve: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Run a scenario with the routes; each of `scripts` has the events of a request."""
    def run(scenario: Any, *scripts: Any, **config_fields: Any) -> None:
        made_setups = list[RoutesSetup]()

        def make_routes(services: Any) -> BatchingStudyCompatRoutes:
            routes = BatchingStudyCompatRoutes(services, lambda: made_setups[0].seconds)
            made_setups.append(RoutesSetup(routes, services.engine))
            return routes

        async def run_with_setup(_client: Any, _engine: Any) -> None:
            await asyncio.wait_for(scenario(made_setups[0]), 5.0)

        monkeypatch.setattr("router.http.server.BatchingStudyCompatRoutes", make_routes)
        serve(run_with_setup, *scripts, config=RouterConfig(dialect="batching", **config_fields))
    monkeypatch.chdir(tmp_path)
    return run


async def let_tasks_run() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_prompt_precedes_the_generated_text(run_scenario: Any) -> None:
    async def scenario(setup: RoutesSetup) -> None:
        response = await setup.post(prompt="a loom: ")
        assert json.loads(response.body) == {"completion": "a loom: weft"}
    run_scenario(scenario)


def test_latency_is_the_time_between_taking_and_answering_a_request(run_scenario: Any) -> None:
    async def scenario(setup: RoutesSetup) -> None:
        answering = setup.post()
        await setup.engine.request_received.wait()
        setup.seconds = 2.5
        setup.finish(0)
        assert (await answering).headers[LATENCY_HEADER] == "2.500000"
        assert await setup.get_stats() == {"latency-per-token": 0.625, "throughput": 1.6, "total-tokens-handled": 4,
                                           "total-elapsed-time": 2.5}
    run_scenario(scenario, [])


def test_latency_does_not_include_the_wait_for_a_handler(run_scenario: Any) -> None:
    async def scenario(setup: RoutesSetup) -> None:
        first, second = setup.post(), setup.post()
        await setup.engine.request_received.wait()
        await let_tasks_run()
        assert len(setup.engine.requests) == 1
        setup.seconds = 10.0
        setup.finish(0)
        assert [(await answering).headers[LATENCY_HEADER] for answering in (first, second)] == ["10.000000", "0.000000"]
    run_scenario(scenario, [], max_handlers=1)


def test_all_requests_have_a_handler_without_a_limit(run_scenario: Any) -> None:
    async def scenario(setup: RoutesSetup) -> None:
        answering = [setup.post() for _ in range(9)]
        await let_tasks_run()
        assert len(setup.engine.requests) == 9
        for index in range(9):
            setup.finish(index)
        await asyncio.gather(*answering)
    run_scenario(scenario, *[[]] * 9)


def test_failed_and_invalid_requests_free_their_handler_and_are_not_counted(run_scenario: Any) -> None:
    async def scenario(setup: RoutesSetup) -> None:
        with pytest.raises(GenerationFailed):
            await setup.post()
        for num_tokens in (0, 10**9):
            with pytest.raises(InvalidRequest):
                await setup.post(num_tokens=num_tokens)
        assert (await setup.post()).status == 200
        assert (await setup.get_stats())["total-tokens-handled"] == 4
    run_scenario(scenario, [FailedEvent(GenerationFailed("it broke"))], max_handlers=1)


def test_client_that_leaves_frees_its_handler(run_scenario: Any) -> None:
    async def scenario(setup: RoutesSetup) -> None:
        leaving, waiting = setup.post(), setup.post()
        await setup.engine.request_received.wait()
        leaving.cancel()
        assert (await waiting).status == 200
        assert len(setup.engine.disconnected_requests) == 1
    run_scenario(scenario, [], max_handlers=1)


@pytest.mark.parametrize(("batching", "name"), [("none", "nobatch"), ("static", "static"), ("continuous", "dynamic"),
                                                ("nobatch", "nobatch")])
def test_csv_file_is_named_as_in_the_study(run_scenario: Any, tmp_path: Path, batching: str, name: str) -> None:
    async def scenario(setup: RoutesSetup) -> None:
        await setup.post()
        await setup.get_stats()
        assert [path.name for path in (tmp_path / "data").iterdir()] == [f"token_data_{name}.csv"]
    run_scenario(scenario, batching=batching)


# -- files


def test_file_is_written_anew_each_time(tmp_path: Path) -> None:
    path = tmp_path / "data" / "a.csv"
    write_csv_file(path, "4,1.0\n8,2.0\n")
    write_csv_file(path, "4,1.5\n")
    assert path.read_text() == "4,1.5\n"


def test_file_that_cannot_be_written_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_csv_file(tmp_path / "no folder" / "data" / "a.csv", "4,1.0\n")
    assert caplog.messages == [f"cannot write {tmp_path}/no folder/data/a.csv: No such file or directory"]
