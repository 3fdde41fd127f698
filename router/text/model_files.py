"""Files that the router reads from a model's folder: the tokenizer, the end tokens and the chat template. The router
never reads weights. Everything else about the model is reported by the shards."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import tokenizers

from router.text.chat_template import ChatTemplate
from router.text.output_formats import OutputFormat
from router.text.tokenizer import Tokenizer

TEMPLATE_SUFFIX = ".jinja"  # of a file that is a chat template

# Names by which templates may use special tokens.
SPECIAL_TOKEN_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def load_tokenizer(folder: Path) -> Tokenizer:
    """Load the tokenizer and the end tokens. Raises ValueError if a file is missing or invalid."""
    path = folder / "tokenizer.json"
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
    # The first of three files that has any; without any, the model never ends a text.
    end_tokens = (load_eos_token_ids(folder / "generation_config.json") or load_eos_token_ids(folder / "config.json")
                  or load_named_eos_token(folder / "tokenizer_config.json", tokenizer))
    config_files = [folder / "special_tokens_map.json", folder / "tokenizer_config.json"]
    config = load_json_object(config_files[-1]) | load_special_tokens(config_files)
    return Tokenizer(tokenizer, end_tokens, str(path), config)


def load_eos_token_ids(path: Path) -> frozenset[int]:
    value = load_json_object(path).get("eos_token_id")
    if value is None:
        return frozenset()
    tokens = value if isinstance(value, list) else [value]
    if not all(type(token) is int and token >= 0 for token in tokens):
        raise ValueError(f"`eos_token_id` in {path} must be a token's number or a list of such numbers, "
                         f"got {json.dumps(value)}")
    return frozenset(tokens)


def load_named_eos_token(path: Path, tokenizer: tokenizers.Tokenizer) -> frozenset[int]:
    """Return the end token whose text is `eos_token`, given as a string or as an object with `content`."""
    value = load_json_object(path).get("eos_token")
    text = token_text_from_json(value)
    if text is None:
        return frozenset()
    token = tokenizer.token_to_id(text) if isinstance(text, str) else None
    if token is None:
        raise ValueError(f"`eos_token` in {path} must be a token of tokenizer.json, got {json.dumps(value)}")
    return frozenset({token})


def token_text_from_json(value: Any) -> Any:
    return value.get("content") if isinstance(value, dict) else value


def load_chat_template(folder: Path, override_file: str = "") -> ChatTemplate | None:
    """Return the template of the first of three files that has one, or None: the model is not made for chats. The files
    are those of current and former versions of transformers. `override_file` (--tokenizer-config-path) replaces all
    three: JSON, or the template itself if its name ends with .jinja; special tokens that it lacks come from the
    folder."""
    # Older folders have the special tokens in a separate file. A later file overrides an earlier one.
    token_files = [folder / "special_tokens_map.json", folder / "tokenizer_config.json"]
    if override_file.endswith(TEMPLATE_SUFFIX):
        source = load_template_file(Path(override_file))
    elif override_file:
        token_files.append(path := Path(override_file))
        source = load_template_from_json(path)
    else:
        source = (load_template_file(folder / "chat_template.jinja")
                  or load_template_from_json(folder / "chat_template.json")
                  or load_template_from_json(folder / "tokenizer_config.json"))
    if override_file and not source:
        raise ValueError(f"{override_file} (--tokenizer-config-path) has no `chat_template`")
    return ChatTemplate(source, load_special_tokens(token_files), load_response_template(folder)) if source else None


def load_response_template(folder: Path) -> OutputFormat | None:
    """Return the format of the model's answers (`response_template`), if the folder has one."""
    path = folder / "tokenizer_config.json"
    output_format = load_json_object(path).get("response_template")
    if output_format is not None and not (isinstance(output_format, dict)
                                          and isinstance(output_format.get("start_anchor"), str)):
        raise ValueError(f"`response_template` in {path} must be an object with a `start_anchor`")
    return output_format


def load_template_file(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8") if path.is_file() else ""
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no text: {error}") from error


def load_template_from_json(path: Path) -> str:
    """Return the only template of a file, or of several the one named `default`; empty if there is none."""
    template = load_json_object(path).get("chat_template")
    if isinstance(template, list):
        template = next((item.get("template") for item in template
                         if isinstance(item, dict) and item.get("name") == "default"), None)
    if template is not None and not isinstance(template, str):
        raise ValueError(f"`chat_template` in {path} must be a text, or a list of texts with names")
    return template or ""


def load_special_tokens(files: Iterable[Path]) -> dict[str, str]:
    return {name: text for file in map(load_json_object, files) for name in SPECIAL_TOKEN_NAMES
            if isinstance(text := token_text_from_json(file.get(name)), str)}


def load_json_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; empty if there is no such file."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} must hold a JSON object")
    return value
