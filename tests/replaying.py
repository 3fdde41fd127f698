"""A model whose steps can be launched piece by piece, or replayed, and sequences in its cache."""

from pathlib import Path
from typing import Any

import pytest
import torch

from shard.adapters.wardrobe import Wardrobe
from shard.attention.backends import make_attention
from shard.attention.variant import Variant
from shard.cache import Cache
from shard.change import Chunk, Step
from shard.checkpoint import read_config
from shard.distributed import Alone
from shard.models.table import load_model
from shard.replay import Call, Capture, Extent, Replays
from shard.runner import Outcome, Runner
from shard.sampling import Sampler
from shard.sequence import Sampling, Sequence
from shard.weights import Weights

CPU = torch.device("cpu")
BLOCKS, ROWS, LENGTH = 60, 3, 600  # so long that a text has several splits


def called_again(make: Call) -> Call:
    """A capture where there are no graphs: what changes from step to step must come by way of tensors that stay, as a
    graph wants it."""
    make()
    return make


class Bench:
    def __init__(self, folder: Path, capture: Capture = called_again, device: torch.device = CPU, *,
                 rows: int = ROWS, quantize: str = "", adaptable: bool = False) -> None:
        config, wardrobe = read_config(folder), Wardrobe(torch.float32, device, adaptable=adaptable)
        with Weights(folder, torch.float32, device, config.quantization, quantize, sites=wardrobe.sites) as weights:
            self.model = load_model(config, weights, Alone())
        variant, heads = Variant(config.scale, config.softcap, config.windows), self.model.num_kv_heads
        attentions: list[Any] = [make_attention(name, config.num_heads, heads, config.head_dim, variant)
                                 for name in ("reference", "triton")]
        plain, self.attention = attentions
        self.cache = self.new_cache(device)
        self._filler, self.runner = [
            Runner(self.model, attention, Sampler(config.vocabulary_size, device), Alone(), wardrobe.bearers,
                   device=device) for attention in (plain, self.attention)]
        self.replays = Replays(self.model, self.attention, self.cache, Extent(rows, LENGTH), capture)

    def new_cache(self, device: torch.device) -> Cache:
        model = self.model
        return Cache(model.num_layers, model.num_kv_heads, model.head_dim, block_size=16, num_blocks=BLOCKS,
                     dtype=torch.float32, device=device)

    def run(self, step: Step, *, replayed: bool) -> Outcome:
        self.runner.replay(self.replays if replayed else None)
        return self.runner.run(step, self.cache)

    def says_the_same(self, sequences: list[Sequence], close: float) -> None:
        """Whether steps are replayed or launched. The second has other rows, and finds what the first one left."""
        for _ in range(2):
            ours, theirs = (self.run(Step(decodes=sequences), replayed=replayed) for replayed in (True, False))
            assert not ours.failures
            for sequence in sequences:
                said, expected = ours.said[sequence.id], theirs.said[sequence.id]
                assert said.tokens == expected.tokens
                assert said.logprobs == pytest.approx(expected.logprobs, abs=close)
                sequence.tokens += expected.tokens
            sequences = sequences[1:] or sequences

    def filled(self, lengths: list[int], seed: int) -> list[Sequence]:
        """All but the last token of each stands in the cache; each has a place for one more. By the reference, since
        an interpreter takes its time."""
        generator, free = torch.Generator().manual_seed(seed), list(range(BLOCKS))
        found = []
        for number, length in enumerate(lengths):
            tokens = torch.randint(2, 480, (length,), generator=generator).tolist()
            blocks = [free.pop() for _ in range(-(-(length + 1) // self.cache.block_size))]
            found.append(Sequence(
                id=number, tokens=tokens, num_prompt_tokens=length, num_given=length, computed=0, num_cached=0,
                blocks=blocks, key=number, sampling=Sampling(), prompt_logprobs=False, adapter=0, grammar=0))
            if length > 1:
                self._filler.run(Step(chunks=[Chunk(found[-1], 0, length - 1)]), self.cache)
        return found
