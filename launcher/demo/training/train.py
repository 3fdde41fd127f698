"""Train the demo model: `python -P -m launcher.demo.training.train --wordnet FOLDER --out FOLDER`.

First the tokenizer and then the model are trained on the corpus, without a part that is held out. WordNet's files are
those of Debian's package wordnet-base (/usr/share/wordnet).
"""

import argparse
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils.logging import disable_progress_bar

from launcher.demo.training.chat_markup import END_OF_TEXT, TURN_END, split_into_pieces
from launcher.demo.training.corpus.mixture import DocumentShares, generate_documents, make_base_shares
from launcher.demo.training.sequence_packing import PackedRows, pack_rows
from launcher.demo.training.tokenizer import (
    CONTEXT_LENGTH,
    VOCABULARY_SIZE,
    encode_document,
    save_tokenizer,
    train_tokenizer,
)
from launcher.demo.training.training_loop import compute_mean_loss, make_optimizers, train_model

DEFAULT_SEED = 1
NUM_TRAINING_TOKENS = 15_000_000
NUM_TOKENIZER_DOCUMENTS = 60_000
NUM_MEASURED_BATCHES = 20  # batches
HELD_OUT_SEED = 1_000_000  # seeds from here on are for held-out text only
LEARNING_RATE = 3e-3
ROWS_PER_BATCH, ROW_LENGTH = 16, 512
LONG_BATCH_INTERVAL = 12  # one in so many batches has rows as long as the context


def make_model(seed: int) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=VOCABULARY_SIZE, hidden_size=256, intermediate_size=512, num_hidden_layers=5, num_attention_heads=8,
        num_key_value_heads=4, head_dim=32, max_position_embeddings=CONTEXT_LENGTH, tie_word_embeddings=True,
        rms_norm_eps=1e-5, attention_bias=False, bos_token_id=None, eos_token_id=1, initializer_range=0.02))


def generate_batches(tokenizer: Tokenizer, shares: DocumentShares, seed: int, num_rows: int,
                     row_length: int) -> Iterator[PackedRows]:
    """Yield random batches without end."""
    encoded = (encode_document(tokenizer, split_into_pieces(document)) for document in generate_documents(shares, seed))
    while True:
        yield pack_rows(encoded, num_rows, row_length)


def main() -> None:
    argument_parser = argparse.ArgumentParser(description=__doc__)
    argument_parser.add_argument("--wordnet", type=Path, default=Path("/usr/share/wordnet"))
    argument_parser.add_argument("--out", type=Path, required=True)
    argument_parser.add_argument("--tokens", type=int, default=NUM_TRAINING_TOKENS)
    argument_parser.add_argument("--seed", type=int, default=DEFAULT_SEED)
    arguments = argument_parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    shares = make_base_shares(arguments.wordnet)
    tokenizer = train_corpus_tokenizer(shares, arguments.seed)
    save_tokenizer(tokenizer, arguments.out)
    model = make_model(arguments.seed)
    log_line(f"{sum(weight.numel() for weight in model.parameters()):,} parameters")
    train_demo_model(model, tokenizer, shares, arguments.seed, arguments.tokens)
    save_model(model, tokenizer, arguments.out)
    training_loss, held_out_loss = (compute_mean_loss(
        model, islice(generate_batches(tokenizer, shares, seed, ROWS_PER_BATCH, ROW_LENGTH), NUM_MEASURED_BATCHES))
                                    for seed in (arguments.seed, HELD_OUT_SEED))
    log_line(f"loss on text that was seen {training_loss:.4f}, on text that was not {held_out_loss:.4f}")


def train_corpus_tokenizer(shares: DocumentShares, seed: int,
                           num_documents: int = NUM_TOKENIZER_DOCUMENTS) -> Tokenizer:
    return train_tokenizer("".join(piece.text for piece in split_into_pieces(document))
                           for document in islice(generate_documents(shares, seed), num_documents))


def train_demo_model(model: LlamaForCausalLM, tokenizer: Tokenizer, shares: DocumentShares, seed: int,
                     num_tokens: int) -> None:
    """Train the model, mostly on short rows, which cost less.

    Long rows are mixed in from the beginning: if they are added late, they disturb what was learnt.
    """
    short = generate_batches(tokenizer, shares, seed, ROWS_PER_BATCH, ROW_LENGTH)
    long = generate_batches(tokenizer, shares, seed + 1, ROWS_PER_BATCH * ROW_LENGTH // CONTEXT_LENGTH, CONTEXT_LENGTH)
    mixed = (next(long if step % LONG_BATCH_INTERVAL == 0 else short) for step in count(1))
    train_model(model, mixed, num_tokens // (ROWS_PER_BATCH * ROW_LENGTH), make_optimizers(model, LEARNING_RATE),
                log_line)


def save_model(model: LlamaForCausalLM, tokenizer: Tokenizer, folder: Path) -> None:
    eos_token_ids = [number for mark in (TURN_END, END_OF_TEXT) if (number := tokenizer.token_to_id(mark)) is not None]
    assert model.generation_config is not None
    model.generation_config.eos_token_id = eos_token_ids
    model.generation_config.pad_token_id = eos_token_ids[-1]
    model.config.eos_token_id = eos_token_ids
    nn.Module.to(model, torch.bfloat16)
    disable_progress_bar()  # type: ignore[no-untyped-call]
    model.save_pretrained(folder)
    nn.Module.to(model, torch.float32)


def log_line(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    main()
