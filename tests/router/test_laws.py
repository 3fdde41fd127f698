"""The whole core as a state machine: hypothesis chooses which requests arrive, leave or stop reading, and which calls
fail. The laws of tests/support/scheduling/simulated_world.py are checked after every event; at the end all resources
are free and the run replays.
"""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.scheduling.simulated_world import SimulatedClient, SimulatedWorld

from router.config import RouterConfig
from router.request import DEFAULT_TENANT, LoadableResource, Request, RequestKind, Tenant
from shard.config import SimulatedConfig
from shard.fault_script import parse_fault

CALL_FAULTS = ["die", "hang", "refuse", "step_error"]
STEP_FAULTS = ["slow", "late", "exhaust", "fail_sequence", "wrong:unknown", "wrong:missing", "wrong:token",
               "wrong:count"]
ADAPTERS = [LoadableResource("adapter", 1), LoadableResource("adapter", 2)]

TENANTS = [DEFAULT_TENANT, DEFAULT_TENANT, Tenant("one"), Tenant("three", weight=3.0)]
BATCHING_SETTINGS = st.sampled_from([{}, {}]) | st.fixed_dictionaries({
    "batching": st.sampled_from(["continuous", "static", "none"]), "static_window_ms": st.sampled_from([0.0, 50.0]),
    "static_equal_lengths": st.booleans(), "recompute": st.booleans()})
EXTRA_REQUEST_FIELDS = st.fixed_dictionaries({
    "shared": st.integers(0, 80),  # first tokens of the prompt, which other prompts share
    "tenant": st.sampled_from(TENANTS),
    "timeout": st.sampled_from([None, None, None, 0.01, 0.3]),
    "kind": st.sampled_from([RequestKind.GENERATE, RequestKind.GENERATE, RequestKind.GENERATE, RequestKind.EMBED,
                             RequestKind.CLASSIFY]),
})


class SchedulerMachine(RuleBasedStateMachine):
    """Random requests, clients, resources and faults in a simulated world."""

    @initialize(mixed=st.booleans(), look_ahead=st.sampled_from([1, 2]), tokens_per_step=st.sampled_from([1, 1, 3]),
                num_blocks=st.sampled_from([12, 20, 60]), seed=st.integers(0, 2**16), batching=BATCHING_SETTINGS)
    def create_world(self, mixed, look_ahead, tokens_per_step, num_blocks, seed, batching):  # noqa: PLR0917 - hypothesis names them
        config = RouterConfig(
            max_batch_prefill_tokens=64, max_batch_size=6, max_total_tokens=160, look_ahead=look_ahead,
            prefill_policy="mixed" if mixed else "pause", **batching)
        model = SimulatedConfig(num_blocks=num_blocks, tokens_per_step=tokens_per_step, max_positions=256,
                                mean_output_length=60.0, num_labels=5)
        self.world = SimulatedWorld(config, model, seed)
        self.num_requests = 0

    @rule(prompt=st.integers(1, 100), output=st.integers(1, 60), stop=st.integers(0, 80), priority=st.integers(-1, 1),
          needs=st.sampled_from([None, None, None, *ADAPTERS]), more=EXTRA_REQUEST_FIELDS)
    def submit(self, prompt, output, stop, priority, needs, more):  # noqa: PLR0917 - hypothesis names them
        self.num_requests += 1
        shared = more.pop("shared")
        tokens = tuple((self.num_requests * 7 * (index >= shared) + index) % 256 for index in range(prompt))
        output *= more["kind"] is RequestKind.GENERATE
        request = Request(str(self.num_requests), tokens, output, sampling_key=self.num_requests,
                          end_tokens=frozenset({256}), priority=priority, adapter=needs, **more)
        self.world.add_client(SimulatedClient(request, self.world.now, tokens_until_stop=stop or None))

    @precondition(lambda self: not self.world.has_no_events)
    @rule(steps=st.integers(1, 12))
    def run_steps(self, steps):
        for _ in range(steps):
            if not self.world.has_no_events:
                self.world.run_next_event()

    @precondition(lambda self: self.world.clients)
    @rule(choice=st.integers(0, 1000))
    def cancel_request(self, choice):
        self.world._cancel(self.choose_client(choice))
        self.world.plan_and_check()

    @precondition(lambda self: self.world.clients)
    @rule(choice=st.integers(0, 1000), seconds=st.floats(0, 2))
    def stop_reading(self, choice, seconds):
        self.world.pause_client(self.choose_client(choice), seconds)
        self.world.plan_and_check()

    @precondition(lambda self: self.world.clients)
    @rule(choice=st.integers(0, 1000))
    def stop_reading_forever(self, choice):
        self.world.pause_client(self.choose_client(choice), None)
        self.world.plan_and_check()

    @rule(resource=st.sampled_from(ADAPTERS), present=st.booleans())
    def set_adapter_availability(self, resource, present):
        self.world.set_resource_present(resource, present)
        self.world.plan_and_check()

    @rule(kind=st.sampled_from(CALL_FAULTS), verb=st.sampled_from(["prefill", "decode", "filter", "concat"]),
          soon=st.integers(1, 3))
    def fail_call(self, kind, verb, soon):
        self.inject_fault(kind, verb, soon, "")

    @rule(kind=st.sampled_from(STEP_FAULTS), verb=st.sampled_from(["prefill", "decode"]), soon=st.integers(1, 3))
    def fail_step(self, kind, verb, soon):
        kind, _, argument = kind.partition(":")
        self.inject_fault(kind, verb, soon, argument)

    def inject_fault(self, kind, verb, soon, argument):
        self.world.add_fault(f"{kind}@{verb}:{self.world.worker.faults.num_calls[verb] + soon}"
                             + (f":{argument}" if argument else ""))

    def choose_client(self, choice):
        clients = list(self.world.clients.values())
        return clients[choice % len(clients)]

    @invariant()
    def all_laws_hold(self):
        if hasattr(self, "world"):
            self.world.check_laws()

    def teardown(self):
        if not hasattr(self, "world"):
            return
        for resource in ADAPTERS:
            if not self.world.resource_presence.get(resource):
                self.world.set_resource_present(resource)
                self.world.plan_and_check()
        self.world.run()
        # Only the requests of clients that never read again do not end; they do not keep other requests from ending.
        assert all(client.end_reason is not None or client.is_held_forever for client in self.world.all_clients)
        for client in self.world.all_clients:
            if client.end_reason is None:
                self.world._cancel(client)
        self.world.plan_and_check()
        self.world.run()
        self.world.check_idle()
        self.world.check_end_reasons()
        self.world.check_timelines()
        self.world.check_replay()


SchedulerMachine.TestCase.settings = settings(
    max_examples=40, stateful_step_count=40, deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
TestSchedulerMachine = pytest.mark.slow(SchedulerMachine.TestCase)


@pytest.mark.long
@pytest.mark.timeout(7200)
class TestSchedulerMachineLong(SchedulerMachine.TestCase):
    settings = settings(max_examples=1000, stateful_step_count=80, deadline=None,
                        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])


def test_injected_faults_are_known_to_the_simulated_shard():
    assert {parse_fault(f"{kind}@decode").kind for kind in CALL_FAULTS} == set(CALL_FAULTS)
