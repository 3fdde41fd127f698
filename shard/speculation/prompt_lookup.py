"""Prompt lookup: the guess that a sequence goes on as it did after its last three tokens occurred before, in the prompt
or in what was generated. So answers that copy from their prompt, or repeat themselves, are guessed well."""

NUM_MATCHED_TOKENS = 3
TOKEN_BITS = 21  # of a token in a key; no vocabulary has more than two million


class PromptLookup:
    """Index of the last place of each run of three tokens in a sequence. It grows with the sequence."""

    __slots__ = ("_ends", "_num_indexed_tokens")

    def __init__(self) -> None:
        self._ends: dict[int, int] = {}  # index behind each run, by its tokens
        self._num_indexed_tokens = NUM_MATCHED_TOKENS  # runs that end before this index are known

    def propose(self, tokens: list[int], max_tokens: int) -> list[int]:
        """Return what followed the last three tokens where they occurred before; nothing if they did not. `tokens` has
        those of the last call, followed by new ones."""
        if len(tokens) <= NUM_MATCHED_TOKENS:
            return []
        ends = self._ends
        for end in range(self._num_indexed_tokens, len(tokens)):
            ends[make_ngram_key(tokens, end)] = end
        self._num_indexed_tokens = len(tokens)
        start = ends.get(make_ngram_key(tokens, len(tokens)))
        if start is None:
            return []
        proposal = tokens[start:start + max_tokens]
        period = len(tokens) - start
        while len(proposal) < max_tokens:  # the repetition reaches the end, so it may go on
            proposal.append(proposal[len(proposal) - period])
        return proposal


def make_ngram_key(tokens: list[int], end: int) -> int:
    return (tokens[end - 3] << TOKEN_BITS | tokens[end - 2]) << TOKEN_BITS | tokens[end - 1]
