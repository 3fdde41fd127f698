"""The state of a shard: batches, their sequences, the blocks they hold, and every check of the contract.

Each message is read, checked completely against the state, and only then applied: a rejected message changes nothing.
Decisions follow from the message and from state that all ranks share, so ranks never disagree. `ShardState`
determines what a step consists of and receives its results; `rpc/message_ordering.py` puts the messages in order.
"""

from collections.abc import Mapping

from shard.errors import MalformedMessage, RejectedMessage
from shard.pb import shard_pb2 as pb
from shard.state.batch_transaction import BatchTransaction, SequencesById
from shard.state.block_usage import MIN_BLOCK_SIZE, BlockUsage
from shard.state.sequence import (
    PLACEHOLDER_TOKEN,
    ModelLimits,
    PoolingText,
    Sequence,
    parse_pooling_texts,
    parse_sequences,
)
from shard.state.step import Step


def cap_num_blocks(request: pb.WarmupRequest, num_fitting_blocks: int) -> int:
    """Return the number of cache blocks, where `num_fitting_blocks` would fit."""
    max_blocks = request.max_cache_tokens // request.block_size
    return min(num_fitting_blocks, max_blocks) if request.max_cache_tokens else num_fitting_blocks


class ShardState:
    """Batches, sequences and blocks of a shard, changed only by messages that pass every check."""

    def __init__(self, limits: ModelLimits) -> None:
        self.limits = limits
        self.block_usage = BlockUsage(MIN_BLOCK_SIZE, 0)
        self.batches: dict[int, SequencesById] = {}
        self.sequences: SequencesById = {}
        self.loaded_ids: dict[int, set[int]] = {pb.KIND_ADAPTER: set(), pb.KIND_GRAMMAR: set()}
        self.max_chunk_tokens = 0
        self.max_decodes = 0

    def check_warmup(self, request: pb.WarmupRequest) -> None:
        """Check the limits of a warm-up, and that it is the first one."""
        block_size, max_cache_tokens = request.block_size, request.max_cache_tokens
        if not block_size or block_size % MIN_BLOCK_SIZE:
            raise MalformedMessage(f"block_size must be a multiple of {MIN_BLOCK_SIZE}, got {block_size}")
        if not request.max_prefill_tokens or not request.max_batch_size:
            raise MalformedMessage("max_prefill_tokens and max_batch_size must be at least 1")
        if request.max_total_tokens > self.limits.max_positions:
            raise MalformedMessage(f"--max-total-tokens must be at most {self.limits.max_positions}, which is what the "
                                   f"model holds, got {request.max_total_tokens}")
        if 0 < max_cache_tokens < block_size:
            raise MalformedMessage(
                f"max_cache_tokens must be at least one block of {block_size}, got {max_cache_tokens}")
        if self.block_usage.num_blocks:
            raise RejectedMessage("warm-up was done before")

    def apply_warmup(self, request: pb.WarmupRequest, num_fitting_blocks: int) -> None:
        """Set the size of the cache and the limits of steps; `num_fitting_blocks` is the most that fit."""
        self.check_warmup(request)
        self.block_usage = BlockUsage(request.block_size, cap_num_blocks(request, num_fitting_blocks))
        self.max_chunk_tokens, self.max_decodes = request.max_prefill_tokens, request.max_batch_size

    def reset(self) -> None:
        self.block_usage = BlockUsage(self.block_usage.block_size, self.block_usage.num_blocks)
        self.batches.clear()
        self.sequences.clear()

    def check_load_request(self, request: pb.LoadRequest) -> None:
        if request.kind not in self.loaded_ids or not request.id:
            raise MalformedMessage("a Load names a kind and an id other than 0")

    def make_unload_if_loaded(self, request: pb.LoadRequest) -> pb.UnloadRequest | None:
        """Return the Unload to apply first if the id is loaded already: the answer to an earlier Load may be lost."""
        if request.id not in self.loaded_ids.get(request.kind, ()):
            return None
        return pb.UnloadRequest(epoch=request.epoch, kind=request.kind, id=request.id)

    def mark_loaded(self, request: pb.LoadRequest) -> None:
        self.check_load_request(request)
        self.loaded_ids[request.kind].add(request.id)

    def mark_unloaded(self, request: pb.UnloadRequest) -> None:
        if request.id not in self.loaded_ids.get(request.kind, ()):
            raise RejectedMessage(f"{request.id} is not loaded")
        self.loaded_ids[request.kind].remove(request.id)

    def check_resource_loaded(self, kind: pb.Kind, resource_id: int) -> None:
        if resource_id and resource_id not in self.loaded_ids[kind]:
            raise RejectedMessage(f"{pb.Kind.Name(kind)} {resource_id} is not loaded")

    def apply_filter(self, request: pb.FilterRequest) -> None:
        if not request.HasField("keep"):
            raise MalformedMessage("a Filter says what to keep")
        transaction = BatchTransaction(self, request.batch)
        transaction.keep_sequences(request.keep.sequences)
        transaction.apply()

    def apply_concat(self, request: pb.ConcatRequest) -> None:
        if not request.batches:
            raise MalformedMessage("a Concat names batches")
        transaction = BatchTransaction(self, request.batches[0])
        transaction.join_batches(request.batches[1:])
        transaction.apply()

    def apply_prefill(self, request: pb.PrefillRequest) -> Step:
        """Apply the message and return its step, which is under way until `apply_results` receives its results."""
        self._check_can_generate()
        if request.alongside and not self.limits.mixed_steps:
            raise RejectedMessage("this shard runs no mixed steps")
        transaction = BatchTransaction(self, request.batch)
        transaction.add_piggybacked_changes(request)
        if request.alongside:
            transaction.add_decodes()
        transaction.add_sequences(parse_sequences(request.sequences, self.limits, self.block_usage.block_size,
                                                  self.block_usage.num_blocks))
        transaction.add_chunks(request.chunks)
        return transaction.apply_step()

    def apply_decode(self, request: pb.DecodeRequest) -> Step:
        self._check_can_generate()
        transaction = BatchTransaction(self, request.batch)
        transaction.add_piggybacked_changes(request)
        transaction.add_decodes()
        return transaction.apply_step()

    def parse_embed_texts(self, request: pb.EmbedRequest) -> list[PoolingText]:
        """Check and return the texts of a step, which leaves no state behind."""
        texts = parse_pooling_texts(request, self.limits)
        if not self.block_usage.num_blocks:
            raise RejectedMessage("Warmup comes first")
        if request.wanted not in self.limits.supported_wanted:
            raise RejectedMessage(f"this shard gives no {pb.Wanted.Name(request.wanted)}")
        for text in texts:
            self.check_resource_loaded(pb.KIND_ADAPTER, text.adapter_id)
        if (total := sum(len(text.tokens) for text in texts)) > self.max_chunk_tokens:
            raise RejectedMessage(f"{total} tokens of texts would run, warm-up allowed {self.max_chunk_tokens}")
        return texts

    def _check_can_generate(self) -> None:
        if not self.limits.generation:
            raise RejectedMessage("this shard does not generate")

    def max_tokens_per_decode(self, sequence: Sequence) -> int:
        """Return the most tokens a decode may yield: all that it writes needs a position in the model."""
        return min(self.limits.tokens_per_step, self.limits.max_positions + 1 - len(sequence.tokens))

    def apply_results(self, step: Step, new_tokens: Mapping[int, list[int]],
                      failures: Mapping[int, pb.Failure]) -> None:
        """Apply the results of a step: every sampled sequence has tokens in `new_tokens` or is in `failures`."""
        for chunk in step.chunks:
            chunk.sequence.failure = failures.get(chunk.sequence.id)
            self._set_num_computed(chunk.sequence, chunk.end, is_valid=chunk.sequence.failure is None)
        for sequence in step.sampled_sequences:
            if sequence.id in failures:
                sequence.failure = failures[sequence.id]
            else:
                tokens = new_tokens[sequence.id]
                if not tokens:
                    raise RuntimeError(f"sequence {sequence.id} was sampled and has no token")
                sequence.tokens += tokens
                self._set_num_computed(sequence, len(sequence.tokens) - 1)

    def append_placeholders(self, step: Step) -> list[int]:
        """Append a placeholder token to each decoding sequence so that later messages can be applied while the step
        runs. Return the placeholders' indices."""
        placeholder_indices = [len(sequence.tokens) for sequence in step.decodes]
        for sequence in step.decodes:
            sequence.tokens.append(PLACEHOLDER_TOKEN)
            self._set_num_computed(sequence, len(sequence.tokens) - 1)
        return placeholder_indices

    def fill_placeholders(self, step: Step, placeholder_indices: list[int], tokens: list[int]) -> None:
        """Replace the placeholders by the tokens, one per sequence."""
        for sequence, index, token in zip(step.decodes, placeholder_indices, tokens, strict=True):
            sequence.tokens[index] = token

    def roll_back_placeholders(self, step: Step, placeholder_indices: list[int]) -> None:
        """Undo `append_placeholders` for this step and every later one."""
        for sequence, index in zip(step.decodes, placeholder_indices, strict=True):
            del sequence.tokens[index:]
            num_computed = index - 1
            unmarked = self._newly_full_blocks(sequence, num_computed, sequence.num_computed_tokens)
            self.block_usage.mark_full(unmarked, is_full=False)
            sequence.num_computed_tokens = num_computed

    def _set_num_computed(self, sequence: Sequence, num_computed: int, *, is_valid: bool = True) -> None:
        """Set the number of computed tokens. Blocks are marked full only if `is_valid`: a failed sequence's results
        must never be shared."""
        if is_valid and (filled := self._newly_full_blocks(sequence, sequence.num_computed_tokens, num_computed)):
            self.block_usage.mark_full(filled)
        sequence.num_computed_tokens = num_computed

    def _newly_full_blocks(self, sequence: Sequence, num_computed_before: int, num_computed_after: int) -> list[int]:
        """Return the blocks that the sequence fills between two numbers of computed tokens. If it was dropped while its
        step was under way, other sequences may have taken some of its blocks: these are left out."""
        block_size, block_usage = self.block_usage.block_size, self.block_usage
        if num_computed_before // block_size == num_computed_after // block_size:
            return []
        filled = sequence.blocks[num_computed_before // block_size:num_computed_after // block_size]
        if self.sequences.get(sequence.id) is sequence:
            return filled
        return [block for block in filled if not block_usage.num_holders[block]]
