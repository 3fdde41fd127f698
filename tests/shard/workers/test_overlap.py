"""Steps that start before the previous step's results are known return the same results as steps that waited.

The router's core drives a worker whose steps are replayed without a GPU, by calling the captured functions again.
Results are compared bit by bit, so the tests are skipped where the exactness gate finds this machine inexact.
"""

from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import settings
from support.core_with_workers import METHODS, Loom, Thread
from support.replayable_model import replay_on_cpu
from support.small_checkpoints import tiny_checkpoint

from router.request import Request, SamplingParams
from shard.deferred import Later
from shard.errors import Refused
from shard.pb import shard_pb2 as pb
from shard.runner.cuda_graphs import Begun
from shard.workers import overlap
from tests.shard.histories import plain_histories, relaxed
from tests.shard.messages import Row, decode, filtered, grants, join, keep, prefill

GREEDY = SamplingParams()
DRAWN = SamplingParams(temperature=1.0, top_p=0.9)


@pytest.fixture(scope="module")
def loom(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loom]:
    model = tiny_checkpoint(tmp_path_factory.getbasetemp(), "qwen2")
    with pytest.MonkeyPatch.context() as patch:
        replay_on_cpu(patch)
        with Loom(model) as loom:
            if not loom.infos[0].exact:
                pytest.skip("the gate found that answers are not exact on this machine")
            yield loom


@pytest.fixture(scope="module")
def waiting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loom]:
    """Loom whose worker starts no step before the previous one has ended."""
    with Loom(tiny_checkpoint(tmp_path_factory.getbasetemp(), "qwen2")) as loom:
        yield loom


@pytest.fixture(autouse=True)
def boldness(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the next step start ahead even after a step that had to be rerun."""
    monkeypatch.setattr(overlap, "WAITED_FOR", 0)


@pytest.mark.slow
@settings(relaxed, max_examples=25, derandomize=True)
@plain_histories
def test_company_does_not_matter(loom: Loom, waiting: Loom, woven: list[Thread], schedule: dict[str, Any],
                                 losses: tuple[int, ...]) -> None:
    heard = loom.weave(woven, losses=losses, **schedule)
    assert heard == waiting.weave(woven, losses=losses, **schedule)


@pytest.mark.long
@pytest.mark.timeout(1200)
@settings(relaxed, max_examples=400)
@plain_histories
def test_company_does_not_matter_for_long(loom: Loom, waiting: Loom, woven: list[Thread], schedule: dict[str, Any],
                                          losses: tuple[int, ...]) -> None:
    heard = loom.weave(woven, losses=losses, **schedule)
    assert heard == waiting.weave(woven, losses=losses, **schedule)


@pytest.mark.slow
@settings(relaxed, max_examples=25, derandomize=True)
@plain_histories
def test_nor_does_what_has_to_be_looked_at(loom: Loom, waiting: Loom, woven: list[Thread], schedule: dict[str, Any],
                                           losses: tuple[int, ...]) -> None:
    random, choices = Random(len(woven)), Begun.choices

    def doubtful(self: Begun) -> Any:
        return choices(self) if random.random() < 0.6 else None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Begun, "choices", doubtful)
        heard = loom.weave(woven, losses=losses, **schedule)
    assert heard == waiting.weave(woven, losses=losses, **schedule)


def test_a_step_overwrites_no_block_of_a_sequence_that_ends_with_a_step_under_way(loom: Loom, waiting: Loom) -> None:
    """The step under way may be run again; it once found the keys of another sequence in the block."""
    ending = Request("ending", (196,), 2)
    growing = Request("growing", (196, 311, 235, 392, 225, 461, 69, 165, 399, 245, 103, 148, 338, 11, 180), 3)
    woven, schedule = [Thread(ending, 1), Thread(growing, 1)], {
        "prefill_policy": "mixed", "look_ahead": 2, "max_batch_prefill_tokens": 32, "max_batch_size": 2}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Begun, "choices", lambda _: None)
        heard = loom.weave(woven, **schedule)
    assert heard == waiting.weave(woven, **schedule)


def a_request(number: int, sampling: SamplingParams = GREEDY, length: int = 20, wanted: int = 12) -> Request:
    prompt = torch.randint(2, 512, (length,), generator=torch.Generator().manual_seed(number)).tolist()
    return Request(str(number), tuple(prompt), wanted, key=number, sampling=sampling)


@pytest.mark.parametrize(("look_ahead", "ahead"), [(1, False), (2, True)])
def test_a_step_begins_before_the_last_is_over_if_it_may(loom: Loom, monkeypatch: pytest.MonkeyPatch, look_ahead: int,
                                                         ahead: bool) -> None:
    """A step starts ahead only if the router sends it early, as with a `look_ahead` of 2."""
    depths, worker = [], loom.workers[0]
    decode = type(worker).decode

    def noted(self: Any, request: pb.DecodeRequest) -> Any:
        answer = decode(self, request)
        depths.append(len(self._ahead._steps) if isinstance(answer, Later) else 0)
        return answer

    monkeypatch.setattr(type(worker), "decode", noted)
    requests = [a_request(1), a_request(2, DRAWN), a_request(3, length=33, wanted=20)]
    loom.compare([Thread(request) for request in requests], look_ahead=1)
    depths.clear()
    loom.compare([Thread(request) for request in requests], look_ahead=look_ahead)
    assert set(depths) == ({1, 2} if ahead else {1})


def test_who_asks_for_more_is_waited_for(loom: Loom) -> None:
    threads = [Thread(a_request(1)), Thread(a_request(2, SamplingParams(repetition_penalty=1.2), wanted=5))]
    loom.compare(threads, look_ahead=2)


# ---------------------------------------------------------------------------------------------------------------------
# Message by message


class Story:
    """A batch of one worker whose decode steps all start before the previous one has ended."""

    def __init__(self, loom: Loom, *rows: Row) -> None:
        self.loom, self.worker = loom, loom.workers[0]
        loom.next_epoch()
        self._order = 1
        loom.say(prefill(1, *rows), 1)

    def send(self, message: Any) -> Any:
        self._order += 1
        message.epoch, message.order = self.loom._epoch, self._order
        return self.loom.everywhere(METHODS[type(message)], message)[0]

    def hear(self, answer: Any) -> tuple[dict[int, int], dict[int, int]]:
        """Return tokens and failures by sequence."""
        told = self.loom.ended(answer)
        return (dict(zip(told.sequences, told.tokens, strict=True)),
                dict(zip(told.failed, told.failures, strict=True)))

    def spoil(self, number: int) -> None:
        """Overwrite the values that a sequence has in the cache with NaN."""
        cache, sequence = self.worker._cache, self.worker.ledger.sequences[number]
        for rows in cache.values:
            rows[cache.slots(sequence.blocks, 0, len(sequence.tokens) - 1)] = torch.nan

    @property
    def spoiled(self) -> set[int]:
        """Blocks that hold a non-finite value."""
        cache = self.worker._cache
        return {block for rows in cache.values for block in range(cache.num_blocks)
                if not rows[cache.slots([block], 0, cache.block_size)].isfinite().all()}


PROMPTS = {number: torch.randint(2, 512, (15,), generator=torch.Generator().manual_seed(number)).tolist()
           for number in (1, 2, 3)}
ROWS = [Row(number, tokens, [2 * number, 2 * number + 1]) for number, tokens in PROMPTS.items()]


def test_a_sequence_that_fails_fails_alone_and_leaves_nothing(loom: Loom) -> None:
    """The failing step fills a block; the next step has already started with the sequence, in another block."""
    story = Story(loom, *ROWS)
    expected = [story.hear(story.send(decode(1)))[0] for _ in range(3)]
    story = Story(loom, *ROWS)
    story.spoil(2)
    first, second = story.send(decode(1)), story.send(decode(1))
    for number, answer in enumerate((first, second)):
        tokens, failures = story.hear(answer)
        assert tokens == {one: expected[number][one] for one in (1, 3)}
        assert failures == {2: pb.NON_FINITE}
    assert story.hear(story.send(decode(1)))[0] == {one: expected[2][one] for one in (1, 3)}
    assert not story.spoiled
    assert list(loom.workers[0].ledger.blocks.full[2:7:2]) == [True, False, True]


def test_so_it_does_in_a_step_that_had_to_wait(loom: Loom) -> None:
    """The second step waits because a sequence joins that needs more than the device samples."""
    story = Story(loom, *ROWS)
    story.send(prefill(2, Row(9, [7] * 4, [9], top=2)))
    story.spoil(2)
    first, second = story.send(decode(1)), story.send(decode(1, join=join(2)))
    for answer, others in ((first, {1, 3}), (second, {1, 3, 9})):
        tokens, failures = story.hear(answer)
        assert (set(tokens), failures) == (others, {2: pb.NON_FINITE})


def test_blocks_of_one_that_left_meanwhile_are_another_s(loom: Loom) -> None:
    """The leaving sequence's block was just filled; the result is the same whether the running step is rerun or not."""
    rows = [Row(1, PROMPTS[1], [2]), Row(2, [*PROMPTS[2], 7], [4, 5])]

    def told(*, anew: bool) -> Any:
        story, heard = Story(loom, *rows), []
        with pytest.MonkeyPatch.context() as patch:
            if anew:
                patch.setattr(Begun, "choices", lambda _: None)
            first = story.send(decode(1))  # fills block 2
            second = story.send(decode(1, keep=keep(2), grants=grants(s2=[2])))
            full = loom.workers[0].ledger.blocks.full[2]
            heard = [story.hear(first), story.hear(second)]
            for _ in range(14):
                heard.append(story.hear(story.send(decode(1))))
            third, fourth = story.send(decode(1)), story.send(decode(1))
            heard += [story.hear(third), story.hear(fourth)]
        blocks = loom.workers[0].ledger.blocks
        return full, heard, list(blocks.full[:6]), list(blocks.num_holders[:6])

    assert told(anew=False) == told(anew=True)
    assert not told(anew=True)[0]


@pytest.mark.parametrize("anew", [False, True])
def test_who_has_no_room_for_another_token_says_the_last_one_before(
        loom: Loom, monkeypatch: pytest.MonkeyPatch, anew: bool) -> None:
    """NO_ROOM is the answer of the next step, which starts while the step with the last token is still running."""
    ledger = loom.workers[0].ledger
    monkeypatch.setattr(ledger, "limits", replace(ledger.limits, max_positions=16))
    story = Story(loom, Row(1, [5] * 15, [0, 1]), Row(2, [6] * 9, [2, 3]))
    if anew:
        monkeypatch.setattr(Begun, "choices", lambda _: None)
    first, second = story.send(decode(1)), story.send(decode(1))
    tokens, failures = story.hear(first)
    assert (set(tokens), failures) == ({1, 2}, {})
    tokens, failures = story.hear(second)
    assert (set(tokens), failures) == ({2}, {1: pb.NO_ROOM})
    assert list(ledger.blocks.full[:4]) == [True, False, False, False]


def test_where_many_steps_are_run_anew_some_are_waited_for(loom: Loom, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlap, "WAITED_FOR", 2)
    monkeypatch.setattr(overlap, "BORNE", -1.0)
    story = Story(loom, *ROWS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Begun, "choices", lambda _: None)
        story.hear(story.send(decode(1)))
    assert [isinstance(story.send(decode(1)), Later) for _ in range(3)] == [False, False, True]


@pytest.mark.parametrize(("every", "least", "most"), [(2, 0.9, 1.0), (8, 0.7, 0.9), (50, 0, 0), (10**9, 0, 0)])
def test_a_few_steps_that_are_run_anew_are_borne_with(
        monkeypatch: pytest.MonkeyPatch, every: int, least: float, most: float) -> None:
    """Of 1,000 steps that start ahead, one in `every` is rerun; checks the share of steps that wait instead."""
    monkeypatch.setattr(overlap, "WAITED_FOR", 32)
    caution, begun, waited = overlap.Caution(), 0, 0
    while begun < 1000:
        if caution.waits():
            waited += 1
        else:
            begun += 1
            caution.ended(well=begun % every > 0)
    assert least <= waited / (begun + waited) <= most


def test_a_filter_of_its_own_waits(loom: Loom) -> None:
    story = Story(loom, *ROWS)
    first = story.send(decode(1))
    story.send(filtered(1, 1, 3))
    assert first.answer.done()
    assert set(story.hear(story.send(decode(1)))[0]) == {1, 3}


def test_a_refused_message_changes_nothing_of_what_is_under_way(loom: Loom) -> None:
    story = Story(loom, *ROWS)
    expected = [story.hear(story.send(decode(1)))[0] for _ in range(2)]
    story = Story(loom, *ROWS)
    first = story.send(decode(1))
    with pytest.raises(Refused, match="no sequence of batch 9 is ready"):
        story.send(decode(9))
    assert story.hear(first)[0] == expected[0]
    assert story.hear(story.send(decode(1)))[0] == expected[1]


def test_what_fails_is_told_to_all_who_are_under_way(loom: Loom, monkeypatch: pytest.MonkeyPatch) -> None:
    story = Story(loom, *ROWS)
    first, second = story.send(decode(1)), story.send(decode(1))
    monkeypatch.setattr(Begun, "choices", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        story.send(decode(1))
    for answer in (first, second):
        with pytest.raises(ZeroDivisionError):
            story.hear(answer)
    monkeypatch.undo()
    story = Story(loom, *ROWS)
    assert set(story.hear(story.send(decode(1)))[0]) == {1, 2, 3}


