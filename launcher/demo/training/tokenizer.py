"""Tokenizer of the demo model: byte-level BPE, trained on the corpus, with a token for each digit of a number."""

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from launcher.demo.training.chat_markup import (
    END_OF_TEXT,
    SPECIAL_TOKENS,
    TURN_END,
    TURN_START,
    VISIBLE_TOKENS,
    TextPiece,
)

VOCABULARY_SIZE = 4096
CONTEXT_LENGTH = 2048
# Rules to parse an answer into a message, in the format of transformers' chat_parsing.
RESPONSE_TEMPLATE = {
    "defaults": {"role": "assistant"},
    "start_anchor": f"{TURN_START}assistant\n",
    "fields": {
        "reasoning_content": {"open": "<think>", "close_pattern": r"</think>\s*"},
        "tool_calls": {"open_pattern": r"\s*<tool_call>", "close": "</tool_call>", "repeats": True, "content": "json",
                       "transform": {"type": "function", "function": "{content}"}},
        "content": {"close_pattern": r"\s*<\|im_end\|>"},
    },
}

EncodedDocument = tuple[list[int], list[bool]]  # ids, and which of them are learnt


def train_tokenizer(texts: Iterable[str], vocabulary_size: int = VOCABULARY_SIZE) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    added_tokens = [*(AddedToken(mark, special=True) for mark in SPECIAL_TOKENS),
                    *(AddedToken(word, special=False) for word in VISIBLE_TOKENS)]
    # Only special tokens get fixed ids, so VISIBLE_TOKENS are trained as special tokens and made visible afterwards.
    trainer = trainers.BpeTrainer(vocab_size=vocabulary_size,
                                  special_tokens=[AddedToken(token.content) for token in added_tokens],
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return make_tokens_visible(tokenizer, VISIBLE_TOKENS)


def make_tokens_visible(tokenizer: Tokenizer, visible_tokens: Iterable[str]) -> Tokenizer:
    tokenizer_json = json.loads(tokenizer.to_str())
    for token in tokenizer_json["added_tokens"]:
        token["special"] = token["content"] not in visible_tokens
    return Tokenizer.from_str(json.dumps(tokenizer_json))


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": TURN_END, "pad_token": END_OF_TEXT,
        "model_max_length": CONTEXT_LENGTH, "clean_up_tokenization_spaces": False,
        "response_template": RESPONSE_TEMPLATE}, indent=2) + "\n")


def encode_document(tokenizer: Tokenizer, pieces: Iterable[TextPiece]) -> EncodedDocument:
    """Encode a document piece by piece. Pieces are separated by special tokens, so the ids equal those of the whole."""
    token_ids: list[int] = []
    loss_mask: list[bool] = []
    for piece in pieces:
        added = tokenizer.encode(piece.text, add_special_tokens=False).ids
        token_ids += added
        loss_mask += [piece.is_learnt] * len(added)
    return token_ids, loss_mask
