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

from launcher.demo.training.corpus.mixture import Shares, base, documents
from launcher.demo.training.learning import learn, mean_loss, optimizers
from launcher.demo.training.markup import END, OVER, pieces
from launcher.demo.training.rows import Rows, pack
from launcher.demo.training.vocabulary import CONTEXT, SIZE, encode, save_tokenizer, train_tokenizer

SEED = 1
TOKENS = 15_000_000
TOKENIZER_DOCUMENTS = 60_000
MEASURED = 20  # batches
UNSEEN = 1_000_000  # seeds from here on are for held-out text only
RATE = 3e-3
ROWS, LENGTH = 16, 512
LONG_EVERY = 12  # one in so many batches has rows as long as the context


def make_model(seed: int) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=SIZE, hidden_size=256, intermediate_size=512, num_hidden_layers=5, num_attention_heads=8,
        num_key_value_heads=4, head_dim=32, max_position_embeddings=CONTEXT, tie_word_embeddings=True,
        rms_norm_eps=1e-5, attention_bias=False, bos_token_id=None, eos_token_id=1, initializer_range=0.02))


def batches(tokenizer: Tokenizer, shares: Shares, seed: int, rows: int, length: int) -> Iterator[Rows]:
    """Yield random batches without end."""
    encoded = (encode(tokenizer, pieces(document)) for document in documents(shares, seed))
    while True:
        yield pack(encoded, rows, length)


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--wordnet", type=Path, default=Path("/usr/share/wordnet"))
    asked.add_argument("--out", type=Path, required=True)
    asked.add_argument("--tokens", type=int, default=TOKENS)
    asked.add_argument("--seed", type=int, default=SEED)
    given = asked.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    shares = base(given.wordnet)
    tokenizer = made_tokenizer(shares, given.seed)
    save_tokenizer(tokenizer, given.out)
    model = make_model(given.seed)
    say(f"{sum(weight.numel() for weight in model.parameters()):,} parameters")
    teach(model, tokenizer, shares, given.seed, given.tokens)
    save_model(model, tokenizer, given.out)
    seen, unseen = (mean_loss(model, islice(batches(tokenizer, shares, seed, ROWS, LENGTH), MEASURED))
                    for seed in (given.seed, UNSEEN))
    say(f"loss on text that was seen {seen:.4f}, on text that was not {unseen:.4f}")


def made_tokenizer(shares: Shares, seed: int, read: int = TOKENIZER_DOCUMENTS) -> Tokenizer:
    return train_tokenizer("".join(piece.text for piece in pieces(document))
                           for document in islice(documents(shares, seed), read))


def teach(model: LlamaForCausalLM, tokenizer: Tokenizer, shares: Shares, seed: int, tokens: int) -> None:
    """Train the model, mostly on short rows, which cost less.

    Long rows are mixed in from the beginning: if they are added late, they disturb what was learnt.
    """
    short = batches(tokenizer, shares, seed, ROWS, LENGTH)
    long = batches(tokenizer, shares, seed + 1, ROWS * LENGTH // CONTEXT, CONTEXT)
    mixed = (next(long if step % LONG_EVERY == 0 else short) for step in count(1))
    learn(model, mixed, tokens // (ROWS * LENGTH), optimizers(model, RATE), say)


def save_model(model: LlamaForCausalLM, tokenizer: Tokenizer, folder: Path) -> None:
    ends = [number for mark in (END, OVER) if (number := tokenizer.token_to_id(mark)) is not None]
    assert model.generation_config is not None
    model.generation_config.eos_token_id = ends
    model.generation_config.pad_token_id = ends[-1]
    model.config.eos_token_id = ends
    nn.Module.to(model, torch.bfloat16)
    disable_progress_bar()  # type: ignore[no-untyped-call]
    model.save_pretrained(folder)
    nn.Module.to(model, torch.float32)


def say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    main()
