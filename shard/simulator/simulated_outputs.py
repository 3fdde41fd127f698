"""Output of the simulated model: generated text, cache contents that it checks, embeddings, labels, invalid answers.

`SimulatedTokens` are words of five letters and a blank, one byte a token. Each word is chosen by a hash of the sequence
(seed, key, adapter, grammar, prompt) and of the word's index: the same in any batch, after any loss and on any machine,
and different for different sequences, so that a mix-up shows. Behind tokens that are not its own, which a client may
give, a sequence goes on with another text. Embeddings and labels are made in the same way. A `CacheTags` holds the tags
that a sequence writes to the cache; reading the cache compares the two.
"""

from array import array
from collections.abc import Iterable
from hashlib import blake2b, shake_128
from math import nan
from struct import pack

from shard.pb import shard_pb2 as pb
from shard.state.result_encoding import PromptLogprobs
from shard.state.sequence import PoolingText, Sequence
from shard.state.step import PrefillChunk

WORDS = (b"woven braid loops twill skein heald knots plaid tweed linen satin denim gauze serge voile tulle "
         b"crepe chino drill baize cloth cords weave fiber kapok nylon rayon terry tapes picks reeds warps "
         b"wefts yarns tufts spool frame looms pedal lease strip plain cable hanks batik quilt seams pleat "
         b"folds hooks combs cards spins khaki lisle pique moire felts shawl scarf sheen loden toile wools").split()
WORD_LENGTH = 6  # five letters, and then a blank or the end
BLANK_TOKEN, END_TOKEN = 32, 256
NUM_USED_TOKENS = 257  # the bytes and the end
UNKNOWN_SEQUENCE_ID = 2**63 + 1  # a sequence id that no router uses
UNKNOWN_LABEL = 2**32 - 1  # a label that no model has

BlockTags = list[int | None]  # per block the tag of its last writer


class KVCacheMismatch(Exception):
    """Sequence with a cache block that holds something else than it needs."""


class SimulatedTokens:
    """The tokens that a simulated sequence generates, computed from its prompt and key."""

    def __init__(self, sequence: Sequence, seed: int, mean_length: float) -> None:
        identity = pack("<QQQQ", seed, sequence.sampling_key, sequence.adapter_id, sequence.grammar_id)
        prompt = array("I", sequence.tokens[:sequence.num_prompt_tokens])
        self._sequence_hash = blake2b(identity + prompt.tobytes(), digest_size=16).digest()
        self._end_threshold = int(min(WORD_LENGTH / mean_length, 1.0) * 2**24) if mean_length else 0
        self._word_index = -1
        self._word_tokens: list[int] = []
        self._word_logprobs: list[float] = []
        self._extra_token_counts = b""

    def continue_from_tokens(self, tokens: Iterable[int]) -> None:
        """Make this the text behind these generated tokens. Each that it does not have itself changes what follows."""
        for index, token in enumerate(tokens):
            if token != self.get_token(index):
                self._sequence_hash = blake2b(self._sequence_hash + pack("<QI", index, token), digest_size=16).digest()
                self._word_index = -1

    def get_token(self, index: int) -> int:
        """Return the generated token at this index."""
        return self.generate_tokens(index, 1)[0][0]

    def generate_tokens(self, index: int, max_tokens: int) -> tuple[list[int], list[float]]:
        """Return one to `max_tokens` tokens that a decode yields from this index on, up to an end, with logprobs."""
        word_index, letter = divmod(index, WORD_LENGTH)
        if word_index != self._word_index:
            numbers = blake2b(self._sequence_hash + pack("<Q", word_index), digest_size=4 + 2 * WORD_LENGTH).digest()
            ends = int.from_bytes(numbers[1:4], "little") < self._end_threshold
            self._word_index = word_index
            self._word_tokens = [*WORDS[numbers[0] % len(WORDS)], END_TOKEN if ends else BLANK_TOKEN]
            self._word_logprobs = [make_logprob(number) for number in numbers[4:4 + WORD_LENGTH]]
            self._extra_token_counts = numbers[4 + WORD_LENGTH:]
        tokens, logprobs = [self._word_tokens[letter]], [self._word_logprobs[letter]]
        for next_index in range(index + 1, index + 1 + self._extra_token_counts[letter] % max_tokens):
            if tokens[-1] != END_TOKEN:
                next_token = self.generate_tokens(next_index, 1)
                tokens += next_token[0]
                logprobs += next_token[1]
        return tokens, logprobs


def make_logprob(number: int) -> float:
    """Return a logprob between -2 and 0 that is exact in float32."""
    return -(1 + number % 255) / 128


class CacheTags:
    """Tags of the blocks that a sequence filled or began: hashes of all its tokens so far, and of its adapter."""

    def __init__(self, sequence: Sequence, block_size: int) -> None:
        self._block_size = block_size
        self._num_hashed_tokens = 0
        self._token_hash = hash((sequence.adapter_id, block_size))
        self._expected_tags = [self._hash_tokens(sequence, end)
                               for end in range(block_size, sequence.num_cached_tokens + 1, block_size)]

    def write_tags(self, sequence: Sequence, block_tags: BlockTags) -> None:
        """Write the tags of the tokens that the sequence computed since the last call to the cache."""
        size, tags = self._block_size, self._expected_tags
        while self._num_hashed_tokens < sequence.num_computed_tokens:
            index, offset = divmod(self._num_hashed_tokens, size)
            block = sequence.blocks[index]
            if offset and block_tags[block] != tags.pop():
                raise KVCacheMismatch(f"block {block} of sequence {sequence.id} was written by another")
            block_tags[block] = self._hash_tokens(sequence, min(sequence.num_computed_tokens, (index + 1) * size))
            tags.append(self._token_hash)

    def check_tags(self, sequence: Sequence, block_tags: BlockTags) -> None:
        if [block_tags[block] for block in sequence.blocks[:len(self._expected_tags)]] != self._expected_tags:
            raise KVCacheMismatch(f"the cache of sequence {sequence.id} holds something else than its tokens")

    def make_prompt_logprobs(self, chunk: PrefillChunk) -> PromptLogprobs:
        """Return logprobs of the prompt's tokens after the next one to write, up to the one after the chunk. The best
        candidate for each is that token, its neighbours follow, each less likely."""
        sequence = chunk.sequence
        tokens = sequence.tokens[self._num_hashed_tokens:min(chunk.end + 1, sequence.num_prompt_tokens)]
        token_hash, logprobs = self._token_hash, []
        for token in tokens:
            token_hash = hash((token_hash, token))
            logprobs.append(make_logprob(token_hash))
        del tokens[0], logprobs[0]
        if not (num_top_tokens := min(sequence.num_prompt_top_tokens, NUM_USED_TOKENS)):
            return PromptLogprobs(chunk.start + 1, logprobs)
        return PromptLogprobs(chunk.start + 1, logprobs,
                              [[(token + i) % NUM_USED_TOKENS for i in range(num_top_tokens)] for token in tokens],
                              [[logprob - i / 4 for i in range(num_top_tokens)] for logprob in logprobs])

    def _hash_tokens(self, sequence: Sequence, end_index: int) -> int:
        for token in sequence.tokens[self._num_hashed_tokens:end_index]:
            self._token_hash = hash((self._token_hash, token))
        self._num_hashed_tokens = end_index
        return self._token_hash


def make_embedding(text: PoolingText, width: int, seed: int) -> list[float]:
    """Return numbers between -1 and 1 that identify tokens and adapter; they are exact in float32."""
    identity = pack("<QQ", seed, text.adapter_id) + array("I", text.tokens).tobytes()
    return [(byte - 128) / 128 for byte in shake_128(identity).digest(width)]


def make_labels(text: PoolingText, num_labels: int, seed: int) -> tuple[list[int], list[float]]:
    """Return for each token a label that depends on token and adapter, and a score that depends on its index."""
    labels = [(token + text.adapter_id + seed) % num_labels for token in text.tokens]
    return labels, [1 - index % 64 / 128 for index in range(len(labels))]


def corrupt_step_answer(answer: pb.StepAnswer, defect: str, vocabulary_size: int) -> None:
    """Make a valid answer one that every router must reject, in one of the ways in `fault_script.ANSWER_DEFECTS`."""
    if defect == "unknown":
        answer.sequences.append(UNKNOWN_SEQUENCE_ID)
        if answer.num_tokens:
            answer.num_tokens.append(1)
        answer.tokens.append(BLANK_TOKEN)
        answer.logprobs.append(-1.0)
    elif defect == "missing" and answer.sequences:
        count = answer.num_tokens.pop() if answer.num_tokens else 1
        del answer.sequences[-1], answer.tokens[-count:], answer.logprobs[-count:]
    elif defect == "token" and answer.tokens:
        answer.tokens[0] = vocabulary_size
    elif defect == "count":
        answer.tokens.append(BLANK_TOKEN)


def corrupt_embed_answer(answer: pb.EmbedAnswer, defect: str, num_texts: int) -> None:
    """Make an answer for `num_texts` texts invalid in one of the ways in `fault_script.ANSWER_DEFECTS`."""
    if defect == "unknown":
        answer.failed.append(num_texts)
        answer.failures.append(pb.NON_FINITE)
    elif defect == "missing":
        count = answer.num_labels.pop() if answer.num_labels else 0
        for column, size in ((answer.values, answer.width), (answer.labels, count), (answer.scores, count)):
            del column[len(column) - size:]
    elif defect == "token":
        answer.values[:1] = [nan] * len(answer.values[:1])
        answer.labels[:1] = [UNKNOWN_LABEL] * len(answer.labels[:1])
    elif defect == "count":
        answer.values.append(0.0)
        answer.scores.append(0.0)
