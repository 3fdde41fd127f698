"""The ledger of a shard: batches, their sequences, the blocks they hold, and every check of the contract.

Each message is read, checked completely against the ledger, and only then applied: a rejected message changes nothing.
Decisions follow from the message and from state that all ranks share, so ranks never disagree. The ledger determines
what a step consists of and receives its results; `rpc/ordering.py` puts the messages in order.
"""

from collections.abc import Mapping

from shard.errors import Malformed, Refused
from shard.pb import shard_pb2 as pb
from shard.state.blocks import Blocks
from shard.state.columns import Text, read_texts
from shard.state.sequence import EXPECTED, Limits, Sequence, read_sequences
from shard.state.transaction import Change, Chunk, Members, Step

__all__ = ["Chunk", "Ledger", "Malformed", "Refused", "Step"]


def asked_blocks(request: pb.WarmupRequest, num_fitting: int) -> int:
    """Return the number of cache blocks, where `num_fitting` would fit."""
    most = request.max_cache_tokens // request.block_size
    return min(num_fitting, most) if request.max_cache_tokens else num_fitting


class Ledger:
    """Batches, sequences and blocks of a shard, changed only by messages that pass every check."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.blocks = Blocks(16, 0)
        self.batches: dict[int, Members] = {}
        self.sequences: Members = {}
        self.loaded: dict[int, set[int]] = {pb.KIND_ADAPTER: set(), pb.KIND_GRAMMAR: set()}
        self.max_chunk_tokens = 0
        self.max_decodes = 0

    def check_warmup(self, request: pb.WarmupRequest) -> None:
        """Check the limits of a warm-up, and that it is the first one."""
        size, most = request.block_size, request.max_cache_tokens
        if not size or size % 16:
            raise Malformed(f"block_size must be a multiple of 16, got {size}")
        if not request.max_prefill_tokens or not request.max_batch_size:
            raise Malformed("max_prefill_tokens and max_batch_size must be at least 1")
        if request.max_total_tokens > self.limits.max_positions:
            raise Malformed(f"--max-total-tokens must be at most {self.limits.max_positions}, which is what the "
                            f"model holds, got {request.max_total_tokens}")
        if 0 < most < size:
            raise Malformed(f"max_cache_tokens must be at least one block of {size}, got {most}")
        if self.blocks.count:
            raise Refused("warm-up was done before")

    def warmup(self, request: pb.WarmupRequest, num_blocks: int) -> None:
        """Set the size of the cache and the limits of steps; `num_blocks` is the most that fit."""
        self.check_warmup(request)
        self.blocks = Blocks(request.block_size, asked_blocks(request, num_blocks))
        self.max_chunk_tokens, self.max_decodes = request.max_prefill_tokens, request.max_batch_size

    def reset(self) -> None:
        self.blocks = Blocks(self.blocks.size, self.blocks.count)
        self.batches.clear()
        self.sequences.clear()

    def check_load(self, request: pb.LoadRequest) -> None:
        if request.kind not in self.loaded or not request.id:
            raise Malformed("a Load names a kind and an id other than 0")

    def unload_before(self, request: pb.LoadRequest) -> pb.UnloadRequest | None:
        """Return the Unload to apply first if the id is loaded already: the answer to an earlier Load may be lost."""
        if request.id not in self.loaded.get(request.kind, ()):
            return None
        return pb.UnloadRequest(epoch=request.epoch, kind=request.kind, id=request.id)

    def load(self, request: pb.LoadRequest) -> None:
        self.check_load(request)
        self.loaded[request.kind].add(request.id)

    def unload(self, request: pb.UnloadRequest) -> None:
        if request.id not in self.loaded.get(request.kind, ()):
            raise Refused(f"{request.id} is not loaded")
        self.loaded[request.kind].remove(request.id)

    def filter(self, request: pb.FilterRequest) -> None:
        if not request.HasField("keep"):
            raise Malformed("a Filter says what to keep")
        change = Change(self, request.batch)
        change.keep(request.keep.sequences)
        change.apply()

    def concat(self, request: pb.ConcatRequest) -> None:
        if not request.batches:
            raise Malformed("a Concat names batches")
        change = Change(self, request.batches[0])
        change.join(request.batches[1:])
        change.apply()

    def prefill(self, request: pb.PrefillRequest) -> Step:
        """Apply the message and return its step, which is under way until `finish` receives its results."""
        self._check_generation()
        if request.alongside and not self.limits.mixed_steps:
            raise Refused("this shard runs no mixed steps")
        change = Change(self, request.batch)
        change.ride(request)
        if request.alongside:
            change.decode()
        change.enter(read_sequences(request.sequences, self.limits, self.blocks.size, self.blocks.count))
        change.run(request.chunks)
        return change.apply_step()

    def decode(self, request: pb.DecodeRequest) -> Step:
        self._check_generation()
        change = Change(self, request.batch)
        change.ride(request)
        change.decode()
        return change.apply_step()

    def embed(self, request: pb.EmbedRequest) -> list[Text]:
        """Check and return the texts of a step, which leaves no state behind."""
        texts = read_texts(request, self.limits)
        if not self.blocks.count:
            raise Refused("Warmup comes first")
        if request.wanted not in self.limits.wanted:
            raise Refused(f"this shard gives no {pb.Wanted.Name(request.wanted)}")
        for text in texts:
            if text.adapter and text.adapter not in self.loaded[pb.KIND_ADAPTER]:
                raise Refused(f"{pb.Kind.Name(pb.KIND_ADAPTER)} {text.adapter} is not loaded")
        if (total := sum(len(text.tokens) for text in texts)) > self.max_chunk_tokens:
            raise Refused(f"{total} tokens of texts would run, warm-up allowed {self.max_chunk_tokens}")
        return texts

    def _check_generation(self) -> None:
        if not self.limits.generation:
            raise Refused("this shard does not generate")

    def room(self, sequence: Sequence) -> int:
        """Return the most tokens a decode may yield for the sequence: all that it writes needs a position in the model.
        """
        return min(self.limits.tokens_per_step, self.limits.max_positions + 1 - len(sequence.tokens))

    def finish(self, step: Step, yielded: Mapping[int, list[int]], failures: Mapping[int, pb.Failure]) -> None:
        """Apply the results of a step: every yielding sequence has tokens in `yielded` or is in `failures`."""
        for chunk in step.chunks:
            chunk.sequence.failure = failures.get(chunk.sequence.id)
            self._advance(chunk.sequence, chunk.end, sound=chunk.sequence.failure is None)
        for sequence in step.yielding:
            if sequence.id in failures:
                sequence.failure = failures[sequence.id]
            else:
                tokens = yielded[sequence.id]
                assert tokens
                sequence.tokens += tokens
                self._advance(sequence, len(sequence.tokens) - 1)

    def expect(self, step: Step) -> list[int]:
        """Append a placeholder token to each decoding sequence so that later messages can be applied while the step
        runs. Return the placeholders' indices."""
        places = [len(sequence.tokens) for sequence in step.decodes]
        for sequence in step.decodes:
            sequence.tokens.append(EXPECTED)
            self._advance(sequence, len(sequence.tokens) - 1)
        return places

    def fulfil(self, step: Step, places: list[int], tokens: list[int]) -> None:
        """Replace the placeholders by the tokens, one per sequence."""
        for sequence, place, token in zip(step.decodes, places, tokens, strict=True):
            sequence.tokens[place] = token

    def take_back(self, step: Step, places: list[int]) -> None:
        """Undo `expect` for this step and every later one."""
        for sequence, place in zip(step.decodes, places, strict=True):
            del sequence.tokens[place:]
            computed = place - 1
            self.blocks.unfill(self._filled(sequence, computed, sequence.computed))
            sequence.computed = computed

    def _advance(self, sequence: Sequence, computed: int, *, sound: bool = True) -> None:
        """Set the number of computed tokens. Blocks are marked full only if `sound`: a failed sequence's results must
        never be shared."""
        if sound:
            self.blocks.fill(self._filled(sequence, sequence.computed, computed))
        sequence.computed = computed

    def _filled(self, sequence: Sequence, before: int, after: int) -> list[int]:
        """Return the blocks that the sequence fills between two numbers of computed tokens. If it was dropped while its
        step was under way, other sequences may have taken some of its blocks: these are left out."""
        size, blocks = self.blocks.size, self.blocks
        if before // size == after // size:
            return []
        filled = sequence.blocks[before // size:after // size]
        if self.sequences.get(sequence.id) is sequence:
            return filled
        return [block for block in filled if not blocks.num_holders[block]]
