"""Model whose decode steps can run eagerly or be replayed from captures, with sequences in its KV cache."""

from collections import deque
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from shard.adapters.registry import Wardrobe
from shard.attention.backend import Attention, make_attention
from shard.attention.kv_cache import Cache
from shard.attention.span import Span
from shard.attention.variant import Variant
from shard.checkpoint.reader import Weights
from shard.host.device import UNDER_WAY
from shard.models.read_config import read_config
from shard.models.registry import load_model
from shard.parallel.group import Alone
from shard.runner.cuda_graphs import Begun, Call, Capture, Extent, Replays
from shard.runner.runner import Outcome, Runner
from shard.sampling.sampler import Sampler
from shard.state.sequence import EXPECTED, Sampling, Sequence
from shard.state.transaction import Chunk, Step
from shard.workers.load_decoder import Loaded

CPU = torch.device("cpu")
BLOCKS, ROWS, LENGTH = 60, 3, 600  # so long that attention has several splits per sequence


def called_again(make: Call) -> Call:
    """Capture a step on a device without CUDA graphs: a replay calls `make` again.

    As with a graph, whatever changes between steps must be passed in tensors that keep their addresses.
    """
    make()
    return make


class Framed:
    """Wrapper of any attention backend for captures that are called again: the plan is replaced between the calls."""

    def __init__(self, attention: Attention) -> None:
        self.plan = attention.plan
        self._attention = attention

    def run(self, queries: Tensor, cache: Cache, layer: int, plan: Any) -> Tensor:
        return self._attention.run(queries, cache, layer, plan.now if isinstance(plan, Frame) else plan)

    def frames(self, rows: int, length: int, cache: Cache) -> "Frame":
        return Frame(self, cache)


class Frame:
    def __init__(self, attention: Framed, cache: Cache) -> None:
        self._attention, self._cache = attention, cache
        self.now: Any = None

    def plan(self, rows: int) -> "Frame":
        return self

    def write(self, decodes: list[Span]) -> bool:
        self.now = self._attention.plan(decodes, [], len(decodes), self._cache)
        return True


def replay_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make workers that are created from now on replay their decode steps on a CPU."""
    def replays(self: Loaded, cache: Cache, extent: Extent) -> Replays:
        return Replays(self.model, Framed(self.attention), cache, extent, called_again, bearers=self.wardrobe.steady)
    monkeypatch.setattr(Loaded, "replays", replays)


class Bench:
    """Model with a KV cache, captured decode steps, and runners with Triton and with reference attention."""

    def __init__(self, folder: Path, capture: Capture = called_again, device: torch.device = CPU, *,
                 rows: int = ROWS, quantize: str = "", adaptable: bool = False) -> None:
        config, wardrobe = read_config(folder), Wardrobe(torch.float32, device, adaptable=adaptable)
        self.wardrobe = wardrobe
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
        self.replays = Replays(self.model, self.attention, self.cache, Extent(rows, LENGTH), capture,
                               bearers=wardrobe.steady)

    def new_cache(self, device: torch.device) -> Cache:
        model = self.model
        return Cache(model.num_layers, model.num_kv_heads, model.head_dim, block_size=16, num_blocks=BLOCKS,
                     dtype=torch.float32, device=device)

    def run(self, step: Step, *, replayed: bool) -> Outcome:
        self.runner.replay(self.replays if replayed else None)
        return self.runner.run(step, self.cache)

    def says_the_same(self, sequences: list[Sequence], close: float) -> None:
        """Assert that two steps give the same output whether they are replayed or launched.

        The second step has other rows, and stale values of the first are in the static buffers.
        """
        for _ in range(2):
            ours, theirs = (self.run(Step(decodes=sequences), replayed=replayed) for replayed in (True, False))
            assert not ours.failures
            for sequence in sequences:
                said, expected = ours.said[sequence.id], theirs.said[sequence.id]
                assert said.tokens == expected.tokens
                assert said.logprobs == pytest.approx(expected.logprobs, abs=close)
                sequence.tokens += expected.tokens
            sequences = sequences[1:] or sequences

    def begins_the_same(self, sequences: list[Sequence], num_steps: int) -> None:
        """Assert that steps give the same output whether each waits for the last or begins before the last is over.

        No row may fail, since the step would have to be run again.
        """
        step, given = Step(decodes=sequences), [list(sequence.tokens) for sequence in sequences]
        expected = []
        for _ in range(num_steps):
            said = self.run(step, replayed=True).said
            expected.append([(said[sequence.id].tokens[0], said[sequence.id].logprobs[0]) for sequence in sequences])
            for sequence in sequences:
                sequence.tokens += said[sequence.id].tokens
        for sequence, tokens in zip(sequences, given, strict=True):
            sequence.tokens = tokens
        heard, begun = [], deque[Begun]()
        for _ in range(num_steps):
            behind = self.runner.begin(step, self.cache, begun[-1] if begun else None)
            assert behind is not None
            begun.append(behind)
            for sequence in sequences:
                sequence.tokens.append(EXPECTED)
            if len(begun) == UNDER_WAY:
                heard.append(self._come(sequences, begun.popleft(), -2))
        heard.append(self._come(sequences, begun.popleft(), -1))
        assert heard == expected

    def _come(self, sequences: list[Sequence], begun: Begun, place: int) -> list[tuple[int, float]]:
        choices = begun.choices()
        assert choices is not None
        for sequence, (token, _) in zip(sequences, choices, strict=True):
            assert sequence.tokens[place] == EXPECTED
            sequence.tokens[place] = token
        return choices

    def filled(self, lengths: list[int], seed: int, room: int = 1) -> list[Sequence]:
        """Return sequences of these lengths; all but the last token of each is in the KV cache.

        Each sequence has blocks for `room` more tokens. The cache is filled with reference attention, since Triton's
        interpreter is slow.
        """
        generator, free = torch.Generator().manual_seed(seed), list(range(BLOCKS))
        found = []
        for number, length in enumerate(lengths):
            tokens = torch.randint(2, 480, (length,), generator=generator).tolist()
            blocks = [free.pop() for _ in range(-(-(length + room) // self.cache.block_size))]
            found.append(Sequence(
                id=number, tokens=tokens, num_prompt_tokens=length, num_given=length, computed=0, num_cached=0,
                blocks=blocks, key=number, sampling=Sampling(), prompt_logprobs=False, adapter=0, grammar=0))
            if length > 1:
                self._filler.run(Step(chunks=[Chunk(found[-1], 0, length - 1)]), self.cache)
        return found
