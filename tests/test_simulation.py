"""Seeded schedules of the real scheduler with the simulated shard: random settings, clients and faults, and all laws
checked after every event. A failing group of 20 seeds is run alone with `pytest tests/test_simulation.py -k "[START]"`.
"""

import os
import random

import pytest
from support.scheduling.simulated_world import SimulatedClient, SimulatedWorld

from router.config import RouterConfig
from router.request import DEFAULT_TENANT, POOLING_KINDS, LoadableResource, Request, RequestKind, Tenant
from shard.config import SimulatedConfig
from shard.fault_script import ANSWER_DEFECTS, FAULT_KINDS

SEEDS = range(200)
GROUP_SIZE = 20
NUM_QUICK_SEEDS = 40  # the others are for `make test-long`
RARE_FAULT_SEEDS = (45, 55, 63, 109, 118, 121, 131, 140, 166)  # of faults that fire with none of the quick seeds
NUM_LONG_SEEDS = 5000
ADAPTER = LoadableResource("adapter", 1)
ADAPTERS = [ADAPTER, LoadableResource("adapter", 2, max_bytes=10), LoadableResource("adapter", 3, max_bytes=10)]
POISON_TOKEN = 255
FAULT_CALLS = [(kind, verb) for kind, (verbs, *_) in FAULT_KINDS.items() for verb in verbs]
# calls that few schedules have
RARE_FAULT_CALLS = [(kind, verb) for kind, verb in FAULT_CALLS if verb in {"concat", "unload"}]
FAULT_POINTS = {*(f"{kind}@{verb}" for kind, verb in FAULT_CALLS), *(f"wrong:{wrong}" for wrong in ANSWER_DEFECTS),
                f"poison:{POISON_TOKEN}"}
# largest call number in a random fault, by verb; 25 for verbs that are not listed
MAX_CALL_NUMBER_BY_VERB = {"warmup": 1, "reset": 3, "filter": 8, "concat": 1, "load": 2, "unload": 1, "embed": 6}


def make_random_fault(rng):
    kind, verb = rng.choice(FAULT_CALLS + RARE_FAULT_CALLS)
    argument = {"wrong": rng.choice(ANSWER_DEFECTS), "late": "0.3", "slow": "1", "fail_sequence": "2"}.get(kind, "")
    text = f"{kind}@{verb}:{rng.randint(1, MAX_CALL_NUMBER_BY_VERB.get(verb, 25))}"
    return f"{text}:{argument}" if argument else text


def make_random_world(seed, **world_options):
    rng = random.Random(seed)
    config = RouterConfig(
        max_batch_prefill_tokens=rng.choice([32, 64, 256]), max_batch_size=rng.choice([2, 6, 12]),
        max_total_tokens=200, prefill_policy=rng.choice(["mixed", "pause"]), look_ahead=rng.choice([1, 2]),
        max_decode_stall_ms=rng.choice([0, 1, 150]), waiting_served_ratio=rng.choice([0, 0.3, 1.2]),
        max_waiting_tokens=rng.choice([0, 3, 20]), max_active_adapters=rng.choice([1, 2, 3]),
        adapter_cycle_time_s=rng.choice([0.0, 0.2]), batching=rng.choice([*["continuous"] * 4, "static", "none"]),
        static_window_ms=rng.choice([0.0, 200.0]), static_equal_lengths=rng.random() < 0.3,
        recompute=rng.random() < 0.2)
    faults = [make_random_fault(rng) for _ in range(rng.choice([0, 1, 5, 10]))] + [f"poison@{POISON_TOKEN}"]
    pooling_share = rng.choice([0.0, 0.0, 0.3, 0.7, 1.0])  # of pooling requests
    model = SimulatedConfig(
        generation=pooling_share < 1.0, num_labels=5,
        num_blocks=rng.choice([14, 20, 40, 100]), tokens_per_step=rng.choice([1, 1, 1, 3]), max_positions=256,
        mean_output_length=rng.choice([0.0, 50.0]), faults=";".join(faults),
        seconds_per_chunk_token=rng.choice([0.00005, 0.002, 0.02]))  # so that a block is cheaper than a step, or dearer
    world = SimulatedWorld(config, model, seed, draw_noise=lambda r: r.lognormvariate(0, 0.1), **world_options)
    loads_resources = rng.random() < 0.5
    for client in make_random_clients(rng, ADAPTERS if loads_resources else [ADAPTER], pooling_share):
        world.add_client(client)
    if loads_resources:
        world.move_seconds, world.fails_to_load = 0.05, lambda _: world.random.random() < 0.1
    else:
        world.schedule_at(rng.random(), lambda: world.set_resource_present(ADAPTER, present=rng.random() < 0.8))
    return world


def make_random_clients(rng, adapters, pooling_share):
    now, clients, shared_prefixes = 0.0, [], [tuple(rng.randrange(255) for _ in range(90)) for _ in range(2)]
    tenants = rng.choice([[DEFAULT_TENANT], [Tenant("one"), Tenant("three", weight=3.0)]])
    for number in range(20):
        now += rng.choice([0.0, 0.0, 0.01, 0.2, 1.0])
        prompt = tuple(rng.randrange(255) for _ in range(rng.randint(1, 120)))
        if rng.random() < 0.5:
            prompt = rng.choice(shared_prefixes)[:rng.randint(1, 90)] + prompt[:30]
        if rng.random() < 0.02:
            prompt = (*prompt, POISON_TOKEN)
        kind = rng.choice(POOLING_KINDS) if rng.random() < pooling_share else RequestKind.GENERATE
        if kind in POOLING_KINDS:
            prompt = prompt[-rng.choice([30, 30, 120]):]  # prompts too long for one step fail at once
        output = rng.randint(1, 70) if kind is RequestKind.GENERATE else 0
        request = Request(
            str(number), prompt, output, kind=kind, sampling_key=rng.getrandbits(64), end_tokens=frozenset({256}),
            priority=rng.choice([0, 0, 0, 1]), tenant=rng.choice(tenants),
            timeout=rng.random() * 3 if rng.random() < 0.1 else None,
            adapter=rng.choice(adapters) if rng.random() < 0.2 else None)
        leaves_at = now + rng.random() * 3 if rng.random() < 0.2 else None
        stops_after = rng.randint(1, output) if output and rng.random() < 0.3 else None
        clients.append(SimulatedClient(request, now, leaves_at, stops_after))
    return clients


def run_random_world(seed):
    world = make_random_world(seed)
    for client in world.all_clients[::5]:
        world.schedule_at(client.arrives_at + 0.1, lambda client=client: world.pause_client(client, 0.5))
    world.run(max_events=20_000)
    world.check_idle()
    world.check_end_reasons()
    world.check_timelines()
    world.check_replay()
    for client in world.all_clients:
        if client.end_reason.startswith("failed: the step failed"):
            # A sequence that is blamed was alone in a step of the last epoch that it took part in.
            epoch = max(plan.epoch for _, plan in world.sent_plans if client.sequence_id in plan.member_ids)
            assert (client.sequence_id,) in [plan.member_ids for _, plan in world.sent_plans if plan.epoch == epoch]
    return world


FIRED_FAULTS: set[str] = set()


@pytest.mark.parametrize("start", [pytest.param(start, marks=() if start < NUM_QUICK_SEEDS else pytest.mark.long)
                                   for start in range(0, len(SEEDS), GROUP_SIZE)])
@pytest.mark.slow
def test_scheduler_invariants_hold_in_seeded_schedules(start):
    for seed in SEEDS[start:start + GROUP_SIZE]:
        FIRED_FAULTS.update(run_random_world(seed).fired_faults)


@pytest.mark.slow
def test_every_fault_point_fires_in_some_schedule():
    for seed in (*RARE_FAULT_SEEDS, *SEEDS):
        if FIRED_FAULTS >= FAULT_POINTS:
            break
        FIRED_FAULTS.update(run_random_world(seed).fired_faults)
    assert FAULT_POINTS <= FIRED_FAULTS, FAULT_POINTS - FIRED_FAULTS


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_scheduler_invariants_hold_in_thousands_of_random_schedules():
    first = int(os.environ.get("WEFT_SEED", random.SystemRandom().randrange(2**32)))
    for seed in range(first, first + NUM_LONG_SEEDS):
        try:
            run_random_world(seed)
        except BaseException:
            print(f"seed {seed}; again with WEFT_SEED={seed}")
            raise
