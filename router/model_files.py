"""What the router reads in a model's folder: how text becomes tokens, which tokens end a text, and how messages become
a prompt.

Knows nothing of weights. Everything else about the model is what the shards say of it.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import tokenizers

from router.chat import ChatTemplate
from router.speech import Shape
from router.tokenizer import Tokenizer

# What templates may call special tokens by.
SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def read_tokenizer(folder: Path) -> Tokenizer:
    """Raises ValueError when a file is missing or makes no sense."""
    path = folder / "tokenizer.json"
    tokenizer = read_vocabulary(path)
    return Tokenizer(tokenizer, read_end_tokens(folder, tokenizer), str(path))


def read_vocabulary(path: Path) -> tokenizers.Tokenizer:
    if not path.is_file():
        raise ValueError(f"there is no {path}: weft needs the file of a fast tokenizer; transformers makes one with "
                         "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)")
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library knows no other kind
        raise ValueError(f"{path} holds no tokenizer that can be read: {error}") from error
    # Left over from training in some files: prompts would be cut or filled up in silence.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def read_end_tokens(folder: Path, tokenizer: tokenizers.Tokenizer) -> frozenset[int]:
    """The first of three files that names any; none is an answer too: the model never ends by itself."""
    return (numbers(folder / "generation_config.json") or numbers(folder / "config.json")
            or named(folder / "tokenizer_config.json", tokenizer))


def numbers(path: Path) -> frozenset[int]:
    given = read_object(path).get("eos_token_id")
    if given is None:
        return frozenset()
    tokens = given if isinstance(given, list) else [given]
    if not all(type(token) is int and token >= 0 for token in tokens):
        raise ValueError(f"`eos_token_id` in {path} must be a token's number or a list of such numbers, "
                         f"got {json.dumps(given)}")
    return frozenset(tokens)


def named(path: Path, tokenizer: tokenizers.Tokenizer) -> frozenset[int]:
    """By its text, which stands there by itself or with what else is to be known of it."""
    given = read_object(path).get("eos_token")
    text = content(given)
    if text is None:
        return frozenset()
    token = tokenizer.token_to_id(text) if isinstance(text, str) else None
    if token is None:
        raise ValueError(f"`eos_token` in {path} must be a token of tokenizer.json, got {json.dumps(given)}")
    return frozenset({token})


def content(given: Any) -> Any:
    return given.get("content") if isinstance(given, dict) else given


def read_chat_template(folder: Path, instead: str = "") -> ChatTemplate | None:
    """The first of three files that has one, as transformers writes it today and as it did before; none is an answer
    too: the model is not made for chats. `instead` names a file that is read instead of all of them."""
    if instead:
        return template_of(Path(instead), folder)
    source = (read_source(folder / "chat_template.jinja") or named_source(folder / "chat_template.json")
              or named_source(folder / "tokenizer_config.json"))
    return ChatTemplate(source, special_texts(folder), read_shape(folder)) if source else None


def read_shape(folder: Path) -> Shape | None:
    """How the model's answers are read back, if its folder says so."""
    path = folder / "tokenizer_config.json"
    given = read_object(path).get("response_template")
    if given is not None and not (isinstance(given, dict) and isinstance(given.get("start_anchor"), str)):
        raise ValueError(f"`response_template` in {path} must be an object with a `start_anchor`")
    return given


def template_of(path: Path, folder: Path) -> ChatTemplate:
    """The special tokens that the file does not name are those of the folder."""
    source = named_source(path)
    if not source:
        raise ValueError(f"{path} (--tokenizer-config-path) has no `chat_template`")
    return ChatTemplate(source, special_texts(folder) | texts_of([read_object(path)]), read_shape(folder))


def read_source(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8") if path.is_file() else ""
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no text: {error}") from error


def named_source(path: Path) -> str:
    """One that stands there by itself, or among several the one that is called default."""
    given = read_object(path).get("chat_template")
    if isinstance(given, list):
        given = next((item.get("template") for item in given
                      if isinstance(item, dict) and item.get("name") == "default"), None)
    if given is not None and not isinstance(given, str):
        raise ValueError(f"`chat_template` in {path} must be a text, or a list of texts with names")
    return given or ""


def special_texts(folder: Path) -> dict[str, str]:
    """In older folders they stand in a file of their own."""
    return texts_of([read_object(folder / "special_tokens_map.json"), read_object(folder / "tokenizer_config.json")])


def texts_of(files: Iterable[dict[str, Any]]) -> dict[str, str]:
    """The later file counts."""
    found = {name: content(file.get(name)) for file in files for name in SPECIAL_TOKENS if file.get(name) is not None}
    return {name: text for name, text in found.items() if isinstance(text, str)}


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty when there is no such file."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is no JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold a JSON object")
    return content
