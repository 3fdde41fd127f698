"""Model files for the comparison of servers: one random checkpoint, and what each peer reads instead.

Every id has a text, which no tokenizer of real use lacks, so that every generated token is an event at the client.
"""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from benchmarks.harness.random_checkpoints import MODEL_CONFIGS, make_byte_tokenizer, make_random_checkpoint
from benchmarks.peers.environments import LLAMA_CPP, OPENVINO, install_environment, run_step
from benchmarks.peers.gguf_writer import write_gguf

MERGED_LETTERS = "Ċ"  # two newlines are one token: a GGUF file needs a merge, and our prompts have no newlines
# Messages one after the other, since the prompts are counted without a template.
CHAT_TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"
TOKENIZER_CONFIG = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<end>", "pad_token": "<end>",
                    "chat_template": CHAT_TEMPLATE, "clean_up_tokenization_spaces": False}


class PeerModels:
    """Files of a random model in a published shape, below a folder. Each is made when it is first asked for."""

    def __init__(self, root: Path, shape: str) -> None:
        self._root, self._shape = root, shape
        self._folder = root / "peers" / shape

    def provide_checkpoint(self) -> Path:
        return self._provide("checkpoint", self._write_checkpoint)

    def provide_endless_checkpoint(self) -> Path:
        """Return the checkpoint without an end token, for a server that cannot ignore it."""
        return self._provide("endless", self._write_endless_checkpoint)

    def provide_gguf(self, file_type: str) -> Path:
        """Return the model as a GGUF file, in bf16 or as llama.cpp quantizes it."""
        if file_type == "bf16":
            return self._provide("bf16.gguf", lambda path: write_gguf(self.provide_checkpoint(), path))
        return self._provide(f"{file_type}.gguf", lambda path: self._quantize_gguf(file_type, path))

    def provide_openvino(self, weight_format: str) -> Path:
        """Return the model's folder for OpenVINO, in fp16, int8 or int4."""
        return self._provide(f"openvino-{weight_format}", lambda path: self._export_openvino(weight_format, path))

    def _provide(self, name: str, write: Callable[[Path], None]) -> Path:
        path = self._folder / name
        if not path.exists():
            print(f"making {name} of {self._shape}", flush=True)
            unfinished_path = self._folder / f"unfinished-{name}"
            self._folder.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(unfinished_path, ignore_errors=True)
            write(unfinished_path)
            unfinished_path.rename(path)
        return path

    def _write_checkpoint(self, folder: Path) -> None:
        make_random_checkpoint(self._shape, folder)
        config = MODEL_CONFIGS[self._shape]
        write_full_tokenizer(folder, config["vocab_size"])
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": config["eos_token_id"]}))

    def _write_endless_checkpoint(self, folder: Path) -> None:
        folder.mkdir()
        checkpoint = self.provide_checkpoint()
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(checkpoint / name, folder)
        os.link(checkpoint / "model.safetensors", folder / "model.safetensors")
        config = json.loads((checkpoint / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"eos_token_id": None}))

    def _quantize_gguf(self, file_type: str, path: Path) -> None:
        program = install_environment(LLAMA_CPP, self._root) / "build" / "bin" / "llama-quantize"
        run_step([program, self.provide_gguf("bf16"), path, file_type.upper()])

    def _export_openvino(self, weight_format: str, folder: Path) -> None:
        program = install_environment(OPENVINO, self._root) / "bin" / "optimum-cli"
        run_step([program, "export", "openvino", "--model", self.provide_checkpoint(), "--task",
                  "text-generation-with-past", "--weight-format", weight_format, folder])
        shutil.copy(self.provide_checkpoint() / "tokenizer.json", folder)


def write_full_tokenizer(folder: Path, vocab_size: int) -> None:
    """Write a byte-level tokenizer in which every id of the model has a text; prompts get a token for each byte."""
    tokenizer = json.loads(make_byte_tokenizer().to_str())
    vocab = tokenizer["model"]["vocab"]
    # Special tokens are in the vocabulary, too: the library gives others an id behind all of it.
    vocab |= {item["content"]: item["id"] for item in tokenizer["added_tokens"]}
    [merged_id, *other_ids] = range(len(vocab), vocab_size)
    vocab |= {MERGED_LETTERS * 2: merged_id} | {f"Ġ{number}": number for number in other_ids}
    tokenizer["model"]["merges"] = [[MERGED_LETTERS, MERGED_LETTERS]]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps(TOKENIZER_CONFIG))
