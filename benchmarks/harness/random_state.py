"""Random inputs for timing a model's steps, and a timer that waits for the GPU.

Tokens and cache contents are random because matmuls of equal rows, or of zeros, take different times.
"""

from collections.abc import Callable
from random import Random
from time import perf_counter

import torch

from shard.attention.kv_cache import Cache
from shard.state.sequence import Sampling, Sequence
from shard.workers.load_decoder import Loaded

BLOCK_SIZE = 16


def blocks_of(length: int) -> int:
    """Return the number of blocks that `length` tokens need."""
    return -(-length // BLOCK_SIZE)


def drawn_cache(loaded: Loaded, num_blocks: int) -> Cache:
    made = loaded.cache(BLOCK_SIZE, num_blocks)
    for side in (*made.keys, *made.values):
        side[:num_blocks * BLOCK_SIZE].normal_()
    return made


def drawn_sequence(number: int, length: int, computed: int, vocabulary: int, blocks: int) -> Sequence:
    """Return a random sequence that holds blocks `number * blocks` to `(number + 1) * blocks - 1`."""
    tokens = Random(number).choices(range(vocabulary), k=length)
    own = list(range(number * blocks, (number + 1) * blocks))
    return Sequence(id=number, tokens=tokens, num_prompt_tokens=length, num_given=length, computed=computed,
                    num_cached=0, blocks=own, key=number, sampling=Sampling(), prompt_logprobs=False, adapter=0,
                    grammar=0)


def timed(run: Callable[[], object]) -> float:
    """Return the seconds that `run` takes, including the work that it queues on the GPU."""
    began = perf_counter()
    run()
    done()
    return perf_counter() - began


def done() -> None:
    """Wait until the GPU has finished all queued work."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
