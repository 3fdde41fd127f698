"""The exactness gate at start: whether a sequence gets the same bits alone, in any batch, and with any chunks.

It runs one layer of each kind and the head of the model on this machine and compares bits, not closeness.
"""

from collections.abc import Callable
from functools import partial
from itertools import accumulate, islice
from typing import NamedTuple

import torch
from torch import Tensor

from shard.attention.backend import Attention
from shard.attention.inputs import build
from shard.attention.kv_cache import Cache
from shard.models.config import ModelConfig
from shard.runner.runner import Model
from shard.state.sequence import Sampling, Sequence
from shard.state.transaction import Chunk, Step

LENGTH = 300  # tokens of the observed sequence: its slots are gathered as 64, 128, 256 and 512
CUT = 0.45  # share of them in the first chunk
BLOCK_SIZE = 16

Bits = dict[str, Tensor]


class Look(NamedTuple):
    companies: tuple[int, ...]  # sizes of batches that decode
    head_rows: int  # at most so many rows are run through the head, which is large
    prompts: tuple[int, ...]  # numbers of prompts that run beside the observed one


BRIEF = Look((2, 17, 300), 17, ())
# All sizes for which a GPU might run another kernel, those that are captured among them, and rows of many prompts.
THOROUGH = Look((2, 3, 4, 7, 8, 16, 24, 31, 32, 40, 48, 56, 64, 80, 96, 128, 160, 192, 200, 224, 256, 300, 320, 384,
                 448, 511, 512), 512, (1, 2, 6, 13))


class Gate:
    """Comparison of one sequence's bits between steps of different contents."""

    def __init__(self, model: Model, config: ModelConfig, attention: Attention, cache: Callable[[int], Cache],
                 device: torch.device, *, look: Look = BRIEF) -> None:
        """Create the gate. `model` needs one layer of each kind; `cache` allocates its cache, of a number of blocks."""
        self._look = look
        self._model = model
        self._attention = attention
        self._length = min(LENGTH, config.max_positions)
        self._cut = max(1, int(CUT * self._length))
        self._cache = cache(2 * blocks_of(self._length))
        self._device = device
        generator = torch.Generator().manual_seed(0)
        tokens: list[int] = torch.randint(config.vocabulary_size, (2 * self._length,), generator=generator).tolist()
        self._observed = sequence(0, tokens[:self._length], 0)
        # All other sequences share their blocks: their results are not compared.
        self._others = [sequence(number, tokens[self._length:], blocks_of(self._length))
                        for number in range(max(look.companies))]

    @torch.inference_mode()
    def verdict(self) -> str:
        """Return the first difference, or an empty string. Each case reads what the cases before it wrote to the cache,
        which has the right bits as long as none of them differs. All cases are run after a difference, too: other ranks
        may have found none yet."""
        expected, found = self._alone(), ""
        for name, case in self._cases():
            bits = case()
            different = [part for part in bits if not same_bits(bits[part], expected[part])]
            if different and not found:
                found = f"{name} has other bits in {' and '.join(different)} than the same prompt alone"
        return found

    def _cases(self) -> list[tuple[str, Callable[[], Bits]]]:
        return [
            ("a prompt in two chunks", self._in_chunks),
            ("a token decoded alone", partial(self._decoded, 1)),
            *((f"a token in a batch of {size}", partial(self._decoded, size)) for size in self._look.companies),
            ("a chunk beside decodes", partial(self._beside, self._look.companies[0])),
            *((f"a prompt among {count} others", partial(self._among, count)) for count in self._look.prompts),
        ]

    def _alone(self) -> Bits:
        self._run(Step(chunks=[Chunk(self._others[0], 0, self._length)]))
        return self._last(Step(chunks=[Chunk(self._observed, 0, self._length)]), self._length - 1)

    def _in_chunks(self) -> Bits:
        self._run(Step(chunks=[Chunk(self._observed, 0, self._cut)]))
        return self._last(Step(chunks=[self._second_chunk()]), self._length - self._cut - 1)

    def _decoded(self, size: int) -> Bits:
        others, place = self._others[:size - 1], (size - 1) // 2
        return self._last(Step(decodes=[*others[:place], self._observed, *others[place:]]), place)

    def _beside(self, size: int) -> Bits:
        step = Step(decodes=self._others[:size], chunks=[self._second_chunk()])
        return self._last(step, size + self._length - self._cut - 1)

    def _among(self, count: int) -> Bits:
        prompts = [Chunk(other, 0, self._length) for other in self._others[:count]]
        step = Step(chunks=[*prompts, Chunk(self._observed, 0, self._length)])
        return self._last(step, len(step.chunks) * self._length - 1)

    def _second_chunk(self) -> Chunk:
        return Chunk(self._observed, self._cut, self._length - self._cut)

    def _run(self, step: Step) -> Tensor:
        inputs = build(step, self._cache, self._attention, self._device)
        return self._model.hidden(inputs, self._cache, self._attention)

    def _last(self, step: Step, row: int) -> Bits:
        """Run the step and return the bits of the observed sequence's last token, in `row`. Only rank 0 has logits."""
        hidden, most = self._run(step), self._look.head_rows
        rows = speaking(step)
        at = rows.index(row)
        first = max(0, min(at - most // 2, len(rows) - most))
        logits = self._model.logits(hidden[rows[first:first + most]])
        bits = {"hidden states": hidden[row].clone()}
        if logits is None:
            return bits
        return bits | {"logits": logits[at - first].clone(), "logprobs": logits.log_softmax(-1)[at - first].clone()}


def speaking(step: Step) -> list[int]:
    """Return the rows of all decodes, and the last row of each chunk."""
    ends = accumulate((chunk.length for chunk in step.chunks), initial=len(step.decodes))
    return [*range(len(step.decodes)), *(end - 1 for end in islice(ends, 1, None))]


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Whether both tensors have the same bits, those of NaNs included."""
    return torch.equal(one.view(torch.uint8), other.view(torch.uint8))


def sequence(number: int, tokens: list[int], first_block: int) -> Sequence:
    length = len(tokens)
    blocks = list(range(first_block, first_block + blocks_of(length)))
    return Sequence(id=number, tokens=tokens, num_prompt_tokens=length, num_given=length, computed=0, num_cached=0,
                    blocks=blocks, key=0, sampling=Sampling(), prompt_logprobs=False, adapter=0, grammar=0)


def blocks_of(length: int) -> int:
    return -(-length // BLOCK_SIZE)
