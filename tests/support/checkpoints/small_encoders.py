"""Small encoder checkpoints with a WordPiece tokenizer like that of BERT, trained on a few lines."""

from collections.abc import Sequence
from pathlib import Path

from support.checkpoints.small_checkpoints import make_tiny_encoder
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

TRAINING_LINES = ("Ada lives in London.", "weft")
SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def make_bert_encoder(folder: Path, *, labels: bool, seed: int = 0) -> Path:
    """Write an encoder below `folder` and return its path; with `labels` a token classifier, else for embeddings."""
    checkpoint = make_tiny_encoder(folder, "bert", labels=labels, seed=seed)
    write_wordpiece_tokenizer(checkpoint, TRAINING_LINES)
    return checkpoint


def write_wordpiece_tokenizer(folder: Path, lines: Sequence[str]) -> None:
    """Write a tokenizer like that of BERT: WordPiece, special tokens at both ends, and no end token."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.train_from_iterator(lines, trainers.WordPieceTrainer(
        vocab_size=60, special_tokens=SPECIAL_TOKENS, show_progress=False))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIAL_TOKENS, strict=True))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)
