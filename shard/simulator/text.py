"""Output of the simulated model: generated text, cache contents that it checks, embeddings and labels.

A `Tale` is words of five letters and a blank, one byte a token. Each word is chosen by a hash of the sequence (seed,
key, adapter, grammar, prompt) and of the word's index: the same in any batch, after any loss and on any machine, and
different for different sequences, so that a mix-up shows. Embeddings and labels are made in the same way. A `Trace`
holds the tags that a sequence writes to the cache; reading the cache compares the two.
"""

from array import array
from hashlib import blake2b, shake_128
from struct import pack

from shard.state.columns import Text
from shard.state.sequence import Sequence

WORDS = (b"woven braid loops twill skein heald knots plaid tweed linen satin denim gauze serge voile tulle "
         b"crepe chino drill baize cloth cords weave fiber kapok nylon rayon terry tapes picks reeds warps "
         b"wefts yarns tufts spool frame looms pedal lease strip plain cable hanks batik quilt seams pleat "
         b"folds hooks combs cards spins khaki lisle pique moire felts shawl scarf sheen loden toile wools").split()
WORD_LENGTH = 6  # five letters, and then a blank or the end
BLANK, END = 32, 256
NUM_TOKENS = 257  # the bytes and the end

Cache = list[int | None]  # per block the tag of its last writer


class MixUp(Exception):
    """Sequence with tokens that it never generated, or with a cache block that holds something else than it needs."""


class Tale:
    def __init__(self, sequence: Sequence, seed: int, mean_length: float) -> None:
        who = pack("<QQQQ", seed, sequence.key, sequence.adapter, sequence.grammar)
        prompt = array("I", sequence.tokens[:sequence.num_prompt_tokens])
        self._identity = blake2b(who + prompt.tobytes(), digest_size=16).digest()
        self._end_chance = int(min(WORD_LENGTH / mean_length, 1.0) * 2**24) if mean_length else 0
        self._word = -1
        self._tokens: list[int] = []
        self._logprobs: list[float] = []
        self._bursts = b""

    def token(self, index: int) -> int:
        """Return the generated token at this index."""
        return self.say(index, 1)[0][0]

    def say(self, index: int, room: int) -> tuple[list[int], list[float]]:
        """Return what one decode yields from this index on, with logprobs: one to `room` tokens, none after an end."""
        word, letter = divmod(index, WORD_LENGTH)
        if word != self._word:
            self._recall(word)
        tokens, logprobs = [self._tokens[letter]], [self._logprobs[letter]]
        for further in range(index + 1, index + 1 + self._bursts[letter] % room):
            if tokens[-1] != END:
                said = self.say(further, 1)
                tokens += said[0]
                logprobs += said[1]
        return tokens, logprobs

    def _recall(self, word: int) -> None:
        dice = blake2b(self._identity + pack("<Q", word), digest_size=4 + 2 * WORD_LENGTH).digest()
        ends = int.from_bytes(dice[1:4], "little") < self._end_chance
        self._word = word
        self._tokens = [*WORDS[dice[0] % len(WORDS)], END if ends else BLANK]
        self._logprobs = [as_logprob(number) for number in dice[4:4 + WORD_LENGTH]]
        self._bursts = dice[4 + WORD_LENGTH:]


def as_logprob(number: int) -> float:
    """Return a logprob between -2 and 0 that is exact in float32."""
    return -(1 + number % 255) / 128


class Trace:
    """Tags of the blocks that a sequence filled or began: hashes of all its tokens so far, and of its adapter."""

    def __init__(self, sequence: Sequence, block_size: int) -> None:
        self._block_size = block_size
        self._length = 0
        self._chain = hash((sequence.adapter, block_size))
        self._tags: list[int] = []
        for end in range(block_size, sequence.num_cached + 1, block_size):
            self._tags.append(self._grow(sequence, end))

    def write(self, sequence: Sequence, cache: Cache) -> None:
        """Write the tags of the tokens that the sequence computed since the last call to the cache."""
        size, tags = self._block_size, self._tags
        while self._length < sequence.computed:
            index, offset = divmod(self._length, size)
            block = sequence.blocks[index]
            if offset and cache[block] != tags.pop():
                raise MixUp(f"block {block} of sequence {sequence.id} was written by another")
            cache[block] = self._grow(sequence, min(sequence.computed, (index + 1) * size))
            tags.append(self._chain)

    def read(self, sequence: Sequence, cache: Cache) -> None:
        if [cache[block] for block in sequence.blocks[:len(self._tags)]] != self._tags:
            raise MixUp(f"the cache of sequence {sequence.id} holds something else than its tokens")

    def prompt_logprobs(self, sequence: Sequence, end: int) -> list[float]:
        """Return logprobs of the tokens after the next one to write, up to `end` and as far as they are prompt."""
        tokens = sequence.tokens[self._length:min(end + 1, sequence.num_prompt_tokens)]
        chain, values = self._chain, []
        for token in tokens:
            chain = hash((chain, token))
            values.append(as_logprob(chain))
        return values[1:]

    def _grow(self, sequence: Sequence, end: int) -> int:
        for token in sequence.tokens[self._length:end]:
            self._chain = hash((self._chain, token))
        self._length = end
        return self._chain


def vector_of(text: Text, width: int, seed: int) -> list[float]:
    """Return numbers between -1 and 1 that identify tokens and adapter; they are exact in float32."""
    who = pack("<QQ", seed, text.adapter) + array("I", text.tokens).tobytes()
    return [(byte - 128) / 128 for byte in shake_128(who).digest(width)]


def labels_of(text: Text, num_labels: int, seed: int) -> tuple[list[int], list[float]]:
    """Return for each token a label that depends on token and adapter, and a score that depends on its index."""
    labels = [(token + text.adapter + seed) % num_labels for token in text.tokens]
    return labels, [1 - place % 64 / 128 for place in range(len(labels))]
