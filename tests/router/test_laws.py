"""The whole core as a state machine: hypothesis chooses which requests arrive, leave or stop reading, and which calls
fail. The laws of tests/support/simulated_world.py are checked after every event; at the end all resources are free
and the run replays.
"""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.simulated_world import Client, World

from router.config import RouterConfig
from router.request import ANYONE, Request, Resource, Tenant, Wish
from shard.config import SimulatedConfig
from shard.simulator.faults import parse_fault

FAULTS = ["die", "hang", "refuse", "step_error"]
STEP_FAULTS = ["slow", "late", "exhaust", "fail_sequence", "wrong:unknown", "wrong:missing", "wrong:token",
               "wrong:count"]
ADAPTERS = [Resource("adapter", 1), Resource("adapter", 2)]

TENANTS = [ANYONE, ANYONE, Tenant("one"), Tenant("three", weight=3.0)]
BATCHING = st.sampled_from([{}, {}]) | st.fixed_dictionaries({
    "batching": st.sampled_from(["continuous", "static", "none"]), "static_window_ms": st.sampled_from([0.0, 50.0]),
    "static_equal_lengths": st.booleans(), "recompute": st.booleans()})
MORE = st.fixed_dictionaries({
    "shared": st.integers(0, 80),  # first tokens of the prompt, which other prompts share
    "tenant": st.sampled_from(TENANTS),
    "timeout": st.sampled_from([None, None, None, 0.01, 0.3]),
    "wish": st.sampled_from([Wish.TEXT, Wish.TEXT, Wish.TEXT, Wish.VECTOR, Wish.LABELS]),
})


class CoreMachine(RuleBasedStateMachine):
    """Random requests, clients, resources and faults in a simulated world."""

    @initialize(mixed=st.booleans(), look_ahead=st.sampled_from([1, 2]), tokens_per_step=st.sampled_from([1, 1, 3]),
                num_blocks=st.sampled_from([12, 20, 60]), seed=st.integers(0, 2**16), batching=BATCHING)
    def build(self, mixed, look_ahead, tokens_per_step, num_blocks, seed, batching):  # noqa: PLR0917 - hypothesis names them
        config = RouterConfig(
            max_batch_prefill_tokens=64, max_batch_size=6, max_total_tokens=160, look_ahead=look_ahead,
            prefill_policy="mixed" if mixed else "pause", **batching)
        model = SimulatedConfig(num_blocks=num_blocks, tokens_per_step=tokens_per_step, max_positions=256,
                                mean_output_length=60.0, num_labels=5)
        self.world = World(config, model, seed)
        self.number = 0

    @rule(prompt=st.integers(1, 100), output=st.integers(1, 60), stop=st.integers(0, 80), priority=st.integers(-1, 1),
          needs=st.sampled_from([None, None, None, *ADAPTERS]), more=MORE)
    def submit(self, prompt, output, stop, priority, needs, more):  # noqa: PLR0917 - hypothesis names them
        self.number += 1
        shared = more.pop("shared")
        tokens = tuple((self.number * 7 * (index >= shared) + index) % 256 for index in range(prompt))
        output *= more["wish"] is Wish.TEXT
        request = Request(str(self.number), tokens, output, key=self.number, end_tokens=frozenset({256}),
                          priority=priority, adapter=needs, **more)
        self.world.add(Client(request, self.world.now, stops_after=stop or None))

    @precondition(lambda self: not self.world.is_at_rest)
    @rule(steps=st.integers(1, 12))
    def go_on(self, steps):
        for _ in range(steps):
            if not self.world.is_at_rest:
                self.world.step()

    @precondition(lambda self: self.world.clients)
    @rule(which=st.integers(0, 1000))
    def leave(self, which):
        self.world._leave(self.a_client(which))
        self.world.settle()

    @precondition(lambda self: self.world.clients)
    @rule(which=st.integers(0, 1000), seconds=st.floats(0, 2))
    def stop_reading(self, which, seconds):
        self.world.hold(self.a_client(which), seconds)
        self.world.settle()

    @precondition(lambda self: self.world.clients)
    @rule(which=st.integers(0, 1000))
    def never_read_again(self, which):
        self.world.hold(self.a_client(which), None)
        self.world.settle()

    @rule(resource=st.sampled_from(ADAPTERS), present=st.booleans())
    def provide(self, resource, present):
        self.world.provide(resource, present)
        self.world.settle()

    @rule(kind=st.sampled_from(FAULTS), verb=st.sampled_from(["prefill", "decode", "filter", "concat"]),
          soon=st.integers(1, 3))
    def break_a_call(self, kind, verb, soon):
        self.strike(kind, verb, soon, "")

    @rule(kind=st.sampled_from(STEP_FAULTS), verb=st.sampled_from(["prefill", "decode"]), soon=st.integers(1, 3))
    def break_a_step(self, kind, verb, soon):
        kind, _, argument = kind.partition(":")
        self.strike(kind, verb, soon, argument)

    def strike(self, kind, verb, soon, argument):
        self.world.strike(f"{kind}@{verb}:{self.world.worker.faults.calls[verb] + soon}"
                          + (f":{argument}" if argument else ""))

    def a_client(self, which):
        clients = list(self.world.clients.values())
        return clients[which % len(clients)]

    @invariant()
    def laws(self):
        if hasattr(self, "world"):
            self.world.check_laws()

    def teardown(self):
        if not hasattr(self, "world"):
            return
        for resource in ADAPTERS:
            if not self.world.resources.get(resource):
                self.world.provide(resource)
                self.world.settle()
        self.world.run()
        # Only clients that never read again have no end, and they do not keep others from theirs.
        assert all(client.end is not None or client.held_for_ever for client in self.world.everyone)
        for client in self.world.everyone:
            if client.end is None:
                self.world._leave(client)
        self.world.settle()
        self.world.run()
        self.world.check_idle()
        self.world.check_ends()
        self.world.check_stories()
        self.world.check_replay()


CoreMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
TestCore = pytest.mark.slow(CoreMachine.TestCase)


@pytest.mark.long
@pytest.mark.timeout(7200)
class TestCoreLong(CoreMachine.TestCase):
    settings = settings(max_examples=1000, stateful_step_count=80, deadline=None,
                        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])


def test_the_faults_of_the_machine_are_faults_of_the_shard():
    assert {parse_fault(f"{kind}@decode").kind for kind in FAULTS} == set(FAULTS)
