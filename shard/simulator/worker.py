"""Worker without a model: it keeps the shard's state, answers by a fixed rule, and takes the time that a cost model
gives.

It fails where a real worker would be wrong without notice: if a sequence reads cache slots that hold another's tokens
or nothing, the step fails. Scripted faults make it exit, block or send invalid answers. It sleeps only through the
function it is given.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from threading import TIMEOUT_MAX, Event
from time import monotonic

from shard.config import ShardConfig
from shard.errors import RejectedMessage, StepOutOfMemory
from shard.fault_script import Fault, FaultScript
from shard.pb import shard_pb2 as pb
from shard.simulator.simulated_outputs import (
    NUM_USED_TOKENS,
    BlockTags,
    CacheTags,
    SimulatedTokens,
    corrupt_embed_answer,
    corrupt_step_answer,
    make_embedding,
    make_labels,
)
from shard.state.result_encoding import (
    SequenceOutput,
    TokenClassification,
    write_embeddings,
    write_labels,
    write_prompt_logprobs,
    write_sequence_outputs,
)
from shard.state.sequence import ModelLimits, Sequence
from shard.state.shard_state import ShardState
from shard.state.step import Step

BYTES_PER_ADAPTER = 2**20
StepRequest = pb.PrefillRequest | pb.DecodeRequest | pb.EmbedRequest
MAX_SLEEP_SECONDS = TIMEOUT_MAX


class SimulatedStepError(Exception):
    """Scripted failure of a step."""


@dataclass(slots=True)
class SimulatedSequenceState:
    """State that the worker keeps with a sequence."""

    text: SimulatedTokens
    cache_tags: CacheTags
    poison_fault: Fault | None


class SimulatedWorker:
    """Worker of a simulated model."""

    def __init__(self, config: ShardConfig, sleep: Callable[[float], object] | None = None,
                 exit: Callable[[], object] | None = None) -> None:  # noqa: A002 - what it does
        """Create the worker. `sleep` is called with the seconds of every step, and with MAX_SLEEP_SECONDS by the fault
        `hang`; `exit` ends the process at once, as a crash does, with the code 70 by default."""
        self._rank, self._world_size = config.rank, config.world_size
        self._model_config = model = config.simulated
        self._closed_event = Event()
        self._sleep = sleep or self._sleep_unless_closed
        self._step_started_at = 0.0
        self._exit = exit or partial(os._exit, 70)
        self._epoch = 0
        self._warmup_answer: pb.WarmupAnswer | None = None
        self._block_tags: BlockTags = []
        self._answer_delays: dict[tuple[int, int], float] = {}
        self.faults = FaultScript(model.faults)
        is_supported = {pb.VECTORS: model.embedding_width > 0, pb.LABELS: model.num_labels > 0}
        self.shard_state = ShardState(ModelLimits(
            model.vocabulary_size, model.max_positions, model.tokens_per_step, model.mixed_steps, model.generation,
            frozenset(wanted for wanted, is_there in is_supported.items() if is_there)))

    def close(self) -> None:
        """Wake up a call that sleeps, for good: later calls do not sleep."""
        self._closed_event.set()

    def info(self) -> pb.InfoAnswer:
        model, loaded_ids = self._model_config, self.shard_state.loaded_ids
        return pb.InfoAnswer(
            model="simulated", device="cpu", dtype="float32", rank=self._rank, world_size=self._world_size,
            epoch=self._epoch, vocabulary_size=model.vocabulary_size, max_positions=model.max_positions,
            tokens_per_step=model.tokens_per_step, mixed_steps=model.mixed_steps, exact=True, adapters=model.adapters,
            grammars=model.grammars, loaded_adapters=sorted(loaded_ids[pb.KIND_ADAPTER]),
            loaded_grammars=sorted(loaded_ids[pb.KIND_GRAMMAR]), warmup=self._warmup_answer,
            generation=model.generation, embeddings=model.embedding_width > 0, classification=model.num_labels > 0,
            labels=[f"LABEL_{number}" for number in range(model.num_labels)])

    def warmup(self, request: pb.WarmupRequest) -> pb.WarmupAnswer:
        self._apply_faults("warmup")
        self.shard_state.apply_warmup(request, self._model_config.num_blocks)
        blocks, answer = self.shard_state.block_usage, pb.WarmupAnswer()
        answer.block_size, answer.num_blocks, answer.why = blocks.block_size, blocks.num_blocks, "simulated"
        answer.adapter_bytes = self._model_config.adapter_bytes
        rows, tokens, length = request.max_batch_size, request.max_prefill_tokens, max(request.max_total_tokens, 1)
        for step_load in ((1, 0, 1), (rows, 0, rows), (rows, 0, rows * length), (1, tokens, tokens),
                          (2, tokens, tokens)):
            for name, value in zip(("rows", "chunk_tokens", "context"), step_load, strict=True):
                getattr(answer, name).append(value)
            answer.seconds.append(self._compute_seconds(*step_load))
        self._block_tags, self._warmup_answer = [None] * blocks.num_blocks, answer
        return answer

    def reset(self, request: pb.ResetRequest) -> pb.ResetAnswer:
        self._apply_faults("reset")
        self.shard_state.reset()
        self._block_tags = [None] * len(self._block_tags)
        self._epoch = request.epoch
        return pb.ResetAnswer(epoch=request.epoch)

    def prefill(self, request: pb.PrefillRequest) -> pb.StepAnswer:
        faults = self._apply_faults("prefill")
        return self._run_step(request, self.shard_state.apply_prefill(request), faults)

    def decode(self, request: pb.DecodeRequest) -> pb.StepAnswer:
        faults = self._apply_faults("decode")
        return self._run_step(request, self.shard_state.apply_decode(request), faults)

    def filter(self, request: pb.FilterRequest) -> pb.Acknowledgement:
        self._apply_faults("filter")
        self.shard_state.apply_filter(request)
        return pb.Acknowledgement(epoch=request.epoch, order=request.order)

    def concat(self, request: pb.ConcatRequest) -> pb.Acknowledgement:
        self._apply_faults("concat")
        self.shard_state.apply_concat(request)
        return pb.Acknowledgement(epoch=request.epoch, order=request.order)

    def embed(self, request: pb.EmbedRequest) -> pb.EmbedAnswer:
        faults = self._apply_faults("embed")
        self._step_started_at, texts = monotonic(), self.shard_state.parse_embed_texts(request)
        for text in texts:
            if (fault := self._find_poison(text.tokens)) is not None:
                fault.has_fired = True
                raise SimulatedStepError("a text is poisonous")
        num_tokens, extra_seconds = sum(len(text.tokens) for text in texts), float(faults.get("slow", 0.0))
        step_seconds = self._compute_seconds(len(texts), num_tokens, num_tokens)
        answer = pb.EmbedAnswer(epoch=request.epoch, order=request.order, forward_seconds=step_seconds + extra_seconds)
        failed_index = int(faults["fail_sequence"]) % len(texts) if "fail_sequence" in faults else -1
        if self._rank == 0:
            model = self._model_config
            results = [None if index == failed_index else text for index, text in enumerate(texts)]
            if request.wanted == pb.VECTORS:
                write_embeddings(answer, [make_embedding(text, model.embedding_width, model.seed) if text else None
                                          for text in results])
            else:
                write_labels(answer, [TokenClassification(*make_labels(text, model.num_labels, model.seed))
                                      if text else None
                                      for text in results])
            corrupt_embed_answer(answer, faults.get("wrong", ""), len(texts))
        self._sleep_for_step(request, faults, step_seconds, extra_seconds)
        return answer

    def load_resource(self, request: pb.LoadRequest) -> pb.LoadAnswer:
        if (preceding_unload := self.shard_state.make_unload_if_loaded(request)) is not None:
            self.shard_state.mark_unloaded(preceding_unload)
        self._apply_faults("load")
        if not {pb.KIND_ADAPTER: self._model_config.adapters,
                pb.KIND_GRAMMAR: self._model_config.grammars}.get(request.kind, True):
            raise RejectedMessage(f"this shard takes no {pb.Kind.Name(request.kind)}")
        self.shard_state.mark_loaded(request)
        return pb.LoadAnswer(bytes=BYTES_PER_ADAPTER if request.kind == pb.KIND_ADAPTER else len(request.source))

    def unload_resource(self, request: pb.UnloadRequest) -> pb.UnloadAnswer:
        self._apply_faults("unload")
        self.shard_state.mark_unloaded(request)
        return pb.UnloadAnswer()

    def pop_answer_delay(self, epoch: int, order: int) -> float:
        """Return, once, by how many seconds the answer to this message is to be delayed."""
        return self._answer_delays.pop((epoch, order), 0.0)

    def _apply_faults(self, verb: str) -> dict[str, str]:
        """Apply the faults that strike a call before it does anything; return all its faults, kind to argument."""
        faults = {fault.kind: fault.argument for fault in self.faults.take_due_faults(verb)}
        if "die" in faults:
            self._exit()
        if "hang" in faults:
            self._sleep(MAX_SLEEP_SECONDS)
        if "refuse" in faults:
            raise RejectedMessage("told to refuse")
        if "exhaust" in faults:
            raise StepOutOfMemory("told to run out of memory")
        if "step_error" in faults:
            raise SimulatedStepError("told to fail")
        return faults

    def _run_step(self, request: pb.PrefillRequest | pb.DecodeRequest, step: Step,
                  faults: dict[str, str]) -> pb.StepAnswer:
        self._step_started_at, sequences = monotonic(), step.sequences
        for sequence in sequences:
            self._prepare_sequence(sequence)
        # Each sequence is a row; a decode reads one slot for each of its tokens.
        context = sum(len(s.tokens) for s in step.decodes) + sum(chunk.end for chunk in step.chunks)
        step_seconds = self._compute_seconds(len(sequences), sum(chunk.length for chunk in step.chunks), context)
        extra_seconds = float(faults.get("slow", 0.0))
        answer = pb.StepAnswer(epoch=request.epoch, order=request.order, forward_seconds=step_seconds + extra_seconds)
        failures: dict[int, pb.Failure] = {}
        if "fail_sequence" in faults and sequences:
            failures[sequences[int(faults["fail_sequence"]) % len(sequences)].id] = pb.NON_FINITE
        prompt_logprobs = {
            chunk.sequence.id: chunk.sequence.worker_state.cache_tags.make_prompt_logprobs(chunk)
            for chunk in step.chunks if chunk.sequence.wants_prompt_logprobs and chunk.sequence.id not in failures}
        outputs = {sequence.id: self._generate_output(sequence) for sequence in step.sampled_sequences
                   if sequence.id not in failures}
        self.shard_state.apply_results(step, {i: output.tokens for i, output in outputs.items()}, failures)
        for sequence in sequences:  # as in a forward pass, all writes of the step precede its reads
            sequence.worker_state.cache_tags.write_tags(sequence, self._block_tags)
        for sequence in sequences:
            sequence.worker_state.cache_tags.check_tags(sequence, self._block_tags)
        if self._rank == 0:
            write_sequence_outputs(answer, step, outputs)
            write_prompt_logprobs(answer, prompt_logprobs)
            corrupt_step_answer(answer, faults.get("wrong", ""), self._model_config.vocabulary_size)
        self._sleep_for_step(request, faults, step_seconds, extra_seconds)
        return answer

    def _sleep_for_step(self, request: StepRequest, faults: dict[str, str], step_seconds: float,
                        extra_seconds: float) -> None:
        if "late" in faults:
            self._answer_delays[request.epoch, request.order] = float(faults["late"])
        if (seconds := step_seconds * self._model_config.time_scale + extra_seconds) > 0.0:
            self._sleep(seconds)

    def _sleep_unless_closed(self, seconds: float) -> None:
        """Sleep until the step has taken its time, that of computing included, unless the worker is closed."""
        self._closed_event.wait(max(0.0, min(seconds - (monotonic() - self._step_started_at), MAX_SLEEP_SECONDS)))

    def _prepare_sequence(self, sequence: Sequence) -> None:
        """Give a new sequence its state; raise if it is poisonous."""
        if sequence.worker_state is None:
            text = SimulatedTokens(sequence, self._model_config.seed, self._model_config.mean_output_length)
            text.continue_from_tokens(sequence.tokens[sequence.num_prompt_tokens:])
            prompt = sequence.tokens[:sequence.num_prompt_tokens]
            sequence.worker_state = SimulatedSequenceState(text,
                                                           CacheTags(sequence, self.shard_state.block_usage.block_size),
                                                           self._find_poison(prompt))
        if sequence.worker_state.poison_fault is not None:
            sequence.worker_state.poison_fault.has_fired = True
            raise SimulatedStepError(f"sequence {sequence.id} is poisonous")

    def _find_poison(self, tokens: list[int]) -> Fault | None:
        return next((fault for fault in self.faults if fault.kind == "poison" and int(fault.argument) in tokens), None)

    def _generate_output(self, sequence: Sequence) -> SequenceOutput:
        """Return the next tokens. The chosen one is the best candidate, its neighbours follow, each less likely."""
        text: SimulatedTokens = sequence.worker_state.text
        tokens, logprobs = text.generate_tokens(
            len(sequence.tokens) - sequence.num_prompt_tokens,
            self.shard_state.max_tokens_per_decode(sequence) if sequence.is_prefilled else 1)
        num_top_tokens = min(sequence.sampling.top_n_tokens, NUM_USED_TOKENS)
        if not num_top_tokens:
            return SequenceOutput(tokens, logprobs)
        return SequenceOutput(tokens, logprobs,
                              [[(token + i) % NUM_USED_TOKENS for i in range(num_top_tokens)] for token in tokens],
                              [[logprob - i / 4 for i in range(num_top_tokens)] for logprob in logprobs])

    def _compute_seconds(self, num_rows: int, num_chunk_tokens: int, num_context_tokens: int) -> float:
        model = self._model_config
        return (model.seconds_per_step + model.seconds_per_row * num_rows
                + model.seconds_per_chunk_token * num_chunk_tokens + model.seconds_per_place * num_context_tokens)
