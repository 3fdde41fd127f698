"""Tests of several choices for one prompt over real sockets."""

from typing import Any

from support.scheduling.method_overrides import override_methods
from support.servers.in_process_server import play_scenario


def test_choices_share_the_blocks_of_their_prompt(tmp_path):
    async def scenario(weft):
        async with weft.http_session.post("/v1/completions", headers={"x-request-id": "mine"}, json={
                "prompt": "x" * 1000, "n": 8, "max_tokens": 4}) as answer:
            assert len((await answer.json())["choices"]) == 8
        async with weft.http_session.get("/v1/requests") as answer:
            requests = (await answer.json())["requests"]
        assert {request["id"] for request in requests} == {"mine", *(f"mine-{number}" for number in range(2, 9))}
        computed = sum(request["prompt_tokens"] - request["cached_tokens"] for request in requests)
        assert 1000 <= computed <= 1150
        await weft.check_idle()
    play_scenario(scenario, tmp_path, http=True)


def record_held_blocks(scheduler: Any) -> list[int]:
    """Return a list that gets the number of held blocks of the cache with each step from now on."""
    counts, plan, pool = list[int](), scheduler.plan, scheduler.running.block_pool

    def plan_and_record(now: float) -> Any:
        step = plan(now)
        counts.append(pool.num_blocks - pool.num_free)
        return step

    override_methods(scheduler, plan=plan_and_record)
    return counts


def test_choices_hold_few_more_blocks_than_one(tmp_path):
    most_held = []
    async def scenario(weft):
        counts = record_held_blocks(weft.scheduler)
        for num_choices, letter in ((1, "a"), (8, "b")):
            async with weft.http_session.post("/v1/completions", json={
                    "prompt": letter * 1000, "n": num_choices, "max_tokens": 4, "ignore_eos": True}) as answer:
                assert len((await answer.json())["choices"]) == num_choices
            most_held.append(max(counts))
            counts.clear()
            await weft.check_idle()
    play_scenario(scenario, tmp_path, http=True)
    of_one, of_eight = most_held
    assert 63 <= of_one < of_eight <= 1.15 * of_one


def test_log_line_counts_all_prompts_and_choices(tmp_path, caplog):
    async def scenario(weft):
        with caplog.at_level("INFO", "router.http.transport.request_context_and_middleware"):
            async with weft.http_session.post("/v1/completions", json={
                    "prompt": ["x" * 20, "y" * 30], "n": 3, "max_tokens": 4, "ignore_eos": True}) as answer:
                usage = (await answer.json())["usage"]
        [fields] = [record.fields for record in caplog.records if "/v1/completions" in record.message]
        assert (fields["prompts"], fields["choices"]) == (2, 3)
        assert (fields["prompt_tokens"], fields["generated_tokens"]) == (usage["prompt_tokens"],
                                                                         usage["completion_tokens"])
    play_scenario(scenario, tmp_path, http=True)
