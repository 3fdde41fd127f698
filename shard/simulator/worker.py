"""Worker without a model: it keeps the ledger, answers by a fixed rule, and takes the time that a cost model gives.

It fails where a real worker would be wrong without notice: if a sequence reads cache slots that hold another's tokens
or nothing, or re-enters with tokens that it never generated, the step fails. Scripted faults make it exit, block or
send invalid answers. It sleeps only through the function it is given.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from threading import TIMEOUT_MAX, Event
from time import monotonic

from shard.config import ShardConfig, SimulatedConfig
from shard.errors import Exhausted
from shard.pb import shard_pb2 as pb
from shard.simulator.faults import Fault, Faults
from shard.simulator.invalid_answers import spoil, spoil_texts
from shard.simulator.text import NUM_TOKENS, Cache, MixUp, Tale, Trace, labels_of, vector_of
from shard.state.columns import Text
from shard.state.ledger import Chunk, Ledger, Refused, Step
from shard.state.results import Labelled, PromptPart, Said, write_labels, write_prompts, write_rows, write_vectors
from shard.state.sequence import Limits, Sequence

ADAPTER_BYTES = 2**20
AnyStep = pb.PrefillRequest | pb.DecodeRequest | pb.EmbedRequest
FOREVER = TIMEOUT_MAX


class StepError(Exception):
    """Scripted failure of a step."""


@dataclass(slots=True)
class Memory:
    """State that the worker keeps with a sequence."""

    tale: Tale
    trace: Trace
    poison: Fault | None


def leave() -> None:
    """End the process at once, as a crash does."""
    os._exit(70)


class SimulatedWorker:
    """Worker of a simulated model."""

    def __init__(self, config: ShardConfig, sleep: Callable[[float], object] | None = None,
                 exit: Callable[[], object] = leave) -> None:  # noqa: A002 - what it does
        """Create the worker. `sleep` is called with the seconds of every step, and with FOREVER by the fault `hang`."""
        self._rank, self._world_size = config.rank, config.world_size
        self._model = config.simulated
        self._closed = Event()
        self._sleep = sleep or self._doze
        self._began = 0.0
        self._exit = exit
        self._epoch = 0
        self._warmup: pb.WarmupAnswer | None = None
        self._cache: Cache = []
        self._late: dict[tuple[int, int], float] = {}
        self.faults = Faults(self._model.faults)
        self.ledger = Ledger(limits_of(self._model))

    def close(self) -> None:
        """Wake up a call that sleeps, for good: later calls do not sleep."""
        self._closed.set()

    def info(self) -> pb.InfoAnswer:
        model, loaded = self._model, self.ledger.loaded
        return pb.InfoAnswer(
            model="simulated", device="cpu", dtype="float32", rank=self._rank, world_size=self._world_size,
            epoch=self._epoch, vocabulary_size=model.vocabulary_size, max_positions=model.max_positions,
            tokens_per_step=model.tokens_per_step, mixed_steps=model.mixed_steps, exact=True, adapters=model.adapters,
            grammars=model.grammars, loaded_adapters=sorted(loaded[pb.KIND_ADAPTER]),
            loaded_grammars=sorted(loaded[pb.KIND_GRAMMAR]), warmup=self._warmup, generation=model.generation,
            embeddings=model.embedding_width > 0, classification=model.num_labels > 0,
            labels=[f"LABEL_{number}" for number in range(model.num_labels)])

    def warmup(self, request: pb.WarmupRequest) -> pb.WarmupAnswer:
        self._strike("warmup")
        self.ledger.warmup(request, self._model.num_blocks)
        blocks, answer = self.ledger.blocks, pb.WarmupAnswer()
        answer.block_size, answer.num_blocks, answer.why = blocks.size, blocks.count, "simulated"
        answer.adapter_bytes = self._model.adapter_bytes
        rows, tokens, length = request.max_batch_size, request.max_prefill_tokens, max(request.max_total_tokens, 1)
        for load in ((1, 0, 1), (rows, 0, rows), (rows, 0, rows * length), (1, tokens, tokens), (2, tokens, tokens)):
            for name, value in zip(("rows", "chunk_tokens", "context"), load, strict=True):
                getattr(answer, name).append(value)
            answer.seconds.append(self._seconds(*load))
        self._cache, self._warmup = [None] * blocks.count, answer
        return answer

    def reset(self, request: pb.ResetRequest) -> pb.ResetAnswer:
        self._strike("reset")
        self.ledger.reset()
        self._cache = [None] * len(self._cache)
        self._epoch = request.epoch
        return pb.ResetAnswer(epoch=request.epoch)

    def prefill(self, request: pb.PrefillRequest) -> pb.StepAnswer:
        faults = self._strike("prefill")
        return self._run(request, self.ledger.prefill(request), faults)

    def decode(self, request: pb.DecodeRequest) -> pb.StepAnswer:
        faults = self._strike("decode")
        return self._run(request, self.ledger.decode(request), faults)

    def filter(self, request: pb.FilterRequest) -> pb.Acknowledgement:
        self._strike("filter")
        self.ledger.filter(request)
        return pb.Acknowledgement(epoch=request.epoch, order=request.order)

    def concat(self, request: pb.ConcatRequest) -> pb.Acknowledgement:
        self._strike("concat")
        self.ledger.concat(request)
        return pb.Acknowledgement(epoch=request.epoch, order=request.order)

    def embed(self, request: pb.EmbedRequest) -> pb.EmbedAnswer:
        faults = self._strike("embed")
        self._began, texts = monotonic(), self.ledger.embed(request)
        self._check_poison(texts)
        num_tokens = sum(len(text.tokens) for text in texts)
        took, extra = self._seconds(len(texts), num_tokens, num_tokens), float(faults.get("slow", 0.0))
        answer = pb.EmbedAnswer(epoch=request.epoch, order=request.order, forward_seconds=took + extra)
        failed = int(faults["fail_sequence"]) % len(texts) if "fail_sequence" in faults else -1
        if self._rank == 0:
            self._tell([None if place == failed else text for place, text in enumerate(texts)], request.wanted, answer)
            spoil_texts(answer, faults.get("wrong", ""), len(texts))
        self._take_time(request, faults, took, extra)
        return answer

    def _check_poison(self, texts: list[Text]) -> None:
        for text in texts:
            if (poison := self._poison_in(text.tokens)) is not None:
                poison.fired = True
                raise StepError("a text is poisonous")

    def _tell(self, texts: list[Text | None], asked: int, answer: pb.EmbedAnswer) -> None:
        """Write the results of all texts; None is a text that failed."""
        model = self._model
        if asked == pb.VECTORS:
            write_vectors(answer, [vector_of(text, model.embedding_width, model.seed) if text else None
                                   for text in texts])
        else:
            write_labels(answer, [Labelled(*labels_of(text, model.num_labels, model.seed)) if text else None
                                  for text in texts])

    def load(self, request: pb.LoadRequest) -> pb.LoadAnswer:
        if (before := self.ledger.unload_before(request)) is not None:
            self.ledger.unload(before)
        self._strike("load")
        if not {pb.KIND_ADAPTER: self._model.adapters, pb.KIND_GRAMMAR: self._model.grammars}.get(request.kind, True):
            raise Refused(f"this shard takes no {pb.Kind.Name(request.kind)}")
        self.ledger.load(request)
        return pb.LoadAnswer(bytes=ADAPTER_BYTES if request.kind == pb.KIND_ADAPTER else len(request.source))

    def unload(self, request: pb.UnloadRequest) -> pb.UnloadAnswer:
        self._strike("unload")
        self.ledger.unload(request)
        return pb.UnloadAnswer()

    def lateness(self, epoch: int, order: int) -> float:
        """Return, once, by how many seconds the answer to this message is to be delayed."""
        return self._late.pop((epoch, order), 0.0)

    def _strike(self, verb: str) -> dict[str, str]:
        """Apply the faults that strike a call before it does anything; return all its faults, kind to argument."""
        faults = {fault.kind: fault.argument for fault in self.faults.strike(verb)}
        if "die" in faults:
            self._exit()
        if "hang" in faults:
            self._sleep(FOREVER)
        if "refuse" in faults:
            raise Refused("told to refuse")
        if "exhaust" in faults:
            raise Exhausted("told to run out of memory")
        if "step_error" in faults:
            raise StepError("told to fail")
        return faults

    def _run(self, request: pb.PrefillRequest | pb.DecodeRequest, step: Step, faults: dict[str, str]) -> pb.StepAnswer:
        self._began, sequences = monotonic(), step.sequences
        for sequence in sequences:
            self._meet(sequence)
        took, extra = self._seconds_of(step), float(faults.get("slow", 0.0))
        answer = pb.StepAnswer(epoch=request.epoch, order=request.order, forward_seconds=took + extra)
        failures = self._failures(sequences, faults)
        prompts = self._prompt_logprobs([chunk for chunk in step.chunks if chunk.sequence.id not in failures])
        said = {sequence.id: self._speak(sequence) for sequence in step.yielding if sequence.id not in failures}
        self.ledger.finish(step, {i: word.tokens for i, word in said.items()}, failures)
        self._use_cache(sequences)
        if self._rank == 0:
            write_rows(answer, step, said)
            write_prompts(answer, prompts)
            spoil(answer, faults.get("wrong", ""), self._model.vocabulary_size)
        self._take_time(request, faults, took, extra)
        return answer

    def _take_time(self, request: AnyStep, faults: dict[str, str], took: float, extra: float) -> None:
        if "late" in faults:
            self._late[request.epoch, request.order] = float(faults["late"])
        if (seconds := took * self._model.time_scale + extra) > 0.0:
            self._sleep(seconds)

    def _doze(self, seconds: float) -> None:
        """Sleep until the step has taken its time, that of computing included, unless the worker is closed."""
        self._closed.wait(max(0.0, min(seconds - (monotonic() - self._began), FOREVER)))

    def _meet(self, sequence: Sequence) -> None:
        """Give a new sequence its state once its generated tokens are checked; raise StepError if it is poisonous."""
        if sequence.memory is None:
            tale = Tale(sequence, self._model.seed, self._model.mean_output_length)
            said = sequence.tokens[sequence.num_prompt_tokens:]
            if said != [tale.token(index) for index in range(len(said))]:
                raise MixUp(f"sequence {sequence.id} came with tokens that it never said")
            prompt = sequence.tokens[:sequence.num_prompt_tokens]
            sequence.memory = Memory(tale, Trace(sequence, self.ledger.blocks.size), self._poison_in(prompt))
        if sequence.memory.poison is not None:
            sequence.memory.poison.fired = True
            raise StepError(f"sequence {sequence.id} is poisonous")

    def _poison_in(self, prompt: list[int]) -> Fault | None:
        return next((fault for fault in self.faults if fault.kind == "poison" and int(fault.argument) in prompt), None)

    def _speak(self, sequence: Sequence) -> Said:
        tale: Tale = sequence.memory.tale
        index = len(sequence.tokens) - sequence.num_prompt_tokens
        tokens, logprobs = tale.say(index, self.ledger.room(sequence) if sequence.ready else 1)
        return with_neighbours(tokens, logprobs, min(sequence.sampling.top_n_tokens, NUM_TOKENS))

    def _failures(self, sequences: list[Sequence], faults: dict[str, str]) -> dict[int, pb.Failure]:
        if "fail_sequence" not in faults or not sequences:
            return {}
        return {sequences[int(faults["fail_sequence"]) % len(sequences)].id: pb.NON_FINITE}

    def _prompt_logprobs(self, chunks: list[Chunk]) -> dict[int, PromptPart]:
        """Return prompt logprobs of the sequences that request them."""
        return {chunk.sequence.id: PromptPart(chunk.start + 1, chunk.sequence.memory.trace.prompt_logprobs(
            chunk.sequence, chunk.end)) for chunk in chunks if chunk.sequence.prompt_logprobs}

    def _use_cache(self, sequences: list[Sequence]) -> None:
        """Write and read the cache. As in a forward pass, all writes of the step precede its reads."""
        for sequence in sequences:
            sequence.memory.trace.write(sequence, self._cache)
        for sequence in sequences:
            sequence.memory.trace.read(sequence, self._cache)

    def _seconds_of(self, step: Step) -> float:
        """Return the seconds of a step: each sequence is a row; a decode reads one slot for each of its tokens."""
        context = sum(len(s.tokens) for s in step.decodes) + sum(chunk.end for chunk in step.chunks)
        rows = len(step.decodes) + len(step.chunks)
        return self._seconds(rows, sum(chunk.length for chunk in step.chunks), context)

    def _seconds(self, rows: int, chunk_tokens: int, context: int) -> float:
        model = self._model
        return (model.seconds_per_step + model.seconds_per_row * rows + model.seconds_per_chunk_token * chunk_tokens
                + model.seconds_per_place * context)


def with_neighbours(tokens: list[int], logprobs: list[float], count: int) -> Said:
    """Return the tokens with top candidates: the chosen one is the best, its neighbours follow, each less likely."""
    if not count:
        return Said(tokens, logprobs)
    return Said(tokens, logprobs, [[(token + i) % NUM_TOKENS for i in range(count)] for token in tokens],
                [[logprob - i / 4 for i in range(count)] for logprob in logprobs])


def limits_of(model: SimulatedConfig) -> Limits:
    can = {pb.VECTORS: model.embedding_width > 0, pb.LABELS: model.num_labels > 0}
    wanted = frozenset(kind for kind, is_there in can.items() if is_there)
    return Limits(model.vocabulary_size, model.max_positions, model.tokens_per_step, model.mixed_steps,
                  model.generation, wanted)
