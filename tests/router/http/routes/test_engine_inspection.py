"""Routes of the live view: over a scripted engine, and over simulated shards with two tenants."""

import asyncio
import json
import socket
import threading
from collections import Counter

import pytest
from support.servers.expected_streams import make_text_request
from support.servers.in_process_server import make_generate_body, play_scenario

from router.config import RouterConfig
from router.http.routes import engine_inspection as engine_routes
from router.http.routes.engine_inspection import (
    CAUSES,
    MAX_TENANT_SIMULATIONS,
    MAX_WAITING_SIMULATIONS,
    VIEWER_BUFFER_BYTES,
    limit_send_buffer,
)
from router.monitor import chrome_trace
from router.monitor.batching_simulation import simulate_batching
from router.monitor.monitor import MAX_TENANT_VIEWERS, MAX_USER_VIEWERS, MAX_VIEWERS, BufferedStep
from router.monitor.observed_steps import ObservedStep
from router.scheduler.sequence import RequestPhase

KEYS = {"key-a": {"tenant": "a"}, "key-b": {"tenant": "b"}, "key-admin": {"tenant": "operator", "role": "admin"}}
STEP = ObservedStep(1, "decode", 10.0, 0.01, 0.01, rows=[(lane, lane + 1, 1, "d") for lane in range(64)])
GIVEN = [{"at": 0.0, "prompt_tokens": 20, "output_tokens": 30}, {"at": 0.5, "prompt_tokens": 9, "output_tokens": 5}]


def authorize(key):
    return {"Authorization": f"Bearer {key}"}


async def read_events(response, num_events):
    """Return the first events as pairs of a name and data."""
    events = []
    text = b""
    while len(events) < num_events:
        text += await response.content.readany()
        *complete, text = text.split(b"\n\n")
        for part in complete:
            lines = dict(line.split(": ", 1) for line in part.decode().split("\n"))
            events.append((lines["event"], json.loads(lines["data"])))
    return events


async def repeat(call):
    """Yield what the coroutine of each call returns."""
    while True:
        yield await call()


# -- without a load


def test_state_describes_the_server(serve):
    async def scenario(client, engine):
        engine.unavailable_reason = "the shards are lost"
        state = await (await client.get("/v1/engine/state")).json()
        server = state["server"]
        assert (server["model"], server["policy"], server["batching"], server["look_ahead"]) == ("loom", "mixed",
                                                                                                 "none", 2)
        assert (server["ready"], server["not_ready_reason"]) == (False, "the shards are lost")
        assert (server["num_blocks"], server["max_batch_total_tokens"], server["max_total_tokens"]) == (100, 1600, 1600)
        assert (server["role"], server["tenant"], server["keys"], server["show_text"]) == ("admin", "", False, True)
        assert state["blocks"]["map"] == [[0, 100]]
        assert state["causes"] == CAUSES
        assert {*CAUSES} == {*map(str, RequestPhase)}
    serve(scenario, config=RouterConfig(batching="none", ui_show_text=True))


@pytest.mark.parametrize(("method", "path", "reason"), [
    ("GET", "/v1/engine/events?since=x", "`since` must be a whole number from 0, got 'x'"),
    ("GET", "/v1/engine/events?until=1", "'until' is no parameter of /v1/engine/events; there are `since`"),
    ("GET", "/v1/engine/state?a=1", "it takes none"), ("GET", "/v1/engine/trace?since=1&since=2", "given twice")])
def test_invalid_parameters_are_refused(serve, method, path, reason):
    async def scenario(client, _):
        answer = await client.request(method, path)
        assert answer.status == 400
        assert reason in (await answer.json())["error"]["message"]
    serve(scenario)


def test_head_of_events_is_refused_since_they_have_no_end(serve):
    async def scenario(client, _):
        assert (await client.head("/v1/engine/events")).status == 405
        assert (await client.head("/v1/engine/state")).status == 200
    serve(scenario)


def test_trace_without_buffered_steps_is_not_found(serve):
    async def scenario(client, _):
        for answer in (await client.get("/v1/engine/trace"), await client.post("/v1/engine/simulate", json={})):
            assert answer.status == 404
            assert "no steps are buffered; they are while somebody watches" in (await answer.json())["error"]["message"]
    serve(scenario)


@pytest.mark.parametrize(("body", "reason"), [
    ({"requests": GIVEN, "since": 3}, "`requests` cannot be given together with `since` or `until`"),
    ({"requests": [{"at": 0, "prompt_tokens": 1000, "output_tokens": 601}]},
     "`requests.0` has 1601 tokens, prompt and output together; the most are 1600 (--max-total-tokens)"),
    ({"requests": []}, "`requests`"), ({"requests": GIVEN * 200}, "`requests`"),
    ({"batching": "dynamic", "requests": GIVEN}, "`batching`"), ({"max_batch_size": 0, "requests": GIVEN},
                                                                "`max_batch_size`"),
    ({"requests": [{"at": -1, "prompt_tokens": 1, "output_tokens": 1}]}, "`requests.0.at`"),
    ({"requests": [{"at": 0, "prompt_tokens": 10, "output_tokens": 1500}] * 200}, "the simulation takes more than")])
def test_invalid_simulation_is_refused_with_what_was_wrong(serve, body, reason):
    async def scenario(client, _):
        answer = await client.post("/v1/engine/simulate", json=body)
        assert answer.status == 400
        assert reason in (await answer.json())["error"]["message"]
    serve(scenario)


def test_given_requests_are_simulated(serve):
    async def scenario(client, _):
        answer = await client.post("/v1/engine/simulate", json={"requests": GIVEN, "batching": "none", "wrong": 1})
        assert answer.headers["x-ignored-fields"] == "wrong"
        simulated = await answer.json()
        assert (simulated["batching"], simulated["max_batch_size"], simulated["requests"]) == ("none", 1, 2)
        assert simulated["recorded"] is None
        assert simulated["summary"]["tokens"] == 35
        assert sum(len(step["rows"]) for step in simulated["steps"]) == 35
        assert [(entry["id"], entry["source_id"], entry["prompt_tokens"], entry["submitted_at"], entry["own"])
                for entry in simulated["sequences"]] == [(1, None, 20, 0.0, True), (2, None, 9, 0.5, True)]
    serve(scenario)


def test_simulations_wait_for_each_other_up_to_a_limit(serve, monkeypatch):
    release = threading.Event()

    def simulate_when_released(*arguments):
        release.wait(20)
        return simulate_batching(*arguments)

    async def scenario(client, _):
        tasks = [asyncio.create_task(client.post("/v1/engine/simulate", json={"requests": GIVEN}))
                 for _ in range(MAX_WAITING_SIMULATIONS + 4)]
        unfinished = set(tasks)
        while len(unfinished) > MAX_WAITING_SIMULATIONS + 1:  # those that are not refused
            _, unfinished = await asyncio.wait(unfinished, return_when=asyncio.FIRST_COMPLETED)
        release.set()
        answers = await asyncio.gather(*tasks)
        assert Counter(answer.status for answer in answers) == {200: MAX_WAITING_SIMULATIONS + 1, 429: 3}
        refused = next(answer for answer in answers if answer.status == 429)
        assert "simulations wait already" in (await refused.json())["error"]["message"]
        assert refused.headers["Retry-After"] == "1"
    monkeypatch.setattr(engine_routes, "simulate_batching", simulate_when_released)
    serve(scenario)


def test_viewers_beyond_the_limit_are_refused_kindly(serve):
    async def scenario(client, _):
        viewers = [await client.get("/v1/engine/events") for _ in range(MAX_VIEWERS)]
        assert {viewer.status for viewer in viewers} == {200}
        refused = await asyncio.gather(*(client.get("/v1/engine/events") for _ in range(100 - MAX_VIEWERS)))
        assert {answer.status for answer in refused} == {429}
        error = (await refused[0].json())["error"]
        assert (error["code"], error["type"]) == ("rate_limit_exceeded", "rate_limit_error")
        assert error["message"].startswith(f"{MAX_VIEWERS} viewers watch the engine already")
        assert refused[0].headers["Retry-After"] == "1"
        state = await (await client.get("/v1/engine/state")).json()
        assert state["watch"]["viewers"] == MAX_VIEWERS
        viewers[0].close()
        again = await anext(answer async for answer in repeat(lambda: client.get("/v1/engine/events"))
                            if answer.status == 200)
        for viewer in (*viewers, again):
            viewer.close()
    serve(scenario)


def test_exports_beyond_the_limit_are_refused_and_take_turns_with_simulations(serve, monkeypatch):
    release, running = threading.Event(), []

    def render_when_released(*_):
        running.append("")
        release.wait(20)
        yield "{}"

    async def scenario(client, engine):
        engine.monitor._buffered_steps.append(BufferedStep(1, json.dumps(STEP.to_json(0.0))))
        tasks = [asyncio.create_task(client.get("/v1/engine/trace")) for _ in range(MAX_WAITING_SIMULATIONS + 4)]
        while sum(task.done() for task in tasks) < 3:  # those that are refused
            await asyncio.wait([task for task in tasks if not task.done()], return_when=asyncio.FIRST_COMPLETED)
        simulation = asyncio.create_task(client.post("/v1/engine/simulate", json={"requests": GIVEN}))
        assert len(running) <= 1
        release.set()
        assert (await simulation).status == 200
        answers = await asyncio.gather(*tasks)
        assert Counter(answer.status for answer in answers) == {200: MAX_WAITING_SIMULATIONS + 1, 429: 3}
        refused = next(answer for answer in answers if answer.status == 429)
        assert "exports wait already" in (await refused.json())["error"]["message"]
        assert [await answer.text() for answer in answers if answer.status == 200] == ["{}"] * len(running)
        assert (await client.get("/v1/engine/trace")).status == 200  # their places are free again
    monkeypatch.setattr(engine_routes, "iterate_chrome_trace", render_when_released)
    serve(scenario)


def test_no_call_renders_a_long_trace_or_simulation_as_a_whole(serve, monkeypatch):
    """Regression: one call of json.dumps kept the event loop from running for seconds."""
    lengths = []

    def dump_and_count(*arguments, **options):
        text = json.dumps(*arguments, **options)
        lengths.append(len(text))
        return text

    async def scenario(client, engine):
        text = json.dumps(STEP.to_json(0.0))
        engine.monitor._buffered_steps.extend(BufferedStep(number, text) for number in range(1, 301))
        answer = await client.get("/v1/engine/trace")
        assert answer.headers["Content-Disposition"] == 'attachment; filename="weft-trace.json"'
        assert answer.content_type == "application/json"
        body = await answer.read()
        assert sum(event["ph"] == "X" for event in json.loads(body)["traceEvents"]) == 65 * 300
        assert max(lengths) < len(body) / 100
        lengths.clear()
        body = {"requests": [{"at": 0.0, "prompt_tokens": 8, "output_tokens": 300}] * 20, "max_batch_size": 64}
        simulated = await (await client.post("/v1/engine/simulate", json=body)).read()
        assert len(json.loads(simulated)["steps"]) > 300
        assert max(lengths) < len(simulated) / 20
    for module in (engine_routes, chrome_trace):
        monkeypatch.setattr(module, "dumps", dump_and_count)
    serve(scenario)


def test_readiness_is_in_events(serve):
    async def scenario(client, engine):
        engine.unavailable_reason = "the shards are lost"
        events = await client.get("/v1/engine/events")
        [(_, state)] = await read_events(events, 1)
        assert (state["server"]["ready"], state["server"]["not_ready_reason"]) == (False, "the shards are lost")
        engine.unavailable_reason = ""
        frames = []
        while not any("server" in frame for frame in frames):
            frames += [data for _, data in await read_events(events, 1)]
        assert frames[-1]["server"] == {"ready": True, "not_ready_reason": None, "has_shards": True}
        events.close()
    serve(scenario)


# -- with a load


def serve_two_tenants(scenario, folder, **options):
    keys = folder / "keys.json"
    keys.write_text(json.dumps(KEYS))
    play_scenario(scenario, folder, http=True, api_keys=str(keys), **options)


async def generate(weft, key, prompt="a loom", max_new_tokens=20):
    async with weft.http_session.post("/generate", json=make_generate_body(prompt, max_new_tokens),
                                      headers=authorize(key)) as answer:
        assert answer.status == 200
        return answer.headers["x-request-id"]


async def get_json(weft, path, key):
    async with weft.http_session.get(path, headers=authorize(key)) as answer:
        assert answer.status == 200, await answer.text()
        return await answer.json()


def test_tenant_sees_its_own_rows_whole_and_others_without_names(tmp_path):
    async def scenario(weft):
        responses = {key: await weft.http_session.get("/v1/engine/events", headers=authorize(key)) for key in KEYS}
        ids = dict(zip("ab", await asyncio.gather(generate(weft, "key-a"), generate(weft, "key-b")), strict=True))
        sequences = {}
        for key, response in responses.items():
            events = []
            while not any(entry for _, data in events for entry in data.get("sequences", ()) if entry["id"] == 2):
                events += await read_events(response, 1)
            sequences[key] = {entry["id"]: entry for _, data in events for entry in data.get("sequences", ())}
            # Nobody gets the text of a prompt, and nobody the name of another tenant or of its requests.
            seen = json.dumps(events)
            assert "a loom" not in seen
            own, other = ("a", "b") if key == "key-a" else ("b", "a")
            if key != "key-admin":
                assert ids[own] in seen
            assert ids[other] not in seen
            response.close()
        owners = {1 if sequences["key-a"][1]["own"] else 2: "a"}
        [first] = owners
        second = 3 - first
        assert [sequences["key-a"][number]["tenant"] for number in (first, second)] == ["a", None]
        assert [sequences["key-b"][number]["tenant"] for number in (first, second)] == [None, "b"]
        assert [sequences["key-admin"][number]["tenant"] for number in (first, second)] == ["a", "b"]
        assert {entry["request_id"] for entry in sequences["key-admin"].values()} == {None}
        assert sequences["key-a"][first]["request_id"] == ids["a"]
        ordinals = {key: [found[number]["tenant_ordinal"] for number in (1, 2)] for key, found in sequences.items()}
        assert len({*map(tuple, ordinals.values())}) == 1
        assert len({*ordinals["key-a"]}) == 2
        for key in ("key-a", "key-b"):  # a number of the live view is no id of a request
            async with weft.http_session.get(f"/v1/requests/{second}/explain", headers=authorize(key)) as answer:
                assert answer.status == 404
    serve_two_tenants(scenario, tmp_path)


def test_settings_are_shown_to_admin_keys_alone(tmp_path):
    async def scenario(weft):
        assert await get_json(weft, "/v1/engine/settings", "key-admin") == {"settings": []}  # no launcher told any
        async with weft.http_session.get("/v1/engine/settings", headers=authorize("key-a")) as answer:
            assert answer.status == 403
            assert "needs an admin key" in await answer.text()
    serve_two_tenants(scenario, tmp_path)


def test_admin_key_finds_a_place_that_tenants_cannot_take(tmp_path):
    async def scenario(weft):
        async def watch_as(key, count):
            return [await weft.http_session.get("/v1/engine/events", headers=authorize(key)) for _ in range(count)]

        viewers = [answer for key in ("key-a", "key-b") for answer in await watch_as(key, MAX_VIEWERS)]
        assert Counter(answer.status for answer in viewers) == {200: MAX_USER_VIEWERS,
                                                                429: 2 * MAX_VIEWERS - MAX_USER_VIEWERS}
        refused = await viewers[MAX_TENANT_VIEWERS].json()
        assert f"{MAX_TENANT_VIEWERS} viewers of this tenant watch" in refused["error"]["message"]
        viewers += await watch_as("key-admin", 1)
        assert viewers[-1].status == 200
        for answer in viewers:
            answer.close()
    serve_two_tenants(scenario, tmp_path)


def test_tenant_cannot_take_the_places_of_others_for_simulations_and_exports(tmp_path, monkeypatch):
    """Regression: the trace of one that read slowly, or its simulations, kept all others out for hours."""
    release = threading.Event()

    def simulate_when_released(*arguments):
        release.wait(20)
        return simulate_batching(*arguments)

    async def scenario(weft):
        def simulate_as(key, number):
            return [asyncio.create_task(weft.http_session.post(
                "/v1/engine/simulate", json={"requests": GIVEN}, headers=authorize(key))) for _ in range(number)]

        tasks = simulate_as("key-a", MAX_TENANT_SIMULATIONS + 2)
        while sum(task.done() for task in tasks) < 2:  # those that are refused
            await asyncio.wait([task for task in tasks if not task.done()], return_when=asyncio.FIRST_COMPLETED)
        others = [*simulate_as("key-b", 1), *simulate_as("key-admin", 1)]
        release.set()
        statuses = Counter([(await task).status for task in tasks])
        assert statuses == {200: MAX_TENANT_SIMULATIONS, 429: 2}
        refused = next(task.result() for task in tasks if task.result().status == 429)
        assert f"{MAX_TENANT_SIMULATIONS} simulations of this tenant" in (await refused.json())["error"]["message"]
        assert [(await task).status for task in others] == [200, 200]
        assert (await simulate_as("key-a", 1)[0]).status == 200
    monkeypatch.setattr(engine_routes, "simulate_batching", simulate_when_released)
    serve_two_tenants(scenario, tmp_path)


def test_prompts_of_a_simulation_are_made_in_its_thread_and_bounded_together(serve, monkeypatch):
    """Regression: they were made on the event loop, 264 MB for 256 long ones, before the simulation had a place."""
    threads, make_arrivals = [], engine_routes.parse_simulated_arrivals

    def make_and_record_thread(requests):
        threads.append(threading.current_thread() is threading.main_thread())
        return make_arrivals(requests)

    async def scenario(client, _):
        for limit, status in ((29, 200), (28, 400)):
            monkeypatch.setattr(engine_routes, "MAX_SIMULATED_PROMPT_TOKENS", limit)
            answer = await client.post("/v1/engine/simulate", json={"requests": GIVEN})
            assert answer.status == status
        assert "may have 28 tokens together, got 29" in (await answer.json())["error"]["message"]
    monkeypatch.setattr(engine_routes, "parse_simulated_arrivals", make_and_record_thread)
    serve(scenario)
    assert threads == [False]


def test_trace_and_simulation_of_two_tenants(tmp_path):
    async def scenario(weft):
        events = await weft.http_session.get("/v1/engine/events", headers=authorize("key-a"))
        first, second = [await generate(weft, key) for key in ("key-a", "key-b")]
        await asyncio.sleep(0.1)  # for the frame of the last step
        trace = await get_json(weft, "/v1/engine/trace", "key-a")
        assert trace["otherData"]["model"] == "simulated"
        assert {event["ph"] for event in trace["traceEvents"]} == {"M", "X", "i", "C"}
        named = {event["args"].get("request_id") for event in trace["traceEvents"] if event["ph"] == "X"}
        assert named == {None, first}
        async with weft.http_session.post("/v1/engine/simulate", json={"batching": "continuous"},
                                          headers=authorize("key-b")) as answer:
            simulated = await answer.json()
        assert [(entry["id"], entry["source_id"], entry["own"], entry["request_id"])
                for entry in simulated["sequences"]] == [(1, 1, False, None), (2, 2, True, second)]
        assert simulated["recorded"]["tokens"] == simulated["summary"]["tokens"] == 40
        assert sum(len(step["rows"]) for step in simulated["steps"]) == 40
        part = await get_json(weft, "/v1/engine/trace?since=10&until=12", "key-a")
        assert (part["otherData"]["first_step"], part["otherData"]["last_step"]) == (11, 12)
        events.close()
    serve_two_tenants(scenario, tmp_path)


def test_viewer_that_does_not_read_is_disconnected_and_slows_nobody(tmp_path):
    async def scenario(weft):
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", weft.port))
        reader, writer = await asyncio.open_connection(sock=connection, limit=256)
        writer.write(b"GET /v1/engine/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
        [feed] = weft.engine.monitor._feeds
        # Rows of many requests fill the buffers of a connection that nobody reads.
        while feed in weft.engine.monitor._feeds:
            await weft.check_streams(*(make_text_request(f"{number}", 40) for number in range(30)))
        assert weft.engine.monitor.observer is None
        writer.close()
        reader.feed_eof()
    play_scenario(scenario, tmp_path, http=True, slow_client_timeout=0.2)


def test_system_holds_few_events_for_a_viewer(serve, monkeypatch):
    """Regression: viewers that did not read kept their places for minutes, until megabytes of buffers were full."""
    sizes = []

    def limit_and_measure(transport):
        limit_send_buffer(transport)
        sizes.append(transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF))

    async def scenario(client, _):
        (await client.get("/v1/engine/events")).close()
        assert 0 < sizes[0] <= 2 * VIEWER_BUFFER_BYTES  # Linux doubles what is asked for
    monkeypatch.setattr(engine_routes, "limit_send_buffer", limit_and_measure)
    serve(scenario)


def test_events_end_when_the_server_stops(tmp_path):
    async def scenario(weft):
        events = await weft.http_session.get("/v1/engine/events")
        assert (await read_events(events, 1))[0][0] == "state"
        weft.engine.monitor.close()
        while not events.content.at_eof():
            await events.content.readany()
        assert weft.engine.monitor.observer is None
    play_scenario(scenario, tmp_path, http=True)
