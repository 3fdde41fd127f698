"""Tests of the model files that servers are compared with."""

import json
from pathlib import Path

from tokenizers import Tokenizer

from benchmarks.peers.models import PeerModels, write_full_tokenizer


def test_every_id_has_a_text_and_prompts_have_a_token_for_each_byte(tmp_path: Path) -> None:
    write_full_tokenizer(tmp_path, 400)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == 400
    assert tokenizer.token_to_id("<end>") == 256
    assert tokenizer.decode([258, 399]) == " 258 399"
    assert len(tokenizer.encode("0 time 258 year").ids) == len("0 time 258 year")


def test_models_are_made_once(tmp_path: Path) -> None:
    models = PeerModels(tmp_path, "tiny")
    checkpoint = models.provide_checkpoint()
    written_at = (checkpoint / "model.safetensors").stat().st_mtime_ns
    assert models.provide_checkpoint() == checkpoint
    assert (checkpoint / "model.safetensors").stat().st_mtime_ns == written_at


def test_endless_checkpoint_has_no_end_token(tmp_path: Path) -> None:
    folder = PeerModels(tmp_path, "tiny").provide_endless_checkpoint()
    assert json.loads((folder / "config.json").read_text())["eos_token_id"] is None
    assert not (folder / "generation_config.json").exists()
