"""Files that the router reads from a model's folder: the tokenizer, the end tokens and the chat template.

The router never reads weights. Everything else about the model is reported by the shards.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import tokenizers

from router.text.chat_template import ChatTemplate
from router.text.response_parser import Shape
from router.text.tokenizer import Tokenizer

# Names by which templates may use special tokens.
SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def read_tokenizer(folder: Path) -> Tokenizer:
    """Read the tokenizer and the end tokens. Raises ValueError if a file is missing or invalid."""
    path = folder / "tokenizer.json"
    tokenizer = read_vocabulary(path)
    return Tokenizer(tokenizer, read_end_tokens(folder, tokenizer), str(path))


def read_vocabulary(path: Path) -> tokenizers.Tokenizer:
    if not path.is_file():
        raise ValueError(f"there is no {path}: weft needs the file of a fast tokenizer; transformers makes one with "
                         "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)")
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing more specific
        raise ValueError(f"{path} holds no tokenizer that can be read: {error}") from error
    # Some files still have these settings from training: prompts would silently be truncated or padded.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def read_end_tokens(folder: Path, tokenizer: tokenizers.Tokenizer) -> frozenset[int]:
    """Return the end tokens of the first of three files that has any; without any, the model never ends a text."""
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
    """Return the end token whose text is `eos_token`, given as a string or as an object with `content`."""
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
    """Return the template of the first of three files that has one, or None: the model is not made for chats.

    The files are those of current and former versions of transformers. `instead` is a file that replaces all three.
    """
    if instead:
        return template_of(Path(instead), folder)
    source = (read_source(folder / "chat_template.jinja") or named_source(folder / "chat_template.json")
              or named_source(folder / "tokenizer_config.json"))
    return ChatTemplate(source, special_texts(folder), read_shape(folder)) if source else None


def read_shape(folder: Path) -> Shape | None:
    """Return the format of the model's answers (`response_template`), if the folder has one."""
    path = folder / "tokenizer_config.json"
    given = read_object(path).get("response_template")
    if given is not None and not (isinstance(given, dict) and isinstance(given.get("start_anchor"), str)):
        raise ValueError(f"`response_template` in {path} must be an object with a `start_anchor`")
    return given


def template_of(path: Path, folder: Path) -> ChatTemplate:
    """Return the template of --tokenizer-config-path; special tokens that the file lacks come from the folder."""
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
    """Return the only template of a file, or of several the one named `default`; empty if there is none."""
    given = read_object(path).get("chat_template")
    if isinstance(given, list):
        given = next((item.get("template") for item in given
                      if isinstance(item, dict) and item.get("name") == "default"), None)
    if given is not None and not isinstance(given, str):
        raise ValueError(f"`chat_template` in {path} must be a text, or a list of texts with names")
    return given or ""


def special_texts(folder: Path) -> dict[str, str]:
    """Return the texts of the special tokens. Older folders have them in a separate file."""
    return texts_of([read_object(folder / "special_tokens_map.json"), read_object(folder / "tokenizer_config.json")])


def texts_of(files: Iterable[dict[str, Any]]) -> dict[str, str]:
    """Return the texts of the special tokens by name; a later file overrides an earlier one."""
    found = {name: content(file.get(name)) for file in files for name in SPECIAL_TOKENS if file.get(name) is not None}
    return {name: text for name, text in found.items() if isinstance(text, str)}


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; empty if there is no such file."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is no JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold a JSON object")
    return content
