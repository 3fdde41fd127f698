"""Tokenizer of the demo model: byte-level BPE, trained on the corpus, with a token for each digit of a number."""

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from launcher.demo.training.markup import END, MARKS, OVER, START, WORDS, Piece

SIZE = 4096
CONTEXT = 2048
# Rules to parse an answer into a message, in the format of transformers' chat_parsing.
RESPONSE_TEMPLATE = {
    "defaults": {"role": "assistant"},
    "start_anchor": f"{START}assistant\n",
    "fields": {
        "reasoning_content": {"open": "<think>", "close_pattern": r"</think>\s*"},
        "tool_calls": {"open_pattern": r"\s*<tool_call>", "close": "</tool_call>", "repeats": True, "content": "json",
                       "transform": {"type": "function", "function": "{content}"}},
        "content": {"close_pattern": r"\s*<\|im_end\|>"},
    },
}

Encoded = tuple[list[int], list[bool]]  # ids, and which of them are learnt


def train_tokenizer(texts: Iterable[str], size: int = SIZE) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    named = [*(AddedToken(mark, special=True) for mark in MARKS), *(AddedToken(word, special=False) for word in WORDS)]
    # Only special tokens get fixed ids, so WORDS are trained as special tokens and made visible afterwards.
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=[AddedToken(token.content) for token in named],
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return shown(tokenizer, WORDS)


def shown(tokenizer: Tokenizer, words: Iterable[str]) -> Tokenizer:
    described = json.loads(tokenizer.to_str())
    for token in described["added_tokens"]:
        token["special"] = token["content"] not in words
    return Tokenizer.from_str(json.dumps(described))


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "pad_token": OVER,
        "model_max_length": CONTEXT, "clean_up_tokenization_spaces": False,
        "response_template": RESPONSE_TEMPLATE}, indent=2) + "\n")


def encode(tokenizer: Tokenizer, document: Iterable[Piece]) -> Encoded:
    """Encode a document piece by piece. Pieces are separated by special tokens, so the ids equal those of the whole."""
    ids: list[int] = []
    learnt: list[bool] = []
    for piece in document:
        added = tokenizer.encode(piece.text, add_special_tokens=False).ids
        ids += added
        learnt += [piece.learnt] * len(added)
    return ids, learnt
