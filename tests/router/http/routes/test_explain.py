"""Explanation of how a request spent its time (/v1/requests/{id}/explain)."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.config import RouterConfig
from router.http.routes.explain import SENTENCES, VALIDATION, explained
from router.scheduler.timeline import Cause, Story
from router.telemetry.request_log import Account


def account(*turns, came=0.0, began=1.0, end=None):
    story = Story(began)
    for moment, cause in turns:
        story.turn(cause, moment)
    if end is not None:
        story.end(end)
    return Account("mine", "a", 3, came, story, 2)


def test_every_cause_has_a_sentence():
    assert set(SENTENCES) == {VALIDATION, *Cause}


def test_a_request_is_explained_from_its_coming_to_its_end():
    told = explained(account((2.0, Cause.PREFILL), (2.5, Cause.DECODE), (4.0, Cause.YIELDED), (4.5, Cause.PREFILL),
                             (5.0, Cause.DECODE), end=7.0), now=100.0)
    intervals = [(each["cause"], each["start_ms"], each["ms"]) for each in told.pop("intervals")]
    assert intervals == [
        ("validation", 0.0, 1000.0), ("queue", 1000.0, 1000.0), ("prefill", 2000.0, 500.0), ("decode", 2500.0, 1500.0),
        ("yielded", 4000.0, 500.0), ("prefill", 4500.0, 500.0), ("decode", 5000.0, 2000.0)]
    assert told == {
        "id": "mine", "tenant": "a", "state": "over", "prompt_tokens": 3, "cached_tokens": 0, "generated_tokens": 2,
        "total_ms": 7000.0,
        "by_cause": {"validation": 1000.0, "queue": 1000.0, "prefill": 1000.0, "decode": 3500.0, "yielded": 500.0},
        "causes": {cause: SENTENCES[cause] for cause in ("validation", "queue", "prefill", "decode", "yielded")},
    }
    assert json.loads(json.dumps(told)) == told


def test_a_request_that_is_served_is_explained_until_now():
    told = explained(account((2.0, Cause.PREFILL)), now=2.25)
    assert (told["state"], told["total_ms"], told["intervals"][-1]["ms"]) == ("running", 2250.0, 250.0)


@pytest.mark.slow
@given(st.floats(0, 1e9), st.lists(st.tuples(st.sampled_from(list(Cause)), st.floats(0, 1e4)), max_size=40))
def test_intervals_sum_to_the_total_exactly(came, turns):
    one, moment = account(came=came, began=came), came
    for cause, seconds in turns:
        moment += seconds
        one.story.turn(cause, moment)
    one.story.end(moment)
    told = explained(one, moment)
    assert sum(interval["ms"] for interval in told["intervals"]) == told["total_ms"] == sum(told["by_cause"].values())
    ends = [interval["start_ms"] + interval["ms"] for interval in told["intervals"]]
    assert [interval["start_ms"] for interval in told["intervals"]] == [0.0, *ends[:-1]]
    assert told["total_ms"] == pytest.approx((moment - came) * 1000, abs=0.07)


# -- over HTTP


def test_an_answer_can_be_explained_by_its_id(serve):
    async def scenario(client, engine):
        answer = await client.post("/generate", json={"inputs": "hi"}, headers={"x-request-id": "mine"})
        assert answer.headers["x-request-id"] == "mine"
        answer = await client.get("/v1/requests/mine/explain")
        told = await answer.json()
        assert answer.headers["Content-Type"] == "application/json"
        assert (told["id"], told["prompt_tokens"], told["intervals"][0]["cause"]) == ("mine", 2, "validation")
    serve(scenario)


def test_any_id_that_a_client_may_choose_can_be_asked_for(serve):
    async def scenario(client, engine):
        await client.post("/generate", json={"inputs": "hi"}, headers={"x-request-id": "a/b {c}%2F?"})
        answer = await client.get("/v1/requests/a%2Fb%20%7Bc%7D%252F%3F/explain")
        assert (await answer.json())["id"] == "a/b {c}%2F?"
    serve(scenario)


def test_a_request_that_nobody_knows_is_not_found(serve):
    async def scenario(client, engine):
        answer = await client.get("/v1/requests/mine/explain")
        assert (answer.status, (await answer.json())["error"]["type"]) == (404, "invalid_request_error")
    serve(scenario)


def test_a_request_is_seen_by_its_own_tenant_only(serve, tmp_path):
    (tmp_path / "keys").write_text('{"sk-a": {"tenant": "a"}, "sk-b": {"tenant": "b"}, "sk-a2": {"tenant": "a"}}')

    async def scenario(client, engine):
        mine = {"Authorization": "Bearer sk-a", "x-request-id": "mine"}
        await client.post("/generate", json={"inputs": "hi"}, headers=mine)
        statuses = [(await client.get("/v1/requests/mine/explain", headers={"Authorization": f"Bearer {key}"})).status
                    for key in ("sk-a", "sk-b", "sk-a2", "sk-c")]
        assert statuses == [200, 404, 200, 401]
    serve(scenario, config=RouterConfig(api_keys=str(tmp_path / "keys")))
