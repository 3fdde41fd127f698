"""The real scheduler and the simulated shard under a virtual clock, with seeded faults; all laws are checked after
every event. There is no asyncio, no gRPC, no real time: thousands of schedules run in a minute and a seed replays
exactly.
"""

import heapq
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from types import SimpleNamespace
from typing import Any

from support.waiting_laws import Waits

from router.block_hash import block_hashes, namespace
from router.config import RouterConfig
from router.request import EMBEDDED, FinishReason, Request, Resource, Wish
from router.scheduler.events import Entered, Expired, Failed, Finished, Produced, Refused
from router.scheduler.fault_isolation import Loss
from router.scheduler.plan import Answer, Bring, Embed, Labelling, ModelFacts, Plan, Remove, Told
from router.scheduler.scheduler import Scheduler
from router.scheduler.sequence import State
from router.scheduler.settings import Policy
from router.shards import decode as told
from router.shards import encode
from shard.config import ShardConfig, SimulatedConfig
from shard.errors import Exhausted
from shard.pb import shard_pb2 as pb
from shard.simulator.faults import Faults
from shard.simulator.text import Tale, labels_of, vector_of
from shard.simulator.worker import FOREVER, SimulatedWorker, StepError
from shard.state.columns import Text
from shard.state.ledger import Malformed
from shard.state.ledger import Refused as ShardRefused

HANG_TIMEOUT = 5.0
KINDS = {"adapter": pb.KIND_ADAPTER, "grammar": pb.KIND_GRAMMAR}
METHODS = {pb.PrefillRequest: "prefill", pb.DecodeRequest: "decode", pb.FilterRequest: "filter",
           pb.ConcatRequest: "concat", pb.EmbedRequest: "embed"}


class Died(Exception):
    pass


class Hung(Exception):
    pass


def die() -> None:
    raise Died


def sleep(seconds: float) -> None:
    if seconds == FOREVER:
        raise Hung


@dataclass(slots=True)
class Client:
    """A request and the behaviour of its client."""

    request: Request
    arrival: float
    leaves_at: float | None = None
    stops_after: int | None = None  # tokens after which a stop string is found in the text
    held_for_ever: bool = False
    number: int | None = None
    tokens: list[int] = field(default_factory=list)
    told: Told | None = None  # embedding or labels of a pooling request
    ended_at: float | None = None
    end: str | None = None


def expected_tokens(request: Request, length: int, model: SimulatedConfig) -> list[int]:
    """Return the tokens that the simulated model generates for this request, alone and undisturbed."""
    who = SimpleNamespace(key=request.key, adapter=request.adapter.id if request.adapter else 0,
                          grammar=request.grammar.id if request.grammar else 0, tokens=list(request.prompt),
                          num_prompt_tokens=len(request.prompt))
    tale = Tale(who, model.seed, model.mean_output_length)  # type: ignore[arg-type]
    return [tale.token(index) for index in range(length)]


def expected_told(request: Request, model: SimulatedConfig) -> Told:
    """Return the embedding or the labels that the simulated model gives a pooling request."""
    text = Text(list(request.prompt), request.adapter.id if request.adapter else 0)
    if request.wish is Wish.VECTOR:
        return vector_of(text, model.embedding_width, model.seed)
    return Labelling(*labels_of(text, model.num_labels, model.seed))


def named(request: Request, block_size: int) -> Request:
    """Return the request with block hashes as the validator makes them: prefixes are shared per tenant and adapter."""
    if request.wish in EMBEDDED:
        return request
    space = namespace(request.tenant.name, str(request.adapter and request.adapter.id), salt=b"")
    return replace(request, namespace=space, block_hashes=block_hashes(space, request.prompt, block_size))


class World:
    """One schedule: the core, a simulated shard, clients, the engine's part, and an agenda of timed events."""

    def __init__(self, config: RouterConfig, model: SimulatedConfig, seed: int = 0,
                 noise: Callable[[random.Random], float] = lambda _: 1.0,
                 core: Callable[[Policy, ModelFacts], Scheduler] = Scheduler) -> None:
        self.random = random.Random(seed)
        self.config, self.model, self.noise = config, model, noise
        self.now = 0.0
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._tickets = count()
        self.clients: dict[int, Client] = {}
        self.everyone: list[Client] = []
        self.resources: dict[Resource, bool] = {}
        self.move_seconds: float | None = None  # time that a load or unload takes; None: the core's moves are ignored
        self.load_fails: Callable[[Resource], bool] = lambda _: False
        self._here: dict[Resource, None] = {}  # loaded on the shards, as far as the core knows
        self.inputs: list[tuple[str, tuple[Any, ...]]] = []
        self.outputs: list[Any] = []
        self.sent: list[tuple[float, Plan]] = []  # with the time of sending
        self.answers: list[tuple[Plan, float]] = []  # with the seconds that the step took
        self.losses: list[Loss] = []
        self.stories: list[Any] = []
        self.fired: set[str] = set()
        self.epoch = 0
        self.worker = self._new_worker(model)
        self.facts = encode.facts([self.worker.info()])
        self.policy = Policy.of(config, self.facts)
        self.core = core(self.policy, self.facts)
        self._waits = Waits()
        self._waiting_answers: list[tuple[Plan, Any]] = []
        self._alarm: float | None = None  # last wake-up time of the core that is on the agenda
        self._busy_until = 0.0
        self._ready()

    # -- the world's clock

    def at(self, time: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (max(time, self.now), next(self._tickets), action))

    def run(self, until: float = 1e9, max_events: int = 2_000_000) -> None:
        for _ in range(max_events):
            if not self._agenda or self._agenda[0][0] > until:
                return
            self.step()
        raise AssertionError("the world does not come to rest")

    def step(self) -> None:
        """Run the next event and the engine's part, and check the laws."""
        self.now, _, action = heapq.heappop(self._agenda)
        action()
        self.settle()

    def settle(self) -> None:
        self._pump()
        self.check_laws()

    @property
    def is_at_rest(self) -> bool:
        return not self._agenda

    # -- clients

    def add(self, client: Client) -> Client:
        self.everyone.append(client)
        self.at(client.arrival, lambda: self._submit(client))
        return client

    def _submit(self, client: Client) -> None:
        client.request = named(client.request, self.facts.block_size)
        events = self._call("submit", client.request, self.now)
        if isinstance(events[0], Refused):
            client.end, client.ended_at = "refused", self.now
            return
        assert isinstance(events[0], Entered)
        client.number = events[0].sequence
        self.clients[client.number] = client
        self.stories.append(self.core.story(client.number) if len(events) == 1 else None)
        self._hear(events[1:], None)
        for resource in client.request.needs:
            if self.resources.get(resource) is False:
                self.provide(resource, present=False)
        if client.leaves_at is not None:
            self.at(client.leaves_at, lambda: self._leave(client))

    def _expire(self) -> None:
        """Call `expire`; an early call changes nothing, but `wake_at` may become earlier for a new static group."""
        wake_at = self.core.wake_at
        self._hear(self._call("expire", self.now), None)
        if wake_at is not None and wake_at > self.now:
            assert self.core.wake_at is not None
            assert self.now < self.core.wake_at <= wake_at

    def _leave(self, client: Client) -> None:
        if client.end is None:
            client.end, client.ended_at = "left", self.now
            self._call("cancel", client.number, self.now)

    def hold(self, client: Client, seconds: float | None) -> None:
        """Make the client stop reading for `seconds`, or for ever."""
        if client.end is not None or client.number is None:
            return
        self._call("hold", client.number, self.now)
        client.held_for_ever = client.held_for_ever or seconds is None
        if seconds is not None:
            self.at(self.now + seconds, lambda: client.held_for_ever or self._call("resume", client.number, self.now))

    def provide(self, resource: Resource, present: bool = True) -> None:
        self.resources[resource] = present
        if not present:
            self._hear(self._call("unavailable", resource, "there is no such adapter", self.now), None)
        elif self.core_is_ready:
            self._load(resource)

    def _load(self, resource: Resource) -> None:
        kind = KINDS[resource.kind]
        try:
            self.worker.load(pb.LoadRequest(epoch=self.epoch, kind=kind, id=resource.id))
        except Died:
            self._lose(Loss.DEATH)
        except (Hung, StepError, ShardRefused) as trouble:
            if resource in self.resources:
                self.resources[resource] = False
            self._here.pop(resource, None)
            self._hear(self._call("unavailable", resource, f"it was not loaded: {trouble}", self.now), None)
        else:
            self._here[resource] = None
            self._call("available", resource, self.now)

    # -- the engine's part

    @property
    def core_is_ready(self) -> bool:
        return self.core._epoch is not None

    def _call(self, name: str, *args: Any) -> Any:
        """Call the core; record the call and its result for `check_replay`."""
        result = getattr(self.core, name)(*args)
        self.inputs.append((name, args))
        self.outputs.append(result)
        return result

    def _pump(self) -> None:
        while (plan := self._call("plan", self.now)) is not None:
            self._send(plan)
        if (moment := self.core.wake_at) is not None and moment != self._alarm:
            self._alarm = moment
            self.at(max(moment, self.now), self._expire)
        for move in self._call("moves", self.now) if self.core._residents.moves else ():
            if self.move_seconds is not None:
                self.at(self.now + self.move_seconds, partial(self._moved, move, self.epoch))

    def _moved(self, move: Bring | Remove, epoch: int) -> None:
        resource = move.resource
        if epoch != self.epoch or not self.core_is_ready:
            return
        if isinstance(move, Remove):
            self._unload(resource)
        elif self.load_fails(resource):
            self._hear(self._call("unavailable", resource, "it cannot be loaded", self.now), None)
        else:
            self._load(resource)

    def _unload(self, resource: Resource) -> None:
        """Unload a resource; failures are ignored, since no request will use the resource."""
        del self._here[resource]
        try:
            self.worker.unload(pb.UnloadRequest(epoch=self.epoch, kind=pb.KIND_ADAPTER, id=resource.id))
        except Died:
            self._lose(Loss.DEATH)
            return
        except (Hung, StepError, ShardRefused):
            pass
        self._call("removed", resource, self.now)

    def _send(self, plan: Plan) -> None:
        self._check_embeds(plan)
        self._waits.check(self.core, plan, self.now)
        self.sent.append((self.now, plan))
        start = max(self.now, self._busy_until)
        try:
            for message in encode.encode(plan):
                answer = getattr(self.worker, METHODS[type(message)])(message)
            # The first failure ends the epoch; messages that were sent before it are still answered.
        except (Malformed, ShardRefused) as refused:
            self._check_refusal(refused)
            self._arrange(plan, start, Loss.DEFECT, 0.0)
        except Died:
            self._arrange(plan, start, Loss.DEATH, 0.0)
        except Hung:
            self._arrange(plan, start, Loss.DEATH, HANG_TIMEOUT)
        except StepError:
            self._arrange(plan, start, Loss.STEP_ERROR, 0.0)
        except Exhausted:
            self._arrange(plan, start, Loss.MEMORY, 0.0)
        else:
            is_step = isinstance(answer, pb.StepAnswer | pb.EmbedAnswer)
            seconds = answer.forward_seconds * self.noise(self.random) if is_step else 0.0
            self._busy_until = start + seconds
            late = self.worker.lateness(plan.epoch, plan.order)
            self._arrange(plan, self._busy_until + late, (answer, seconds), 0.0)
        self._note_faults()

    def _note_faults(self) -> None:
        for fault in self.worker.faults:
            if fault.fired:
                self.fired |= {f"{fault.kind}@{fault.verb}", f"{fault.kind}:{fault.argument}"}

    def _check_embeds(self, plan: Plan) -> None:
        """Check L4: a pooling step keeps the limits, and generating sequences get a step between two pooling steps."""
        step, running = plan.messages[-1], list(self.core.running)
        if not isinstance(step, Embed):
            return
        requests = [newcomer.request for newcomer in step.newcomers]
        assert len(plan.messages) == 1
        assert {request.wish for request in requests} == {step.wish}
        assert plan.members == plan.expects == tuple(newcomer.sequence for newcomer in step.newcomers)
        assert len(requests) <= self.policy.max_batch_size
        assert sum(len(request.prompt) for request in requests) <= self.policy.max_prefill_tokens
        before = self.sent[-1][1] if self.sent else None
        if running and before is not None and before.epoch == plan.epoch:
            assert not isinstance(before.messages[-1], Embed), "two steps of texts while others generate"

    def _check_refusal(self, refused: Exception) -> None:
        """Assert that a shard rejects a message only by a scripted fault or after an earlier failure in this epoch."""
        outcomes = [one[0] if isinstance(one, tuple) and len(one) == 1 else one for _, one in self._waiting_answers]
        assert "told to refuse" in str(refused) or any(isinstance(one, Loss) for one in outcomes), str(refused)

    def _arrange(self, plan: Plan, time: float, outcome: Any, delay: float) -> None:
        epoch = self.epoch
        self._waiting_answers.append((plan, outcome))
        self.at(time + delay + 1e-4, lambda: self._arrive(epoch, plan))

    def _arrive(self, epoch: int, plan: Plan) -> None:
        """Process answers in the order of their plans, whatever the order of arrival."""
        if epoch != self.epoch or not self.core_is_ready:
            return
        for index, (waiting, outcome) in enumerate(self._waiting_answers):
            if waiting is plan:
                self._waiting_answers[index] = (plan, (outcome,))
        while self._waiting_answers and isinstance(self._waiting_answers[0][1], tuple) \
                and len(self._waiting_answers[0][1]) == 1:
            head, (outcome,) = self._waiting_answers.pop(0)
            if isinstance(outcome, Loss):
                self._lose(outcome)
                return
            if not self._take(head, *outcome):
                return

    def _take(self, plan: Plan, message: Any, seconds: float) -> bool:
        try:
            if isinstance(message, pb.StepAnswer | pb.EmbedAnswer):
                message.forward_seconds = seconds
                decode = encode.decode if isinstance(message, pb.StepAnswer) else told.decode
                answer = decode(message, plan, self.facts)
                self.answers.append((plan, seconds))
            else:
                answer = Answer(plan.epoch, 0.0, {}, {})
        except encode.Defect:
            self._lose(Loss.DEFECT)
            return False
        for number, heard in answer.told.items():
            self.clients[number].told = heard
        stopped = {number: stop for number, row in answer.rows.items() if (stop := self._stop(number, row.tokens))}
        self._hear(self._call("complete", plan.order, answer, stopped, self.now), answer)
        self._replay_old_answer(plan, answer)
        return True

    def _replay_old_answer(self, plan: Plan, answer: Answer) -> None:
        """Check L7: an answer that arrives twice, or from an older epoch, changes nothing."""
        if self.random.random() < 0.05:
            before = self.digest()
            assert self.core.complete(plan.order, answer, {}, self.now) == []
            assert self.core.complete(plan.order + 1, replace(answer, epoch=plan.epoch - 1), {}, self.now) == []
            assert self.digest() == before

    def _stop(self, number: int, tokens: Any) -> int | None:
        client = self.clients[number]
        if client.stops_after is None or client.end is not None:
            return None
        within = client.stops_after - len(client.tokens)
        return within if 0 < within <= len(tokens) else None

    def _hear(self, events: list[Any], answer: Answer | None) -> None:
        for event in events:
            if isinstance(event, Produced):
                self._hear_tokens(event, answer)
                continue
            client = self.clients[event.sequence]
            assert client.end is None, f"L1: {event} after {client.end}"
            if isinstance(event, Finished):
                client.end, client.ended_at = event.reason.value, self.now
            elif isinstance(event, Expired):
                assert not client.tokens
                client.end, client.ended_at = "expired", self.now
            elif isinstance(event, Failed):
                client.end, client.ended_at = f"failed: {event.reason}", self.now

    def _hear_tokens(self, event: Produced, answer: Answer | None) -> None:
        assert answer is not None
        for number, counted in event.counts.items():
            client = self.clients[number]
            assert client.end is None, f"L1: tokens after {client.end}"
            client.tokens += answer.rows[number].tokens[:counted]
            self._check_tokens(client)

    # -- losing and finding the shards

    def _lose(self, loss: Loss) -> None:
        self.losses.append(loss)
        if loss is Loss.DEATH:
            self._here.clear()
        old = [plan for plan, _ in self._waiting_answers]
        self._waiting_answers.clear()
        self._hear(self._call("shards_lost", self.now, loss), None)
        for plan in old:
            assert self.core.complete(plan.order, Answer(plan.epoch, 1.0, {}, {}), {}, self.now) == []
        if loss is Loss.DEATH:
            self.worker = self._new_worker(replace(self.model, faults=self._remaining_faults()))
        self.at(self.now + (1.0 if loss is Loss.DEATH else 0.0), self._ready)

    def strike(self, fault: str) -> None:
        """Add a fault to the script of the running shard."""
        old = self.worker.faults
        self.worker_script = ";".join(part for part in (self.worker_script, fault) if part)
        self.worker.faults = Faults(self.worker_script)
        self.worker.faults.calls = old.calls
        for fresh, known in zip(self.worker.faults, old, strict=False):
            fresh.fired = known.fired

    def _remaining_faults(self) -> str:
        """Return the fault script of the next shard process: faults that have not fired yet, and poison."""
        self._note_faults()
        faults = [part for part in self.worker_script.split(";") if part]
        left = [part for part, fault in zip(faults, self.worker.faults, strict=True)
                if not fault.fired or fault.kind == "poison"]
        return ";".join(left)

    def _new_worker(self, model: SimulatedConfig) -> SimulatedWorker:
        """Return a worker whose warmup succeeded; after a failed warmup, start another worker."""
        while True:
            self.worker_script = model.faults
            self.worker = SimulatedWorker(ShardConfig(simulated=model), sleep=sleep, exit=die)
            try:
                self.worker.warmup(encode.warmup_request(self.config, self.config.max_total_tokens or 512))
                return self.worker
            except (Died, Hung, StepError, ShardRefused):
                model = replace(model, faults=self._remaining_faults())

    def _ready(self) -> None:
        self.epoch += 1
        try:
            self.worker.reset(pb.ResetRequest(epoch=self.epoch))
            self._bring_back()
        except (Died, Hung):
            self.worker = self._new_worker(replace(self.model, faults=self._remaining_faults()))
            self.at(self.now + 1.0, self._ready)
            return
        except (StepError, ShardRefused):
            self.at(self.now + 0.1, self._ready)
            return
        self._busy_until = self.now
        self._hear(self._call("shards_ready", self.facts, self.epoch, self.now), None)
        for resource, present in self.resources.items():
            if present and self.core_is_ready:
                self._load(resource)

    def _bring_back(self) -> None:
        """Load what the core believes to be loaded: a shard that replaced another one has nothing of it."""
        for resource in self._here:
            if resource.id not in self.worker.ledger.loaded[KINDS[resource.kind]]:
                self.worker.load(pb.LoadRequest(epoch=self.epoch, kind=KINDS[resource.kind], id=resource.id))

    # -- the laws

    def _check_tokens(self, client: Client) -> None:
        """Check L6 and L10: a client gets the tokens that it would get alone, none repeated and none left out."""
        expected = expected_tokens(client.request, len(client.tokens), self.model)
        assert client.tokens == expected, f"client {client.number} got another's tokens"

    def check_laws(self) -> None:
        core = self.core
        blocks, sequences = core.running.blocks, list(core.sequences)
        holders = Counter(block for sequence in sequences for block in sequence.blocks)
        assert sorted([*blocks._free, *blocks._kept, *holders]) == list(range(blocks.count)), "L2: blocks are lost"
        assert all(blocks._holders[block] == holders[block] for block in range(blocks.count)), "L2: holders differ"
        named = {name: block for block, name in enumerate(blocks._names) if name is not None}
        assert blocks._published == named, "L2: names differ"
        assert blocks._kept.keys() <= set(named.values())
        self._check_sharing(holders)
        running = list(core.running)
        assert len(running) <= self.policy.max_batch_size, "L4: too many run"
        assert all(sequence.num_yields <= self.policy.max_yields for sequence in sequences), "L4: yields without end"
        states = {State.WAITING: 0, State.RUNNING: 0, State.YIELDING: 0, State.ENDING: 0}
        for sequence in sequences:
            states[sequence.state] += 1
            holds = bool(sequence.blocks) or sequence.state is State.ENDING
            assert (sequence.state in {State.RUNNING, State.ENDING}) == holds, "blocks are held by whoever runs"
            assert sequence.in_flight >= 0
        assert states[State.WAITING] == core.num_waiting()
        assert states[State.RUNNING] == len(running)
        assert core.num_in_flight <= self.policy.look_ahead
        expected = {client.number for client in self.clients.values() if client.end is None}
        assert expected == {sequence.number for sequence in sequences}, "L1: the core and its clients disagree"

    def _check_sharing(self, holders: "Counter[int]") -> None:
        """Check L3: no running sequence writes to a block that others can find or hold.

        Blocks that others wait for are held by a sequence that computes them.
        """
        blocks = self.core.running.blocks
        for sequence in self.core.running:
            own = sequence.blocks[sequence.num_published:]
            shared = any(blocks._names[block] is not None for block in own)
            assert not shared, "L3: a block is written that others may find"
            assert all(holders[block] == 1 for block in own), "L3: a block is written that others hold"
            assert len(sequence.names) >= sequence.num_published
        held = {block for sequence in self.core.sequences for block in sequence.blocks}
        assert set(blocks._reserved.values()) <= held, "somebody waits for what nobody computes"

    def check_stories(self) -> None:
        """Assert that each story covers the time from arrival to end without a gap."""
        for client, story in zip([c for c in self.everyone if c.number is not None], self.stories, strict=True):
            if story is None:
                continue
            assert story.ended is not None
            assert abs(sum(story.seconds(1e9).values()) - (story.ended - client.arrival)) < 1e-6

    def check_idle(self) -> None:
        """Check L9 and L1: at rest the core and the shard hold nothing, and every request has ended."""
        core = self.core
        assert not len(core.sequences)
        assert not len(core.running)
        assert not core._in_flight
        assert not core._trials
        assert not core._shares._present
        assert core.wake_at is None
        assert not core.running.blocks._reserved
        assert core.running.blocks.num_free == core.running.blocks.count
        assert not self.worker.ledger.sequences
        assert not self.worker.ledger.batches
        assert all(client.end is not None for client in self.everyone)

    def check_ends(self) -> None:
        """Assert that each request ended where its finish reason requires."""
        for client in self.everyone:
            length, request = len(client.tokens), client.request
            if request.wish in EMBEDDED:
                right = client.end == FinishReason.LENGTH
                assert client.told == (expected_told(request, self.model) if right else client.told)
                assert not client.tokens
            elif client.end == FinishReason.LENGTH:
                assert length == request.max_new_tokens
            elif client.end == FinishReason.END_TOKEN:
                assert client.tokens[-1] in request.end_tokens
            elif client.end == FinishReason.STOP_STRING:
                assert length == client.stops_after

    def check_replay(self) -> None:
        """Check L8: a fresh core returns the same results for the same calls."""
        core = Scheduler(self.policy, self.facts)
        for (name, args), output in zip(self.inputs, self.outputs, strict=True):
            assert getattr(core, name)(*args) == output, f"L8: {name}{args} differs"

    def digest(self) -> tuple[Any, ...]:
        core = self.core
        return (tuple((s.number, s.state, tuple(s.blocks), s.computed, s.in_flight, tuple(s.generated))
                      for s in core.sequences), tuple(core.running.blocks._free), core.num_in_flight)
