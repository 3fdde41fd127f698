"""With speculation a request gets the same tokens and logprobs, to the bit, as without, whatever is guessed."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from llguidance import LLMatcher
from support.checkpoints.small_checkpoints import make_tiny_checkpoint
from support.scheduling.random_schedules import given_random_histories, relaxed_settings
from support.shards.scheduler_with_workers import ScheduledRequest, SchedulerWithWorkers

from router.request import LoadableResource, Request, SamplingParams
from shard.pb import shard_pb2 as pb
from shard.runner.model_runner import ModelRunner
from shard.speculation.draft_planner import MIN_GAIN, DraftPlanner, StepTimePredictor
from shard.speculation.prompt_lookup import PromptLookup

NUM_DRAFT_TOKENS = 4
HARNESS_OPTIONS: dict[str, dict[str, Any]] = {
    "one rank": {},
    "two ranks, a small cache": {"ranks": 2, "num_places": 16 * 16, "max_total_tokens": 200},
    "int8": {"quantize": "int8"},
    "without compiled kernels": {"cpu_isa": "none"},
}


def propose_with_mistakes(lookup: PromptLookup, tokens: list[int], max_tokens: int) -> list[int]:
    """Propose what follows an earlier occurrence of the last token, two times out of three with one wrong token. All
    ranks propose the same."""
    starts = [end for end in range(1, len(tokens)) if tokens[end - 1] == tokens[-1]]
    proposal = tokens[starts[-1]:][:max_tokens] if starts else [3] * max_tokens
    if place := sum(tokens) % 3:
        proposal[place % len(proposal)] ^= 1
    return proposal


def guess_with_mistakes(patch: pytest.MonkeyPatch) -> None:
    """Verify every guess, and make some of them wrong."""
    patch.setattr(PromptLookup, "propose", propose_with_mistakes)
    patch.setattr("shard.speculation.draft_planner.MIN_GAIN", -1.0)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.getbasetemp(), "qwen2")


@pytest.fixture(scope="module", params=HARNESS_OPTIONS)
def harnesses(request: pytest.FixtureRequest,
              checkpoint: Path) -> Iterator[tuple[SchedulerWithWorkers, SchedulerWithWorkers]]:
    """Workers without and with speculation; these verify every guess."""
    options = HARNESS_OPTIONS[request.param]
    with (SchedulerWithWorkers(checkpoint, **options) as plain,
          SchedulerWithWorkers(checkpoint, speculate=NUM_DRAFT_TOKENS, **options) as speculating):
        if not plain.infos[0].exact:
            pytest.skip("the gate found that answers are not exact on this machine")
        verify_all_guesses(speculating)
        speculating.run_alone = plain.run_alone  # type: ignore[method-assign]  # what the outputs are compared with
        yield plain, speculating


def verify_all_guesses(harness: SchedulerWithWorkers) -> None:
    for worker in harness.workers:
        worker._draft_planner = DraftPlanner(NUM_DRAFT_TOKENS, worker.shard_state.limits.max_positions,
                                             StepTimePredictor([]))


@pytest.mark.slow
@settings(relaxed_settings, max_examples=6, derandomize=True)
@given_random_histories
def test_speculation_changes_no_bit_in_random_histories(
        harnesses: tuple[SchedulerWithWorkers, SchedulerWithWorkers], scheduled_requests: list[ScheduledRequest],
        schedule: dict[str, Any], losses: tuple[int, ...]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        guess_with_mistakes(patch)
        harnesses[1].run_and_compare(scheduled_requests, loss_steps=losses, **schedule)


@pytest.mark.long
@pytest.mark.timeout(1200)
@settings(relaxed_settings, max_examples=200)
@given_random_histories
def test_speculation_changes_no_bit_in_many_random_histories(
        harnesses: tuple[SchedulerWithWorkers, SchedulerWithWorkers], scheduled_requests: list[ScheduledRequest],
        schedule: dict[str, Any], losses: tuple[int, ...]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        guess_with_mistakes(patch)
        harnesses[1].run_and_compare(scheduled_requests, loss_steps=losses, **schedule)


class StepCounter:
    """Counts the steps of a worker, and the tokens that they yield."""

    def __init__(self, harness: SchedulerWithWorkers, monkeypatch: pytest.MonkeyPatch) -> None:
        self.num_steps = self.num_tokens = 0
        runner = harness.workers[0]._loaded_model.runner
        run = runner.run

        def run_and_count(*arguments: Any) -> Any:
            outputs = run(*arguments)
            self.num_steps += 1
            self.num_tokens += sum(map(len, outputs.new_tokens.values()))
            return outputs

        monkeypatch.setattr(runner, "run", run_and_count)


def test_repeated_output_takes_fewer_steps(harnesses: tuple[SchedulerWithWorkers, SchedulerWithWorkers],
                                           monkeypatch: pytest.MonkeyPatch) -> None:
    """Two allowed tokens, chosen greedily, repeat before long."""
    request = Request("r", tuple(range(2, 20)), 60, sampling=SamplingParams(allowed_tokens=(40, 41), top_n_tokens=2))
    counter = StepCounter(harnesses[1], monkeypatch)
    [output] = harnesses[1].run_and_compare([ScheduledRequest(request)], look_ahead=1)
    assert len(output.tokens) == 60
    assert counter.num_steps < 30


def test_step_yields_no_token_behind_an_end_token(harnesses: tuple[SchedulerWithWorkers, SchedulerWithWorkers],
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    request = Request("r", (7, 8, 9, 7, 8, 9, 7, 8), 20, end_tokens=frozenset({9}), sampling=SamplingParams(
        allowed_tokens=(9,)))
    counter = StepCounter(harnesses[1], monkeypatch)
    [output] = harnesses[1].run_and_compare([ScheduledRequest(request)], look_ahead=1)
    assert (output.tokens, counter.num_tokens) == ([9], 1)


def test_outputs_with_grammars_are_the_same(harnesses: tuple[SchedulerWithWorkers, SchedulerWithWorkers],
                                            monkeypatch: pytest.MonkeyPatch) -> None:
    grammar = LoadableResource("grammar", 1)
    for harness in harnesses:
        harness.start_next_epoch()
        harness.call_all_ranks("load_resource", pb.LoadRequest(
            kind=pb.KIND_GRAMMAR, id=1, source=LLMatcher.grammar_from_regex(r"(ab|cd){2,9}[0-9]{3}")))
    guess_with_mistakes(monkeypatch)
    rng = random.Random(7)
    requests = [Request(f"r{index}", tuple(rng.choices(range(2, 500), k=9)), 40, sampling_key=index,
                        end_tokens=frozenset({1}), grammar=grammar,
                        sampling=SamplingParams(temperature=index % 2 * 1.5)) for index in range(6)]
    harnesses[1].run_and_compare([ScheduledRequest(request) for request in requests])


def test_time_of_a_recording_is_no_step_s(harnesses: tuple[SchedulerWithWorkers, SchedulerWithWorkers],
                                          monkeypatch: pytest.MonkeyPatch) -> None:
    """A step is recorded once, so the planner must not expect that time of the next ones."""
    worker, now, graph_recording_seconds = harnesses[1].workers[0], 0.0, 0.0
    runner, step_seconds = worker._loaded_model.runner, list[float]()
    run = runner.run

    def run_and_record(*arguments: Any) -> Any:
        nonlocal now, graph_recording_seconds
        now, graph_recording_seconds = now + 5.0, graph_recording_seconds + 4.0
        return run(*arguments)

    monkeypatch.setattr(runner, "run", run_and_record)
    monkeypatch.setattr(ModelRunner, "graph_recording_seconds", property(lambda _: graph_recording_seconds))
    monkeypatch.setattr("shard.workers.decoder.perf_counter", lambda: now)
    monkeypatch.setattr(worker._draft_planner, "record", lambda step, tokens, seconds: step_seconds.append(seconds))
    harnesses[1].run_together([ScheduledRequest(Request("r", (7, 8, 9), 3))])
    assert step_seconds
    assert set(step_seconds) == {1.0}


def test_guess_that_is_not_finite_fails_no_sequence(harnesses: tuple[SchedulerWithWorkers, SchedulerWithWorkers],
                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    """A guessed token whose embedding is NaN changes nothing, now or later, though it was in the cache."""
    speculating = harnesses[1]
    poison = 77
    request = Request("r", tuple(range(2, 20)), 24, sampling=SamplingParams(banned_tokens=(poison,)))
    expected = speculating.run_alone(request)
    assert poison not in expected.tokens
    embeddings = [worker._loaded_model.model.embedding for worker in speculating.workers]
    saved = [embedding.weight[poison].clone() for embedding in embeddings]
    monkeypatch.setattr(PromptLookup, "propose", lambda lookup, tokens, max_tokens: [tokens[-1], poison, poison])
    monkeypatch.setattr("shard.speculation.draft_planner.MIN_GAIN", -1.0)
    try:
        for embedding in embeddings:
            embedding.weight[poison] = float("nan")
        [output] = speculating.run_together([ScheduledRequest(request)])
    finally:
        for embedding, weight in zip(embeddings, saved, strict=True):
            embedding.weight[poison] = weight
    assert output == expected


def test_gain_is_asked_of_every_guess() -> None:
    assert MIN_GAIN > 0  # the tests above patch it
