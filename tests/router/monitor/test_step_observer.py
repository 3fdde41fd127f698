"""Observer of answered plans: its steps beside the plans sent, the shard's own state, and what clients got."""

import random
from collections import Counter
from functools import cache

import pytest
from support.scheduling.simulated_world import SimulatedClient, SimulatedWorld

from router.config import RouterConfig
from router.monitor.batch_lanes import LaneChanges
from router.monitor.step_observer import StepObserver
from router.request import FinishReason, Request, RequestKind, Tenant
from router.scheduler.events import SequenceFinished
from router.scheduler.shard_messages import Decode, PoolingStep, Prefill
from shard.config import SimulatedConfig

NUM_CLIENTS = 15
FINISH_REASONS = {str(reason) for reason in FinishReason}
LOOK_AHEAD = {"look_ahead": 2}
WORLDS = {
    "mixed": {}, "a step ahead": LOOK_AHEAD, "pause": {"prefill_policy": "pause", **LOOK_AHEAD},
    "static": {"batching": "static", **LOOK_AHEAD}, "none": {"batching": "none"}, "recompute": {"recompute": True},
    "pooling": {"pooling_share": 0.4, **LOOK_AHEAD}, "several tokens": {"tokens_per_step": 3, **LOOK_AHEAD},
    "death": {"faults": "die@decode:20", **LOOK_AHEAD}, "refusal": {"faults": "refuse@prefill:9", **LOOK_AHEAD}}


class ObservedWorld(SimulatedWorld):
    """World whose scheduler is observed, from the beginning or from `attach` on."""

    observer: StepObserver | None = None

    def __init__(self, *args, **options):
        self.members_after = {}  # by the identity of a plan: the sequences that the shard has after it
        self.steps = []  # with the plan of each
        super().__init__(*args, **options)

    def attach(self):
        self.observer = StepObserver(self.scheduler, [plan for plan, _ in self._waiting_answers])

    def _send(self, plan):
        super()._send(plan)
        self.members_after[id(plan)] = {*self.worker.shard_state.sequences}

    def _complete_plan(self, plan, message, seconds):
        self._completing = plan
        return super()._complete_plan(plan, message, seconds)

    def _call_scheduler(self, name, *args):
        result = super()._call_scheduler(name, *args)
        if self.observer is None or name not in {"complete_step", "on_shards_lost"}:
            return result
        if name == "complete_step":
            self.observer.record_answered_step(self._completing, result, answered_at=self.now, seconds=args[1].seconds,
                                               wall_seconds=args[1].seconds)
            steps = self.observer.take_observed_steps()
            self.check_lanes(self._completing)
            self.steps += [(self._completing, step) for step in steps]
        else:
            self.observer.record_shard_loss(result, self.now)
            self.steps += [(None, step) for step in self.observer.take_observed_steps()]
        return result

    def check_lanes(self, plan):
        """Assert that sequences have lanes of their own as long as the shard has them in a batch."""
        lanes = self.observer._lanes.lane_by_id
        pooled = {*plan.member_ids} if isinstance(plan.messages[-1], PoolingStep) else set()
        assert {*lanes} >= self.members_after[id(plan)] | pooled
        assert {*lanes} <= self.members_after[id(plan)] | {*plan.member_ids}
        assert len({*lanes.values()}) == len(lanes)


def make_world(seed, *, pooling_share=0.0, num_blocks=24, faults="", tokens_per_step=1, attached=True, **settings):
    rng = random.Random(seed)
    config = RouterConfig(max_batch_size=6, max_batch_prefill_tokens=64, max_total_tokens=200, **settings)
    model = SimulatedConfig(num_blocks=num_blocks, max_positions=256, num_labels=5, faults=faults,
                            tokens_per_step=tokens_per_step, mean_output_length=30.0)
    world = ObservedWorld(config, model, seed)
    for number in range(NUM_CLIENTS):
        kind = RequestKind.EMBED if rng.random() < pooling_share else RequestKind.GENERATE
        prompt = tuple(rng.randrange(255) for _ in range(rng.randint(1, 60 if kind is RequestKind.EMBED else 110)))
        arrives_at = rng.random() * 0.5
        request = Request(f"{number}", prompt, rng.randint(1, 60) if kind is RequestKind.GENERATE else 0, kind=kind,
                          sampling_key=number, end_tokens=frozenset({256}), tenant=Tenant(rng.choice("ab")))
        world.add_client(SimulatedClient(request, arrives_at,
                                         arrives_at + rng.random() if rng.random() < 0.2 else None,
                                         rng.randint(1, 20) if rng.random() < 0.3 else None))
    for client in world.all_clients[::6]:
        world.schedule_at(client.arrives_at + 0.1, lambda client=client: world.pause_client(client, 0.2))
    if attached:
        world.attach()
    return world


@cache
def run_world(name, seed=0):
    world = make_world(seed, **WORLDS[name])
    world.run()
    return world


SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 8))]


def list_planned_rows(plan):
    """Return what the plan's messages say of the rows, without lanes and the numbers of decoded tokens."""
    step = plan.messages[-1]
    if isinstance(step, PoolingStep):
        return [(new.sequence_id, len(new.request.prompt), "e") for new in step.new_sequences]
    lengths = {chunk.sequence_id: chunk.length for chunk in step.chunks} if isinstance(step, Prefill) else {}
    return [(number, lengths.get(number), "d" if number not in lengths else "f" if number in plan.output_ids else "p")
            for number in plan.member_ids]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", WORLDS)
def test_steps_are_those_that_were_planned_and_tokens_those_that_clients_got(name, seed):
    world = run_world(name, seed)
    computed = [(plan, step) for plan, step in world.steps if step.rows]
    assert len(computed) == len(world.answered_plans) > 30
    for number, ((plan, step), (answered_plan, seconds)) in enumerate(zip(computed, world.answered_plans, strict=True)):
        assert plan is answered_plan
        assert (step.number, step.epoch, step.message_number) == (number + 1, plan.epoch, plan.last_message_number)
        assert step.seconds == seconds
        assert [(sequence, tokens if kind != "d" else None, kind) for _, sequence, tokens, kind in step.rows
                ] == list_planned_rows(plan)
        assert len({lane for lane, *_ in step.rows}) == len(step.rows) <= step.num_running
    if name not in {"recompute", "several tokens"}:  # there a row of a prompt may also be one of other tokens
        tokens = Counter()
        for _, step in computed:
            for _, sequence, count, kind in step.rows:
                tokens[sequence] += count if kind == "d" else kind == "f"
        assert [(tokens[number], len(client.tokens)) for number, client in world.clients.items()
                if client.end_reason in FINISH_REASONS and tokens[number] != len(client.tokens)] == []


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", WORLDS)
def test_every_admission_ends_once_by_an_end_or_a_preemption_or_a_cancellation(name, seed):
    world = run_world(name, seed)
    lanes = {}
    endings = Counter()
    for _, step in world.steps:
        for lane, sequence in (*step.preempted, *step.cancelled):
            assert lanes.pop(sequence) == lane
            endings["preempted" if (lane, sequence) in step.preempted else "cancelled"] += 1
        for lane, sequence in step.admitted:
            assert sequence not in lanes
            lanes[sequence] = lane
        assert all(lanes.get(sequence) == lane for lane, sequence, count, kind in step.rows if kind != "d" or count)
        for lane, sequence, reason in step.finished:
            assert lanes.pop(sequence) == lane
            client = world.clients[sequence]
            assert (client.end_reason if reason in FINISH_REASONS else client.end_reason[:6]) == reason
            endings[reason] += 1
    assert lanes == {}
    ended = Counter(client.end_reason for client in world.clients.values())
    assert all(endings[str(reason)] == ended[str(reason)] for reason in (FinishReason.LENGTH, FinishReason.END_TOKEN,
                                                                        FinishReason.STOP_STRING))
    assert endings["cancelled"] <= ended["left"]


def test_lane_is_kept_until_the_shard_drops_the_sequence():
    """Its end is not foreseen with a stop string, so that the step after it is computed in vain."""
    assert [sequence for _, step in run_world("a step ahead").steps for _, sequence, count, kind in step.rows
            if kind == "d" and not count]


@pytest.mark.parametrize("name", ["a step ahead", *(pytest.param(name, marks=pytest.mark.long)
                                                    for name in ("mixed", "pause", "recompute", "pooling"))])
def test_observer_that_begins_among_steps_in_flight_sees_the_same_as_an_earlier_one(name):
    earlier, later = make_world(3, **WORLDS[name]), make_world(3, attached=False, **WORLDS[name])
    later.schedule_at(0.4, later.attach)
    earlier.schedule_at(0.4, lambda: None)
    earlier.run()
    later.run()

    def strip_lanes(steps):
        return [([row[1:] for row in step.rows], sorted(end[1:] for end in step.finished),
                 sorted(sequence for _, sequence in step.cancelled + step.preempted)) for step in steps]

    missed = len(earlier.steps) - len(later.steps)
    assert missed > 5
    steps = [step for _, step in later.steps]
    # An end that was seen before is no end of the first step seen.
    assert strip_lanes(steps)[1:] == strip_lanes([step for _, step in earlier.steps])[missed + 1:]


def test_shards_lost_empty_every_lane():
    world = run_world("death")
    [lost] = [index for index, (_, step) in enumerate(world.steps) if step.kind == "lost"]
    step_before, step, step_after = (world.steps[index][1] for index in (lost - 1, lost, lost + 1))
    assert step.preempted
    assert step.number == step_before.number
    assert {sequence for _, sequence in step_after.admitted} == {sequence for _, sequence, *_ in step_after.rows}


def test_kinds_of_steps():
    world = run_world("pooling")
    for plan, step in world.steps:
        match plan.messages[-1]:
            case Prefill(includes_decodes=True):
                assert step.kind == "mixed"
            case Prefill():
                assert step.kind == "prefill"
            case Decode():
                assert step.kind == "decode"
            case PoolingStep():
                assert step.kind == "pooling"
            case _:
                assert (step.kind, step.rows) == ("idle", [])
    assert {step.kind for _, step in world.steps} >= {"mixed", "prefill", "decode", "pooling"}


def test_facts_of_sequences_are_those_of_their_requests():
    world = run_world("mixed")
    for number, observed in world.observer.sequences.items():
        client = world.clients[number]
        assert (observed.request_id, observed.tenant_name, observed.num_prompt_tokens, observed.num_output_tokens) == (
            client.request.id, client.request.tenant.name, len(client.request.prompt), len(client.tokens))
        assert observed.submitted_at == pytest.approx(client.arrives_at)
    known = {*world.observer.sequences}
    world.observer.drop_sequences_before(world.observer.num_steps)
    assert {*world.observer.sequences} < known


def test_notes_make_no_use_of_what_happens_later():
    """Notes that are read once at the end say the same as when they are read after each step."""
    eager = make_world(4, look_ahead=2)
    lazy = make_world(4, look_ahead=2)
    lazy.check_lanes = lambda _: None
    observe, lazy.observer.take_observed_steps = lazy.observer.take_observed_steps, list
    eager.run()
    lazy.run()

    def strip_reasons(step):
        return (step.number, step.rows, step.admitted, step.finished, sorted(step.preempted + step.cancelled),
                step.num_waiting, step.num_blocks_used)

    assert [*map(strip_reasons, observe())] == [strip_reasons(step) for _, step in eager.steps]


def test_finished_event_of_a_sequence_without_a_lane_is_ignored():
    observer = make_world(0).observer
    assert observer._collect_finished([SequenceFinished(99, FinishReason.TIMEOUT)]) == []
    assert observer.take_observed_steps() == []
    assert LaneChanges() == LaneChanges([], [])
