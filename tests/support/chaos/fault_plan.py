"""Which fault begins when: drawn from a seed, without I/O.

Faults that end the router are left out of the second half, in which its memory is judged.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

SHARD_STOP_LIMIT_SECONDS = 8.0  # a shard that is stopped for longer is replaced
ROUTER_STOP_LIMIT_SECONDS = 12.0  # a router that is stopped for longer is killed


@dataclass(frozen=True, slots=True)
class FaultKind:
    weight: int
    min_seconds: float = 0.0  # of a fault that lasts
    max_seconds: float = 0.0
    ends_router: bool = False
    stops_steps: bool = False  # no step ends until it is over


FAULT_KINDS: Mapping[str, FaultKind] = {
    "kill shard": FaultKind(3, stops_steps=True),
    "stop shard": FaultKind(3, 0.3, 4.0, stops_steps=True),
    "stop shard for long": FaultKind(1, SHARD_STOP_LIMIT_SECONDS + 2.0, SHARD_STOP_LIMIT_SECONDS + 6.0,
                                     stops_steps=True),
    "slow shard": FaultKind(2, 2.0, 5.0, stops_steps=True),
    "kill router": FaultKind(3, ends_router=True, stops_steps=True),
    "stop router": FaultKind(3, 0.3, 5.0, stops_steps=True),
    "stop router for long": FaultKind(1, ROUTER_STOP_LIMIT_SECONDS + 3.0, ROUTER_STOP_LIMIT_SECONDS + 6.0,
                                      ends_router=True, stops_steps=True),
    "kill compiler": FaultKind(2),
    "stop compiler": FaultKind(1, 0.5, 4.0),
    "kill renderer": FaultKind(2),
    "stop renderer": FaultKind(1, 0.5, 4.0),
    "kill adapter store": FaultKind(2),
    "stop adapter store": FaultKind(1, 0.5, 4.0),
    "full disk": FaultKind(2, 2.0, 6.0),
    "no descriptors": FaultKind(2, 1.0, 4.0),
    "unload adapters": FaultKind(2),
    "drop connections": FaultKind(2),
    "hostile bodies": FaultKind(2),
    "slow clients": FaultKind(1, 3.0, 10.0),
}


@dataclass(frozen=True, slots=True)
class Fault:
    number: int
    at: float  # seconds after the load began
    kind: str
    seconds: float
    choice: int  # a random number, by which the fault picks its victim


def plan_faults(seed: int, seconds: float, interval: float) -> list[Fault]:
    """Return a fault for each interval. Every kind comes before one comes a second time, if there is time for it."""
    random, faults, pending = Random(f"faults {seed}"), [], []
    for number in range(int(seconds / interval)):
        at = (number + random.uniform(0.1, 0.9)) * interval
        allowed = {name for name, kind in FAULT_KINDS.items() if at < seconds / 2 or not kind.ends_router}
        if not allowed & {*pending}:
            pending = random.sample([name for name, kind in FAULT_KINDS.items() for _ in range(kind.weight)],
                                    sum(kind.weight for kind in FAULT_KINDS.values()))
            pending.sort(key=lambda name, seen=set(): name in seen or seen.add(name) is not None)  # type: ignore[misc]
        name = next(name for name in pending if name in allowed)
        pending.remove(name)
        kind = FAULT_KINDS[name]
        faults.append(Fault(number, at, name, random.uniform(kind.min_seconds, kind.max_seconds),
                            random.randrange(2 ** 16)))
    return faults
