import json
import random
from collections import Counter
from typing import Any

import pytest

from launcher.ray_serve.affinity import LOAD_SLACK, AffinityKey, AffinityTable, make_affinity_key

LONG_PROMPT = "Once upon a time there was a fox. " * 40
IDLE = {"a": 0, "b": 0, "c": 0}


def make_key(**fields: Any) -> AffinityKey:
    return make_affinity_key(json.dumps(fields).encode(), ("org/name", "qwen"))


@pytest.mark.parametrize("fields", [
    {"inputs": LONG_PROMPT}, {"prompt": LONG_PROMPT}, {"input": LONG_PROMPT}, {"prompt": [1] * 500},
    {"messages": [{"role": "user", "content": LONG_PROMPT}]},
    {"system": LONG_PROMPT, "messages": [{"role": "user", "content": "hi"}]},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": LONG_PROMPT}]}]}])
def test_prompt_of_every_dialect_has_a_key(fields: dict[str, Any]) -> None:
    assert make_key(**fields).is_generation
    assert len(make_key(**fields).digests) >= 3


@pytest.mark.parametrize("body", [
    b"", b"no JSON", b"[1]", b'{"inputs"', b'{"adapter_id": "x"}', b'{"inputs": ""}', b"\xff{}"])
def test_body_without_a_prompt_has_no_key(body: bytes) -> None:
    assert make_affinity_key(body) == AffinityKey()


def test_prompts_with_a_common_beginning_share_their_first_digests() -> None:
    one, other = make_key(inputs=LONG_PROMPT + "The end. " * 200), make_key(inputs=LONG_PROMPT + "No end. " * 200)
    assert one.digests[:3] == other.digests[:3]
    assert one.digests[-1] != other.digests[-1]


def test_next_turn_of_a_chat_shares_its_history() -> None:
    history = [{"role": "user", "content": LONG_PROMPT}]
    first = make_key(messages=history, temperature=0.5)
    second = make_key(messages=[*history, {"role": "assistant", "content": "Yes."}], temperature=1.0)
    assert second.digests[:len(first.digests)] == first.digests


@pytest.mark.parametrize("name", ["", "tgi", "org/name", "qwen", "__base_model__"])
def test_base_model_is_no_adapter(name: str) -> None:
    assert make_key(inputs=LONG_PROMPT, model=name) == make_key(inputs=LONG_PROMPT)


@pytest.mark.parametrize("fields", [
    {"model": "pirate"}, {"adapter_id": "pirate"}, {"parameters": {"adapter_id": "pirate"}}])
def test_adapter_comes_first_and_separates_prompts(fields: dict[str, Any]) -> None:
    key, base = make_key(inputs=LONG_PROMPT, **fields), make_key(inputs=LONG_PROMPT)
    assert key.shares[0] == 1.0
    assert not set(key.digests) & set(base.digests)
    assert key.digests[0] == make_key(inputs="hi", **fields).digests[0]


def test_salt_separates_prompts() -> None:
    keys = [make_key(inputs=LONG_PROMPT), make_key(inputs=LONG_PROMPT, cache_salt="x"),
            make_key(inputs=LONG_PROMPT, parameters={"cache_salt": "y"})]
    assert len({key.digests[0] for key in keys}) == 3


def test_same_prompt_goes_to_the_same_replica() -> None:
    table = AffinityTable()
    chosen = {table.choose(make_key(inputs=LONG_PROMPT + str(number)), {**IDLE, "b": 3}) for number in range(20)}
    assert len(chosen) == 1


def test_processes_of_the_ingress_agree_on_a_new_prompt() -> None:
    keys = [make_key(inputs=f"{number}{LONG_PROMPT}") for number in range(100)]
    choices = [[AffinityTable().choose(key, IDLE) for key in keys] for _ in range(2)]
    assert choices[0] == choices[1]
    assert min(Counter(choices[0]).values()) > 15


def test_busy_replica_gives_its_prompt_to_another_and_both_are_known() -> None:
    table, key = AffinityTable(), make_key(inputs=LONG_PROMPT)
    first = table.choose(key, IDLE)
    second = table.choose(key, {**IDLE, first: 50})
    assert second != first
    assert table.choose(key, {**IDLE, first: 2, second: 1}) == second
    assert table.choose(key, {**IDLE, first: 0, second: 1}) == first


def test_load_of_a_replica_is_bounded() -> None:
    table, key, loads = AffinityTable(), make_key(inputs=LONG_PROMPT), dict(IDLE)
    for _ in range(300):
        loads[table.choose(key, loads)] += 1
    assert max(loads.values()) <= 1.25 * sum(loads.values()) / 3 + LOAD_SLACK + 1


def test_short_common_beginning_does_not_draw_requests_together() -> None:
    table = AffinityTable()
    system = "You are a helpful assistant. " * 5
    loads = dict(IDLE)
    for number in range(6):
        loads[table.choose(make_key(inputs=system + f"{number} " * 2_000), loads)] += 1
    assert loads == {"a": 2, "b": 2, "c": 2}


def test_adapter_stays_on_its_replica_whatever_the_prompt() -> None:
    table, generator = AffinityTable(), random.Random(1)
    homes: dict[str, set[str]] = {}
    for _ in range(500):
        adapter = f"adapter-{generator.randrange(20)}"
        key = make_key(inputs=f"{generator.random()} {LONG_PROMPT}", model=adapter)
        homes.setdefault(adapter, set()).add(table.choose(key, IDLE))
    assert all(len(replicas) == 1 for replicas in homes.values())


def test_prompt_of_a_replica_that_is_gone_finds_another() -> None:
    table, key = AffinityTable(), make_key(inputs=LONG_PROMPT)
    gone = table.choose(key, IDLE)
    assert table.choose(key, {name: 0 for name in IDLE if name != gone}) != gone


def test_request_without_a_key_goes_to_the_least_loaded() -> None:
    assert AffinityTable().choose(AffinityKey(), {"a": 2, "b": 1, "c": 2}) == "b"


def test_table_forgets_what_was_not_seen_for_longest() -> None:
    table = AffinityTable(max_entries=2)
    keys = [AffinityKey((bytes([number]),), (1.0,), is_generation=True) for number in range(3)]
    for key, replica in zip(keys, "abc", strict=True):
        table.choose(key, {name: int(name != replica) for name in "abc"})
    assert list(table._holders) == [keys[1].digests[0], keys[2].digests[0]]
