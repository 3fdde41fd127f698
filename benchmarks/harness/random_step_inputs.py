"""Random sequences and cache contents for timing a model's steps.

Tokens and cache contents are random because matmuls of equal rows, or of zeros, take different times.
"""

from random import Random

from shard.attention.kv_cache import KVCache
from shard.state.sequence import Sequence
from shard.workers.model_loading import LoadedDecoder

BLOCK_SIZE = 16


def num_blocks_for(num_tokens: int) -> int:
    """Return the number of blocks that `num_tokens` tokens need."""
    return -(-num_tokens // BLOCK_SIZE)


def make_random_cache(loaded_model: LoadedDecoder, num_blocks: int) -> KVCache:
    cache = loaded_model.make_cache(BLOCK_SIZE, num_blocks)
    for layer_cache in (*cache.keys, *cache.values):
        layer_cache[:num_blocks * BLOCK_SIZE].normal_()
    return cache


def make_random_sequence(number: int, num_tokens: int, num_computed: int, vocabulary_size: int,
                         num_blocks: int) -> Sequence:
    """Return a random sequence that holds blocks `number * num_blocks` to `(number + 1) * num_blocks - 1`."""
    tokens = Random(number).choices(range(vocabulary_size), k=num_tokens)
    block_ids = list(range(number * num_blocks, (number + 1) * num_blocks))
    sequence = Sequence.from_prompt(number, tokens, block_ids)
    sequence.num_computed_tokens = num_computed
    return sequence
